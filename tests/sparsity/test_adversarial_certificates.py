"""Fits and coefficients that try to deceive the certificate; brute force knows the truth."""

import re
import warnings

import numpy as np
import pytest

from lucidae import SparseVAE, certify
from lucidae.datasets import make_sparse_regression
from sparsity.brute_force import centred, representations, violation

GENERAL, COHERENT = "unique_in_general_position", "unique_by_coherence"


def gaussian(rng, d, kappa):
    return rng.standard_normal((d, kappa))


def duplicated(rng, d, kappa):
    Phi = gaussian(rng, d, kappa)
    Phi[:, kappa - 1] = Phi[:, 0]
    return Phi


def collinear(rng, d, kappa):
    Phi = gaussian(rng, d, kappa)
    Phi[:, kappa - 2] = -3e5 * Phi[:, 1]
    return Phi


def sum_of_two(rng, d, kappa):
    Phi = gaussian(rng, d, kappa)
    Phi[:, 2] = Phi[:, 0] + Phi[:, 1]
    return Phi


def rank_deficient(rng, d, kappa):
    return gaussian(rng, d, 2) @ gaussian(rng, 2, kappa)


def nearly_dependent(rng, d, kappa):
    Phi = sum_of_two(rng, d, kappa)
    Phi[:, 2] += 1e-9 * rng.standard_normal(d)
    return Phi


def integers(rng, d, kappa):
    return rng.integers(-2, 3, (d, kappa)).astype(float)


def signs(rng, d, kappa):
    return rng.choice([-1.0, 1.0], (d, kappa))


def with_zero_columns(rng, d, kappa):
    Phi = gaussian(rng, d, kappa)
    Phi[:, kappa // 2] = 0.0
    return Phi


def same_plane(rng, d, kappa):
    Phi = gaussian(rng, d, kappa)
    Phi[:, -3:] = Phi[:, :3] @ gaussian(rng, 3, 3)
    return Phi


DICTIONARIES = [
    gaussian, duplicated, collinear, sum_of_two, rank_deficient, nearly_dependent, integers, signs,
    with_zero_columns, same_plane,
]  # fmt: skip


def exact_problem(draw, shape, count, rank, seed):
    """Return a dictionary, coefficients on its first columns, and exact responses."""
    rng = np.random.default_rng(seed)
    Phi = draw(rng, *shape)
    U = np.zeros((shape[1], 3))
    U[:count] = rng.standard_normal((count, rank)) @ rng.standard_normal((rank, 3))
    return Phi, U, Phi @ U


@pytest.mark.covering
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("count", "rank"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3)])
@pytest.mark.parametrize(
    "shape", [(5, 9), *(pytest.param(shape, marks=pytest.mark.slow) for shape in ((4, 16), (9, 6)))]
)
@pytest.mark.parametrize("draw", DICTIONARIES)
def test_certified_uniqueness_is_never_contradicted(draw, shape, count, rank, seed):
    Phi, U, X = exact_problem(draw, shape, count, rank, seed)
    if not X.any():
        return
    certificate = certify(U.T, Phi, X)
    used = certificate.evidence["used"]
    found = representations(Phi, X, min(used.size, 3))
    verdicts = [certificate[name].holds for name in (GENERAL, COHERENT)]
    assert False not in verdicts
    if True in verdicts:
        assert all(set(chosen) == set(used) for chosen in found), (found, used)
    if draw is gaussian and (rank == count or shape[0] > shape[1]):
        assert certificate[GENERAL].holds  # what is unique for certain is certified


@pytest.mark.covering
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("posterior", ["full", "diagonal", "point"])
@pytest.mark.parametrize("count", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_certified_uniqueness_of_grouped_fits_is_never_contradicted(
    posterior, fit_intercept, count
):
    certified = superfluous = 0
    for seed in range(count):
        rng = np.random.default_rng(seed)
        Phi = gaussian(rng, 10 if seed % 2 else 6, 6)
        labels = np.sort(rng.integers(0, 3, 6))
        inside = np.flatnonzero(labels == rng.choice(labels))
        size = inside.size if seed % 4 < 2 else rng.integers(1, inside.size + 1)
        X = Phi[:, inside[:size]] @ rng.standard_normal((size, 1 + seed % 3))
        options = {"groups": labels, "noise_variance": 1e-3, "fit_intercept": fit_intercept}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = SparseVAE(posterior=posterior, **options).fit(Phi, X)
        used = model.certificate_.evidence["used"]
        rows = centred(Phi, X) if fit_intercept else (Phi, X)
        found = representations(*rows, used.size)
        for certificate in (model.certificate_, certify(model.coef_, *rows)):
            if any(certificate[name].holds for name in (GENERAL, COHERENT)):
                assert found == [tuple(used)], (seed, found, used)
                certified += 1
            elif any(set(chosen) < set(used) for chosen in found):
                assert "Fewer columns" in certificate[GENERAL].advice or used.size >= len(Phi)
                superfluous += 1
    assert certified >= count // 4
    assert superfluous >= count // 8


@pytest.mark.parametrize("share", [0.05, 1e-3, 2e-6, -1.0, 1e6])
def test_a_column_that_an_exact_fit_does_not_need_is_named(share):
    P = np.random.default_rng(0).standard_normal((10, 5))
    certificate = certify(np.array([1.0, share, 0.0, 0.0, 0.0]), P, P[:, 0])
    assert not certificate.holds
    if abs(share) < 0.1:  # others do not fit at all, so that nothing is said about them
        for name in (GENERAL, COHERENT):
            assert certificate[name].verdict == "does not apply"
            assert "without column 1, the other" in certificate[name].advice
    orthogonal = certify(np.array([1.0, share, 0.0, 0.0]), np.eye(9)[:, :4], np.eye(9)[:, 0])
    assert not orthogonal.holds


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-7, 1e-5, 1e-3, 1.0])
def test_a_column_nearly_in_the_span_of_the_others_proves_nothing(size):
    rng = np.random.default_rng(0)
    Phi, U = gaussian(rng, 12, 5), np.zeros((5, 3))
    U[:4] = rng.standard_normal((4, 3))
    Phi[:, 2] = Phi[:, :2].sum(axis=1) + size * Phi[:, 2]  # nearly in the span of the others
    X = Phi @ U
    certificate = certify(U.T, Phi, X)
    if certificate[GENERAL].holds:
        assert representations(Phi, X, 4) == [(0, 1, 2, 3)]
    assert bool(certificate[GENERAL].holds) == (size >= 1e-5)


@pytest.mark.parametrize(
    ("draw", "shape", "words"),
    [
        (duplicated, (9, 6), "can replace one"),
        (duplicated, (5, 9), "can replace one"),
        (rank_deficient, (9, 6), "can replace one|dependent"),
        (sum_of_two, (20, 40), "Column 2 lies in the span"),
        (collinear, (5, 9), "can replace one"),
    ],
)
def test_the_reason_is_given_where_uniqueness_is_not_supported(draw, shape, words):
    Phi, U, X = exact_problem(draw, shape, 2, 2, 0)
    claim = certify(U.T, Phi, X)[GENERAL]
    assert claim.holds is None
    assert re.search(words, claim.advice), claim.advice


def test_general_position_that_was_not_checked_is_not_claimed():
    Phi, U, X = exact_problem(gaussian, (12, 40), 4, 1, 0)
    claim = certify(U.T, Phi, X)[GENERAL]
    assert claim.verdict == "does not apply"
    assert "General position was not checked" in claim.advice
    assert "Checked: no single other column" in claim.advice
    assert "the only possible choice, because 4 is smaller than 6.5" in claim.advice


@pytest.mark.parametrize("kappa", [24, 60])
def test_three_other_columns_with_the_same_sum_are_another_answer(kappa):
    # columns 10 + 11 + 20 = 3 + 4 + 5: no pair of them depends on the active columns
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((12, kappa))
    Phi[:, 20] = Phi[:, [3, 4, 5]].sum(axis=1) - Phi[:, 10] - Phi[:, 11]
    U = np.zeros((kappa, 2))
    U[[3, 4, 5]] = [1.0, 2.0]
    certificate = certify(U.T, Phi, Phi @ U)
    assert representations(Phi, Phi @ U, 3) == [(3, 4, 5), (10, 11, 20)]
    assert certificate[GENERAL].verdict == certificate[COHERENT].verdict == "does not apply"
    assert certificate.holds is None
    words = "All sets of 3 columns were checked: with some" if kappa <= 50 else "was not checked"
    assert words in certificate[GENERAL].advice


def test_uniqueness_is_proved_beyond_the_worst_case_of_the_theorem():
    # 6 columns in 10 dimensions and one response: Chen and Huo's bound is 5.5
    rng = np.random.default_rng(0)
    Phi, U = rng.standard_normal((10, 12)), np.zeros((12, 1))
    U[:6, 0] = rng.standard_normal(6)
    claim = certify(U.T, Phi, Phi @ U)[GENERAL]
    assert claim.holds
    assert representations(Phi, Phi @ U, 6) == [tuple(range(6))]


@pytest.fixture(scope="module")
def problem():
    p = make_sparse_regression(15, 24, 4, 5, 3, snr_db=15, random_state=0)
    return p.dictionary + 0.2, p.responses - 1.0, p.noise_variance


@pytest.fixture(scope="module")
def model(problem):
    X, y, noise = problem
    return SparseVAE(noise_variance=noise).fit(X, y)


def changed(model, **attributes):
    """Return a copy with other attributes."""
    copy = SparseVAE(**model.get_params())
    copy.__dict__.update(model.__dict__)
    for name, value in attributes.items():
        setattr(copy, name, value)
    return copy


def permuted(values, axis=-1):
    return np.roll(values, 1, axis=axis)


def rotated(coef):
    q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((len(coef), len(coef))))
    return q @ coef


def one_entry(values, factor):
    values = values.copy()
    index = np.unravel_index(np.argmax(np.abs(values)), values.shape)
    values[index] *= factor
    return values


def activated(values, size):
    values = values.copy()
    values[np.argmin(values)] = size * values.max()
    return values


def removed(values):
    values = values.copy()
    values[np.argmax(values)] = 0.0
    return values


COEF = {
    "five times": lambda c: 5 * c, "a little larger": lambda c: c * (1 + 1e-4),
    "zero": lambda c: 0 * c, "negative": lambda c: -c, "columns permuted": permuted,
    "outputs permuted": lambda c: permuted(c, 0), "rotated": rotated,
    "one entry": lambda c: one_entry(c, 1.001), "one sign": lambda c: one_entry(c, -1.0),
    "noise": lambda c: c + 1e-3 * np.random.default_rng(0).standard_normal(c.shape),
    "nan": lambda c: c * np.nan, "infinite": lambda c: one_entry(c, np.inf),
}  # fmt: skip


RELEVANCE = {
    "twice": lambda w: 2 * w, "a little larger": lambda w: w * (1 + 1e-4),
    "zero": lambda w: 0 * w, "permuted": permuted, "one entry": lambda w: one_entry(w, 1.01),
    "negative": lambda w: -w, "one more": lambda w: activated(w, 0.1), "one less": removed,
    "nan": lambda w: w * np.nan, "flat": lambda w: 0 * w + w.max(),
}  # fmt: skip


OTHER = {
    "noise_variance_": [0.5, 1.01, 2.0, 1e3, 1e-3, -1.0, np.nan, np.inf],
    "energy_": [0.5, 1.001, -1.0, np.nan],
    "intercept_": [0.0, 1.01, -1.0],
}


@pytest.mark.parametrize("change", COEF)
def test_other_coefficients_fail(model, problem, change):
    other = changed(model, coef_=COEF[change](model.coef_))
    assert certify(other, *problem[:2]).holds is False


@pytest.mark.parametrize("change", RELEVANCE)
def test_other_relevances_fail(model, problem, change):
    other = changed(model, relevance_=RELEVANCE[change](model.relevance_))
    assert certify(other, *problem[:2]).holds is False


@pytest.mark.parametrize(
    ("name", "factor"), [(name, factor) for name, factors in OTHER.items() for factor in factors]
)
def test_other_numbers_fail(model, problem, name, factor):
    other = changed(model, **{name: getattr(model, name) * factor})
    assert certify(other, *problem[:2]).holds is False


def test_changes_that_change_nothing_hold(model, problem):
    X, y, _ = problem
    order = np.random.default_rng(0).permutation(len(X))
    assert certify(model, X[order], y[order]).holds
    turned = changed(model)
    q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))
    turned.coef_, turned.intercept_ = q @ model.coef_, q @ model.intercept_
    assert certify(turned, X, y @ q.T).holds  # energies depend on XXᵀ alone


FITS = {
    "n < m": ((6, 20, 2, 3), {}), "k = m": ((8, 8, 3, 3), {}), "tall": ((40, 6, 2, 4), {}),
    "one response": ((12, 20, 2, 1), {}), "many responses": ((6, 10, 2, 40), {}),
    "one column": ((8, 1, 1, 2), {}), "two rows": ((2, 5, 1, 2), {}),
    "learned": ((40, 6, 2, 4), {"noise_variance": "learn"}),
    "cross-validated": ((12, 20, 2, 3), {"noise_variance": "cv"}),
    "diagonal": ((10, 14, 2, 3), {"posterior": "diagonal"}),
    "diagonal, learned": (
        (40, 6, 2, 4), {"posterior": "diagonal", "noise_variance": "learn", "max_iter": 20_000}),
    "point": ((10, 14, 2, 3), {"posterior": "point", "max_iter": 5000}),
    "point, power": ((10, 14, 2, 3), {"posterior": "point", "penalty": "power", "max_iter": 5000}),
    "point, arctan": (
        (10, 14, 2, 3), {"posterior": "point", "penalty": "arctan", "max_iter": 5000}),
    "point, groups": (
        (10, 14, 2, 3),
        {"posterior": "point", "penalty": "power", "groups": np.arange(14) // 3,
         "max_iter": 5000}),
    "groups": ((10, 14, 2, 3), {"groups": np.arange(14) // 3}),
    "groups, diagonal": ((10, 14, 2, 3), {"groups": np.arange(14) // 4, "posterior": "diagonal"}),
    "em": ((10, 14, 2, 3), {"solver": "em"}), "mm": ((10, 14, 2, 3), {"solver": "mm"}),
    "mackay": ((10, 14, 2, 3), {"solver": "mackay"}),
    "coordinate": ((10, 14, 2, 3), {"solver": "coordinate"}),
    "no intercept": ((10, 14, 2, 3), {"fit_intercept": False}),
}  # fmt: skip


def fit_of(name, dtype=np.float64, change=lambda X, y: (X, y)):
    shape, options = FITS[name]
    p = make_sparse_regression(*shape, snr_db=15, random_state=3)
    X, y = change(p.dictionary.astype(dtype), p.responses.astype(dtype))
    level = 0.1 * np.mean(np.asarray(y, float) ** 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return SparseVAE(**({"noise_variance": level} | options)).fit(X, y), X, y


def same_verdicts(model, X, y, **options):
    mine, theirs = model.certificate_, certify(model, X, y, **options)
    assert [c.verdict for c in mine] == [c.verdict for c in theirs]
    return mine


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FITS)
def test_good_fits_hold_and_agree_on_their_data(name, dtype):
    model, X, y = fit_of(name, dtype)
    certificate = same_verdicts(model, X, y)
    assert certificate["stationarity"].holds is not False, str(certificate)
    assert certificate["posterior_mean"].holds, str(certificate)
    assert certificate["noise_variance"].holds is not False, str(certificate)
    for name in ("energy", "predictive_variance", "support"):
        assert certificate[name].holds, str(certificate)
    if model.posterior != "point":
        rows, targets = centred(X, y, None, model.fit_intercept)
        found = violation(
            rows, targets, np.asarray(model.relevance_, float), model.noise_variance_,
            model.posterior, model.groups,
        )  # fmt: skip
        assert abs(found - certificate["stationarity"].value) < 1e-6 + 1e-3 * found


CHANGES = {
    "huge responses": lambda X, y: (X, y * 1e30), "tiny responses": lambda X, y: (X, y * 1e-30),
    "huge dictionary": lambda X, y: (X * 1e40, y),
    "columns of all scales": lambda X, y: (X * 10.0 ** np.linspace(-8, 8, X.shape[1]), y),
    "far from zero": lambda X, y: (X + 1e5, y - 1e5),
    "a constant column": lambda X, y: (np.where(np.arange(X.shape[1]) == 1, 7.1, X), y),
    "a zero column": lambda X, y: (np.where(np.arange(X.shape[1]) == 1, 0.0, X), y),
    "duplicated columns": lambda X, y: (X[:, np.arange(X.shape[1]) // 2], y),
    "repeated rows": lambda X, y: (np.repeat(X, 2, axis=0), np.repeat(y, 2, axis=0)),
    "tied responses": lambda X, y: (X, y[:, [0] * y.shape[1]]),
    "rank-deficient": lambda X, y: (X[:, :2] @ np.ones((2, X.shape[1])), y),
    "collinear": lambda X, y: (X[:, :1] + 1e-6 * X, y),
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["n < m", "tall", "diagonal", "groups"])
def test_unusual_data_have_no_false_failure(name, change):
    model, X, y = fit_of(name, change=CHANGES[change])
    certificate = same_verdicts(model, X, y)
    if model.status_.ok:
        for claim in certificate:
            assert claim.holds is not False or claim.name == "posterior_collapse", str(certificate)


@pytest.mark.covering
@pytest.mark.parametrize("noise", [1e-6, 1e-10, 1e-12, 1e-14, 1e-30])
@pytest.mark.parametrize("snr", [None, 20])
def test_tiny_noise_gets_the_same_verdicts_both_ways(noise, snr):
    p = make_sparse_regression(20, 40, 4, 6, 3, snr_db=snr, random_state=1)
    model = SparseVAE(noise_variance=noise).fit(p.dictionary, p.responses)
    certificate = same_verdicts(model, p.dictionary, p.responses)
    assert certificate.holds is not False
    power = np.mean((p.responses - p.responses.mean(axis=0)) ** 2)
    if 32.0 * np.finfo(float).eps * power / noise <= model.tol:  # rounding allows this accuracy
        assert certificate.holds
    if noise <= 1e-14:
        assert certificate.holds is None
        assert certificate["stationarity"].undecided
        assert "float64" in certificate["stationarity"].advice
    broken = changed(model, coef_=5 * model.coef_)
    assert certify(broken, p.dictionary, p.responses).holds is False


def test_weights_are_repetitions():
    p = make_sparse_regression(9, 12, 2, 3, snr_db=15, random_state=4)
    weights = np.arange(9) % 3 * 1.0
    model = SparseVAE(noise_variance=0.1).fit(p.dictionary, p.responses, sample_weight=weights)
    certificate = same_verdicts(model, p.dictionary, p.responses, sample_weight=weights)
    assert certificate.holds
    assert certify(model, p.dictionary, p.responses).holds is False
    index = np.repeat(np.arange(9), weights.astype(int))
    assert certify(model, p.dictionary[index], p.responses[index]).holds


@pytest.mark.parametrize("root", [np.sqrt(0.3), 1.0, 3.0])
@pytest.mark.parametrize("factor", [2.0, -1.0, 0.5, 1.5, 10.0])
def test_scaled_coefficients_from_elsewhere_fail(root, factor):
    optimum = (root**2 - 0.1) / root**2 * root  # w + γ = x², u = w x/(w + γ)
    interpolates = np.isclose(factor * optimum, root)  # which determines no relevance
    judged = [
        certify(np.array([[u]]), np.array([[1.0]]), np.array([[root]]), noise_variance=0.1)
        for u in (optimum, factor * optimum)
    ]
    assert judged[0].holds
    assert judged[1].holds is (None if interpolates else False)


@pytest.mark.parametrize("change", ["none", "float32", *COEF])
def test_fitted_coefficients_from_elsewhere(change):
    p = make_sparse_regression(15, 24, 4, 5, 3, snr_db=15, random_state=0)
    fit = SparseVAE(noise_variance=p.noise_variance, fit_intercept=False, tol=1e-9)
    coef = fit.fit(p.dictionary, p.responses).coef_
    given = {"none": lambda c: c, "float32": lambda c: c.astype(np.float32)} | COEF
    if change in ("nan", "infinite"):
        with pytest.raises(ValueError, match="coef"):
            certify(given[change](coef), p.dictionary, p.responses, noise_variance=0.1)
        return
    judged = certify(
        given[change](coef), p.dictionary, p.responses, noise_variance=p.noise_variance
    )
    if change in ("none", "float32"):
        assert judged["stationarity"].holds is not False, str(judged)
        assert judged["posterior_mean"].holds is not False, str(judged)
    else:
        assert judged.holds is False, str(judged)
