"""Certificate of a compression plan: errors of its layers, measured row by row in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lucidae.certificates.claims import (
    Certificate,
    Claim,
    at_most,
    does_not_apply,
    reported,
    undecided,
)
from lucidae.dropout.theory import strength_of
from lucidae.nn.calibration import CalibrationSource, meet, observed, observer, samples_of, summed
from lucidae.nn.layers import Tensor, device_of
from lucidae.nn.low_rank import CONVOLUTIONS, replacement, rows_of

if TYPE_CHECKING:
    from lucidae.nn.compress import CompressionPlan

__all__ = ["certify_plan"]


def certify_plan(plan: CompressionPlan) -> Certificate:
    """Return the certificate of a plan, from rows that are measured one by one in float64."""
    settings, strength = plan._settings, strength_of(plan._settings["dropout"])
    measured, errors_claim = _error_claim(plan, strength)
    planned = sum(
        float(spectrum.importance @ spectrum.errors(strength)[:, plan.ranks[name] - 1])
        for spectrum in plan._spectra
        if (name := spectrum.names[0]) in plan.factors
    )
    variance = float(sum(s.importance @ s.totals for s in plan._spectra))
    claims = (
        errors_claim,
        at_most(
            "allocation",
            "no ranks within the budget have a smaller total error, relative to the variance",
            "multiple-choice knapsack problem, Sinha & Zoltners 1979",
            (planned - plan.lower_bound) / (variance or 1.0),
            1e-6,
            "Branch and bound was stopped by its limit of time.",
        ),
        at_most(
            "budget",
            f"the plan keeps to its budget of the {settings['budget_of']}",
            "by counting",
            plan.share,
            settings["budget"] * (1 + 1e-9),
        ),
        _loss_claim(plan),
    )
    evidence = {
        "layers": list(plan.ranks),
        "ranks": list(plan.ranks.values()),
        "errors": list(plan.errors.values()),
        "measured_errors": [measured.get(name) for name in plan.ranks],
        "total": plan.total,
        "lower_bound": plan.lower_bound,
    }
    return Certificate("compression plan", claims, evidence)


def _error_claim(plan: CompressionPlan, strength: float) -> tuple[dict[str, float], Claim]:
    """Return the measured errors by layer, and the claim that they are those of the plan."""
    source, sequential = plan._source, plan._settings["sequential"]
    name, statement = "errors", "the error of each layer, measured on its rows, is the smallest one"
    reference = "Izenman 1975" if sequential else "Eckart & Young 1936"
    reference += "; Mianjy et al. 2018, Theorem 3.6" if strength else ""
    if not plan.factors:
        return {}, does_not_apply(name, statement, reference, "All layers stay dense.")
    if source is None or source.read_once:
        why = (
            "The rows cannot be measured: the loader was an iterator, or the plan was stored. Make "
            "the plan with a list of batches or a DataLoader."
        )
        return {}, undecided(name, statement, reference, why)
    found = _measured(plan, source, strength)
    threshold, deviations, others = 0.0, {}, []
    for spectrum in plan._spectra:
        for at, layer in enumerate(spectrum.names):
            if layer not in found:
                continue
            error, variance, rounding = found[layer]
            # The rounding of half precision changes an error in proportion to its square root.
            threshold = max(threshold, min(math.sqrt(rounding), max(100 * rounding, 1e-9)))
            total = float(spectrum.totals[at])
            scale = total + rounding * float(spectrum.means[at].double().square().sum())
            deviations[layer] = abs(error - plan.errors[layer]) / scale
            if not abs(variance - total) <= threshold * scale:
                others.append(layer)
    measured = {layer: error for layer, (error, _, _) in found.items()}
    worst = max(deviations, key=lambda layer: np.nan_to_num(deviations[layer], nan=np.inf))
    if others:
        why = (
            f"The outputs of layer {others[0]!r} have another variance than when the plan was "
            "made: the loader gives other rows (augmentation), or the model was changed since."
        )
        return measured, undecided(name, statement, reference, why, deviations[worst], threshold)
    return measured, at_most(
        name,
        f"{statement} (largest deviation, relative to the variance: layer {worst!r})",
        reference,
        deviations[worst],
        threshold,
        f"The factors of layer {worst!r} have the error {measured[worst]:.4g} instead of "
        f"{plan.errors[worst]:.4g}: they were changed.",
    )


def _measured(
    plan: CompressionPlan, source: CalibrationSource, strength: float
) -> dict[str, tuple[float, float, float]]:
    """Return error and variance of each factorised layer, and the rounding unit of its outputs."""
    model, dropout = source.model, plan._settings["dropout"]
    layers = {name: model.get_submodule(name) for name in plan.factors}
    means: dict[str, Tensor] = {}
    for spectrum in plan._spectra:
        means |= dict(zip(spectrum.names, spectrum.means, strict=True))
    pairs, sums = {}, {}
    units = dict.fromkeys(layers, 0.0)
    for name, layer in layers.items():
        pairs[name] = replacement(layer, plan.factors[name], dropout).double().eval()
        sums[name] = torch.zeros(3, dtype=torch.float64, device=layer.weight.device)

    def add(name: str, x: Tensor, y: Tensor) -> None:
        layer, (first, *_, last) = layers[name], pairs[name]
        units[name] = max(units[name], _rounding(layer, y))
        hidden = first(x.double())
        y, fitted = rows_of(layer, y).double(), rows_of(layer, last(hidden))
        error = (y - fitted).square().sum()
        if strength:  # the expectation over masks
            outgoing = last.weight.flatten(1).square().sum(0)
            error = error + strength * (rows_of(layer, hidden).square() @ outgoing).sum()
        spread = (y - means[name].to(y)).square().sum()
        sums[name] += torch.stack([error.new_tensor(float(len(y))), error, spread])

    if plan._settings["sequential"]:
        meet(source, plan.apply(model), layers, add)
    else:
        hooks = {layer: observer(add, name) for name, layer in layers.items()}
        with observed(model, hooks):
            for _ in source.outputs(model):
                pass
    found = {}
    for name, part in sums.items():
        rows, error, variance = summed(part).tolist()
        found[name] = error / max(rows, 1.0), variance / max(rows, 1.0), units[name]
    return found


def _rounding(layer: Any, y: Tensor) -> float:
    """Return the rounding unit of the weight and of the outputs y of a layer."""
    unit = max(float(torch.finfo(part.dtype).eps) for part in (layer.weight, y))
    if isinstance(layer, CONVOLUTIONS):
        short = y.is_cuda and torch.backends.cudnn.allow_tf32
    else:
        short = torch.get_float32_matmul_precision() != "highest"
    return max(unit, 2.0**-10) if short and y.dtype == torch.float32 else unit


def _loss_claim(plan: CompressionPlan) -> Claim:
    """Return the loss of both networks, which is not judged."""
    name, source = "loss", plan._source
    statement = "the loss of the network is not certified, only the errors of its layers"
    loader = None if source is None else source.held_out
    if source is not None and loader is None:
        loader = None if source.read_once else source.loader
    if source is None or source.loss is None or loader is None:
        why = "Give loss and a loader that can be read again, and it is measured."
        return does_not_apply(name, statement, "measured", why)
    models = [source.model, plan.apply(source.model)]
    sums = np.zeros(3)
    with observed(models[0], {}), observed(models[1], {}):
        for batch, outputs in source.outputs(*models, loader=loader):
            count = samples_of(batch)
            losses = [count * float(source.loss(output, batch)) for output in outputs]
            sums += [count, *losses]
    rows, before, after = summed(torch.tensor(sums, device=device_of(source.model))).tolist()
    words = f"{statement}: {before / rows:.4g} before, {after / rows:.4g} after"
    where = "held-out batches" if source.held_out is not None else "the calibration batches"
    return reported(name, words, f"measured on {where}", after / rows)
