"""Experiment: how often criteria find the true number of principal components."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg import eigh_tridiagonal

from lucidae.counting import WishartSpectra, count_components
from lucidae.iteration import limited_blas
from lucidae_papers.cells import Arrays, Cell, Settings, on_processor, settings_of, work
from lucidae_papers.declaration import Experiment, Scale, listed
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.verdicts import LABELS, AtLeast, AtMost, Ordered, Reported, Where

Floats = np.ndarray[Any, np.dtype[np.float64]]

SHARE = 0.95
"""Share of the variance that the counted components must explain, in the rule `by_share`."""

HORN_SIMULATIONS = 199
"""Number of simulated covariance spectra of noise in Horn's own procedure."""


def by_criterion(name: str, noise_variance: float | None = None) -> Callable[[Floats, int], int]:
    """Return a function that counts components by the criterion `name` of `count_components`."""

    def count(values: Floats, n: int) -> int:
        return count_components(values, n, name, noise_variance=noise_variance).n_components

    return count


def by_share(values: Floats, n: int) -> int:  # noqa: ARG001
    """Return the number of leading components that explain 95 % of the variance."""
    return int(np.searchsorted(np.cumsum(values) / np.sum(values), SHARE)) + 1


def by_horn(values: Floats, n: int) -> int:
    """Return the number of leading eigenvalues that are larger than those of noise (Horn 1965).

    Eigenvalue j is compared with the 99 % quantile of eigenvalue j of white noise whose variance is
    the mean of all eigenvalues.
    """
    levels = _horn_levels(len(values), n) * np.sum(values)
    below = values[: len(levels)] <= levels
    return int(np.argmax(below)) if np.any(below) else len(levels)


@lru_cache(maxsize=64)
def _horn_levels(m: int, n: int) -> Floats:
    """Return 99 % quantiles of the eigenvalues of a covariance of white noise.

    The noise has n rows and m features. Each eigenvalue is divided by the sum of all; there is one
    quantile for each, in descending order.
    """
    null = WishartSpectra(min(m, n - 1), float(max(m, n - 1)), HORN_SIMULATIONS)
    diagonal = null.diagonal.copy()
    diagonal[1:] += null.below
    crossed = np.sqrt(null.diagonal[:-1] * null.below)
    spectra = [
        eigh_tridiagonal(d, e, eigvals_only=True)[::-1]
        for d, e in zip(diagonal.T, crossed.T, strict=True)
    ]
    shares = np.array(spectra) / np.sum(spectra, axis=1, keepdims=True)
    return np.asarray(np.quantile(shares, 0.99, axis=0))


COUNTERS: dict[str, Callable[[Floats, int], int]] = {
    "mle": by_criterion("mle"),
    "parallel_analysis": by_criterion("parallel_analysis"),
    "hard_threshold": by_criterion("hard_threshold"),
    "known_noise": by_criterion("hard_threshold", 1.0),
    "horn": by_horn,
    "share": by_share,
}
"""The criteria: functions of all eigenvalues of the covariance and of the number of rows."""

CRITERIA = ("mle", "parallel_analysis", "hard_threshold")

ALONG = {
    "strength": "strength",
    "ratio": "n/m =",
    "largest": "strength of the largest signal",
    "spread": "ratio of variances",
    "tails": "degrees of freedom",
    "none": "n/m =",
}
"""The quantity that varies in each panel, in words."""


@dataclass(frozen=True, slots=True)
class CountStudy:
    """Settings: how often each criterion finds the true number of signals.

    The strength of a signal is its variance divided by σ²√(m/n) for m features, n rows and the
    noise variance σ². Signals of strength below 1 cannot be detected from the eigenvalues if n and
    m are large (Baik et al. 2005).
    """

    # strengths of the weakest signal; the others are up to twice as strong
    strengths: tuple[float, ...]
    # ratios n/m, at the strength `strength`; they are also used for data without signals
    ratios: tuple[float, ...]
    # strengths of the largest signal; the others have their default strengths
    largest: tuple[float, ...]
    # ratios of the largest to the smallest noise variance of the features
    spreads: tuple[float, ...]
    freedoms: tuple[float, ...]  # degrees of freedom of Student's t distribution of the noise
    trials: int  # number of random data sets of each kind; all criteria see the same
    n_features: int = 100  # numbers of features and of signals
    signals: int = 5
    ratio: float = 2.0  # ratio n/m and strength of the weakest signal where they do not vary
    strength: float = 6.0

    def cells(self) -> Sequence[Cell]:
        """Return one run for each panel and point of its grid."""
        runs: list[tuple[str, float, dict[str, Any]]] = []
        runs += [("strength", s, {"strength": s}) for s in self.strengths]
        runs += [("ratio", ratio, {"ratio": ratio}) for ratio in self.ratios]
        runs += [("largest", top, {"largest": top}) for top in self.largest]
        runs += [("spread", spread, {"spread": spread}) for spread in self.spreads]
        runs += [("tails", freedom, {"freedom": freedom}) for freedom in self.freedoms]
        runs += [("none", ratio, {"ratio": ratio, "signals": 0}) for ratio in self.ratios]
        shared = settings_of(self, "trials", "n_features", "signals", "ratio", "strength")
        return [
            Cell(measure, {"panel": panel, "point": point, **shared, **one}, 0.02 * self.trials)
            for panel, point, one in runs
        ]

    def curves(self, results: Results) -> Curves:
        """Return the share of right counts, and the mean count, of each criterion in each panel.

        Their names are ``"panel/criterion"`` and ``"mean/panel/criterion"``. For data without
        signals, the share is that of the data sets in which a component is found.
        """
        curves = {}
        for panel, along in ALONG.items():
            found = results.where(panel=panel).cells
            points = [cell.settings["point"] for cell in found]
            for name in COUNTERS:
                counts = [cell.arrays[name] for cell in found]
                right = [
                    float(np.mean(count > 0 if panel == "none" else count == self.signals))
                    for count in counts
                ]
                curves[f"{panel}/{name}"] = Curve(points, right, along)
                means = [float(np.mean(count)) for count in counts]
                curves[f"mean/{panel}/{name}"] = Curve(points, means, along)
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "data": f"{self.signals} Gaussian signals along random orthogonal directions, and "
            f"noise of mean variance 1 in {self.n_features} features",
            "rows": f"{self.ratio:g} times as many as features; where their number varies, "
            f"{listed(self.ratios)} times",
            "strength of signals": "variance divided by √(m/n) for m features and n rows; from "
            f"{self.strength:g} for the weakest to {2 * self.strength:g}; where it varies, the "
            f"weakest has {listed(self.strengths)}",
            "largest signal": f"strength {listed(self.largest)} in its panel",
            "unequal noise": "variances of the features spaced evenly in logarithm, the largest "
            f"{listed(self.spreads)} times the smallest",
            "heavy tails": "Student's t distribution of "
            f"{listed(self.freedoms)} degrees of freedom, scaled to variance 1",
            "parallel analysis": "999 simulations, level 0.01; Horn's own procedure: 199 "
            "simulations, 99 % quantiles",
            "trials": f"{self.trials} random data sets for each point; standard error of a share: "
            f"at most {0.5 / self.trials**0.5:.2g}",
            "success": "the number of components is the number of signals",
        }


def drawn_rows(settings: Settings, seed: int) -> Floats:
    """Return one random data set: signals along random directions, plus noise."""
    rng = np.random.default_rng(seed)
    m, r = settings["n_features"], settings["signals"]
    n = round(settings["ratio"] * m)
    freedom = settings.get("freedom")
    noise = rng.standard_normal((n, m))
    if freedom is not None:
        noise = rng.standard_t(freedom, (n, m)) * np.sqrt((freedom - 2.0) / freedom)
    variances = np.geomspace(1.0, settings.get("spread", 1.0), m)
    noise *= np.sqrt(variances / np.mean(variances))
    if not r:
        return noise
    strengths = settings["strength"] * np.linspace(2.0, 1.0, r)
    strengths[0] = settings.get("largest", strengths[0])
    axes = np.linalg.qr(rng.standard_normal((m, r)))[0]
    signals = rng.standard_normal((n, r)) * np.sqrt(strengths * np.sqrt(m / n))
    return np.asarray(noise + signals @ axes.T)


@work("linear.counts/1")
@on_processor
def measure(settings: Settings) -> Arrays:
    """Return for each criterion the number of components that it finds in each data set."""
    counts: dict[str, list[int]] = {name: [] for name in COUNTERS}
    shown: Floats = np.empty(0)
    with limited_blas(settings["n_features"]):
        for seed in range(settings["trials"]):
            X = drawn_rows(settings, seed)
            n, m = X.shape
            centred = X - X.mean(axis=0)
            values = np.zeros(m)
            square = np.linalg.svd(centred, compute_uv=False) ** 2 / (n - 1)
            values[: min(n, m)] = square
            for name, count in COUNTERS.items():
                counts[name].append(count(values, n))
            shown = values if seed == 0 else shown
    return {name: np.array(found) for name, found in counts.items()} | {"spectrum": shown}


WHERE = {
    "largest": " if one signal is much larger",
    "spread": " if the noise of the features differs",
    "tails": " if the noise has heavy tails",
}


def rate(panel: str, name: str) -> str:
    """Return a phrase for the share of data sets in which a criterion is right, for a verdict."""
    if panel == "none":
        return f"share of data sets without signals in which a component is found: {LABELS[name]}"
    return (
        f"share of data sets in which all signals are counted{WHERE.get(panel, '')}: {LABELS[name]}"
    )


def _least(panel: str, name: str, bound: float, at: Where) -> AtLeast:
    return AtLeast(f"{panel}/{name}", bound, at, rate(panel, name))


def _most(panel: str, name: str, bound: float, at: Where) -> AtMost:
    return AtMost(f"{panel}/{name}", bound, at, rate(panel, name))


def _too_many(panel: str, name: str, bound: float, at: Where) -> AtLeast:
    says = f"mean number of components for five signals{WHERE[panel]}: {LABELS[name]}"
    return AtLeast(f"mean/{panel}/{name}", bound, at, says)


def expect(strong: Where, slack: float) -> dict[str, Any]:
    """Return, for each statement, the verdicts on it."""
    return {
        "detection": tuple(_most("strength", name, 0.05, 0.5) for name in CRITERIA),
        "hidden": (
            _most("largest", "horn", 0.1, 1000.0),
            _least("largest", "parallel_analysis", 0.95 - slack, 1000.0),
        ),
        "reconstruction": (
            _most("strength", "hard_threshold", 0.1, 2.0),
            _least("strength", "hard_threshold", 0.95 - slack, 6.0),
        ),
        "strong": tuple(
            _least("ratio", name, 0.95 - slack, strong) for name in ("mle", "parallel_analysis")
        ),
        "few rows": (_least("ratio", "mle", 0.85 - slack, 0.5),),
        "nothing": (
            _most("none", "parallel_analysis", 0.03 + slack, "mean"),
            _most("none", "hard_threshold", 0.01, "mean"),
            _least("none", "mle", 1.0, "everywhere"),
        ),
        "share": (_most("ratio", "share", 0.05, "everywhere"),),
        "unequal": (
            _too_many("spread", "mle", 6.0, 4.0),
            _too_many("spread", "parallel_analysis", 6.0, 4.0),
            _least("spread", "hard_threshold", 0.9 - slack, 4.0),
        ),
        "tails": (
            *(_too_many("tails", name, 5.3, 3.0) for name in CRITERIA),
            *(
                Ordered(
                    ("tails/hard_threshold", f"tails/{name}"),
                    3.0,
                    0.1,
                    f"{rate('tails', 'hard_threshold')} minus {LABELS[name]}",
                )
                for name in ("mle", "parallel_analysis")
            ),
        ),
    }


REPORTED = (
    *(Reported(f"strength/{name}", 2.0, rate("strength", name)) for name in CRITERIA),
    Reported("spread/known_noise", 4.0, rate("spread", "known_noise")),
)

EXPERIMENT = Experiment(
    name="component-counts",
    title="Number of principal components by different criteria",
    reference="Minka 2000, Horn 1965, Dobriban & Owen 2019, Gavish & Donoho 2014, Baik et al. 2005",
    about="Data sets with a known number of signals in noise are drawn. Minka's evidence, parallel "
    "analysis, the hard threshold (with the noise variance estimated or known), Horn's own "
    "procedure and a share of 95 % of the variance choose the number of components from the "
    "eigenvalues of the covariance.",
    claims={
        "detection": "Signals below the detection threshold (strength 1) cannot be counted from "
        "the eigenvalues (Baik et al. 2005).",
        "hidden": "In Horn's procedure a large signal hides smaller ones. It does not if each "
        "component is removed from the data before the next one is tested (Dobriban & Owen 2019).",
        "reconstruction": "The hard threshold counts only signals that lower the error of "
        "reconstruction. Such signals must be stronger than those that can just be detected "
        "(Gavish & Donoho 2014).",
    },
    findings={
        "strong": "With at least as many rows as features, Minka's evidence and parallel analysis "
        "nearly always count strong signals correctly.",
        "few rows": "Minka's evidence is a useful criterion also for half as many rows as "
        "features, where scikit-learn refuses it.",
        "nothing": "In data without signals parallel analysis rarely finds a component and the "
        "hard threshold never; Minka's evidence always finds one.",
        "share": "A share of 95 % of the variance never gives the number of signals.",
        "unequal": "If the noise variances of the features differ by a factor of 4, Minka's "
        "evidence and parallel analysis count too many components, and the hard threshold is "
        "still right.",
        "tails": "If the noise has a t distribution with 3 degrees of freedom, all criteria count "
        "too many components, and the hard threshold is right most often.",
    },
    smoke=Scale(
        CountStudy((0.5, 2.0, 6.0), (0.5, 2.0, 5.0), (10.0, 1000.0), (1.0, 4.0), (30.0, 3.0), 12),
        expect((2.0, 5.0), 0.2),
        REPORTED,
    ),
    paper=Scale(
        CountStudy(
            (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0),
            (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
            (10.0, 30.0, 100.0, 300.0, 1000.0, 1e4),
            (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0),
            (30.0, 10.0, 6.0, 5.0, 4.0, 3.0),
            200,
        ),
        expect((1.0, 20.0), 0.0),
        REPORTED,
    ),
    draw="sparsity.counts",
)
