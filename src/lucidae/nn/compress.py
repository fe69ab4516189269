"""Smaller networks by low-rank layers: the best ranks and factors within a budget, certified.

`lucidae.nn.low_rank` derives the best factors of a layer, `lucidae.nn.rank_allocation` chooses the
ranks of all layers. The error of a layer is the mean of ‖y − ŷ‖² over the calibration rows, for its
outputs y and those ŷ of the factorised layer; h is the importance of this error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from lucidae.cards import card, table
from lucidae.certificates.claims import Certificate
from lucidae.dropout.theory import strength_of
from lucidae.nn.adapters import adapter, certify_adapter
from lucidae.nn.attention import LowRankAttention, heads
from lucidae.nn.calibration import (
    CalibrationSource,
    Moment,
    RowMoment,
    meet,
    observed,
    observer,
    samples_of,
    summed,
    unwrapped,
)
from lucidae.nn.layers import Tensor
from lucidae.nn.low_rank import (
    LowRankFactors,
    OutputSpectrum,
    input_rows,
    matrix_of,
    output_variance,
    reduced_rank_regression,
    row_side,
    rows_of,
    spectrum_of,
    with_factors,
)
from lucidae.nn.plan_certificate import certify_plan
from lucidae.nn.rank_allocation import allocate
from lucidae.validation import check_choice, check_flag, check_number

__all__ = ["CompressionPlan", "LowRankAttention", "adapter", "certify_adapter", "heads", "plan"]


class PlannedLayer(NamedTuple):
    """A layer of the model that the plan names."""

    shape: tuple[int, int]  # (n, m)
    note: str  # why it stays dense, or what to know about its calibration


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
    _layers: dict[str, PlannedLayer]
    _spectra: list[OutputSpectrum]
    _source: CalibrationSource | None
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
        return _allocated(self._layers, self._spectra, self._source, settings)

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
        return certify_plan(self)

    def __getstate__(self) -> dict[str, Any]:
        # A stored plan can be applied, but refers neither to the model nor to the loader.
        return self.__dict__ | {"_source": None}

    def _headline(self) -> str:
        words = {
            "parameters": f"{self.size:,} of {self.dense_size:,} parameters",
            "flops": f"{self.share:.1%} of the operations",
            "error": f"{self.size:,} of {self.dense_size:,} parameters, {self.share:.3g} of the "
            "variance lost",
        }[self._settings["budget_of"]]
        return f"Plan: {len(self.factors)} of {len(self.ranks)} layers factorised, {words}"

    def _columns(self) -> dict[str, list[Any]]:
        totals = {n: t for s in self._spectra for n, t in zip(s.names, s.totals, strict=True)}
        shapes = [layer.shape for layer in self._layers.values()]
        return {
            "layer": [name or "(the model)" for name in self.ranks],
            "shape": [f"{n} × {m}" for n, m in shapes],
            "rank": [
                rank if name in self.factors else "dense" for name, rank in self.ranks.items()
            ],
            "error": list(self.errors.values()),
            "relative error": [e / totals.get(name, 1.0) for name, e in self.errors.items()],
            "note": [self.notes.get(name, "") for name in self.ranks],
        }

    def _last_line(self) -> str:
        return f"total error {self.total:.4g}, lower bound {self.lower_bound:.4g}"

    def __repr__(self) -> str:
        columns = self._columns()
        cells = [list(columns)]
        for row in zip(*columns.values(), strict=True):
            cells.append([f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        return "\n".join([self._headline(), *lines, self._last_line()])

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
    network = unwrapped(model)
    settings = {
        "budget": budget,
        "budget_of": budget_of,
        "sequential": check_flag(sequential, "sequential"),
        "dropout": float(dropout),
    }
    _check_settings(settings)
    source = CalibrationSource(network, loader, forward, loss, held_out)
    if sequential and source.read_once:
        raise ValueError(
            "sequential=True needs several passes, but the loader is an iterator, which can be "
            "read only once: give a list or a DataLoader."
        )
    layers, groups = _candidates(network, include, bool(dropout))
    _check_importance(importance, layers, loss)
    layers, spectra = _calibrated(source, layers, groups, importance)
    return _allocated(layers, spectra, source, settings)


def _check_settings(settings: dict[str, Any]) -> None:
    check_number(settings["budget"], "budget", low=0.0, high=1.0)
    check_choice(settings["budget_of"], "budget_of", ("parameters", "flops", "error"))
    strength_of(settings["dropout"])


def _check_importance(importance: Any, layers: Mapping[str, PlannedLayer], loss: Any) -> None:
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
) -> tuple[dict[str, PlannedLayer], list[dict[str, Any]]]:
    """Return the linear layers of a model, and those that may be factorised by shared weight."""
    patterns = ["*"] if include is None else [include] if isinstance(include, str) else [*include]
    users: dict[int, set[Any]] = {}  # modules that own a parameter
    for part in model.modules():
        for parameter in part._parameters.values():
            if parameter is not None:
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
    layers: dict[str, PlannedLayer] = {}
    groups: dict[int, dict[str, Any]] = {}
    for name, part in chosen.items():
        weight, matrix = part._parameters.get("weight"), matrix_of(part)
        sharing = users.get(id(weight), {part})
        note = ""
        if not matrix.is_floating_point():
            note = f"weight of dtype {matrix.dtype}"
        elif getattr(part, "groups", 1) != 1:
            note = f"convolution with groups={part.groups}"
        elif not sharing <= set(chosen.values()) or len({type(user) for user in sharing}) > 1:
            note = "its weight is also used elsewhere in the model"
        elif dropout and len(sharing) > 1:
            note = "shared weights are not shrunk by dropout"
        elif not torch.isfinite(matrix).all():
            raise ValueError(f"the weight of layer {name!r} contains NaN or infinity.")
        layers[name] = PlannedLayer(tuple(matrix.shape), note)
        if not note:
            groups.setdefault(id(part if weight is None else weight), {})[name] = part
    return layers, list(groups.values())


def _calibrated(
    source: CalibrationSource,
    layers: dict[str, PlannedLayer],
    groups: list[dict[str, Any]],
    importance: Mapping[str, float] | str | None,
) -> tuple[dict[str, PlannedLayer], list[OutputSpectrum]]:
    """Run the model once; return the layers with notes of what was seen, and their spectra."""
    gradients = importance == "gradients"
    parts = {name: part for group in groups for name, part in group.items()}
    sides = {name: row_side(part, layers[name].shape) for name, part in parts.items()}
    moments = {
        name: RowMoment(layers[name].shape[sides[name] == "inputs"], part.weight.device)
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
            / layers[name].shape[0]
            for name, square in squares.items()
        }
    spectra, layers = [], dict(layers)
    for group in groups:
        found = {name: moments.pop(name).merged() for name in group}
        notes = {name: _note(name, moment, parts[name]) for name, moment in found.items()}
        stays = next((note for note, dense in notes.values() if dense), "")
        for name, (note, _) in notes.items():
            layers[name] = layers[name]._replace(note=stays or note)
        if not stays:
            first = min(order.get(name, len(parts)) for name in group)
            given = importance if isinstance(importance, Mapping) else {}
            gains = np.array([given.get(name, 1.0) for name in group])
            if importance == "relative":
                gains = 1.0 / np.array([output_variance(parts[n], m) for n, m in found.items()])
            spectra.append(spectrum_of(group, list(found.values()), gains, first))
    return layers, spectra


def _note(name: str, moment: Moment, layer: Any) -> tuple[str, bool]:
    """Return a remark on the calibration rows of a layer, and whether it has to stay dense."""
    if not moment.rows:
        return "was not called", True
    if not bool(torch.isfinite(moment.covariance).all()):
        raise ValueError(
            f"the activations of layer {name!r} contain NaN or infinity: check the calibration "
            "data, and the range of half precision."
        )
    if output_variance(layer, moment) <= 0.0:
        return "its outputs do not vary", True
    few = moment.rows <= min(matrix_of(layer).shape)
    return (f"only {moment.rows} calibration rows" if few else ""), False


# --- allocation ---------------------------------------------------------------------------------


def _allocated(
    layers: dict[str, PlannedLayer],
    spectra: list[OutputSpectrum],
    source: CalibrationSource | None,
    settings: dict[str, Any],
) -> CompressionPlan:
    """Return the plan with the best ranks for the settings."""
    _check_settings(settings)
    if not spectra:
        why = "; ".join(f"{name or 'the model'}: {layer.note}" for name, layer in layers.items())
        raise ValueError(f"no layer can be factorised ({why}).")
    strength = strength_of(settings["dropout"])
    choice = _choose(spectra, settings["budget"], settings["budget_of"], strength)
    factorised = [
        (spectrum, rank)
        for spectrum, rank in zip(spectra, choice.ranks, strict=True)
        if rank is not None
    ]
    ranks = {name: min(layer.shape) for name, layer in layers.items()}
    errors, factors = dict.fromkeys(layers, 0.0), {}
    for spectrum, rank in factorised:
        for at, (name, error) in enumerate(
            zip(spectrum.names, spectrum.errors(strength)[:, rank - 1], strict=True)
        ):
            ranks[name], errors[name] = rank, float(error)
            if not settings["sequential"]:
                factors[name] = spectrum.factors(at, rank, strength)
    if settings["sequential"]:
        factors, regressed = _regress(source, factorised, settings["dropout"])
        errors |= regressed
    importance = {
        name: float(h) for s in spectra for name, h in zip(s.names, s.importance, strict=True)
    }
    total = sum(h * errors[name] for name, h in importance.items())
    return CompressionPlan(
        ranks=ranks,
        errors=errors,
        total=total,
        lower_bound=max(min(choice.bound, total), 0.0),
        factors={name: factors[name] for name in layers if name in factors},
        notes={name: layer.note for name, layer in layers.items() if layer.note},
        size=choice.size,
        dense_size=choice.dense_size,
        share=choice.share,
        importance=importance,
        _layers=layers,
        _spectra=spectra,
        _source=source,
        _settings=settings,
    )


class _Choice(NamedTuple):
    """Ranks of the spectra within a budget."""

    ranks: list[int | None]  # None: dense
    bound: float  # of the total error
    size: int  # parameters
    dense_size: int
    share: float  # of what the budget limits


def _choose(
    spectra: list[OutputSpectrum], budget: float, budget_of: str, strength: float
) -> _Choice:
    """Choose the rank of every spectrum."""
    errors, sizes, costs, choices = [], [], [], []
    for spectrum in spectra:
        size = spectrum.parameters(bool(strength))
        cost = spectrum.operations() if budget_of == "flops" else size
        # A rank that saves nothing is no choice; the dense layer, the last one, always is.
        kept = np.append(np.flatnonzero(cost[:-1] < cost[-1]), len(cost) - 1)
        choices.append(kept)
        errors.append((spectrum.importance @ spectrum.errors(strength))[kept])
        sizes.append(size[kept])
        costs.append(cost[kept])
    dense = sum(float(cost[-1]) for cost in costs)
    variance = float(sum(spectrum.importance @ spectrum.totals for spectrum in spectra))
    if budget_of == "error":
        # The smallest size first, and then the smallest error of this size.
        limit = allocate(sizes, errors, budget * variance).value
    else:
        limit, least = budget * dense, sum(float(cost[0]) for cost in costs)
        if least > limit:
            raise ValueError(
                f"budget={budget} of the {budget_of} was given, but the smallest ranks need "
                f"{math.ceil(1e4 * least / dense) / 1e4}: give at least this, or leave out small "
                "layers by include."
            )
    found = allocate(errors, costs, limit)
    taken = list(enumerate(found.chosen))
    spent = sum(float(costs[at][i]) for at, i in taken)
    return _Choice(
        [None if i == len(costs[at]) - 1 else int(choices[at][i]) + 1 for at, i in taken],
        found.bound,
        round(sum(float(sizes[at][i]) for at, i in taken)),
        round(sum(float(size[-1]) for size in sizes)),
        found.value / (variance or 1.0) if budget_of == "error" else spent / dense,
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
            ats = range(len(spectrum.names))
            found = [spectrum.factors(at, rank, strength) for at in ats]
            factors |= dict(zip(spectrum.names, found, strict=True))
            continue
        parts = {name: source.model.get_submodule(name) for name in spectrum.names}
        small = with_factors(source.model, factors, dropout, share=True)
        moments = _joint_moments(source, small, parts, sum(spectrum.shape))
        weight = matrix_of(parts[spectrum.names[0]])
        found, missed = reduced_rank_regression(spectrum, weight, moments, rank, strength)
        factors |= dict(zip(spectrum.names, found, strict=True))
        errors |= dict(zip(spectrum.names, missed, strict=True))
    return factors, errors


def _joint_moments(
    source: CalibrationSource, small: Any, parts: Mapping[str, Any], size: int
) -> list[Moment]:
    """Return the moment of [x̃ | y] of each layer: its input in `small`, its output in the model."""
    joint = {name: RowMoment(size, part.weight.device) for name, part in parts.items()}

    def add(name: str, x: Tensor, y: Tensor) -> None:
        part = parts[name]
        joint[name].add(torch.cat([input_rows(part, x), rows_of(part, y)], 1))

    meet(source, small, parts, add)
    return [moment.merged() for moment in joint.values()]
