"""Numbers of components by Minka's evidence, parallel analysis and the hard threshold."""

import math

import numpy as np
import pytest
from scipy.linalg import eigh_tridiagonal
from scipy.stats import binomtest, kstest
from sklearn.decomposition import PCA
from sklearn.decomposition._pca import _assess_dimension
from sklearn.exceptions import NotFittedError

import extras
import lucidae
from lucidae import LinearAutoencoder, SecondMoment
from lucidae.counting import (
    CRITERIA,
    WishartSpectra,
    component_levels,
    hard_threshold,
    log_evidence,
    marchenko_pastur_median,
)
from lucidae.linear import count_components

KNOWN = ("hard_threshold", 1.0)


def spiked(n, m, strengths, seed, noise=1.0):
    """Return rows of white noise with signals of the given variances along random directions."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.standard_normal((m, max(1, len(strengths)))))[0][:, : len(strengths)]
    signals = rng.standard_normal((n, len(strengths))) * np.sqrt(strengths)
    return noise**0.5 * rng.standard_normal((n, m)) + signals @ axes.T


def spectrum(X):
    values = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2 / (len(X) - 1)
    return np.append(values, np.zeros(max(0, X.shape[1] - len(values))))


# Minka's evidence


@pytest.mark.parametrize("seed", range(5))
def test_evidence_is_that_of_scikit_learn(seed):
    X = spiked(30 + 10 * seed, 12, [20.0, 10.0, 3.0], seed)
    values = spectrum(X)
    expected = [_assess_dimension(values, k, len(X)) for k in range(1, 12)]
    np.testing.assert_allclose(log_evidence(values, len(X), 11), expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_mle_is_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(25, 120)), int(rng.integers(2, 25))
    X = spiked(n, m, rng.uniform(0.5, 30.0, rng.integers(0, m)), seed) * rng.uniform(1e-3, 1e3)
    assert LinearAutoencoder("mle").fit(X).n_components_ == PCA("mle").fit(X).n_components_


def test_mle_of_data_without_noise_is_their_rank():
    X = spiked(60, 20, [5.0, 2.0, 1.0], 0, noise=0.0)
    assert PCA("mle").fit(X).n_components_ == 3
    for criterion in CRITERIA:
        found = LinearAutoencoder(criterion).fit(X)
        assert found.n_components_ == 3
        assert found.certificate_.holds


def test_mle_for_fewer_rows_than_features():
    """scikit-learn refuses; the same formula, naively evaluated, has the same maximum."""
    X = spiked(30, 80, [60.0, 50.0, 40.0], 1)
    with pytest.raises(ValueError, match="n_samples >= n_features"):
        PCA("mle").fit(X)
    values = spectrum(X)
    naive = [_assess_dimension(values, k, 30) for k in range(1, 29)]
    found = LinearAutoencoder("mle").fit(X)
    assert found.n_components_ == 1 + np.argmax(naive) == 3
    np.testing.assert_allclose(found.component_count_.scores, naive - np.max(naive), atol=1e-6)


def test_equal_eigenvalues_have_a_finite_evidence():
    found = count_components([2.0, 2.0, 1.0, 1.0], 50, "mle")
    assert np.all(np.isfinite(found.scores))


# Parallel analysis


@pytest.mark.covering
@pytest.mark.parametrize(("n", "m"), [(6, 4), (40, 40), (15, 60), (300, 8), (31, 30)])
@pytest.mark.parametrize("removed", [0, 2])
def test_simulated_spectra_are_those_of_gaussian_matrices(n, m, removed):
    """Kolmogorov–Smirnov test of the largest eigenvalue, as a share of the sum of all."""
    rng = np.random.default_rng(n + m)
    drawn = [
        np.linalg.svd(rng.standard_normal((n - removed, m - removed)), compute_uv=False) ** 2
        for _ in range(400)
    ]
    shares = np.array([values[0] / values.sum() for values in drawn])
    null = WishartSpectra(min(n, m), float(max(n, m)), 400, 1)
    assert kstest(shares, simulated_shares(null, removed)).pvalue > 1e-3


def simulated_shares(null, k):
    """Return the share of the largest eigenvalue in each simulation, from the whole matrix."""
    below = null.below[k:]
    diagonal = null.diagonal[k:] + np.vstack([np.zeros((1, below.shape[1])), below])
    crossed = np.sqrt(null.diagonal[k:-1] * below)
    return np.array(
        [
            eigh_tridiagonal(d, e, eigvals_only=True)[-1] / d.sum()
            for d, e in zip(diagonal.T, crossed.T, strict=True)
        ]
    )


@pytest.mark.covering
@pytest.mark.parametrize(
    ("smaller", "larger"), [(2, 2.0), (5, 9.5), (60, 60.0), (700, 700.0), (700, 1e6)]
)
@pytest.mark.parametrize("removed", [0, 1])
def test_counts_of_exceeding_eigenvalues_use_the_leading_rows_alone(smaller, larger, removed):
    null = WishartSpectra(smaller, larger, 40, 2)
    if smaller - removed < 2:
        return
    shares = simulated_shares(null, removed)
    for quantile in (0.1, 0.5, 0.9):
        level = np.quantile(shares, quantile) * (1 + 1e-9)
        assert null.exceeding(removed, level) == np.sum(shares > level)
    level = null.level(removed, 0.2)
    assert null.p_value(removed, level * (1 + 1e-9)) <= 0.2 < null.p_value(removed, level * 0.999)


@pytest.mark.parametrize(("n", "m"), [(20, 10), (12, 40)])
def test_noise_has_a_component_with_the_probability_of_the_level(n, m):
    """The first test is exact, also when the mean is estimated."""
    found = sum(
        count_components(
            spectrum(spiked(n, m, [], seed)),
            n,
            significance=0.05,
            n_simulations=199,
            random_state=seed,
        ).n_components
        > 0
        for seed in range(300)
    )
    assert binomtest(found, 300, 0.05).pvalue > 1e-3


def test_large_signals_do_not_hide_small_ones():
    """Horn's own procedure compares with noise of the mean variance, and misses small signals."""
    X = spiked(400, 40, [1e4, 5e3, 4.0, 3.0], 3)
    values = spectrum(X)
    assert count_components(values, 400).n_components == 4
    noise = np.mean(values) * spectrum(spiked(400, 40, [], 4))[0]
    assert np.sum(values > noise) == 2


# Hard threshold


def test_published_values_of_the_hard_threshold():
    assert hard_threshold(1.0) == pytest.approx(4 / math.sqrt(3), abs=1e-14)
    assert hard_threshold(1e-12) == pytest.approx(math.sqrt(2), abs=1e-9)
    # Gavish & Donoho 2014: ω(1) ≈ 2.858, and a polynomial with an error of at most 0.02.
    assert hard_threshold(1.0) / math.sqrt(marchenko_pastur_median(1.0)) == pytest.approx(
        2.858, abs=5e-4
    )
    for beta in np.linspace(0.01, 1.0, 12):
        polynomial = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
        omega = hard_threshold(beta) / math.sqrt(marchenko_pastur_median(beta))
        assert omega == pytest.approx(polynomial, abs=0.02)


@pytest.mark.parametrize(("n", "m"), [(200, 100), (101, 100), (60, 300)])
def test_hard_threshold_for_known_and_unknown_noise(n, m):
    signal = 30.0 * math.sqrt(m / n) + 30.0
    X = spiked(n, m, [3 * signal, 2 * signal, signal], 0, noise=0.25)
    singular = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    beta, larger = min(n - 1, m) / max(n - 1, m), max(n - 1, m)
    tau = hard_threshold(beta) * math.sqrt(0.25 * larger)
    assert count_components(spectrum(X), n, "hard_threshold").n_components == 3
    known = count_components(spectrum(X), n, "hard_threshold", noise_variance=0.25)
    assert known.n_components == np.sum(singular > tau) == 3
    np.testing.assert_allclose(known.scores, singular[: min(n - 1, m)] / tau, rtol=1e-10)
    levels = component_levels(spectrum(X), n, "hard_threshold", noise_variance=0.25, most=2)
    np.testing.assert_allclose(levels, [tau**2 / (n - 1)] * 2, rtol=1e-12)


def test_a_single_eigenvalue_is_compared_with_known_noise():
    for variance, kept in ((0.3, 1), (3.0, 0)):
        found = count_components([2.0], 1000, "hard_threshold", noise_variance=variance)
        assert found.n_components == kept
    assert count_components([2.0], 1000, "hard_threshold").n_components == 1


def test_the_hard_threshold_minimises_the_error_of_reconstruction():
    """Gavish & Donoho 2014: a signal is kept exactly if the truncated SVD is better with it."""
    rng = np.random.default_rng(0)
    n = m = 400
    edge = hard_threshold(1.0)
    for factor, kept in ((0.93, 0), (1.07, 1)):
        # A signal of strength s gives the singular value √((s + 1/s)(s + 1/s)) for β = 1.
        target = factor * edge
        s = (target + math.sqrt(target**2 - 4)) / 2
        left, right = (np.linalg.qr(rng.standard_normal((n, 1)))[0] for _ in range(2))
        clean = s * math.sqrt(m) * left @ right.T
        X = clean + rng.standard_normal((n, m))
        u, y, vt = np.linalg.svd(X)
        with_it = np.sum((y[0] * np.outer(u[:, 0], vt[0]) - clean) ** 2)
        assert (with_it < np.sum(clean**2)) == bool(kept)
        found = count_components(y**2 / n, n, "hard_threshold", centred=False, noise_variance=1.0)
        assert found.n_components == kept


# Estimator


@pytest.mark.covering
@pytest.mark.parametrize("criterion", [*CRITERIA, KNOWN])
@pytest.mark.parametrize(("n", "m"), [(200, 30), (40, 90)])
def test_every_way_to_fit_finds_the_same_number(criterion, n, m):
    X = spiked(n, m, np.array([40.0, 30.0, 20.0]) * (1 + m / n), 5)
    whole = LinearAutoencoder(criterion).fit(X)
    assert whole.n_components_ == 3
    parts = LinearAutoencoder(criterion)
    for batch in np.array_split(X, 4):
        parts.partial_fit(batch)
    blocks = LinearAutoencoder(criterion).fit_batches(np.array_split(X, 3))
    moment = LinearAutoencoder(criterion).fit_batches(None, start=SecondMoment.of(X))
    repeated = LinearAutoencoder(criterion).fit(X[: n // 2], sample_weight=np.full(n // 2, 2.0))
    twice = LinearAutoencoder(criterion).fit(np.repeat(X[: n // 2], 2, axis=0))
    descent = LinearAutoencoder(criterion, solver="gradient", method="plain", max_iter=2000).fit(X)
    values = [whole, parts, blocks, moment]
    for other in (*values, descent):
        assert other.n_components_ == 3
        np.testing.assert_allclose(
            other.component_count_.scores[:5], whole.component_count_.scores[:5], rtol=1e-6
        )
    assert repeated.component_count_.n_components == twice.component_count_.n_components
    assert whole.component_count_.n_components == 3
    assert whole.certificate_["component_count"].value == 3.0
    assert whole.certificate_.holds


def test_dask_collections_find_the_same_number():
    dask_array = extras.require("dask.array")
    X = spiked(200, 12, [30.0, 20.0], 5)
    for criterion in CRITERIA:
        fitted = LinearAutoencoder(criterion).fit(dask_array.from_array(X, chunks=(64, 12)))
        whole = LinearAutoencoder(criterion).fit(X)
        assert fitted.n_components_ == whole.n_components_ == 2


@pytest.mark.parametrize("criterion", CRITERIA)
def test_scale_and_rotation_of_the_data_do_not_matter(criterion):
    X = spiked(100, 15, [9.0, 5.0], 6)
    turn = np.linalg.qr(np.random.default_rng(7).standard_normal((15, 15)))[0]
    count = LinearAutoencoder(criterion).fit(X).n_components_
    for changed in (1e-6 * X, 1e8 * X + 3.0, X @ turn, X[::-1]):
        assert LinearAutoencoder(criterion).fit(changed).n_components_ == count == 2


def test_noise_gives_one_component_and_a_warning():
    X = spiked(100, 20, [], 1)
    for criterion in ("parallel_analysis", "hard_threshold"):
        with pytest.warns(UserWarning, match="finds 0 components .* One component was fitted"):
            fitted = LinearAutoencoder(criterion).fit(X)
        assert fitted.n_components_ == 1
        assert fitted.component_count_.n_components == 0
        assert fitted.certificate_["component_count"].value == 0.0
        assert fitted.certificate_.holds


def test_constant_rows_and_single_features_have_one_component():
    for criterion in (*CRITERIA, KNOWN):
        one = LinearAutoencoder(criterion).fit(np.arange(9.0)[:, None])
        assert one.n_components_ == 1
        two = LinearAutoencoder(criterion).fit(np.array([[0.0, 1.0, 2.0], [9.0, 1.0, 0.0]]))
        assert two.n_components_ == 1
        with pytest.warns(UserWarning, match="One component was fitted"):
            assert LinearAutoencoder(criterion).fit(np.ones((4, 3))).n_components_ == 1


@pytest.mark.parametrize("criterion", [*CRITERIA, KNOWN])
def test_a_stream_may_begin_with_one_row(criterion):
    X = spiked(50, 6, [30.0, 20.0], 13)
    stream = LinearAutoencoder(criterion).partial_fit(X[:1])
    with pytest.warns(UserWarning, match="One component was fitted"):
        assert stream.n_components_ == 1
    for row in X[1:]:
        stream.partial_fit(row[None])
    assert stream.n_components_ == LinearAutoencoder(criterion).fit(X).n_components_ == 2


def test_a_changed_number_of_components_is_noticed():
    """The certificate computes the number again, from eigenvalues of its own."""
    X = spiked(200, 12, [20.0, 10.0], 8)
    fitted = LinearAutoencoder("mle").fit(X)
    other = LinearAutoencoder(3).fit(X)
    fitted._state.solution = other._state.solution
    fitted._state.changed()
    assert fitted.certificate_["attributes"].holds is False


def test_the_certificate_names_the_other_criteria():
    X = spiked(300, 20, [30.0, 0.9], 9)
    counts = [LinearAutoencoder(name).fit(X).n_components_ for name in CRITERIA]
    assert len(set(counts)) == 2
    words = LinearAutoencoder("parallel_analysis").fit(X).certificate_["component_count"].advice
    assert "Minka's evidence is largest for" in words
    assert "The hard threshold finds" in words
    same = LinearAutoencoder("mle").fit(spiked(300, 20, [30.0], 9)).certificate_
    assert "The other criteria find the same number." in same["component_count"].advice
    names = [claim.name for claim in LinearAutoencoder(2).fit(X).certificate_]
    assert "component_count" not in names
    assert LinearAutoencoder(2).fit(X).component_count_ is None
    with pytest.raises(NotFittedError):
        LinearAutoencoder("mle").component_count_  # noqa: B018


def test_more_features_than_the_certificate_decomposes():
    fitted = LinearAutoencoder("parallel_analysis").fit(spiked(130, 1100, [900.0, 700.0], 14))
    assert fitted.n_components_ == fitted.component_count_.n_components == 2
    claim = fitted.certificate_["component_count"]
    assert claim.value is None
    assert "more than 1024 features" in claim.advice
    assert not [claim.name for claim in fitted.certificate_ if claim.holds is False]


def test_saved_and_loaded(tmp_path):
    X = spiked(60, 10, [20.0, 10.0], 10)
    for criterion in (*CRITERIA, KNOWN):
        fitted = LinearAutoencoder(criterion).fit(X)
        lucidae.save(fitted, tmp_path / "model")
        again = lucidae.load(tmp_path / "model")
        assert again.n_components == criterion
        assert again.component_count_.n_components == fitted.n_components_ == 2
        np.testing.assert_array_equal(again.components_, fitted.components_)


def test_solvers_that_do_not_compute_all_eigenvalues_say_so():
    X = spiked(50, 10, [9.0], 11)
    with pytest.raises(ValueError, match="n_components='mle' was given, which needs all"):
        LinearAutoencoder("mle", solver="stochastic").fit(X)


@pytest.mark.parametrize(
    "wrong", ["minka", "MLE", ("mle", 1.0), ("hard_threshold",), 0, 1.5, True, [], {"mle"}]
)
def test_a_wrong_number_of_components_names_all_that_is_allowed(wrong):
    with pytest.raises(ValueError, match="expected an integer of at least 1") as error:
        LinearAutoencoder(wrong).fit(np.eye(4))
    for allowed in (*CRITERIA, "share of the variance in (0, 1)", "noise variance", "None"):
        assert allowed in str(error.value)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan, "a", None])
def test_a_wrong_noise_variance_is_refused(wrong):
    with pytest.raises(ValueError, match=r"noise variance in n_components.*above 0"):
        LinearAutoencoder(("hard_threshold", wrong)).fit(np.eye(4))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"eigenvalues": 3.0}, "vector with all eigenvalues"),
        ({"eigenvalues": [[1.0]]}, "eigenvalues"),
        ({"eigenvalues": [1.0, -0.5]}, "at least 0"),
        ({"eigenvalues": [1.0, math.nan]}, "at least 0"),
        ({"n_samples": 1}, "n_samples=1 was given"),
        ({"criterion": "kaiser"}, "one of 'mle', 'parallel_analysis', 'hard_threshold'"),
        ({"n_features": 1}, "n_features=1"),
        ({"noise_variance": 1.0}, "does not use it"),
        ({"significance": 1.0}, "significance"),
        ({"n_simulations": 0}, "n_simulations"),
        ({"centred": "yes"}, "centred"),
    ],
)
def test_wrong_arguments_of_the_function(changed, message):
    given = {"eigenvalues": [3.0, 2.0, 1.0], "n_samples": 10, "criterion": "mle"} | changed
    with pytest.raises(ValueError, match=message):
        count_components(**given)


def test_eigenvalues_in_any_order_and_zeros_left_out():
    values = spectrum(spiked(20, 30, [90.0, 60.0], 12))
    for criterion in CRITERIA:
        expected = count_components(values, 20, criterion)
        for given in (values[::-1], values[:19], np.append(values[:19], -1e-16)):
            found = count_components(given, 20, criterion, n_features=30)
            assert found.n_components == expected.n_components == 2
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-9)


def counts_of_cells():
    """Return logarithms of Poisson counts of genes with very different rates, in three types."""
    rng = np.random.default_rng(4)
    rates = rng.gamma(0.3, 1.0, 300) * np.exp(rng.standard_normal((3, 300)) * 0.8)
    return np.log1p(rng.poisson(rates[rng.integers(3, size=400)]))


@pytest.mark.parametrize("criterion", ["parallel_analysis", "hard_threshold"])
def test_features_of_unequal_noise_are_reported_and_standardised_ones_are_not(criterion):
    X = counts_of_cells()
    with pytest.warns(UserWarning, match="noise of the same variance in every feature") as seen:
        found = LinearAutoencoder(criterion).fit(X).n_components_
    assert ["tandardise" in str(warning.message) for warning in seen] == [True]
    varying = X[:, X.std(axis=0) > 0.0]
    # Warnings are errors: equal noise, and equal noise in some features only, are not reported.
    assert LinearAutoencoder(criterion).fit(varying / varying.std(axis=0)).n_components_ < found / 5
    assert LinearAutoencoder(criterion).fit(spiked(300, 20, [30.0, 9.0], 9)).n_components_ == 2


@pytest.mark.parametrize("criterion", ["mle", "parallel_analysis", "hard_threshold"])
@pytest.mark.parametrize("n", [300, 20])
def test_constant_features_do_not_count(criterion, n):
    X = spiked(n, 30, [900.0, 400.0], 3)
    expected = LinearAutoencoder(criterion).fit(X)
    constant = np.full((n, 5), [0.1, 0.0, 3.0, -1e3, 1e-9])
    for rows in (np.hstack([X, constant]), np.hstack([constant, X])):
        found = LinearAutoencoder(criterion).fit(rows)
        assert found.n_components_ == expected.n_components_ == 2
        np.testing.assert_allclose(
            found.component_count_.scores, expected.component_count_.scores, rtol=1e-6
        )
        assert found.certificate_.holds is True
