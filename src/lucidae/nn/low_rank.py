"""Linear layers of low rank: moments of their rows, the best factors, modules that contain them.

A layer is y = Wx + b with a weight W of shape (n, m); a convolution is such a layer too, with the
unfolded patches as rows x. Over the calibration rows, x has the mean μ and the covariance C, and y
the mean ȳ and the covariance S = WCWᵀ. The error of a layer ŷ is E‖y − ŷ‖² over these rows.

**The best layer of rank r is the principal component analysis of the outputs**: ŷ = BAx + c with
B = U_r, A = U_rᵀW, c = ȳ − U_rU_rᵀWμ and the r leading eigenvectors U_r of S; its error is the sum
of the other eigenvalues. *Proof.* With any R for which RRᵀ = C, the error for the best c is
‖(W − BA)R‖². By Eckart and Young (1936) it is smallest for BAR = U_rU_rᵀWR with the left singular
vectors of WR, which are the eigenvectors of S, and BA = U_rU_rᵀW has this property. ∎
Nothing is inverted, so that C may be singular, and one decomposition serves every rank.

With dropout of the r hidden units the singular values s = √λ(S) of WR are shrunk to ŝ (Mianjy et
al. 2018, Theorem 3.6), BA = U diag(ŝ/s) UᵀW, and the error is the expected one over masks.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from lucidae.arrays import to_numpy
from lucidae.dropout.solvers import equalize
from lucidae.dropout.theory import optimal_value, shrink
from lucidae.nn.layers import (
    Tensor,
    device_of,
    evaluation,
    full_precision,
    summed,
    without_autocast,
)

Vector = np.ndarray[Any, Any]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BLOCK_ROWS = 8192  # rows of float32 sums of products, whose rounding error grows with their number


# --- passes of a network over calibration batches ------------------------------------------------


@dataclass(frozen=True, slots=True)
class CalibrationSource:
    """The model of a plan, and how its batches are read."""

    model: Any
    loader: Any
    forward: Callable[[Any, Any], Any] | None
    loss: Callable[[Any, Any], Any] | None
    held_out: Any

    @property
    def read_once(self) -> bool:
        """Whether the loader is an iterator, which has no second pass."""
        return isinstance(self.loader, Iterator)

    def outputs(self, *models: Any, loader: Any = None) -> Iterator[tuple[Any, list[Any]]]:
        """Yield each batch and the outputs of one or several models for it."""
        for batch in batches_of(self.loader if loader is None else loader, self.model):
            yield batch, [call(model, batch, self.forward) for model in models]


def batches_of(loader: Any, model: Any) -> Iterator[Any]:
    """Yield the batches of a loader on the device of the model; a tensor or dict is one batch."""
    alone = isinstance(loader, torch.Tensor | Mapping)
    if not alone and not isinstance(loader, Iterable):
        raise ValueError(
            f"loader is of type {type(loader).__name__}, expected an iterable of batches such as a "
            "DataLoader, or a tensor."
        )
    device, empty = device_of(model), True
    for batch in (loader,) if alone else loader:
        empty = False
        yield _moved(batch, device)
    if empty:
        raise ValueError(
            "the loader contains no batch, expected at least one. A generator can be read only "
            "once: give a list or a DataLoader."
        )


def _moved(batch: Any, device: Any) -> Any:
    """Return a batch with all its tensors on a device."""
    if isinstance(batch, Mapping):
        return {name: _moved(part, device) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        return [_moved(part, device) for part in batch]
    return batch.to(device) if hasattr(batch, "to") else batch


def call(model: Any, batch: Any, forward: Callable[[Any, Any], Any] | None = None) -> Any:
    """Return the output of a model for a batch: a tensor, a tuple with the input first, a dict."""
    if forward is not None:
        return forward(model, batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, list | tuple) else batch)


def samples_of(batch: Any) -> int:
    """Return the length of the first tensor of a batch; 1 if it has none."""
    parts = batch.values() if isinstance(batch, Mapping) else batch
    parts = parts if isinstance(batch, Mapping | list | tuple) else [batch]
    first = next((part for part in parts if isinstance(part, torch.Tensor)), None)
    return 1 if first is None or not first.ndim else len(first)


def unwrapped(model: Any) -> Any:
    """Return the network inside wrappers for several processes and of `torch.compile`.

    Hooks on the layers of a compiled network are not called.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is of type {type(model).__name__}, expected an nn.Module.")
    wrappers = nn.parallel.DistributedDataParallel, nn.DataParallel
    while isinstance(model, wrappers) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, wrappers) else model._orig_mod
    return model


@contextmanager
def observed(
    model: Any, observers: Mapping[Any, Callable[..., Any]], *, gradients: bool = False
) -> Iterator[None]:
    """Call observers after layers of a model, which is in evaluation mode meanwhile.

    An observer gets the layer, its arguments, keywords and output; what it returns, if not None,
    replaces the output. Modes are restored and hooks removed.
    """
    fast = torch.backends.mha.get_fastpath_enabled()

    handles = [
        layer.register_forward_hook(observer, with_kwargs=True)
        for layer, observer in observers.items()
    ]
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # it reads weights past the layers
        with evaluation(model, gradients=gradients):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()


def observer(use: Callable[[str, Tensor, Tensor], Any], name: str) -> Callable[..., Any]:
    """Return an observer of a layer of one argument that calls ``use(name, input, output)``."""
    return lambda _, args, keywords, output: use(name, [*args, *keywords.values()][0], output)


def meet(
    source: CalibrationSource,
    small: Any,
    names: Iterable[str],
    use: Callable[[str, Tensor, Tensor], None],
) -> None:
    """Call ``use(name, x, y)`` for each call of a layer: x its input in `small`, y in the model."""
    waiting: dict[str, deque[Tensor]] = {name: deque() for name in names}

    def keep(name: str, _: Tensor, y: Tensor) -> None:
        waiting[name].append(y.clone())  # the next layer may work in place

    def pair(name: str, x: Tensor, _: Tensor) -> None:
        use(name, x, waiting[name].popleft())

    hooks = {source.model.get_submodule(name): observer(keep, name) for name in waiting}
    others = {small.get_submodule(name): observer(pair, name) for name in waiting}
    with observed(source.model, hooks), observed(small, others):
        for _ in source.outputs(source.model, small):
            pass


# --- moments of rows -----------------------------------------------------------------------------


class Moment(NamedTuple):
    """Mean (…, d) and covariance (…, d, d) of the rows of all processes, in float64."""

    rows: int
    mean: Tensor
    covariance: Tensor

    @property
    def uncentred(self) -> Tensor:
        """E[xxᵀ] of the rows x, (…, d, d)."""
        return self.covariance + self.mean[..., :, None] * self.mean[..., None, :]


class RowMoment:
    """Sums over rows: products of blocks in float32 (float64 for float64 rows), sums in float64.

    Rows are shifted by the mean of the first batch, so that large means cost no digits. Leading
    axes are separate sets of rows, such as those of attention heads.
    """

    def __init__(self, *shape: int, device: Any) -> None:
        device = "cpu" if torch.device(device).type == "mps" else device  # which has no float64
        self.rows = 0
        self.sums = torch.zeros(shape, dtype=torch.float64, device=device)
        self.squares = self.sums.new_zeros(*shape, shape[-1])
        self.shift = self.sums

    def add(self, rows: Tensor) -> None:
        """Add rows of shape (…, N, d)."""
        if not rows.shape[-2]:  # an expert to which no token was sent
            return
        rows = full_precision(rows.detach())
        if not self.rows:
            self.shift = rows.mean(-2)
        # The 11 bits of TensorFloat-32 are too few for the small eigenvalues of a Gram matrix.
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            with without_autocast(rows):
                for part in rows.split(BLOCK_ROWS, -2):
                    shifted = part - self.shift[..., None, :]
                    self.sums += shifted.sum(-2).to(self.sums.device)
                    self.squares += (shifted.mT @ shifted).to(self.sums.device)
        finally:
            torch.set_float32_matmul_precision(before)
        self.rows += rows.shape[-2]

    def merged(self) -> Moment:
        """Return the moment of the rows of all processes.

        With t = Σ(y − s) for the shift s and d = ȳ − s for the common mean ȳ, the squares about
        the mean are Σ(y − s)(y − s)ᵀ − dtᵀ − tdᵀ + N ddᵀ in each process.
        """
        shift = self.shift.to(self.sums)
        count = summed(self.sums.new_tensor(float(self.rows)))
        mean = summed(self.sums + self.rows * shift) / count.clamp_min(1.0)
        offset = mean - shift
        cross = offset[..., :, None] * (self.sums - self.rows / 2 * offset)[..., None, :]
        squares = summed(self.squares - cross - cross.mT) / count.clamp_min(1.0)
        return Moment(int(count), mean, (squares + squares.mT) / 2)


# --- linear layers of all kinds -----------------------------------------------------------------


def matrix_of(layer: Any) -> Any:
    """Return the weight of a layer as a matrix (n, m); None if it is not a linear layer."""
    if isinstance(layer, nn.Linear):
        return layer.weight.detach()
    if isinstance(layer, CONVOLUTIONS):
        return layer.weight.detach().flatten(1)
    weight: Any = getattr(layer, "weight", None)
    if type(layer).__name__ == "Conv1D" and getattr(weight, "ndim", 0) == 2:  # of transformers
        return weight.detach().mT
    return None


def rows_of(layer: Any, values: Tensor) -> Tensor:
    """Return outputs of a layer, or inputs of one that is no convolution, as rows (N, …)."""
    if isinstance(layer, CONVOLUTIONS):
        values = values.movedim(-1 - len(layer.kernel_size), -1)
    return values.reshape(-1, values.shape[-1])


def input_rows(layer: Any, x: Tensor) -> Tensor:
    """Return inputs of a layer as rows (N, m); patches are unfolded by a convolution with I."""
    if isinstance(layer, CONVOLUTIONS):
        m = layer.weight[0].numel()
        unit = torch.eye(m, dtype=x.dtype, device=x.device).reshape(m, *layer.weight.shape[1:])
        x = layer._conv_forward(x, unit, None)
    return rows_of(layer, x)


def row_side(layer: Any, shape: tuple[int, int]) -> str:
    """Return "outputs" or "inputs": of which rows the moment is collected.

    They are the shorter ones, except that patches of convolutions are never unfolded for it.
    """
    return "outputs" if shape[0] <= shape[1] or isinstance(layer, CONVOLUTIONS) else "inputs"


# --- factors ------------------------------------------------------------------------------------


class LowRankFactors(NamedTuple):
    """A layer of rank r: x ↦ B(Ax + hidden) + bias, in float32 or float64."""

    second: Tensor  # (n, r): B
    first: Tensor  # (r, m): A
    bias: Tensor  # (n,)
    hidden: Tensor | None = None  # (r,): bias of hidden units that are dropped in training


@dataclass(frozen=True, slots=True, eq=False)
class OutputSpectrum:
    """Principal components of the outputs of the layers that share one weight: all ranks at once.

    The covariances of several layers are added as Σ h S with the importance h of each layer.
    """

    names: tuple[str, ...]
    shape: tuple[int, int]  # (n, m)
    biases: int  # number of these layers that have a bias
    left: Tensor  # (n, k): leading eigenvectors U
    right: Tensor  # (k, m): UᵀW
    variances: Vector  # (layers, p): diagonals of UᵀSU, p ≥ k
    means: list[Tensor]  # (n,) each: ȳ
    hidden_means: list[Tensor]  # (k,) each: UᵀWμ
    importance: Vector  # (layers,): h
    rows: int  # calibration rows of all layers together
    first_call: int  # position in the order of execution

    @property
    def totals(self) -> Vector:
        """Total variances tr S of the layers."""
        return np.asarray(self.variances.sum(1))

    def parameters(self, dropout: bool) -> Vector:
        """Return the number of parameters for the ranks 1, …, k and, last, of dense layers."""
        (n, m), ranks, layers = self.shape, self._ranks(), len(self.names)
        low = ranks * (m + n) + layers * (n + dropout * ranks)
        return np.append(low, n * m + self.biases * n)

    def operations(self) -> Vector:
        """Return the multiplications for the ranks 1, …, k and, last, of dense layers."""
        n, m = self.shape
        return self.rows * np.append(self._ranks() * (m + n), n * m)

    def errors(self, strength: float) -> Vector:
        """Return the error of each layer (rows) for the ranks 1, …, k and, last, 0 for dense."""
        k = self.left.shape[1]
        found = np.zeros((len(self.names), k + 1))
        if strength:
            s = np.sqrt(self.variances[0])
            found[0, :k] = [optimal_value(s, strength, rank + 1) for rank in range(k)]
        else:
            tails = np.cumsum(self.variances[:, :0:-1], axis=1)[:, ::-1]
            found[:, : min(k, tails.shape[1])] = tails[:, :k]
        return found

    def factors(self, rank: int, strength: float) -> dict[str, LowRankFactors]:
        """Return the best factors of each layer."""
        B, A = self.left[:, :rank], self.right[:rank]
        means = zip(self.names, self.means, self.hidden_means, strict=True)
        if not strength:
            return {
                name: LowRankFactors(B, A, mean - B @ hidden[:rank]) for name, mean, hidden in means
            }
        # B = U√ŝ T and A = Tᵀ√ŝ s⁻¹ UᵀW, with the rotation T that equalizes the hidden units
        # in the metric of the inputs: AR = Tᵀ√ŝ Qᵀ for WR = U diag(s) Qᵀ.
        s = np.sqrt(self.variances[0])
        root = np.sqrt(shrink(s, strength, rank).values[:rank])
        turn = B.new_tensor(equalize(np.diag(root)))
        gain = B.new_tensor(np.divide(root, s[:rank], out=np.zeros(rank), where=root > 0))
        B, A = B * B.new_tensor(root) @ turn, turn.mT @ (gain[:, None] * A)
        return {
            name: LowRankFactors(B, A, mean, -(turn.mT @ (gain * hidden[:rank])))
            for name, mean, hidden in means
        }

    def _ranks(self) -> Vector:
        return np.arange(1.0, self.left.shape[1] + 1)


def spectrum_of(
    layers: Mapping[str, Any], moments: Sequence[Moment], importance: Any, first_call: int
) -> OutputSpectrum:
    """Decompose the outputs of layers that share one weight, from moments of their `row_side`.

    `importance` has numbers by layer, 1 for others; or it is "relative", one over the variance.
    """
    parts = list(layers.values())
    weight = matrix_of(parts[0]).to(moments[0].mean)
    n, m = weight.shape
    biases = [0.0 if part.bias is None else part.bias.detach().to(weight) for part in parts]
    means, covariances = [moment.mean for moment in moments], [part.covariance for part in moments]
    basis = None
    if row_side(parts[0], (n, m)) == "inputs":
        # With W = QT the covariance of the outputs is S = Q(TCTᵀ)Qᵀ.
        basis, triangle = torch.linalg.qr(weight)
        covariances = [triangle @ part @ triangle.mT for part in covariances]
        means = [weight @ mean + b for mean, b in zip(means, biases, strict=True)]
    totals = np.array([float(torch.diagonal(part).sum()) for part in covariances])
    if importance == "relative":
        gains = 1.0 / np.maximum(totals, np.finfo(float).tiny)
    else:
        gains = np.array([importance.get(name, 1.0) for name in layers])
    U = torch.linalg.eigh(_pooled(covariances, gains)).eigenvectors.flip(1)
    spreads = [((U.mT @ part) * U.mT).sum(1).clamp_min(0.0) for part in covariances]
    U = U if basis is None else basis @ U
    variances = np.stack([to_numpy(spread) for spread in spreads])
    if len(parts) == 1:
        variances = -np.sort(-variances)  # rounding may have exchanged equal ones
    k = min(n, m, -(-n * (m + len(parts)) // (m + n)))  # larger ranks save nothing
    dtype = torch.float64 if parts[0].weight.dtype == torch.float64 else torch.float32
    U = U[:, :k].contiguous()
    hidden = [U.mT @ (mean - b) for mean, b in zip(means, biases, strict=True)]
    return OutputSpectrum(
        names=tuple(layers),
        shape=(n, m),
        biases=sum(part.bias is not None for part in parts),
        left=U.to(dtype),
        right=(U.mT @ weight).to(dtype),
        variances=variances,
        means=[mean.to(dtype) for mean in means],
        hidden_means=[mean.to(dtype) for mean in hidden],
        importance=gains,
        rows=sum(moment.rows for moment in moments),
        first_call=first_call,
    )


def reduced_rank_regression(
    spectrum: OutputSpectrum, weight: Tensor, moments: Sequence[Moment], rank: int, strength: float
) -> tuple[dict[str, LowRankFactors], dict[str, float]]:
    """Return factors and errors of layers that get other inputs x̃, from moments of [x̃ | y].

    The regression of y on x̃ is Θ = W + cov(y − Wx̃, x̃) C̃⁺: where the inputs do not vary, the
    original weight stays. The best layer of rank r is U_rU_rᵀΘ with the left singular vectors U of
    ΘR̃ for R̃R̃ᵀ = C̃ (Izenman 1975).
    """
    dtype, (_, m) = spectrum.left.dtype, spectrum.shape
    weight = weight.to(moments[0].mean)
    pooled = _pooled([moment.covariance for moment in moments], spectrum.importance)
    inputs, cross = pooled[:m, :m], pooled[m:, :m]
    values, vectors = torch.linalg.eigh(inputs)
    # Eigenvalues below the rounding error of the products are noise.
    noise = 8 * m**0.5 * torch.finfo(dtype).eps * values[-1]
    inverse = torch.where(values > noise, 1.0 / values.clamp_min(noise), 0.0)
    full = weight + (cross - weight @ inputs) @ (vectors * inverse) @ vectors.mT
    root = vectors * values.clamp_min(0.0).sqrt()
    U, s, _ = torch.linalg.svd(full @ root, full_matrices=False)
    right = U[:, :rank].mT @ full
    regressed = replace(
        spectrum,
        left=U[:, :rank].to(dtype),
        right=right.to(dtype),
        variances=to_numpy(s.square())[None],
        means=[moment.mean[m:].to(dtype) for moment in moments],
        hidden_means=[(right @ moment.mean[:m]).to(dtype) for moment in moments],
    )
    factors, errors = regressed.factors(rank, strength), {}
    for name, (_, _, covariance) in zip(spectrum.names, moments, strict=True):
        B, A = (part.to(weight) for part in factors[name][:2])
        codes = A @ covariance[:m, :m] @ A.mT
        explained = 2 * torch.sum((covariance[m:, :m] @ A.mT) * B) - torch.sum((B @ codes) * B)
        masks = strength * torch.sum(B.square().sum(0) * torch.diagonal(codes))
        errors[name] = float(torch.diagonal(covariance)[m:].sum() - explained + masks)
    return factors, errors


def _pooled(covariances: Sequence[Tensor], importance: Vector) -> Tensor:
    """Return the mean of covariances, weighted by importance (equally, if all are zero)."""
    gains = importance if importance.any() else np.ones_like(importance)
    return sum(float(g) * part for g, part in zip(gains / gains.sum(), covariances, strict=True))


# --- ranks of all layers ------------------------------------------------------------------------

# One of several ranks is chosen for each layer so that the sum of errors is smallest within a
# budget. This is the multiple-choice knapsack problem: layer l has choices j with values v_lj
# (errors) and costs c_lj (parameters or operations), and Σ_l v_lj is minimised subject to
# Σ_l c_lj ≤ budget. For every price μ ≥ 0 of a unit of cost, L(μ) = Σ_l min_j (v_lj + μ c_lj) −
# μ·budget is a lower bound of the minimum; the best price is the slope of the joint lower convex
# envelope at the budget.

ROUNDING = 1e-12  # relative error of sums of a few thousand float64 numbers
MOST_PARTIAL = 2**22  # allocations of some layers at a time; with more, the bound stays below


class Allocation(NamedTuple):
    """The choice of each layer, its sum of values, and a lower bound on every such sum."""

    chosen: list[int]
    value: float
    bound: float


def allocate(values: Sequence[Vector], costs: Sequence[Vector], budget: float) -> Allocation:
    """Return the best choice of each layer within the budget, which the cheapest ones must meet."""
    fronts = [_undominated(value, cost) for value, cost in zip(values, costs, strict=True)]
    values = [value[front] for value, front in zip(values, fronts, strict=True)]
    costs = [cost[front] for cost, front in zip(costs, fronts, strict=True)]
    limit = budget * (1 + ROUNDING)
    # 1) Start from the cheapest and the best allocation. If the latter exceeds the budget, the line
    #    through both has the slope −μ, and the allocation that minimises value + μ·cost is below
    #    it, or they are the ends of that edge of the envelope which crosses the budget.
    at, over = [0] * len(values), [len(value) - 1 for value in values]
    price = 0.0
    if _total(costs, over) <= limit:
        at = over
    while _total(costs, at) < _total(costs, over):
        price = (_total(values, at) - _total(values, over)) / (
            _total(costs, over) - _total(costs, at)
        )
        priced = [value + price * cost for value, cost in zip(values, costs, strict=True)]
        best = [int(np.argmin(p)) for p in priced]
        if _total(priced, best) >= _total(priced, at) * (1 - ROUNDING):
            break
        at, over = (best, over) if _total(costs, best) <= limit else (at, best)
    # 2) Any allocation has the value L(μ) + Σ ρ_lj + μ·(unspent budget) with the reduced costs
    #    ρ_lj = v_lj + μ c_lj − min_j (v_lj + μ c_lj) ≥ 0 of its choices. One that is at most ε
    #    above L(μ) therefore has Σ ρ_lj ≤ ε, and few have: their best is optimal if it is that
    #    near, else ε is four times as large. The first one is within the last ε, the whole gap.
    priced = [value + price * cost for value, cost in zip(values, costs, strict=True)]
    lagrangian = sum(float(p.min()) for p in priced) - price * budget
    reduced = [p - p.min() for p in priced]
    total, bound = _total(values, at), lagrangian
    for within in (total - lagrangian) * 4.0 ** np.arange(-8, 1):
        if total - bound <= ROUNDING * abs(total):
            break
        found = _best_within(values, costs, reduced, limit, within * (1 + ROUNDING))
        if found is None:
            break
        if found and _total(values, found) < total:
            at, total = found, _total(values, found)
        bound = min(total, lagrangian + within)
    chosen = [int(front[i]) for front, i in zip(fronts, at, strict=True)]
    return Allocation(chosen, total, bound - ROUNDING * (abs(total) + price * budget))


def _total(values: Sequence[Vector], chosen: Sequence[int]) -> float:
    return float(sum(value[i] for value, i in zip(values, chosen, strict=True)))


def _undominated(value: Vector, cost: Vector) -> Vector:
    """Return the choices, by ascending cost, that no cheaper or equally dear one matches."""
    order = np.lexsort((value, cost))
    best = np.minimum.accumulate(value[order])
    return np.asarray(order[np.concatenate([[True], best[1:] < best[:-1]])])


def _best_within(
    values: Sequence[Vector],
    costs: Sequence[Vector],
    reduced: Sequence[Vector],
    limit: float,
    most: float,
) -> list[int] | None:
    """Return the best allocation of cost at most `limit` and reduced cost at most `most`.

    Dynamic programming with lists: after each layer, those partial allocations are kept that have
    a small enough reduced cost and that no cheaper one matches in value. The result is empty if
    there is no such allocation, and None if there are too many.
    """
    cost = value = spare = np.zeros(1)
    steps: list[tuple[Vector, Vector]] = []  # partial allocation before, choice of the layer
    for v, c, r in zip(values, costs, reduced, strict=True):
        choices = np.flatnonzero(r <= most)
        if len(cost) * len(choices) > MOST_PARTIAL:
            return None
        cost, value, spare = (
            (before[:, None] + added[choices]).ravel()
            for before, added in ((cost, c), (value, v), (spare, r))
        )
        kept = np.flatnonzero((spare <= most) & (cost <= limit))
        if not len(kept):
            return []
        kept = kept[_undominated(value[kept], cost[kept])]
        cost, value, spare = cost[kept], value[kept], spare[kept]
        steps.append((kept // len(choices), choices[kept % len(choices)]))
    at, found = len(value) - 1, []  # the dearest is the best
    for before, choice in reversed(steps):
        found.append(int(choice[at]))
        at = int(before[at])
    return found[::-1]


# --- modules ------------------------------------------------------------------------------------


class LowRankLayer(nn.Sequential):
    """Two layers in place of one, with dropout between them if there is any.

    Some code reads the weight of a layer, if only its dtype: it gets the product of both weights.
    """

    @property
    def weight(self) -> Tensor:
        """Weight of one layer that computes the same."""
        first, last = self[0].weight, self[-1].weight
        return (last.flatten(1) @ first.flatten(1)).reshape(len(last), *first.shape[1:])

    @property
    def bias(self) -> Tensor:
        """Bias of one layer that computes the same."""
        first, last = self[0], self[-1]
        return last.bias if first.bias is None else last.bias + last.weight.flatten(1) @ first.bias


def replacement(layer: Any, factors: LowRankFactors, dropout: float) -> Any:
    """Return the `LowRankLayer` with given factors in place of a layer."""
    matrix, rank = matrix_of(layer), len(factors.first)
    expected = (len(factors.second), factors.first.shape[1])
    if matrix is None or tuple(matrix.shape) != expected:
        found = "" if matrix is None else f" of shape {tuple(matrix.shape)}"
        raise ValueError(
            f"the model has a {type(layer).__name__}{found} where the plan has a layer of shape "
            f"{expected}: apply the plan to the model for which it was made."
        )
    (n, m), place = matrix.shape, {"device": matrix.device, "dtype": matrix.dtype}
    hidden = factors.hidden is not None
    if isinstance(layer, CONVOLUTIONS):
        kind = CONVOLUTIONS[len(layer.kernel_size) - 1]
        names = ("kernel_size", "stride", "padding", "dilation", "padding_mode")
        place |= {"kernel_size": 1}
        options = place | {name: getattr(layer, name) for name in names}
        first = nn.utils.skip_init(kind, layer.in_channels, rank, bias=hidden, **options)
        second = nn.utils.skip_init(kind, rank, n, **place)
    else:
        first = nn.utils.skip_init(nn.Linear, m, rank, bias=hidden, **place)
        second = nn.utils.skip_init(nn.Linear, rank, n, **place)
    values = {first.weight: factors.first, second.weight: factors.second, second.bias: factors.bias}
    if hidden:
        values[first.bias] = factors.hidden
    for parameter, value in values.items():
        parameter.data.copy_(value.reshape(parameter.shape))
    pair = LowRankLayer(first, *[nn.Dropout(dropout)] * hidden, second)
    return pair.train(layer.training).requires_grad_(layer.weight.requires_grad)


def with_factors(
    model: Any, factors: Mapping[str, LowRankFactors], dropout: float, *, share: bool = False
) -> Any:
    """Return a deep copy of a model with factorised layers; `share` keeps all other tensors."""
    # `copy.deepcopy` takes the copies that its memo already has: the pairs in place of layers.
    memo: dict[int, Any] = {}
    if share:
        memo |= {id(kept): kept for kept in (*model.parameters(), *model.buffers())}
    pairs, owners = set(), dict[Any, Any]()
    for name, given in factors.items():
        try:
            layer = model.get_submodule(name)
        except AttributeError as error:
            raise ValueError(
                f"the model has no layer {name!r}: apply the plan to the model for which it was "
                "made."
            ) from error
        memo[id(layer)] = pair = replacement(layer, given, dropout)
        pairs.add(pair)
        owner = owners.setdefault(layer._parameters.get("weight", layer), pair)
        for part, own in zip(pair, owner, strict=True):
            if hasattr(own, "weight"):
                part.weight = own.weight  # layers that shared a weight share both factors
    small = copy.deepcopy(model, memo)
    # The fast path of these two modules reads weights of their layers instead of calling them.
    for part in small.modules():
        if isinstance(part, nn.TransformerEncoderLayer) and pairs & set(part.modules()):
            part.activation_relu_or_gelu = 0
        elif isinstance(part, nn.TransformerEncoder) and pairs & set(part.modules()):
            part.use_nested_tensor = False
    return small
