"""P11: free orientation, three columns a source, against MM updates and gamma_map.

Run with ``python -m benchmarks orientations [--small] [--updates 2000]``. The dictionary is the
field of current dipoles along three axes in a spherical head, 234 sensors and 8196 sources; the 13
responses have six active sources. Energies are tr(XXᵀΣ⁻¹)/n + log|Σ| per response, lower is better.
MM (majorise–minimise) updates of all columns run to a KKT violation of 1e-8 or to their limit, and
give the energy to compare with. ``gamma_map`` is run where mne is installed, to its own stop or to
the same limit. Times are those of the processor, in one process, and of the clock.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from lucidae import SparseVAE
from lucidae.datasets._sensors import brain_points, helmet, sarvas_gain
from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.prior import Groups
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.solve import repeat_update
from lucidae.sparsity.working_set import SolverSettings, first_point

SENSORS, SOURCES, RESPONSES, ACTIVE = 234, 8196, 13, 6
SHARES = (0.2, 0.045)
"""Noise variances at which the sources are found, relative to the mean square response."""


class Recording(NamedTuple):
    """Fields of dipoles along three axes, and responses of a few sources with noise."""

    dictionary: Any
    responses: Any
    sources: Any

    @property
    def power(self) -> float:
        """Mean square of the responses."""
        return float(np.mean(self.responses**2))


def recording(
    n_sources: int, seed: int = 0, n_sensors: int = SENSORS, n_responses: int = RESPONSES
) -> Recording:
    rng = np.random.default_rng(seed)
    sensors, normals = helmet(n_sensors)
    gain = sarvas_gain(sensors, normals, brain_points(n_sources, np.random.RandomState(seed)))
    Phi = gain.reshape(n_sensors, -1)
    Phi = Phi / np.sqrt(np.mean(np.sum(Phi**2, axis=0)))
    active = np.sort(rng.choice(n_sources, ACTIVE, replace=False))
    signal = np.zeros((n_sensors, n_responses))
    for source in active:
        part = Phi[:, 3 * source : 3 * source + 3] @ rng.standard_normal((3, 1))
        part = part @ rng.standard_normal((1, n_responses))
        signal += part * np.exp(0.5 * rng.standard_normal()) / np.linalg.norm(part)
    noise = rng.standard_normal(signal.shape)
    noise *= np.linalg.norm(signal) / np.linalg.norm(noise) / 3.0
    return Recording(Phi, signal + noise, active)


def energy(data: Recording, covariance: Any, noise: float) -> float:
    """Return the energy per response; `covariance` is that of the signal, ΦΓΦᵀ."""
    sigma = covariance + noise * np.eye(SENSORS)
    fit = np.einsum("ij,ij->", data.responses, np.linalg.solve(sigma, data.responses))
    return float(fit / RESPONSES + np.linalg.slogdet(sigma)[1])


def of_relevance(data: Recording, relevance: Any) -> Any:
    used = relevance > 0
    columns = data.dictionary[:, used]
    return (columns * relevance[used]) @ columns.T


def measured(work: Callable[[], Any]) -> tuple[float, float, Any]:
    clock, processor = time.perf_counter(), time.process_time()
    result = work()
    return time.process_time() - processor, time.perf_counter() - clock, result


def fitted(data: Recording, noise: float | str, covariance: str = "spherical") -> Any:
    model = SparseVAE(
        groups=3, group_covariance=covariance, noise_variance=noise, fit_intercept=False
    )
    return model.fit(data.dictionary, data.responses)


def updated(data: Recording, noise: float, limit: int) -> tuple[Any, Any]:
    """Return the relevances after MM updates of all columns, and how the updates ended."""
    groups = Groups.of(3, data.dictionary.shape[1])
    problem, units = normalise(data.dictionary, data.responses, groups=groups)
    problem = problem.with_noise(noise, units)
    begin = first_point(problem, FullCovariance(groups), lift=True)
    solution = repeat_update(begin, "mm", SolverSettings(tolerance=1e-8, limit=limit))
    return units.relevance * solution.value.parameters, solution


def gamma_map(data: Recording, noise: float, limit: int) -> Any:
    """Return the relevances at which gamma_map of mne ended, from its coefficients."""
    from mne.inverse_sparse._gamma_map import _gamma_map_opt

    rows, active = _gamma_map_opt(
        data.responses, data.dictionary, noise, maxit=limit, group_size=3, verbose=False
    )
    estimate = np.zeros((data.dictionary.shape[1], RESPONSES))
    estimate[active] = rows
    # The residual is γΣ⁻¹X, and the coefficients of a group are wΦᵀΣ⁻¹X.
    aligned = data.dictionary.T @ (data.responses - data.dictionary @ estimate) / noise
    lengths = np.linalg.norm(estimate.reshape(-1, 3 * RESPONSES), axis=1)
    sizes = np.linalg.norm(aligned.reshape(-1, 3 * RESPONSES), axis=1)
    return np.repeat(lengths / np.where(lengths > 0, sizes, 1.0), 3)


def line(who: str, times: tuple[float, float], level: float, steps: Any, note: str = "") -> None:
    print(
        f"    {who:<28} {times[0]:8.2f}s {times[1]:8.2f}s {steps!s:>6} {level:14.6f}  {note}",
        flush=True,
    )


def at_given_noise(data: Recording, share: float, limit: int) -> None:
    noise = share * data.power
    print(f"P11 at γ = {share:g} of the power: {SENSORS} × {data.dictionary.shape[1]}, groups of 3")
    print(f"    {'who':<28} {'processor':>9} {'clock':>9} {'steps':>6} {'energy':>14}")
    for covariance in ("spherical", "full"):
        *times, model = measured(lambda kind=covariance: fitted(data, noise, kind))
        found = np.unique(model.support_ // 3).size
        line(
            f"SparseVAE, {covariance}", (times[0], times[1]), model.energy_ / RESPONSES,
            model.n_iter_, f"{found} sources, {model.status_}",
        )  # fmt: skip
    *times, (relevance, solution) = measured(lambda: updated(data, noise, limit))
    level = energy(data, of_relevance(data, relevance), noise)
    note = f"violation {solution.distance:.1g}"
    line("MM updates, spherical", (times[0], times[1]), level, solution.n_iter, note)
    try:
        *times, relevance = measured(lambda: gamma_map(data, noise, limit))
    except ImportError:
        print("    mne is not installed: no gamma_map")
        return
    level = energy(data, of_relevance(data, relevance), noise)
    line("gamma_map", (times[0], times[1]), level, f"≤{limit}")


def with_chosen_noise(data: Recording) -> None:
    print("P11 with γ chosen on held-out rows (asked: 20 s on two quiet cores)")
    for covariance in ("spherical", "full"):
        *times, model = measured(lambda kind=covariance: fitted(data, "cv", kind))
        share = model.noise_variance_ / data.power
        line(
            f"SparseVAE, {covariance}", (times[0], times[1]), model.energy_ / RESPONSES,
            model.n_iter_, f"γ = {share:.3f} of the power",
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="orientations")
    parser.add_argument("--small", action="store_true", help="400 sources instead of 8196")
    parser.add_argument("--updates", type=int, default=2000, help="limit of the peers' updates")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.filterwarnings("ignore", message=".*Convergence NOT reached.*")
    data = recording(400 if options.small else SOURCES)
    for share in SHARES:
        at_given_noise(data, share, options.updates)
    with_chosen_noise(data)


if __name__ == "__main__":
    main()
