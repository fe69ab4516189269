"""Experiment: directions of two close sources from the snapshots of an array of sensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.datasets import make_array_snapshots
from lucidae.iteration import limited_blas
from lucidae.sparsity import solve_batch
from lucidae_papers.cells import Arrays, Cell, Settings, on_processor, work
from lucidae_papers.declaration import Experiment, Scale, listed
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.sparsity.recovery import group_lasso
from lucidae_papers.verdicts import LABELS, AtLeast, AtMost, Ordered, Reported, Where

Floats = np.ndarray[Any, np.dtype[np.float64]]

WIDEST = 20.0
"""The middle of the two sources is drawn from minus to plus this angle, in degrees."""


def beamforming(A: Any, X: Any, noise: float, count: int) -> Floats:  # noqa: ARG001
    """Return the power ‖aᴴX‖²/(n‖a‖⁴) that conventional beamforming assigns to each direction.

    The columns a of `A` are the steering vectors, and X are n snapshots. The other arguments, the
    noise variance and the number of sources, are not used.
    """
    squares = np.sum(np.abs(A) ** 2, axis=0)
    return np.asarray(np.mean(np.abs(A.conj().T @ X) ** 2, axis=1) / squares**2)


def music(A: Any, X: Any, noise: float, count: int) -> Floats:  # noqa: ARG001
    """Return the pseudo-spectrum ‖a‖²/‖Eᴴa‖² of MUSIC for each direction (Schmidt 1986).

    The columns a of `A` are the steering vectors. The noise variance is not used.
    """
    _, vectors = np.linalg.eigh(X @ X.conj().T)
    outside = vectors[:, : A.shape[0] - count].conj().T @ A
    squares = np.sum(np.abs(A) ** 2, axis=0)
    return np.asarray(squares / np.maximum(np.sum(np.abs(outside) ** 2, axis=0), 1e-12 * squares))


def lasso(A: Any, X: Any, noise: float, count: int) -> Floats:  # noqa: ARG001
    """Return the powers of the complex group lasso (Malioutov et al. 2005) for each direction.

    It minimises ½‖X − AU‖² + λ Σⱼ‖uⱼ‖ over the rows uⱼ of U, for the snapshots X, steering vectors
    A scaled to unit norm, and the penalty λ of `lasso_strength`, which depends on the noise
    variance `noise`. The number of sources (`count`) is not used.
    """
    unit = A / np.linalg.norm(A, axis=0)
    strength = lasso_strength(noise, A.shape[1], X.shape[1])
    found = group_lasso(unit[None], X[None], np.array([strength**2]), tol=1e-4, max_iter=300)
    return np.asarray(np.mean(np.abs(found.value.coef[0]) ** 2, axis=0))


def lasso_strength(noise: float, directions: int, snapshots: int) -> float:
    """Return the penalty λ = √γ(√n + √log κ) of the group lasso, for columns of unit norm.

    It is about the largest norm ‖aᴴE‖ that n snapshots of noise E of variance γ alone give in κ
    directions a.
    """
    return float(np.sqrt(noise) * (np.sqrt(snapshots) + np.sqrt(np.log(directions))))


def full(A: Any, X: Any, noise: float, count: int) -> Floats:  # noqa: ARG001
    """Return the relevance of each direction in the full-covariance VAE.

    The columns of `A` are the steering vectors, X are the snapshots and `noise` is the noise
    variance. The number of sources (`count`) is not used.
    """
    found = solve_batch(A[None], X[None], noise_variance=noise, tol=1e-4)
    return np.asarray(found.value.relevance[0])


SPECTRA: dict[str, Callable[[Any, Any, float, int], Floats]] = {
    "full": full,
    "group lasso": lasso,
    "music": music,
    "beamforming": beamforming,
}
"""The methods: functions of steering vectors, snapshots, noise variance and number of sources."""


def resolved(spectrum: Any, angles: Any, sources: Any) -> bool:
    """Tell whether the highest peaks of a spectrum are the sources.

    The highest local maxima, as many as there are sources, are assigned to the sources in the order
    of their angles. Each must be closer to its source than half the smallest distance of two
    sources.
    """
    padded = np.concatenate([[-np.inf], spectrum, [-np.inf]])
    peaks = np.flatnonzero((padded[1:-1] >= padded[:-2]) & (padded[1:-1] > padded[2:]))
    peaks = peaks[spectrum[peaks] > 0]
    highest = peaks[np.argsort(-spectrum[peaks], kind="stable")[: len(sources)]]
    if len(highest) < len(sources):
        return False
    found, true = np.sort(np.asarray(angles)[highest]), np.sort(sources)
    return bool(np.all(np.abs(found - true) < np.min(np.diff(true)) / 2.0))


@dataclass(frozen=True, slots=True)
class ArrayStudy:
    """Settings: how often each method resolves two close sources."""

    ratios: tuple[float, ...]  # signal-to-noise ratios of each source at one sensor, in decibels
    snapshots: tuple[int, ...]  # numbers of snapshots
    # signal-to-noise ratios for coherent sources that are always in phase
    in_phase: tuple[float, ...]
    trials: int  # number of random problems of each kind; every method solves the same problems
    # number of sensors of the uniform linear array, and of directions of the grid
    sensors: int = 12
    grid: int = 181
    separation: float = 6.0  # distance of the two directions in degrees
    # signal-to-noise ratio where the number of snapshots varies, and number of snapshots where the
    # ratio varies
    ratio: float = 10.0
    count: int = 50

    def cells(self) -> Sequence[Cell]:
        """Return one run for each kind of problem and point of its grid."""
        runs = [
            ("ratio", "independent", ratio, {"snr_db": ratio, "correlation": 0.0})
            for ratio in self.ratios
        ]
        runs += [
            (kind, kind, ratio, {"snr_db": ratio, "correlation": 1.0})
            for kind, ratios in (("coherent", self.ratios), ("in phase", self.in_phase))
            for ratio in ratios
        ]
        runs += [
            ("snapshots", "independent", count, {"n_snapshots": count, "correlation": 0.0})
            for count in self.snapshots
        ]
        return [self._cell(*run) for run in runs]

    def _cell(self, panel: str, sources: str, point: float, changed: Settings) -> Cell:
        """Return the run at one point of a panel; `changed` are the settings that vary there."""
        problem = {
            "n_sensors": self.sensors,
            "angles": self.grid,
            "n_snapshots": self.count,
            "snr_db": self.ratio,
            **changed,
        }
        settings = {
            "panel": panel,
            "sources": sources,
            "point": point,
            "separation": self.separation,
            "trials": self.trials,
            "problem": problem,
        }
        return Cell(measure, settings, 0.1 * self.trials)

    def curves(self, results: Results) -> Curves:
        """Return curves of the share of resolved pairs of sources, for each panel and method.

        The abscissa is the signal-to-noise ratio or the number of snapshots.

        Names are ``"panel/method"``.
        """
        curves = {}
        for panel in ("ratio", "coherent", "in phase", "snapshots"):
            found = results.where(panel=panel).cells
            points = [cell.settings["point"] for cell in found]
            along = "n =" if panel == "snapshots" else "SNR in dB ="
            for method in SPECTRA:
                rates = [float(np.mean(cell.arrays[method])) for cell in found]
                curves[f"{panel}/{method}"] = Curve(points, rates, along)
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "array": f"uniform and linear, {self.sensors} sensors half a wavelength apart",
            "dictionary": f"steering vectors of {self.grid} directions from −90° to 90°",
            "sources": f"two of equal power, {self.separation:g}° apart, off the grid, their "
            f"middle random from −{WIDEST:g}° to {WIDEST:g}°",
            "coherent sources": "proportional signals, with a random phase between them in each "
            f"problem; in phase at {listed(self.in_phase)} dB",
            "snapshots": f"{self.count}; where their number varies, from {self.snapshots[0]} to "
            f"{self.snapshots[-1]} at {self.ratio:g} dB",
            "known": "the noise variance to the VAE and the group lasso, the number of sources to "
            "MUSIC (without spatial smoothing)",
            "trials": f"{self.trials} random problems for each point; standard error of a share: "
            f"at most {0.5 / self.trials**0.5:.2g}",
            "success": "the two highest peaks are the sources, each to less than "
            f"{self.separation / 2:g}°",
        }


@work("sparsity.arrays/1")
@on_processor
def measure(settings: Settings) -> Arrays:
    """Return for each method which pairs of sources it resolves, and the spectra of one problem."""
    problem, kind = settings["problem"], settings["sources"]
    hits: dict[str, list[bool]] = {method: [] for method in SPECTRA}
    shown: dict[str, Any] = {}
    with limited_blas(problem["n_sensors"]):
        for seed in range(settings["trials"]):
            rng = np.random.RandomState(seed)
            middle, turn = rng.uniform(-WIDEST, WIDEST), np.exp(2j * np.pi * rng.uniform())
            turn = 1.0 if kind == "in phase" else turn
            half = settings["separation"] / 2.0
            shared = problem["correlation"] * np.array([[0.0, turn], [np.conj(turn), 0.0]])
            data = make_array_snapshots(
                **{**problem, "correlation": np.eye(2) + shared},
                source_angles=[middle - half, middle + half],
                random_state=rng,
            )
            given = data.dictionary, data.responses, data.noise_variance, len(data.support)
            spectra = {method: spectrum(*given) for method, spectrum in SPECTRA.items()}
            for method, values in spectra.items():
                hits[method].append(resolved(values, data.angles, data.source_angles))
            if seed == 0:
                shown = {f"spectrum/{method}": values for method, values in spectra.items()}
                shown |= {"angles": data.angles, "sources": data.source_angles}
    return {method: np.array(found) for method, found in hits.items()} | shown


SOURCES = {"coherent": "coherent sources", "in phase": "coherent sources in phase"}


def rate(panel: str, method: str) -> str:
    """Return a phrase for the share of pairs of sources that a method resolves in one panel."""
    return (
        f"share of resolved pairs of {SOURCES.get(panel, 'independent sources')}: {LABELS[method]}"
    )


def _above(panel: str, other: str, at: Where, margin: float) -> Ordered:
    """Return the verdict that the VAE resolves more pairs than another method, by `margin`."""
    says = f"{rate(panel, 'full')} minus {LABELS[other]}"
    return Ordered((f"{panel}/full", f"{panel}/{other}"), at, margin, says)


def _expect(low: Where, few: Where, high: Where, margin: float) -> dict[str, Any]:
    """Return the verdicts on all statements of the experiment.

    `low` and `high` select signal-to-noise ratios and `few` numbers of snapshots at which the
    methods are compared.
    """
    others = ("music", "beamforming")
    in_phase = f"{rate('in phase', 'group lasso')} minus {LABELS['full']}"
    return {
        "beamwidth": (
            AtMost("ratio/beamforming", 0.2, "everywhere", rate("ratio", "beamforming")),
        ),
        "coherent music": (AtMost("coherent/music", 0.2, "everywhere", rate("coherent", "music")),),
        "low ratio": (
            _above("ratio", "group lasso", low, 2.0 * margin),
            *(_above("ratio", other, low, 0.4) for other in others),
        ),
        "few snapshots": (
            _above("snapshots", "group lasso", few, margin / 2.0),
            *(_above("snapshots", other, few, 0.4) for other in others),
        ),
        "coherent": (
            AtLeast("coherent/full", 0.7, high, rate("coherent", "full")),
            _above("coherent", "group lasso", "mean", margin),
        ),
        "in phase": (Ordered(("in phase/group lasso", "in phase/full"), "end", margin, in_phase),),
    }


REPORTED = (Reported("in phase/full", "end", rate("in phase", "full")),)

EXPERIMENT = Experiment(
    name="sparse-arrays",
    title="Directions of two close sources from an array of sensors",
    reference="Gerstoft et al. 2016, Shan et al. 1985, Van Trees 2002, Wipf & Rao 2007",
    about="An array of sensors receives plane waves of two sources that are closer than the width "
    "of its beam. The complex snapshots are the responses, and the dictionary consists of steering "
    "vectors. The full-covariance VAE (sparse Bayesian learning) is compared with a complex group "
    "lasso, MUSIC and conventional beamforming.",
    claims={
        "beamwidth": "Conventional beamforming does not resolve sources closer than its "
        "beamwidth, whatever the signal-to-noise ratio (Van Trees 2002).",
        "coherent music": "MUSIC does not resolve coherent sources, because the covariance of "
        "their signals has rank one (Shan et al. 1985).",
    },
    findings={
        "low ratio": "At low signal-to-noise ratios the full-covariance VAE resolves more pairs "
        "of independent sources than the other three methods.",
        "few snapshots": "From few snapshots the full-covariance VAE resolves more pairs of close "
        "sources than the other three methods.",
        "coherent": "The full-covariance VAE resolves most pairs of coherent sources with a "
        "random phase between them and, on average over all signal-to-noise ratios, more of them "
        "than the group lasso.",
        "in phase": "If coherent sources are always in phase, the group lasso resolves more pairs "
        "at a high signal-to-noise ratio than the full-covariance VAE.",
    },
    smoke=Scale(
        ArrayStudy((-7.5, 0.0, 20.0), (1, 2, 20), (20.0,), 8),
        _expect(-7.5, (1, 2), 20.0, margin=0.1),
        REPORTED,
    ),
    paper=Scale(
        ArrayStudy(
            (-15.0, -12.5, -10.0, -7.5, -5.0, -2.5, 0.0, 5.0, 10.0, 15.0, 20.0),
            (1, 2, 3, 5, 7, 10, 20, 50),
            (10.0, 20.0),
            50,
        ),
        _expect((-12.5, -7.5), (1, 2), (5.0, 20.0), margin=0.1),
        REPORTED,
    ),
    draw="sparsity.arrays",
)
