"""Linear autoencoders against PyTorch, IncrementalPCA, PCA and a dense Hessian.

Run with ``python -m benchmarks linear``. MNIST is used when it is cached (``lucidae data fetch``),
random numbers of its size and spectrum otherwise. Work and peers are timed in turn in one process,
each at its best number of threads; figures are medians and their ratios.
"""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import numpy as np
import torch
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from benchmarks._tables import mnist_rows
from lucidae import LinearAutoencoder, SecondMoment
from lucidae.linear.methods import MethodSettings, Options, geometric_prior, make_method
from lucidae.linear.simulation import Plan, Run, simulate
from lucidae.linear.solvers import descend, stiffness
from lucidae.linear.theory import AlignedPoint, best_penalties, hessian_eigenvalues
from lucidae.linear.weights import TiedWeights, UntiedWeights
from lucidae.metrics import axis_alignment_distance
from lucidae.rows.covariances import DenseCovariance
from lucidae.spectrum import Spectrum

K = 20
RATE = 3e-3
MOMENTUM = 0.9
START = 1e-4
BATCH = 1000
STEPS = 20
PAUSE = 0.3
"""Seconds between two timings, after which no thread of BLAS waits actively any more."""

THREADS = tuple(sorted({1, os.cpu_count() or 1}))

Work = Callable[[], object]


def seconds(work: Work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def best_medians(works: dict[str, Work], repeats: int) -> dict[str, float]:
    """Return the median time of each function in `works` at its best number of BLAS threads."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for threads in THREADS:
        with ExitStack() as stack:
            stack.enter_context(threadpool_limits(threads))
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads)
            rounds = [{name: seconds(work) for name, work in works.items()} for _ in range(repeats)]
        for name in works:
            found[name].append(median(times[name] for times in rounds))
    return {name: min(times) for name, times in found.items()}


def verdict(asked: str, holds: bool) -> str:
    return f"asked {asked}: {'yes' if holds else 'NO'}"


# P1: one epoch of the rotation augmented gradient.


class TorchTraining:
    """Full-batch training in PyTorch: autograd of the loss, rotation, SGD with momentum."""

    def __init__(self, X: np.ndarray, start: UntiedWeights, dtype: torch.dtype) -> None:
        self.X = torch.tensor(X, dtype=dtype)
        self.encoder = torch.tensor(start.encoder, dtype=dtype, requires_grad=True)
        self.decoder = torch.tensor(start.atoms.T.copy(), dtype=dtype, requires_grad=True)
        self.optimizer = torch.optim.SGD(
            [self.encoder, self.decoder], lr=RATE, momentum=MOMENTUM, nesterov=True
        )

    def step(self) -> None:
        """Take one full-batch step."""
        self.optimizer.zero_grad()
        codes = self.X @ self.encoder.T
        loss = torch.sum((self.X - codes @ self.decoder.T) ** 2) / len(self.X)
        loss.backward()
        with torch.no_grad():
            moment = codes.T @ codes / len(self.X)
            turn = (torch.triu(moment, 1) - torch.tril(moment, -1)) / 2
            self.encoder.grad -= turn @ self.encoder
            self.decoder.grad += self.decoder @ turn
        self.optimizer.step()


def start_of(m: int) -> UntiedWeights:
    rng = np.random.default_rng(0)
    return UntiedWeights(*(START * rng.standard_normal((K, m)) for _ in range(2)))


def solver_epochs(
    covariance: DenseCovariance, start: UntiedWeights | TiedWeights, n_epochs: int
) -> UntiedWeights:
    tied = isinstance(start, TiedWeights)
    method = make_method("rag", MethodSettings(np.zeros(K), geometric_prior(K), None, tied))
    training = Options(learning_rate=RATE, momentum=MOMENTUM, max_iter=n_epochs, tol=0.0)
    stiff = stiffness(method, covariance, start, training)
    return descend(method, covariance, start, training, stiff, {}, None, None).value


def simulated_epochs(spectrum: Spectrum, n_epochs: int) -> UntiedWeights:
    plan = Plan(spectrum, K, n_epochs, init_scale=START, momentum=MOMENTUM, record_at=(n_epochs,))
    (trajectory,) = simulate([Run("rag", "nesterov", RATE, seed=0, tied=False)], plan)
    return trajectory.weights


def per_epoch(run: Callable[[int], object], few: int, many: int) -> Callable[[], float]:
    """Return a function that measures the time of one epoch, without the set-up."""

    def measure() -> float:
        return (seconds(lambda: run(many)) - seconds(lambda: run(few))) / (many - few)

    return measure


def best_epoch(measure: Callable[[], float], repeats: int = 5) -> float:
    times = []
    for threads in THREADS:
        with threadpool_limits(threads):
            times.append(median(measure() for _ in range(repeats)))
    return min(times)


def training(X: np.ndarray) -> None:
    centred = X - X.mean(axis=0)
    moment = SecondMoment.of(X)
    covariance = DenseCovariance(moment.covariance)
    spectrum = Spectrum(*moment.spectrum(), moment.trace)
    start = start_of(X.shape[1])
    single, double = (TorchTraining(centred, start, t) for t in (torch.float32, torch.float64))
    peers = best_medians({"single": single.step, "double": double.step}, repeats=3)
    ours = {
        "gradient solver, untied": best_epoch(
            per_epoch(lambda n: solver_epochs(covariance, start, n), 50, 450)
        ),
        "gradient solver, tied (default)": best_epoch(
            per_epoch(lambda n: solver_epochs(covariance, TiedWeights(start.encoder), n), 50, 450)
        ),
        "simulation, untied": best_epoch(
            per_epoch(lambda n: simulated_epochs(spectrum, n), 50, 1050)
        ),
    }
    print(f"P1  one RAG epoch, {X.shape[0]} × {X.shape[1]}, k = {K}; without set-up")
    print(
        f"    PyTorch on the rows: {peers['single']:.3f} s float32, {peers['double']:.3f} s float64"
    )
    for name, seconds_each in ours.items():
        asked = 1000 if name.startswith("simulation") else 400
        ratio = peers["single"] / seconds_each
        print(
            f"    {name:<32} {1e3 * seconds_each:7.3f} ms  {ratio:6.0f} ×  "
            f"{verdict(f'≥ {asked}', ratio >= asked)}"
        )
    same_trajectory(centred, start, covariance, spectrum)


def same_trajectory(
    centred: np.ndarray, start: UntiedWeights, covariance: DenseCovariance, spectrum: Spectrum
) -> None:
    """Print the difference between the weights of our solvers and those of naive steps."""
    large = UntiedWeights(*(1000 * field for field in start))
    naive = TorchTraining(centred, large, torch.float64)
    for _ in range(STEPS):
        naive.step()
    solved = solver_epochs(covariance, large, STEPS)
    plan = Plan(spectrum, K, STEPS, init_scale=1000 * START, momentum=MOMENTUM)
    (trajectory,) = simulate([Run("rag", "nesterov", RATE, seed=0, tied=False)], plan)
    expected = naive.encoder.detach().numpy(), naive.decoder.detach().numpy().T
    for name, found in (("solver", solved), ("simulation", trajectory.weights)):
        error = max(float(np.max(np.abs(a - b))) for a, b in zip(found, expected, strict=True))
        print(f"    {name} against naive steps: {error:.1e}  {verdict('≤ 1e-8', error <= 1e-8)}")


# P2: principal components, streamed (at once: P3 and P13 in benchmarks/peers.py).


def streamed(estimator: LinearAutoencoder | IncrementalPCA, X: np.ndarray) -> np.ndarray:
    for start in range(0, len(X), BATCH):
        estimator.partial_fit(X[start : start + BATCH])
    return estimator.components_


def streaming(X: np.ndarray) -> None:
    _, axes = SecondMoment.of(X).spectrum(K)
    found: dict[str, np.ndarray] = {}

    def ours() -> None:
        found["ours"] = streamed(LinearAutoencoder(K), X)

    def peer() -> None:
        found["peer"] = streamed(IncrementalPCA(K), X)

    times = best_medians({"ours": ours}, repeats=5) | best_medians({"peer": peer}, repeats=1)
    errors = {name: axis_alignment_distance(rows.T, axes) for name, rows in found.items()}
    ratio = times["peer"] / times["ours"]
    print(f"P2  streaming in batches of {BATCH}, k = {K}")
    print(f"    IncrementalPCA    {times['peer']:7.2f} s, alignment error {errors['peer']:.1e}")
    print(
        f"    LinearAutoencoder {times['ours']:7.2f} s, alignment error {errors['ours']:.1e}  "
        f"{ratio:.0f} ×  {verdict('≥ 20 and < 1e-8', ratio >= 20 and errors['ours'] < 1e-8)}"
    )


def streamed_against_fit(X: np.ndarray) -> None:
    """Compare a stream with one `fit`, in turn, at the default number of threads."""
    for name, rows in (("raw", X), ("centred", X - X.mean(axis=0))):
        times: dict[str, list[float]] = {"fit": [], "stream": []}
        for _ in range(11):
            for key, work in (
                ("fit", lambda rows=rows: LinearAutoencoder(K).fit(rows).components_),
                ("stream", lambda rows=rows: streamed(LinearAutoencoder(K), rows)),
            ):
                time.sleep(PAUSE)
                times[key].append(seconds(work))
        whole, stream = (median(times[key]) for key in ("fit", "stream"))
        ratio = median(b / a for a, b in zip(times["fit"], times["stream"], strict=True))
        print(
            f"    {name} rows: stream {stream:.3f} s, fit {whole:.3f} s, ratio {ratio:.2f}  "
            f"{verdict('≤ 1.15', ratio <= 1.15)}"
        )


# P8: the Hessian's spectrum.


def hessian(X: np.ndarray) -> None:
    values, _ = SecondMoment.of(X).spectrum()
    point = AlignedPoint.nonuniform(values, best_penalties(values, K))
    elapsed = best_medians({"blocks": lambda: hessian_eigenvalues(point)}, repeats=5)["blocks"]
    tracemalloc.start()
    found = hessian_eigenvalues(point)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    dense = (2 * len(values) * K) ** 2 * 8 / 2**30
    print(
        f"P8  all {len(found)} eigenvalues of the Hessian: {1e3 * elapsed:.1f} ms, {peak:.0f} MiB "
        f"(a dense one: {dense:.1f} GiB)  {verdict('< 1 s, < 200 MB', elapsed < 1 and peak < 190)}"
    )


if __name__ == "__main__":
    source, data = mnist_rows()
    print(f"{source}, {data.shape[0]} × {data.shape[1]}, threads tried: {THREADS}")
    training(data)
    streaming(data)
    streamed_against_fit(data)
    hessian(data)
