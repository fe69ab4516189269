"""Smaller networks by low-rank layers: the best ranks and factors within a budget, certified.

`lucidae.nn.low_rank` derives the best factors of a layer and chooses the ranks of all layers. The
error of a layer is the mean of ‖y − ŷ‖² over the calibration rows, for its outputs y and those ŷ of
the factorised layer; h is the importance of this error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lucidae.cards import card, plain_table, shown, table
from lucidae.certificates.claims import (
    Certificate,
    Claim,
    at_most,
    does_not_apply,
    reported,
    undecided,
)
from lucidae.dropout.theory import strength_of
from lucidae.nn.adapters import adapter, certify_adapter
from lucidae.nn.attention import LowRankAttention, heads
from lucidae.nn.layers import Tensor, device_of, summed
from lucidae.nn.low_rank import (
    CONVOLUTIONS,
    CalibrationSource,
    LowRankFactors,
    OutputSpectrum,
    RowMoment,
    allocate,
    input_rows,
    matrix_of,
    meet,
    observed,
    observer,
    reduced_rank_regression,
    replacement,
    row_side,
    rows_of,
    samples_of,
    spectrum_of,
    unwrapped,
    with_factors,
)
from lucidae.validation import check_choice, check_flag, check_number

__all__ = ["CompressionPlan", "LowRankAttention", "adapter", "certify_adapter", "heads", "plan"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one pass over the calibration batches has found, for plans of all budgets."""

    source: CalibrationSource | None  # None in a stored plan
    shapes: dict[str, tuple[int, int]]  # (n, m) of each layer, in the order of the model
    notes: dict[str, str]  # why a layer stays dense, or what to know about its calibration
    spectra: list[OutputSpectrum]  # of the layers that may be factorised


@dataclass(eq=False, repr=False)
class CompressionPlan:
    """Ranks and factors of the layers of a network within a budget; the result of `plan`.

    Attributes
    ----------
    ranks : dict of str to int
        Rank of each layer by module name, in the order of the model. A layer that stays dense has
        the rank min(m, n).
    errors : dict of str to float
        Error E‖y − ŷ‖² of each layer over the calibration rows (and over masks, with dropout).
    total : float
        Sum of the errors, each times the importance of its layer.
    lower_bound : float
        No ranks within the budget have a smaller total.
    factors : dict of str to tuple
        Factors of each layer that is factorised: B (n × r), A (r × m), the bias, and the bias of
        the hidden units (None without dropout).
    notes : dict of str to str
        Why a layer cannot be factorised, or what to know about its calibration.
    size, dense_size : int
        Parameters of the layers that may be factorised, after and before.
    share : float
        Size, operations or error of the plan, whichever the budget limits, as a share.
    importance : dict of str to float
        Importance h of each layer.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import compress
    >>> _ = torch.manual_seed(0)
    >>> first, last = torch.nn.Linear(32, 64), torch.nn.Linear(64, 9)
    >>> model = torch.nn.Sequential(first, torch.nn.ReLU(), last)
    >>> plan = compress.plan(model, torch.randn(500, 32), budget=0.6)
    >>> isinstance(plan, compress.CompressionPlan), plan.share <= 0.6
    (True, True)
    >>> plan.at(budget=0.4).total > plan.total
    True
    """

    ranks: dict[str, int]
    errors: dict[str, float]
    total: float
    lower_bound: float
    factors: dict[str, LowRankFactors]
    notes: dict[str, str]
    size: int
    dense_size: int
    share: float
    importance: dict[str, float]
    _calibration: Calibration
    _settings: dict[str, Any]  # budget, budget_of, sequential, dropout

    def at(self, budget: float, budget_of: str | None = None) -> CompressionPlan:
        """Return the plan for another budget, without another pass over the calibration data.

        Parameters
        ----------
        budget : float
            The budget, as in `plan`.
        budget_of : {"parameters", "flops", "error"}, optional
            What the budget limits; by default the same as before.

        Returns
        -------
        CompressionPlan
            The new plan. If this one is sequential, the factors need the passes again.

        Examples
        --------
        >>> import torch
        >>> from lucidae.nn import compress
        >>> _ = torch.manual_seed(0)
        >>> layer = torch.nn.Linear(20, 20)
        >>> plan = compress.plan(layer, torch.randn(100, 20), budget=0.5)
        >>> plan.at(budget=0.5, budget_of="error").ranks[""] < 20
        True
        """
        settings = self._settings | {"budget": budget}
        if budget_of is not None:
            settings["budget_of"] = budget_of
        return _allocated(self._calibration, settings)

    def apply(self, model: Any) -> Any:
        """Return a copy of a model in which the layers of the plan are factorised.

        Parameters
        ----------
        model : nn.Module
            The model of the plan, or one with layers of the same names and shapes. It is not
            changed.

        Returns
        -------
        nn.Module
            A deep copy in which each factorised layer is an ``nn.Sequential`` of two layers (with
            `nn.Dropout` between them if the plan has dropout), with dtype, device, mode and
            ``requires_grad`` of the original.

        Examples
        --------
        >>> import torch
        >>> from lucidae.nn import compress
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh())
        >>> compress.plan(model, torch.randn(200, 32), budget=0.5).apply(model)
        Sequential(
          (0): LowRankLayer(
            (0): Linear(in_features=32, out_features=7, bias=False)
            (1): Linear(in_features=7, out_features=32, bias=True)
          )
          (1): Tanh()
        )
        """
        return with_factors(unwrapped(model), self.factors, self._settings["dropout"])

    def rank_pattern(self) -> dict[str, int]:
        """Return the ranks of the factorised layers, for ``peft.LoraConfig(rank_pattern=…)``.

        Returns
        -------
        dict of str to int
            Rank by module name.

        Examples
        --------
        >>> import torch
        >>> from lucidae.nn import compress
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh())
        >>> compress.plan(model, torch.randn(200, 32), budget=0.5).rank_pattern()
        {'0': 7}
        """
        return {name: self.ranks[name] for name in self.factors}

    @cached_property
    def certificate(self) -> Certificate:
        """The claims about this plan, measured by another pass over the calibration data."""
        return _certified(self)

    def __getstate__(self) -> dict[str, Any]:
        # A stored plan can be applied, but refers neither to the model nor to the loader.
        return self.__dict__ | {"_calibration": replace(self._calibration, source=None)}

    def _headline(self) -> str:
        words = {
            "parameters": f"{self.size:,} of {self.dense_size:,} parameters",
            "flops": f"{self.share:.1%} of the operations",
            "error": f"{self.size:,} of {self.dense_size:,} parameters, {self.share:.3g} of the "
            "variance lost",
        }[self._settings["budget_of"]]
        return f"Plan: {len(self.factors)} of {len(self.ranks)} layers factorised, {words}"

    def _columns(self) -> dict[str, list[Any]]:
        found = self._calibration
        totals = {n: t for s in found.spectra for n, t in zip(s.names, s.totals, strict=True)}
        return {
            "layer": [name or "(the model)" for name in self.ranks],
            "shape": [f"{n} × {m}" for n, m in found.shapes.values()],
            "rank": [r if name in self.factors else "dense" for name, r in self.ranks.items()],
            "error": list(self.errors.values()),
            "relative error": [e / totals.get(name, 1.0) for name, e in self.errors.items()],
            "note": [self.notes.get(name, "") for name in self.ranks],
        }

    def _last_line(self) -> str:
        return f"total error {self.total:.4g}, lower bound {self.lower_bound:.4g}"

    def __repr__(self) -> str:
        columns = {name: map(shown, cells) for name, cells in self._columns().items()}
        return "\n".join([self._headline(), *plain_table(columns), self._last_line()])

    def _repr_html_(self) -> str:
        return card(self._headline(), table(self._columns(), most=None), self._last_line())


def plan(
    model: Any,
    loader: Any,
    *,
    budget: float = 0.5,
    budget_of: str = "parameters",
    include: str | Iterable[str] | None = None,
    sequential: bool = False,
    dropout: float = 0.0,
    importance: Mapping[str, float] | str | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    held_out: Any = None,
) -> CompressionPlan:
    """Plan low-rank layers of a trained network: the best ranks and factors within a budget.

    Each `nn.Linear`, `nn.Conv1d`, `nn.Conv2d`, `nn.Conv3d` (without groups) and ``Conv1D`` of
    transformers may be replaced by two layers with r hidden units. For every rank their factors
    and bias have the smallest possible error on the calibration rows, and the ranks of all layers
    have the smallest possible sum of errors within the budget. No covariance is inverted, so that
    dependent activations do no harm.

    Parameters
    ----------
    model : nn.Module
        The network; it is run in evaluation mode and not changed. Half precision is allowed.
    loader : iterable of batches, or tensor
        Calibration data. A batch is a tensor, a tuple whose first entry is the input, or a dict of
        arguments of the model. Batches are moved to the device of the model. In several processes
        of `torch.distributed`, each reads a part of the data.
    budget : float, default=0.5
        The share, from 0 to 1, that is kept: of the parameters (weights and biases) of the layers
        that may be factorised, of their multiplications, or of their variance.
    budget_of : {"parameters", "flops", "error"}, default="parameters"
        What the budget limits. With ``"error"`` the plan has the fewest parameters for which the
        total error is at most this share of the total variance.
    include : str or list of str, optional
        Patterns of module names as in file names, such as ``"*.mlp.*"``; by default all layers.
    sequential : bool, default=False
        Whether the factors are computed layer by layer, in the order of execution, for the inputs
        that the layers before, already factorised, give them: the reduced-rank regression of the
        original outputs on these inputs. The ranks are the same. This takes one pass of both
        networks per factorised layer.
    dropout : float, default=0.0
        Probability of dropping a hidden unit of a factorised layer in further training, in [0, 1).
        The factors are the optimum of this training: shrunk, with hidden units of equal norms.
    importance : dict of str to float, "relative" or "gradients", optional
        Importance h of the error of each layer, by name; 1 if it is not given. ``"relative"``
        weighs each error by one over the variance of the outputs. ``"gradients"`` computes h from
        squared gradients of the `loss` with respect to the outputs; half the total is then an
        estimate of the increase of the loss.
    loss : callable, optional
        ``loss(output, batch)``, a tensor without axes: mean loss of the output of the model for a
        batch. It is needed for ``importance="gradients"``, and is measured in the certificate.
    forward : callable, optional
        ``forward(model, batch)`` runs the model, for batches of any other kind.
    held_out : iterable of batches, optional
        Data on which the certificate measures the loss; by default `loader`.

    Returns
    -------
    CompressionPlan
        ``ranks``, ``errors``, ``total``, ``lower_bound`` and ``certificate``; ``apply(model)``
        returns the smaller network, ``at(budget)`` the plan for another budget.

    Notes
    -----
    Layers that share one weight get one factorisation with biases of their own. A layer stays
    dense, with a note, if its weight is also used elsewhere (as an embedding), if it is not called
    or its outputs do not vary; and without a note where no smaller rank is worth its cost.

    The certificate is about the sum of the errors of the layers, not about the loss of the
    network, which is measured beside it.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import compress
    >>> _ = torch.manual_seed(0)
    >>> first, last = torch.nn.Linear(32, 64), torch.nn.Linear(64, 9)
    >>> model = torch.nn.Sequential(first, torch.nn.ReLU(), last)
    >>> x = torch.randn(500, 8) @ torch.randn(8, 32)  # activations that depend on each other
    >>> plan = compress.plan(model, x, budget=0.5)
    >>> plan.ranks
    {'0': 8, '2': 6}
    >>> plan.errors["0"] < 1e-4
    True
    >>> small = plan.apply(model)
    >>> sum(p.numel() for p in small.parameters()) <= plan.size
    True
    >>> plan.certificate.holds
    True
    """
    source = CalibrationSource(unwrapped(model), loader, forward, loss, held_out)
    settings = {
        "budget": budget,
        "budget_of": budget_of,
        "sequential": check_flag(sequential, "sequential"),
        "dropout": float(dropout),
    }
    _check_settings(settings)
    if sequential and source.read_once:
        raise ValueError(
            "sequential=True needs several passes, but the loader is an iterator, which can be "
            "read only once: give a list or a DataLoader."
        )
    shapes, notes, groups = _candidates(source.model, include, bool(dropout))
    _check_importance(importance, shapes, loss)
    spectra = _calibrated(source, shapes, notes, groups, importance)
    return _allocated(Calibration(source, shapes, notes, spectra), settings)


def _check_settings(settings: dict[str, Any]) -> None:
    check_number(settings["budget"], "budget", low=0.0, high=1.0)
    check_choice(settings["budget_of"], "budget_of", ("parameters", "flops", "error"))
    strength_of(settings["dropout"])


def _check_importance(importance: Any, layers: Iterable[str], loss: Any) -> None:
    if importance == "gradients" and loss is None:
        raise ValueError("importance='gradients' was given without a loss: give loss=….")
    if importance in (None, "gradients", "relative"):
        return
    if not isinstance(importance, Mapping):
        raise ValueError(
            f"importance={importance!r} was given, expected a dict of numbers by module name, "
            "'relative', 'gradients' or None."
        )
    for name, gain in importance.items():
        if name not in layers:
            raise ValueError(
                f"importance has the key {name!r}, expected names of layers: {', '.join(layers)}."
            )
        check_number(gain, f"importance[{name!r}]", low=0.0)


# --- calibration --------------------------------------------------------------------------------


def _candidates(
    model: Any, include: Any, dropout: bool
) -> tuple[dict[str, tuple[int, int]], dict[str, str], list[dict[str, Any]]]:
    """Return shapes of the linear layers, notes on them, and those of each weight that may go."""
    patterns = ["*"] if include is None else [include] if isinstance(include, str) else [*include]
    users: dict[int, set[Any]] = {}  # modules that own a parameter
    for part in model.modules():
        for parameter in part._parameters.values():
            users.setdefault(id(parameter), set()).add(part)
    found = {name: part for name, part in model.named_modules() if matrix_of(part) is not None}
    chosen = {
        name: part
        for name, part in found.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not chosen:
        names = ", ".join(map(repr, found)) if found else "none"
        raise ValueError(
            f"include={include!r} selects no layer of this model, expected a pattern for one of "
            f"its linear layers and convolutions: {names}."
        )
    shapes, notes = {}, {}
    groups: dict[int, dict[str, Any]] = {}
    for name, part in chosen.items():
        weight, matrix = part._parameters.get("weight"), matrix_of(part)
        sharing = {part} if weight is None else users[id(weight)]
        shapes[name] = tuple(matrix.shape)
        if not matrix.is_floating_point():
            notes[name] = f"weight of dtype {matrix.dtype}"
        elif getattr(part, "groups", 1) != 1:
            notes[name] = f"convolution with groups={part.groups}"
        elif not sharing <= set(chosen.values()) or len({type(user) for user in sharing}) > 1:
            notes[name] = "its weight is also used elsewhere in the model"
        elif dropout and len(sharing) > 1:
            notes[name] = "shared weights are not shrunk by dropout"
        elif not torch.isfinite(matrix).all():
            raise ValueError(f"the weight of layer {name!r} contains NaN or infinity.")
        else:
            groups.setdefault(id(part if weight is None else weight), {})[name] = part
    return shapes, notes, list(groups.values())


def _calibrated(
    source: CalibrationSource,
    shapes: dict[str, tuple[int, int]],
    notes: dict[str, str],
    groups: list[dict[str, Any]],
    importance: Any,
) -> list[OutputSpectrum]:
    """Run the model once; add notes of what was seen, and return the spectra of the layers."""
    gradients = importance == "gradients"
    parts = {name: part for group in groups for name, part in group.items()}
    sides = {name: row_side(part, shapes[name]) for name, part in parts.items()}
    moments = {
        name: RowMoment(shapes[name][sides[name] == "inputs"], device=part.weight.device)
        for name, part in parts.items()
    }
    squares = {name: moment.sums.new_zeros(()) for name, moment in moments.items()}
    order: dict[str, int] = {}
    outputs: list[tuple[str, Tensor]] = []

    def observe(name: str, x: Tensor, y: Tensor) -> Tensor | None:
        order.setdefault(name, len(order))
        moments[name].add(rows_of(parts[name], y if sides[name] == "outputs" else x))
        if not gradients:
            return None
        outputs.append((name, y if y.requires_grad else y.requires_grad_()))
        return y.clone()  # the next layer may work in place

    samples = 0
    hooks = {part: observer(observe, name) for name, part in parts.items()}
    with observed(source.model, hooks, gradients=gradients):
        for batch, (result,) in source.outputs(source.model):
            count = samples_of(batch)
            samples += count
            if outputs:
                value = source.loss(result, batch)  # type: ignore[misc]
                if not value.requires_grad:
                    raise ValueError(
                        "the loss has no gradient: it, or the model, is computed without autograd."
                    )
                slopes = torch.autograd.grad(value, [y for _, y in outputs], allow_unused=True)
                for (name, _), slope in zip(outputs, slopes, strict=True):
                    if slope is not None:  # of the mean over `count` samples
                        squares[name] += (count * slope.double()).square().sum().to(squares[name])
                outputs.clear()
    if gradients:
        # If the error δ of each row has the covariance (E‖δ‖²/n) I, then E(Σ gᵀδ)² over the rows
        # of a sample is E‖δ‖²/n times the sum of ‖g‖² over its rows.
        importance = {
            name: float(summed(square) / summed(square.new_tensor(float(samples))))
            / shapes[name][0]
            for name, square in squares.items()
        }
    spectra = []
    for group in groups:
        found = {name: moments.pop(name).merged() for name in group}
        first = min(order.get(name, len(parts)) for name in group)
        for name, moment in found.items():
            if not bool(torch.isfinite(moment.covariance).all()):
                raise ValueError(
                    f"the activations of layer {name!r} contain NaN or infinity: check the "
                    "calibration data, and the range of half precision."
                )
        stays = "" if all(moment.rows for moment in found.values()) else "was not called"
        if not stays:
            spectrum = spectrum_of(group, list(found.values()), importance or {}, first)
            stays = "" if spectrum.totals.all() else "its outputs do not vary"
        for name, moment in found.items():
            if stays:
                notes[name] = stays
            elif moment.rows <= min(shapes[name]):
                notes[name] = f"only {moment.rows} calibration rows"
        if not stays:
            spectra.append(spectrum)
    return spectra


# --- allocation ---------------------------------------------------------------------------------


def _allocated(found: Calibration, settings: dict[str, Any]) -> CompressionPlan:
    """Return the plan with the best ranks for the settings."""
    _check_settings(settings)
    spectra, budget, kind = found.spectra, settings["budget"], settings["budget_of"]
    if not spectra:
        why = "; ".join(f"{name or 'the model'}: {note}" for name, note in found.notes.items())
        raise ValueError(f"no layer can be factorised ({why}).")
    # 1) Errors, sizes and costs of the ranks 1, 2, … and, last, of the dense layer.
    strength = strength_of(settings["dropout"])
    errors = [spectrum.importance @ spectrum.errors(strength) for spectrum in spectra]
    sizes = [spectrum.parameters(bool(strength)) for spectrum in spectra]
    costs = [spectrum.operations() for spectrum in spectra] if kind == "flops" else sizes
    dense, least = (sum(float(f(cost)) for cost in costs) for f in (lambda c: c[-1], np.min))
    variance = float(sum(spectrum.importance @ spectrum.totals for spectrum in spectra))
    # 2) The best ranks; for an error, the smallest size and then the smallest error of this size.
    limit = budget * dense
    if kind == "error":
        limit = allocate(sizes, errors, budget * variance).value
    elif least > limit:
        raise ValueError(
            f"budget={budget} of the {kind} was given, but the smallest ranks need "
            f"{math.ceil(1e4 * least / dense) / 1e4}: give at least this, or leave out small "
            "layers by include."
        )
    choice = allocate(errors, costs, limit)
    chosen = list(zip(spectra, choice.chosen, strict=True))
    factorised = [(s, at + 1) for s, at in chosen if at < s.left.shape[1]]
    # 3) Their factors and errors.
    ranks = {name: min(shape) for name, shape in found.shapes.items()}
    missed = dict.fromkeys(ranks, 0.0)
    factors: dict[str, LowRankFactors] = {}
    for spectrum, rank in factorised:
        ranks |= dict.fromkeys(spectrum.names, rank)
        every = spectrum.errors(strength)[:, rank - 1].tolist()
        missed |= dict(zip(spectrum.names, every, strict=True))
        if not settings["sequential"]:
            factors |= spectrum.factors(rank, strength)
    if settings["sequential"]:
        factors, regressed = _regress(found.source, factorised, settings["dropout"])
        missed |= regressed
    importance = {
        name: float(h) for s in spectra for name, h in zip(s.names, s.importance, strict=True)
    }
    total = sum(h * missed[name] for name, h in importance.items())
    spent = sum(float(cost[at]) for cost, at in zip(costs, choice.chosen, strict=True))
    return CompressionPlan(
        ranks=ranks,
        errors=missed,
        total=total,
        lower_bound=max(min(choice.bound, total), 0.0),
        factors={name: factors[name] for name in ranks if name in factors},
        notes={name: found.notes[name] for name in ranks if name in found.notes},
        size=round(sum(float(size[at]) for size, at in zip(sizes, choice.chosen, strict=True))),
        dense_size=round(sum(float(size[-1]) for size in sizes)),
        share=choice.value / (variance or 1.0) if kind == "error" else spent / dense,
        importance=importance,
        _calibration=found,
        _settings=settings,
    )


# --- factors for compressed inputs --------------------------------------------------------------


def _regress(
    source: CalibrationSource | None, factorised: list[tuple[OutputSpectrum, int]], dropout: float
) -> tuple[dict[str, LowRankFactors], dict[str, float]]:
    """Return factors and errors of layers that are fed by factorised layers, one after another."""
    if source is None or source.read_once:
        raise ValueError("a sequential plan needs its model, and a loader that can be read again.")
    factors: dict[str, LowRankFactors] = {}
    errors: dict[str, float] = {}
    strength = strength_of(dropout)
    for spectrum, rank in sorted(factorised, key=lambda pair: pair[0].first_call):
        if not factors:  # the first layer gets its original inputs
            factors |= spectrum.factors(rank, strength)
            continue
        parts = {name: source.model.get_submodule(name) for name in spectrum.names}
        small = with_factors(source.model, factors, dropout, share=True)
        size = sum(spectrum.shape)
        joint = {n: RowMoment(size, device=part.weight.device) for n, part in parts.items()}

        def add(name: str, x: Tensor, y: Tensor, parts: Any = parts, joint: Any = joint) -> None:
            part = parts[name]
            joint[name].add(torch.cat([input_rows(part, x), rows_of(part, y)], 1))

        meet(source, small, parts, add)
        moments = [moment.merged() for moment in joint.values()]  # of [x̃ | y]
        weight = matrix_of(parts[spectrum.names[0]])
        found, missed = reduced_rank_regression(spectrum, weight, moments, rank, strength)
        factors |= found
        errors |= missed
    return factors, errors


# --- certificate --------------------------------------------------------------------------------


def _certified(plan: CompressionPlan) -> Certificate:
    """Return the certificate of a plan, from rows that are measured one by one in float64."""
    settings, strength = plan._settings, strength_of(plan._settings["dropout"])
    measured, errors_claim = _error_claim(plan, strength)
    planned = sum(
        float(spectrum.importance @ spectrum.errors(strength)[:, plan.ranks[name] - 1])
        for spectrum in plan._calibration.spectra
        if (name := spectrum.names[0]) in plan.factors
    )
    variance = float(sum(s.importance @ s.totals for s in plan._calibration.spectra))
    claims = (
        errors_claim,
        at_most(
            "allocation",
            "no ranks within the budget have a smaller total error, relative to the variance",
            "multiple-choice knapsack problem, Sinha & Zoltners 1979",
            (planned - plan.lower_bound) / (variance or 1.0),
            1e-6,
            "The search for better ranks was stopped: there are too many of them.",
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
    source, sequential = plan._calibration.source, plan._settings["sequential"]
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
    for spectrum in plan._calibration.spectra:
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
    for spectrum in plan._calibration.spectra:
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
    name, source = "loss", plan._calibration.source
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
