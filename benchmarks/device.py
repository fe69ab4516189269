"""Estimators on a GPU, with torch and CuPy: time per epoch, agreement with NumPy, time of a fit.

    PYTHONPATH=src:.carry python benchmarks/device.py [--quick]

It prints one Markdown table, and below it the error of every check that failed. The exit status is
1 if there is one. Without a GPU the same checks run with torch on the CPU, at tiny sizes. The
folder ``.carry`` may contain packages that the machine lacks, such as array_api_compat. The full
run takes at most four minutes: what would begin later is left out, and named. Comparisons with
NumPy come first, for all libraries. Only torch records epochs as CUDA graphs: the goal for their
time does not apply to CuPy.
"""

from __future__ import annotations

import argparse
import importlib
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from statistics import median
from typing import Any

import numpy as np

from lucidae import (
    DropoutAutoencoder,
    DropoutRegressor,
    LinearAutoencoder,
    SecondMoment,
    SparseVAE,
    certify,
)
from lucidae.arrays import graphs, like, to_numpy
from lucidae.arrays.eigen import leading_eigenpairs
from lucidae.datasets import make_meg_leadfield, make_sparse_regression
from lucidae.linear import Plan, Run, simulate, simulation, solvers

LIMIT_S = 200.0
"""Seconds after which no further check begins."""

METHODS = ("rag", "plain", "nonuniform_l2", "linear_vae", "uniform_l2", "nested_dropout")
GOAL_MS = {"rag": 0.1, "plain": 0.1, "nonuniform_l2": 0.1, "linear_vae": 0.1}
TOLERANCES = {"float64": 1e-10, "float32": 1e-5}
SEEDS = np.random.default_rng


def penalties(method: str, k: int) -> Any:
    """Return the argument `l2` for a method with k latents."""
    return np.linspace(0.02, 0.1, k) if method == "nonuniform_l2" else 0.05


Check = Callable[[], tuple[str, str, bool]]
"""Function that returns what was found, what it is compared with, and whether the check passes."""


class Table:
    """Table of checks: runs each check, prints a row for it, and collects the failures."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.failures: list[str] = []
        self.skipped: list[str] = []
        self.seconds: dict[str, float] = {}
        print("| what | found | compared with | |\n|---|---|---|---|", flush=True)

    def row(self, name: str, check: Check) -> None:
        """Run a check; an exception is a failure whose traceback is printed at the end."""
        if time.perf_counter() - self.begun > LIMIT_S:
            self.skipped.append(name)
            return
        try:
            found, other, fine = check()
        except Exception as error:
            message = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
            found, other, fine = message[:160].replace("|", "/"), "", False
            self.failures.append(
                f"FAIL {name}\n" + "\n".join(traceback.format_exc(-6).splitlines())
            )
        else:
            if not fine:
                self.failures.append(f"FAIL {name}: {found}, compared with {other}")
        print(f"| {name} | {found} | {other} | {'ok' if fine else 'FAIL'} |", flush=True)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a ``with`` block and store its time, which `close` prints."""
        begin = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begin

    def close(self) -> int:
        """Print the failures, what was left out and the times; return the exit status."""
        print()
        for line in self.failures:
            print(line, flush=True)
        if self.skipped:
            print(f"left out after {LIMIT_S:g} s: {', '.join(self.skipped)}")
        print("seconds: " + ", ".join(f"{k} {v:.0f}" for k, v in self.seconds.items()))
        taken = time.perf_counter() - self.begun
        print(f"{len(self.failures)} failures in {taken:.0f} s", flush=True)
        return int(bool(self.failures))


class Library:
    """An array library on a device: how to move arrays there, and how to wait for it."""

    def __init__(self, name: str, reference: Any, wait: Callable[[], Any]) -> None:
        self.name, self.reference, self.wait = name, reference, wait

    def array(self, values: Any, dtype: str = "float64") -> Any:
        """Return `values` in the library and on the device, with the given dtype."""
        typed = like(np.zeros(1), self.reference)
        module = importlib.import_module("torch" if "torch" in self.name else "cupy")
        if "torch" in self.name:
            return module.asarray(
                np.asarray(values), dtype=getattr(module, dtype), device=typed.device
            )
        return module.asarray(values, dtype=dtype)

    @property
    def records(self) -> bool:
        """Whether steps are recorded as CUDA graphs."""
        return self.name == "torch-cuda"

    def seconds(self, work: Callable[[], Any], repeats: int = 3) -> float:
        """Return the median time of `work` after one run that is not counted."""
        times = []
        for _ in range(repeats + 1):
            self.wait()
            begin = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - begin)
        return median(times[1:])


def libraries() -> list[Library]:
    """Return the libraries that find a GPU; without a GPU, torch on the CPU."""
    found = []
    try:
        import torch
    except ImportError:
        print("torch is not installed.")
    else:
        if torch.cuda.is_available():
            print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
            found.append(
                Library("torch-cuda", torch.zeros(1, device="cuda"), torch.cuda.synchronize)
            )
        else:
            print(f"torch {torch.__version__}: there is no GPU, the checks run on the CPU.")
            found.append(Library("torch-cpu", torch.zeros(1), lambda: None))
    try:
        import cupy

        cupy.zeros(1).sum()
    except Exception as error:  # CuPy without a driver raises errors of several classes
        print(f"CuPy is left out: {type(error).__name__}.")
    else:
        print(f"CuPy {cupy.__version__}")
        found.append(Library("cupy", cupy.zeros(1), cupy.cuda.Device().synchronize))
    print()
    return found


@cache
def rows(n: int, m: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return n rows of m rotated features with decaying variances and a mean that is not zero."""
    rng = SEEDS(seed)
    spread = np.linspace(3.0, 1.0, m) * np.arange(1, m + 1.0) ** -0.6
    latent = rng.standard_normal((n, m)) * spread
    axes, _ = np.linalg.qr(rng.standard_normal((m, m)))
    return latent @ axes + rng.standard_normal(m)


@contextmanager
def setting(module: Any, **values: Any) -> Iterator[None]:
    """Run a ``with`` block in which names of a module have other values."""
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def difference(found: Any, expected: Any) -> float:
    """Return the largest difference of two arrays, divided by the largest entry of the second."""
    found, expected = to_numpy(found), to_numpy(expected)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    return float(np.max(np.abs(found - expected)) / max(np.max(np.abs(expected)), 1e-300))


def epoch_ms(library: Library, X: Any, method: str, k: int, counts: tuple[int, int]) -> float:
    """Return the milliseconds per epoch, from the times of fits with two numbers of epochs."""

    def fit(epochs: int) -> None:
        descent(method, k, epochs).fit(X)

    few, many = counts
    return (
        1e3
        * (library.seconds(lambda: fit(many)) - library.seconds(lambda: fit(few)))
        / (many - few)
    )


def descent(method: str, k: int, epochs: int, **options: Any) -> LinearAutoencoder:
    """Return an estimator that makes so many steps of descent."""
    return LinearAutoencoder(
        k,
        method=method,
        solver="gradient",
        max_iter=epochs,
        tol=0.0,
        l2=penalties(method, k),
        random_state=0,
        **options,
    )


def epochs(table: Table, library: Library, dtype: str, quick: bool, tiny: bool) -> None:
    """Time an epoch of the gradient solver, with recorded steps and without."""
    n, m, k = (200, 30, 4) if tiny else (10_000, 784, 20)
    X = library.array(rows(n, m), dtype)
    for method in METHODS if dtype == "float64" else GOAL_MS:
        counts = (400, 2400) if library.records and not quick else (200, 700)
        if tiny:
            counts = (5, 25)

        def check(method: str = method, counts: Any = counts) -> Any:
            found = epoch_ms(library, X, method, k, counts)
            if not library.records:
                return f"{found:.4f} ms", "steps are not recorded, no goal", True
            with setting(solvers, replayable=lambda step, _: step):
                eager = epoch_ms(library, X, method, k, (100, 400))
            goal = GOAL_MS.get(method)
            aim = "" if goal is None else f", goal {goal} ms"
            fine = goal is None or found <= goal
            return f"{found:.4f} ms", f"{eager:.4f} ms without recording{aim}", fine

        table.row(f"epoch, {library.name}, {dtype}, {method}, {n}x{m}, k={k}", check)


def recording(table: Table, library: Library) -> None:
    """Compare epochs that are recorded with epochs one by one, in simulations and estimators."""
    if not library.records:
        reason = "CuPy cannot record cuBLAS" if library.name == "cupy" else "there is no GPU"
        table.row(f"recorded steps, {library.name}", lambda: (f"not recorded: {reason}", "", True))
        return
    X = library.array(rows(100, 40))
    plan = Plan.of(X, 5, 250, penalties=np.linspace(0.02, 0.1, 5))
    simulated = ("rag", "gha", "plain", "nonuniform_l2", "nested_dropout", "linear_vae")
    # The steps of brockett have a QR factorisation, which torch cannot record.
    fitted = ("rag", "gha", "brockett", "plain", "nonuniform_l2", "linear_vae")
    for method in (*simulated, "brockett"):
        for optimizer in (
            ("nesterov", "adam") if method in ("plain", "linear_vae") else ("nesterov",)
        ):

            def check(method: str = method, optimizer: str = optimizer) -> Any:
                ends = []
                for chosen in (graphs.replayable, lambda step, _: step):
                    with (
                        setting(simulation, replayable=chosen),
                        setting(solvers, replayable=chosen),
                    ):
                        found = []
                        if method in simulated:
                            (ended,) = simulate([Run(method, optimizer, 1e-3)], plan)
                            found.append(ended.weights.encoder)
                        if method in fitted:
                            fit = descent(method, 5, 250, optimizer=optimizer).fit(X)
                            found.append(fit.encoder_)
                        ends.append(found)
                apart = max(difference(one, other) for one, other in zip(*ends, strict=True))
                return f"difference {apart:.1e}", "steps one by one", apart <= 1e-12

            table.row(f"recorded steps, {library.name}, {method}, {optimizer}", check)


@cache
def numpy_fit(n: int, m: int, dtype: str, k: int) -> Any:
    """Return the exact fit of NumPy to the rows with which `agreement` compares."""
    return LinearAutoencoder(k).fit(rows(n, m, seed=1).astype(dtype))


def agreement(table: Table, library: Library, tiny: bool) -> None:
    """Compare exact fits with those of NumPy."""
    shapes = {"tall": (5000, 200), "large tall": (3000, 1500), "wide": (200, 3000)}
    shapes |= {"square": (1200, 1200), "small": (50, 6)}
    if tiny:
        shapes = {"tall": (80, 20), "wide": (20, 80), "square": (40, 40)}
    for shape, (n, m) in shapes.items():
        data = rows(n, m, seed=1)
        k = min(5, m - 1)
        for dtype, tolerance in TOLERANCES.items():

            def check(
                data: Any = data, k: int = k, dtype: str = dtype, tol: float = tolerance
            ) -> Any:
                host = data.astype(dtype)
                ours = numpy_fit(*data.shape, dtype, k)
                X = library.array(host, dtype)
                theirs = LinearAutoencoder(k).fit(X)
                assert type(theirs.components_) is type(X)
                apart = difference(theirs.components_, ours.components_)
                codes = theirs.transform(X)
                assert codes.dtype == X.dtype
                codes_apart = difference(codes, ours.transform(host))
                back = difference(
                    theirs.inverse_transform(codes), ours.inverse_transform(ours.transform(host))
                )
                scores = difference(theirs.score_samples(X), ours.score_samples(host))
                same = on_rows = True
                if host.shape[1] <= 500:
                    same = theirs.certificate_.holds == ours.certificate_.holds
                    on_rows = certify(theirs, X).holds == certify(ours, host).holds
                fine = apart <= tol and max(codes_apart, back) <= 10 * tol and scores <= 100 * tol
                text = f"components {apart:.1e}, codes {codes_apart:.1e}, "
                text += f"rows {back:.1e}, scores {scores:.1e}"
                verdicts = "same certificates" if same and on_rows else "CERTIFICATES DIFFER"
                return f"{text}, {verdicts}", f"NumPy, at most {tol:g}", fine and same and on_rows

            table.row(f"exact, {library.name}, {shape} {n}x{m}, {dtype}", check)


def compared(
    library: Library, make: Callable[[], Any], names: tuple[str, ...], *given: Any
) -> Check:
    """Return a check that compares an estimator fitted on the device with one fitted by NumPy.

    `make` returns a new estimator, `given` are the arguments of its `fit` as NumPy arrays, and
    `names` are the fitted attributes and methods whose values are compared.
    """

    def check() -> tuple[str, str, bool]:
        ours = make().fit(*given)
        arrays = [library.array(values) for values in given]
        theirs = make().fit(*arrays)
        parts = []
        for name in names:
            mine, other = getattr(ours, name), getattr(theirs, name)
            pair = (other(arrays[0]), mine(given[0])) if callable(mine) else (other, mine)
            parts.append(difference(*pair))
        same = theirs.certificate_.holds == ours.certificate_.holds
        certify(theirs, *arrays)
        text = ", ".join(f"{name} {part:.1e}" for name, part in zip(names, parts, strict=True))
        return text, "NumPy, at most 1e-8", max(parts) <= 1e-8 and same

    return check


def estimators(library: Library, data: Any, target: Any) -> Iterator[tuple[str, Check]]:
    """Yield the checks of the dropout estimators and of `SparseVAE`, with their names."""
    regressor, autoencoder = ("coef_", "predict"), ("transform", "mean_", "singular_values_")
    yield (
        "DropoutRegressor",
        compared(library, lambda: DropoutRegressor(2), regressor, data, target),
    )
    yield (
        "DropoutRegressor, one target",
        compared(library, lambda: DropoutRegressor(), regressor, data, target[:, 0]),
    )
    yield (
        "DropoutRegressor, cross-validated",
        compared(library, lambda: DropoutRegressor(2, dropout="cv"), regressor, data, target),
    )
    yield (
        "DropoutAutoencoder",
        compared(library, lambda: DropoutAutoencoder(3, dropout=0.1), autoencoder, data),
    )
    yield (
        "SparseVAE",
        compared(library, lambda: SparseVAE(noise_variance=0.05), regressor, data, target[:, 0]),
    )


def descents(library: Library, data: Any) -> Iterator[tuple[str, Check]]:
    """Yield checks of training methods, with the steps on the CPU and on the device."""
    for method in ("rag", "gha", "brockett", "nonuniform_l2", "linear_vae", "nested_dropout"):

        def make(method: str = method) -> Any:
            return LinearAutoencoder(
                3,
                method=method,
                solver="gradient",
                max_iter=60,
                l2=penalties(method, 3),
                random_state=0,
            )

        same = compared(library, make, ("encoder_", "transform"), data)

        yield f"{method} by descent", same


def families(table: Table, library: Library) -> None:
    """Compare the other estimators and training methods with NumPy."""
    data = rows(300, 12, seed=2)
    target = data[:, :2] @ np.ones((2, 2)) + 0.1 * SEEDS(3).standard_normal((300, 2))

    def streamed() -> tuple[str, str, bool]:
        X = library.array(data)
        ours = LinearAutoencoder(3).fit(data)
        theirs = LinearAutoencoder(3).partial_fit(X[:100, :]).partial_fit(X[100:, :])
        apart = difference(theirs.components_, ours.components_)
        moment = SecondMoment.of(X, library.array(np.ones(300)))
        apart = max(apart, difference(moment.covariance, SecondMoment.of(data).covariance))
        return f"components {apart:.1e}", "NumPy, at most 1e-10", apart <= 1e-10

    for name, check in (
        *estimators(library, data, target),
        *descents(library, data),
        ("partial_fit and SecondMoment", streamed),
    ):
        table.row(f"{name}, {library.name}", check)


def refused_sparse(table: Table) -> None:
    """Check that the error for a sparse CuPy matrix says what to do."""

    def check() -> tuple[str, str, bool]:
        import cupyx.scipy.sparse

        X = cupyx.scipy.sparse.random(50, 10, density=0.3, format="csr")
        try:
            LinearAutoencoder(2).fit(X)
        except (TypeError, ValueError) as error:
            return str(error)[:150], "an error that says what to do", "toarray" in str(error)
        return "accepted", "an error", False

    table.row("sparse CuPy matrix", check)


def fits(table: Table, library: Library, tiny: bool) -> None:
    """Time the exact fit against PCA of other libraries on the same device."""
    n, m = (300, 20) if tiny else (60_000, 784)
    data = rows(n, m, seed=4)
    for dtype in TOLERANCES:
        X = library.array(data, dtype)

        def check(X: Any = X) -> Any:
            ours = library.seconds(lambda: LinearAutoencoder(min(20, m - 1)).fit(X))
            moment = library.seconds(lambda: SecondMoment.of(X))
            covariance = SecondMoment.of(X).covariance
            pairs = library.seconds(lambda: leading_eigenpairs(covariance, min(21, m)))
            others = [
                f"{name} {1e3 * library.seconds(work):.1f} ms" for name, work in peers(library, X)
            ]
            parts = f"moment {1e3 * moment:.1f}, eigenpairs {1e3 * pairs:.1f}"
            return f"{1e3 * ours:.1f} ms ({parts})", ", ".join(others), True

        table.row(f"fit {n}x{m}, k=20, {library.name}, {dtype}", check)


def plans(table: Table, library: Library, tiny: bool) -> None:
    """Time the plan of 24 linear layers against the passes of the network alone."""
    if not library.name.startswith("torch"):
        return
    import torch

    from lucidae.nn import compress

    width, count, sizes = (16, 200, (100,)) if tiny else (768, 100_000, (1000, 8192))
    device = library.array(np.zeros(1)).device
    shapes = ((width, width), (width, width), (width, 4 * width), (4 * width, width))
    layers = [
        layer
        for m, n in 6 * shapes
        for layer in (torch.nn.LayerNorm(m), torch.nn.Linear(m, n), torch.nn.GELU())
    ]
    model, x = torch.nn.Sequential(*layers).to(device), torch.randn(count, width, device=device)
    for size in sizes:

        def check(size: int = size) -> Any:
            with torch.no_grad():
                alone = library.seconds(lambda: [model(batch) for batch in x.split(size)])
            ours = library.seconds(lambda: compress.plan(model, x.split(size), budget=0.5))
            return f"{ours:.2f} s", f"passes alone {alone:.2f} s", tiny or ours < 4 * alone

        table.row(f"plan of 24 layers, {count} rows, batches of {size}, {library.name}", check)


def noise_chosen(table: Table, library: Library, tiny: bool) -> None:
    """Time fits of `SparseVAE` that choose γ (P17) on the device and on the CPU, in turn."""
    d, count = (20, 60) if tiny else (204, 4686)
    field = make_meg_leadfield(d, count, random_state=0)
    for name, Phi in (("Gaussian", None), ("lead field", field)):
        for n in (10, 50):
            p = make_sparse_regression(
                d, count, min(20, d // 5), n, min(10, n), snr_db=20, dictionary=Phi, random_state=0
            )
            there = library.array(p.dictionary), library.array(p.responses)

            def check(p: Any = p, there: Any = there) -> Any:
                times: dict[str, list[float]] = {"device": [], "CPU": []}
                for _ in range(2 if tiny else 7):
                    for key, data in (("device", there), ("CPU", (p.dictionary, p.responses))):
                        begin = time.perf_counter()
                        SparseVAE(fit_intercept=False).fit(*data)
                        library.wait()
                        times[key].append(time.perf_counter() - begin)
                ours, cpu = (median(times[key]) for key in ("device", "CPU"))
                spread = f"{min(times['device']):.2f} to {max(times['device']):.2f}"
                goal = "goal 1 s, not slower than the CPU within 10 %"
                fine = tiny or (ours <= 1.0 and ours <= 1.1 * cpu)
                return f"{ours:.2f} s ({spread})", f"CPU {cpu:.2f} s, {goal}", fine

            table.row(f"γ chosen, {d}x{count}, {name}, n={n}, {library.name}", check)


def peers(library: Library, X: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield name and function of other programs that compute 20 principal components of X."""
    k = min(20, X.shape[1] - 1)
    if "torch" in library.name:
        import torch

        yield "torch.pca_lowrank (niter=2)", lambda: torch.pca_lowrank(X, q=k)
        yield "torch.pca_lowrank (niter=8)", lambda: torch.pca_lowrank(X, q=k, niter=8)
        yield "torch.cov and eigh", lambda: torch.linalg.eigh(torch.cov(X.T))
    else:
        import cupy

        yield "cupy.cov and eigh", lambda: cupy.linalg.eigh(cupy.cov(X, rowvar=False))
        try:
            from cuml.decomposition import PCA
        except ImportError:
            yield "cuML is not installed", lambda: None
        else:
            yield "cuml.PCA", lambda: PCA(n_components=k).fit(X)


def main() -> int:
    """Run all checks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="float64 alone, and fewer epochs")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    found = libraries()
    tiny = all("cpu" in library.name for library in found)
    table = Table()
    parts: dict[str, Callable[[Library], None]] = {
        "recorded steps": lambda library: recording(table, library),
        "estimators": lambda library: families(table, library),
        "exact fits": lambda library: agreement(table, library, tiny),
        "time of a fit": lambda library: fits(table, library, tiny),
        "plan of a network": lambda library: plans(table, library, tiny),
        "γ chosen": lambda library: noise_chosen(table, library, tiny),
        "time of an epoch": lambda library: epochs(table, library, "float64", quick, tiny),
    }
    if not quick:
        parts["float32"] = lambda library: epochs(table, library, "float32", quick, tiny)
    for name, part in parts.items():
        for library in found:
            with table.part(f"{name} {library.name}"):
                part(library)
            if name == "estimators" and library.name == "cupy":
                refused_sparse(table)
    return table.close()


if __name__ == "__main__":
    raise SystemExit(main())
