"""Every solver ends at a stationary point of the energy, judged by dense formulas of our own.

`general_model.py` computes energy, posterior mean and the optimality conditions (mathematics.md 3
and 4) from the fitted numbers alone, and repeats majorise–minimise updates as a reference.
"""

import warnings

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from lucidae import SparseVAE
from lucidae.datasets import make_sparse_regression
from sparsity.general_model import Model, described

LABELS = np.array([4, 4, 4, 9, 9, 2, 7, 7, 7, 1, 1, 1, 3, 3, 5, 5, 8, 6, 6, 6])
ALL = ("auto", "mm", "em", "mackay", "coordinate")


def normal(rng, kind, *shape):
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape)) / 2**0.5 if kind is complex else real


def drawn(seed, d=10, kappa=20, n=4, *, kinds=(float, float), active=3, noise=0.1):
    """Return a dictionary and responses to which the first columns of a permutation contribute."""
    rng = np.random.default_rng(seed)
    X, U = normal(rng, kinds[0], d, kappa), np.zeros((kappa, n), kinds[1])
    U[rng.permutation(kappa)[:active]] = normal(rng, kinds[1], active, n)
    y = X @ U
    y = y + (noise * np.mean(np.abs(y) ** 2)) ** 0.5 * normal(rng, kinds[1], d, n)
    return X, y


def covariance(rank):
    root = np.random.default_rng(rank).standard_normal((10, rank))
    return root @ root.T / rank


DATA = {
    "wide": {}, "one response": {"n": 1}, "tall": {"d": 30}, "many responses": {"n": 50},
    "dense code": {"active": 9, "n": 6}, "complex": {"kinds": (complex, complex)},
    "complex responses": {"kinds": (float, complex)}, "few columns in use": {"noise": 3.0},
}  # fmt: skip
FIT = {
    "intercept, weights": {"sample_weight": np.arange(10) % 3 + 1},
    "coloured": {"noise_cov": covariance(20)},
    "low rank": {"noise_cov": covariance(8)},
    "variances, weights": {
        "noise_cov": np.linspace(0.5, 2.0, 10), "sample_weight": np.arange(10) % 2 + 1,
    },
}  # fmt: skip
SETTINGS = {
    "columns": ({}, ALL),
    "diagonal": ({"posterior": "diagonal"}, ("auto",)),
    "spherical": ({"groups": LABELS}, ALL),
    "full": ({"groups": LABELS, "group_covariance": "full"}, ("auto", "mm", "coordinate")),
}
CASES = [
    (data, setting, solver)
    for setting, (_, solvers) in SETTINGS.items()
    for data in (*DATA, *FIT)
    for solver in (solvers if data in ("wide", "complex", "intercept, weights") else solvers[:1])
]


@pytest.mark.parametrize(("data", "setting", "solver"), CASES)
def test_every_solver_ends_at_a_stationary_point(data, setting, solver):
    X, y = drawn(0, **DATA.get(data, {}))
    given = FIT.get(data, {})
    model = SparseVAE(
        solver=solver, noise_variance=0.1 * np.mean(np.abs(y) ** 2),
        fit_intercept="sample_weight" in given, **SETTINGS[setting][0],
    ).fit(X, y, **given)  # fmt: skip
    assert model.status_.ok
    truth, labels, full = described(model, X, y, **given)
    assert truth.violation(labels, full) < 2e-6
    mean = truth.mean()
    assert_allclose(np.atleast_2d(model.coef_).T, mean, atol=1e-7 * np.abs(mean).max())
    assert_allclose(model.energy_, truth.energy(), rtol=1e-9)
    assert (np.diff(model.history_["energy"]) <= 1e-9).all()
    assert model.certificate_["stationarity"].holds
    if not full:  # columns of a group share their relevance exactly
        for label in np.unique(labels):
            assert np.ptp(model.relevance_[labels == label]) == 0.0


@pytest.mark.parametrize("penalty", ["log", "power", "arctan"])
@pytest.mark.parametrize("kinds", [(float, float), (complex, complex)])
def test_the_point_estimate_is_a_fixed_point_of_its_update(kinds, penalty):
    """Relevances are 1/h'(a) of the mean squares a, in units in which columns have length one."""
    slope = {
        "log": lambda a: 1 / a, "power": lambda a: 0.5 * a**-0.5,
        "arctan": lambda a: 0.5 * 0.01**0.5 / (a**0.5 * (0.01 + a)),
    }[penalty]  # fmt: skip
    X, y = drawn(0, kinds=kinds)
    scale = np.linalg.norm(X, axis=0) ** 2 / np.mean(np.abs(y) ** 2)
    model = SparseVAE(
        posterior="point", penalty=penalty, noise_variance=0.1, fit_intercept=False, max_iter=5000
    ).fit(X, y)
    assert model.status_.ok
    powers = scale * np.mean(np.abs(model.coef_) ** 2, axis=0)
    used = model.relevance_ * scale > 1e-6
    assert used.any()
    if penalty == "log":
        assert_allclose((model.relevance_ * scale)[used], 1 / slope(powers[used]), rtol=1e-4)
    assert model.certificate_["stationarity"].holds


def no_higher_than_updates(seed, updates):
    """Compare fits of columns and of both kinds of groups with majorise–minimise updates."""
    rng = np.random.default_rng(seed)
    kind = complex if seed % 4 == 3 else float
    labels = rng.integers(0, 12, 36) if seed % 2 else np.arange(36) // 3
    X, y = drawn(seed, 20, 36, int(rng.choice([2, 5, 20])), kinds=(kind, kind), active=9)
    noise = 0.1 * np.mean(np.abs(y) ** 2)
    start = np.mean(np.abs(y) ** 2) / (np.abs(X) ** 2).mean() / 36 * np.eye(36, dtype=kind)
    for options in (
        {}, {"groups": labels}, {"groups": labels, "group_covariance": "full"},
    ):  # fmt: skip
        fit = SparseVAE(noise_variance=noise, fit_intercept=False, **options).fit(X, y)
        truth = Model(X, y, start, noise, np.eye(20), np.eye(y.shape[1]))
        own = labels if options else np.arange(36)
        for _ in range(updates):
            truth = truth.majorized(own, "group_covariance" in options)
        assert fit.energy_ <= truth.energy() + 1e-6 * y.shape[1]


@pytest.mark.parametrize("seed", [0, 3])
def test_fits_end_no_higher_than_many_updates(seed):
    no_higher_than_updates(seed, 200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_fits_end_no_higher_than_5000_updates(seed):
    no_higher_than_updates(seed, 5000)


@pytest.mark.parametrize("kind", [float, complex])
def test_no_search_over_covariances_of_groups_ends_lower(kind):
    """L-BFGS over factors of all covariances, from several starts, on problems with one minimum."""
    labels = np.array([0, 0, 1, 1, 1])
    for seed in range(1):
        X, y = drawn(seed, 12, 5, 30, kinds=(kind, kind), active=5)
        noise = 0.1 * np.mean(np.abs(y) ** 2)
        options = {"noise_variance": noise, "fit_intercept": False}
        full = SparseVAE(groups=labels, group_covariance="full", **options).fit(X, y)
        shared = SparseVAE(groups=labels, **options).fit(X, y)

        def energy(prior, X=X, y=y, noise=noise):
            return Model(X, y, prior, noise, np.eye(12), np.eye(30)).energy()

        def of_factors(flat):
            flat = flat[:13] + 1j * flat[13:] if kind is complex else flat[:13]
            prior = np.zeros((5, 5), kind)
            for label, root in enumerate((flat[:4].reshape(2, 2), flat[4:].reshape(3, 3))):
                prior[np.ix_(labels == label, labels == label)] = root @ root.conj().T
            return energy(prior)

        def of_relevances(logs):
            return energy(np.diag(np.exp(logs)[labels]).astype(kind))

        rng = np.random.default_rng(seed)
        for found, search, size in ((full, of_factors, 26), (shared, of_relevances, 2)):
            ends = [scipy.optimize.minimize(search, rng.normal(size=size)).fun for _ in range(2)]
            assert_allclose(found.energy_, min(ends), rtol=1e-5)
            assert found.energy_ <= min(ends) + 1e-4


@pytest.mark.parametrize("row_scaling", ["unit", "jeffreys"])
def test_where_one_minimum_is_left_all_solvers_find_it(row_scaling):
    for seed in range(3):
        p = make_sparse_regression(
            30, 60, 10, 20, 20, row_scaling=row_scaling, snr_db=30, random_state=seed
        )
        energies = [
            SparseVAE(solver=solver, noise_variance=p.noise_variance, fit_intercept=False)
            .fit(p.dictionary, p.responses)
            .energy_
            for solver in ALL
        ]
        assert_allclose(energies, energies[0], rtol=1e-6)


def test_auto_ends_lower_than_coordinates_where_minima_are_many():
    for r, n in ((15, 1), (35, 10)):
        ends = {"auto": [], "coordinate": []}
        for seed in range(6):
            p = make_sparse_regression(50, 100, r, n, snr_db=20, random_state=seed)
            for solver, energies in ends.items():
                model = SparseVAE(
                    solver=solver, noise_variance=p.noise_variance, fit_intercept=False
                )
                energies.append(model.fit(p.dictionary, p.responses).energy_ / n)
        assert np.mean(ends["auto"]) < np.mean(ends["coordinate"]) - 0.1


@pytest.mark.parametrize("options", [{"solver": name} for name in ALL] + [{"groups": 5}])
def test_orthonormal_columns_give_the_closed_form(options):
    """wⱼ = max(0, ‖φⱼᵀX‖²/n − γ), the mean over the columns of a group if they share it."""
    rng = np.random.default_rng(0)
    Phi, _ = np.linalg.qr(rng.standard_normal((12, 12)))
    X = Phi @ (rng.standard_normal((12, 7)) * np.linspace(0.1, 3, 12)[:, None])
    for columns in (10, 5):
        Q = ((Phi[:, :columns].T @ X) ** 2).mean(axis=1)
        if "groups" in options:
            Q = np.repeat(Q.reshape(-1, 5).mean(axis=1), 5)
        model = SparseVAE(noise_variance=0.8, fit_intercept=False, **options)
        found = model.fit(Phi[:, :columns], X).relevance_
        assert_allclose(found, np.maximum(Q - 0.8, 0.0), atol=1e-5)
        assert_array_equal(found == 0, Q <= 0.8)


@pytest.mark.parametrize("solver", ALL)
def test_permutations_signs_rotations_and_scales_change_nothing(solver):
    rng = np.random.default_rng(2)
    X, y = drawn(2, 12, noise=0.01)

    def relevance(X, y, noise=0.05):
        model = SparseVAE(solver=solver, noise_variance=noise, fit_intercept=False)
        return model.fit(X, y).relevance_

    expected = relevance(X, y)
    order, signs = rng.permutation(20), np.where(rng.uniform(size=20) < 0.5, -1, 1)
    Q, R = (np.linalg.qr(rng.standard_normal((size, size)))[0] for size in (4, 12))
    columns = np.exp(rng.uniform(-9, 9, 20))
    close = {"rtol": 1e-5, "atol": 1e-8 * expected.max()}
    assert_allclose(relevance(X[:, order] * signs, y), expected[order], **close)
    assert_allclose(relevance(R @ X, R @ y @ Q), expected, **close)
    assert_allclose(relevance(X, 1e6 * y, 0.05e12) / 1e12, expected, **close)
    assert_allclose(relevance(X * columns, y) * columns**2, expected, **close)


@pytest.mark.parametrize("solver", ALL)
def test_duplicate_and_zero_columns_are_harmless(solver):
    X, y = drawn(4, 12, noise=0.01)
    model = SparseVAE(solver=solver, noise_variance=0.05, fit_intercept=False)
    plain, energy = model.fit(X, y).relevance_, model.energy_
    crowded = model.fit(np.hstack([X, X[:, :6], np.zeros((12, 3))]), y).relevance_
    assert model.status_.ok
    assert not crowded[-3:].any()
    assert_allclose(model.energy_, energy, rtol=1e-7)
    merged = crowded[:20] + np.concatenate([crowded[20:26], np.zeros(14)])
    assert_allclose(merged, plain, atol=1e-4 * plain.max())


@pytest.mark.covering
@pytest.mark.parametrize("noise", [1e-12, 1e-8, 1e-4, 1.0, 1e4])
@pytest.mark.parametrize("solver", ["auto", "mm", "em", "mackay"])
def test_noise_from_tiny_to_huge_is_safe(solver, noise):
    p = make_sparse_regression(20, 40, 5, 8, random_state=3)
    y = p.responses / np.sqrt(np.mean(p.responses**2))
    model = SparseVAE(solver=solver, noise_variance=noise, fit_intercept=False)
    relevance = model.fit(p.dictionary, y).relevance_
    assert model.status_.ok
    assert np.isfinite(relevance).all()
    if noise <= 1e-4:
        assert_array_equal(np.flatnonzero(relevance > 1e-3 * relevance.max()), p.support)
    if noise == 1e4:
        assert not relevance.any()


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 1, 3), (1, 6, 2), (3, 3, 1)])
def test_the_smallest_problems_are_solved(shape):
    X, y = drawn(7, *shape, active=1)
    model = SparseVAE(noise_variance=0.1 * np.mean(y**2), fit_intercept=False).fit(X, y)
    assert model.status_.ok
    truth, labels, _ = described(model, X, y)
    assert truth.violation(labels, False) < 2e-6


@pytest.mark.parametrize(("rows", "count", "n"), [(60, 20_000, 10), (15, 30, 20_000), (5000, 8, 3)])
def test_many_columns_responses_or_rows_are_solved(rows, count, n):
    p = make_sparse_regression(rows, count, 4, n, min(n, 10), snr_db=20, random_state=0)
    model = SparseVAE(noise_variance=p.noise_variance, fit_intercept=False)
    model.fit(p.dictionary, p.responses)
    assert model.status_.ok
    assert set(p.support) <= set(np.argsort(-model.relevance_)[:8])
    assert model.certificate_["stationarity"].holds


SPHERICAL, FULL = {"groups": 3}, {"groups": 3, "group_covariance": "full"}


@pytest.mark.parametrize(
    ("options", "kind", "noise"),
    [
        ({}, float, 1e-7), ({}, complex, 0.3), (SPHERICAL, float, 1e-2), (SPHERICAL, complex, 0.3),
        (FULL, float, 0.3), (FULL, complex, 0.3),
    ],
)  # fmt: skip
def test_large_dictionaries_end_as_small_ones_do(options, kind, noise):
    """All columns are then evaluated from the few active ones, which must lose no digits."""
    X, y = drawn(4, 40, 5010, kinds=(kind, kind), active=4, noise=0.2)
    noise = noise * np.mean(np.abs(y) ** 2)
    model = SparseVAE(noise_variance=noise, fit_intercept=False, **options).fit(X, y)
    assert model.status_.ok
    assert model.certificate_.holds, str(model.certificate_)
    used = model.relevance_ > 0
    small = SparseVAE(noise_variance=noise, fit_intercept=False, **options).fit(X[:, used], y)
    truth, labels, full = described(small, X[:, used], y)
    assert truth.violation(labels, full) < 2e-6
    assert_allclose(model.energy_, small.energy_, rtol=1e-6)


@pytest.mark.parametrize("posterior", ["full", "diagonal"])
def test_newton_steps_below_the_rounding_of_the_energy_go_on(posterior):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((26, 45)) + 1.0
        y = 3.0 * X[:, [5, 20]] @ rng.standard_normal((2, 6)) + 0.4 * rng.standard_normal((26, 6))
        options = [{}, {"groups": 3}, {"groups": 3, "group_covariance": "full"}]
        for option in options if posterior == "full" else options[:1]:
            model = SparseVAE(
                posterior=posterior, noise_variance=10.0 ** rng.uniform(-3, 0), tol=1e-10,
                fit_intercept=False, **option,
            ).fit(X, y)  # fmt: skip
            # A warning would be an error; Newton steps converge quadratically.
            assert model.history_["distance"][-1] <= 1e-10
            assert model.n_iter_ < 100


ENERGIES = [
    *({"solver": name} for name in ("em", "mm", "mackay")),
    *({"solver": name, "groups": LABELS} for name in ("em", "mm", "mackay")),
    {"groups": LABELS, "group_covariance": "full", "solver": "mm"},
    {"posterior": "diagonal"}, {"posterior": "diagonal", "groups": LABELS},
    *({"posterior": "point", "penalty": name} for name in ("log", "power", "arctan")),
]  # fmt: skip


@pytest.mark.parametrize("options", ENERGIES)
@settings(max_examples=5)
@given(seed=st.integers(0, 10**6), noise=st.sampled_from([1e-8, 1e-3, 0.1, 3.0, "learn"]))
def test_no_iteration_raises_the_energy(options, seed, noise):
    if noise == "learn" and options.get("posterior") == "point":
        return
    X, y = drawn(seed, 8 if noise != "learn" else 30, n=3)
    model = SparseVAE(noise_variance=noise, max_iter=25, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    energies = model.history_["energy"]
    rounding = 1e-10 + 32 * np.finfo(float).eps * np.mean(y**2) / model.noise_variance_
    assert (np.diff(energies) <= rounding * np.maximum(1.0, np.abs(energies[:-1]))).all()


@pytest.mark.covering
@pytest.mark.parametrize(
    ("seed", "spread", "noise"), [(0, 1e-5, 1e-10), (1, 1e-5, 1e-10), (2, 1e-4, 1e-8)]
)
@pytest.mark.parametrize(
    "options", [{}, {"group_covariance": "full"}, {"group_covariance": "full", "solver": "mm"}]
)
def test_the_energy_does_not_rise_if_columns_are_nearly_dependent(seed, spread, noise, options):
    """The energy falls up to the error ε/γ of the log-determinant of an ill-conditioned Σ."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((12, 4)) @ rng.standard_normal((4, 45))
    X = X + spread * rng.standard_normal(X.shape)
    y = X[:, :6] @ rng.standard_normal((6, 4)) + noise**0.5 * rng.standard_normal((12, 4))
    model = SparseVAE(
        groups=3, noise_variance=noise * np.mean(y**2), max_iter=100, fit_intercept=False, **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        energies = np.asarray(model.fit(X, y).history_["energy"])
    assert np.isfinite(energies).all()
    assert (np.diff(energies) <= 32 * np.finfo(float).eps / noise * np.abs(energies[-1])).all()


def test_an_exhausted_limit_is_reported():
    X, y = drawn(11, 12)
    with pytest.warns(ConvergenceWarning, match="limit of 3"):
        model = SparseVAE(solver="em", noise_variance=0.05, max_iter=3).fit(X, y)
    assert (model.status_, model.n_iter_) == ("iteration limit", 3)


@pytest.mark.covering
@pytest.mark.parametrize("solver", ["em", "mm", "mackay", "coordinate"])
@pytest.mark.parametrize("seed", range(2))
def test_rows_of_very_different_norms_leave_one_minimum(solver, seed):
    """Wipf 2023, Theorem 4.1: from every start the one end is the sparse code, w = ‖u‖²/n."""
    rng = np.random.default_rng(seed)
    X, U = rng.standard_normal((6, 10)), np.zeros((10, 4))
    used = rng.choice(10, 3, replace=False)
    rows = rng.standard_normal((3, 4))
    U[used] = rows / np.linalg.norm(rows, axis=1, keepdims=True) * [[1.0], [1e-2], [1e-4]]
    noise = 1e-14 * np.mean((X @ U) ** 2)
    model = SparseVAE(
        solver=solver, noise_variance=noise, fit_intercept=False, warm_start=True, max_iter=5000
    ).fit(X, X @ U)
    expected = np.sum(U**2, axis=1) / 4
    for _ in range(3):
        assert_allclose(model.relevance_[used], expected[used], rtol=2e-2)  # solvers stop at 1e-6
        assert np.all(np.delete(model.relevance_, used) < 1e-3 * expected[used].min())
        if solver != "coordinate":  # which begins at zero
            model.relevance_ = np.exp(rng.uniform(-6, 2, 10))
        model.fit(X, X @ U)


def test_stacked_real_and_imaginary_parts_are_another_model():
    """[Re Φ, −Im Φ; Im Φ, Re Φ] gives both parts of a coefficient relevances of their own."""
    X, y = drawn(9, kinds=(complex, complex))
    stacked = np.block([[X.real, -X.imag], [X.imag, X.real]])
    targets = np.vstack([y.real, y.imag]) * 2**0.5
    options = {"noise_variance": 0.3, "fit_intercept": False}
    both = SparseVAE(**options).fit(stacked, targets)
    tied = SparseVAE(groups=np.tile(np.arange(20), 2), **options).fit(stacked, targets)
    whole = SparseVAE(**options).fit(X, y)
    assert np.abs(both.relevance_[:20] - both.relevance_[20:]).max() > 0.05
    assert both.energy_ < tied.energy_ - 1e-3
    assert_allclose(tied.energy_, 2 * whole.energy_, rtol=1e-6)  # unless the two must agree
    assert_allclose(tied.relevance_[:20], whole.relevance_, atol=1e-3)
