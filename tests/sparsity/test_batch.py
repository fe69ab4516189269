"""Stacks of problems: each ends as it would alone, on any library."""

import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor
from numpy.testing import assert_allclose

from lucidae import SparseVAE
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import solve_batch
from sparsity.brute_force import energy, violation


def stack(count=4, d=12, kappa=20, r=2, n=5, snr=20):
    problems = [
        make_sparse_regression(d, kappa, r, n, snr_db=snr, random_state=seed)
        for seed in range(count)
    ]
    Phi = np.stack([p.dictionary for p in problems])
    X = np.stack([p.responses for p in problems])
    return Phi, X, np.array([p.noise_variance for p in problems]), problems


@pytest.mark.covering
@pytest.mark.parametrize(
    ("posterior", "solver"),
    [("full", "auto"), ("full", "mm"), ("point", "auto")],
)
def test_a_stack_is_solved_on_every_library_alike(xp, posterior, solver):
    Phi, X, noise, _ = stack()
    settings = {"posterior": posterior, "solver": solver, "max_iter": 40}
    ended = solve_batch(
        xp.asarray(Phi), xp.asarray(X), noise_variance=xp.asarray(noise), **settings
    )
    reference = solve_batch(Phi, X, noise_variance=noise, **settings)
    assert type(ended.value.coef) is type(xp.asarray(Phi))
    assert_allclose(np.asarray(ended.value.coef), reference.value.coef, atol=1e-6)
    assert ended.status == reference.status


def test_each_problem_ends_on_its_own_and_is_stationary():
    Phi, X, noise, _ = stack(6)
    ended = solve_batch(Phi, X, noise_variance=noise, solver="em")
    assert ended.converged.all()
    assert len(set(ended.n_iter)) > 1
    for dictionary, responses, level, w, value in zip(
        Phi, X, noise, ended.value.relevance, ended.value.energy, strict=True
    ):
        assert violation(dictionary, responses, w, level) < 1e-6
        assert_allclose(energy(dictionary, responses, w, level), value, rtol=1e-9)


@pytest.mark.parametrize("solver", ["auto", "mm", "em", "mackay"])
def test_a_stack_agrees_with_the_estimator_one_by_one(solver):
    Phi, X, noise, problems = stack(4, d=16, kappa=24, snr=30)
    ended = solve_batch(Phi, X, noise_variance=noise, solver=solver)
    for index, p in enumerate(problems):
        model = SparseVAE(noise_variance=p.noise_variance, fit_intercept=False)
        model.fit(p.dictionary, p.responses)
        assert_allclose(ended.value.energy[index], model.energy_, rtol=1e-6)
        assert_allclose(ended.value.coef[index], model.coef_, atol=2e-3)


def test_reaching_the_basin_at_the_limit_is_not_convergence():
    Phi, X, noise, _ = stack(3, snr=10)
    ended = solve_batch(Phi, X, noise_variance=noise, solver="em", max_iter=5)
    assert set(ended.status) == {"iteration limit"}
    assert (ended.distance > 1e-6).all()


@pytest.mark.parametrize("n", [1, 5])
def test_an_accelerator_solves_at_once_what_a_processor_solves_one_by_one(monkeypatch, n):
    Phi, X, noise, _ = stack(5, d=16, kappa=24, n=n, snr=30)
    alone = solve_batch(Phi, X, noise_variance=noise)
    monkeypatch.setattr("lucidae.sparsity.batch.on_host", lambda _: False)
    together = solve_batch(Phi, X, noise_variance=noise)
    assert alone.converged.all()
    assert together.converged.all()
    assert_allclose(together.value.energy, alone.value.energy, rtol=1e-6)


def test_noise_is_learned_one_by_one_as_it_is_together():
    Phi, X, _, _ = stack(3, d=40, kappa=8, n=6, snr=10)
    alone = solve_batch(Phi, X, noise_variance="learn")
    together = solve_batch(Phi, X, noise_variance="learn", solver="mackay")
    assert alone.converged.all()
    assert_allclose(alone.value.noise_variance, together.value.noise_variance, rtol=1e-3)
    assert_allclose(alone.value.energy, together.value.energy, rtol=1e-6)


@pytest.mark.parametrize(
    ("posterior", "solver", "r", "snr"),
    [("full", "auto", 5, 10), ("diagonal", "auto", 5, 10), ("full", "mackay", 12, 15)],
)
def test_newton_steps_bring_a_noisy_stack_to_its_stationary_points(posterior, solver, r, snr):
    # With many active columns, one hides behind another until that one has its size.
    Phi, X, noise, _ = stack(6, d=20, kappa=40, r=r, n=3, snr=snr)
    ended = solve_batch(Phi, X, posterior=posterior, noise_variance=noise, solver=solver)
    assert ended.converged.all()
    for parts in zip(Phi, X, ended.value.relevance, noise, strict=True):
        assert violation(*parts, posterior) < 2e-6


def test_some_may_stop_at_the_limit_while_others_converge():
    Phi, X, _, _ = stack(2, snr=None)
    X[1] += 0.3 * np.random.default_rng(0).standard_normal(X[1].shape)
    ended = solve_batch(Phi, X, noise_variance=[1e-9, 0.05], posterior="point", max_iter=15)
    assert ended.status == ("converged", "iteration limit")
    assert ended.n_iter[0] < ended.n_iter[1] == 15


def test_a_shared_dictionary_and_learned_noise():
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((60, 10))
    X = Phi[:, :2] @ rng.standard_normal((3, 2, 20)) + rng.standard_normal((3, 60, 20))
    ended = solve_batch(Phi, X, noise_variance="learn", solver="mackay")
    assert_allclose(ended.value.noise_variance, 1.0, rtol=0.1)
    alone = solve_batch(Phi[None], X[1:2], noise_variance="learn", solver="mackay")
    assert_allclose(alone.value.coef[0], ended.value.coef[1], atol=1e-6)


@pytest.fixture(scope="module")
def processes():
    """Leave no process behind that other tests would reuse with the paths of this one."""
    yield 2
    get_reusable_executor().shutdown(wait=True)


def test_single_precision_and_processes(processes):
    Phi, X, _, _ = stack(4)
    narrow = solve_batch(Phi.astype("float32"), X.astype("float32"), noise_variance=0.01)
    assert narrow.value.coef.dtype == np.float32
    divided = solve_batch(Phi, X, noise_variance=0.01, n_jobs=processes)
    together = solve_batch(Phi, X, noise_variance=0.01)
    assert_allclose(divided.value.coef, together.value.coef, atol=1e-10)
    assert divided.status == together.status


def test_dictionaries_and_responses_may_be_given_by_name():
    Phi, X, *_ = stack(1)
    named = solve_batch(X=Phi, y=X, noise_variance=0.1)
    assert_allclose(named.value.coef, solve_batch(Phi, X, noise_variance=0.1).value.coef)


def test_masked_arrays_without_masked_entries_are_arrays():
    Phi, X, noise, _ = stack(count=2)
    plain = solve_batch(Phi, X, noise_variance=noise).value
    given = [np.ma.array(part, mask=False) for part in (Phi, X, noise)]
    found = solve_batch(*given[:2], noise_variance=given[2]).value
    for one, other in zip(found, plain, strict=True):
        assert type(one) is np.ndarray
        assert_allclose(one, other)
    with pytest.raises(ValueError, match="masked entries"):
        solve_batch(np.ma.array(Phi, mask=Phi > 0), X, noise_variance=noise)


@pytest.mark.covering
@pytest.mark.parametrize("solver", ["auto", "mm"])
@pytest.mark.parametrize("posterior", ["full", "diagonal"])
def test_groups_of_columns_are_those_of_single_fits(posterior, solver):
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((3, 20, 24)), np.zeros((24, 6))
    U[3:6] = rng.standard_normal((3, 6))
    y = X @ U + 0.1 * rng.standard_normal((3, 20, 6))
    options = {"posterior": posterior, "solver": solver, "groups": 3, "noise_variance": 0.01}
    solution = solve_batch(X, y, **options)
    assert solution.converged.all()
    for index in range(3):
        one = SparseVAE(fit_intercept=False, **options).fit(X[index], y[index])
        assert_allclose(solution.value.energy[index], one.energy_, rtol=1e-6)
        assert_allclose(solution.value.relevance[index], one.relevance_, atol=1e-4)
    with pytest.raises(ValueError, match="divides the number of columns"):
        solve_batch(X, y, groups=5, noise_variance=0.01)


def grouped(kind, count=3, n=6):
    """Return a stack of problems in which the coefficients of one group are correlated."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        real = rng.standard_normal(shape)
        return real + 1j * rng.standard_normal(shape) if kind is complex else real

    X, U = normal(count, 20, 24), np.zeros((count, 24, n), dtype=kind)
    U[:, 3:6] = normal(count, 3, 3) @ normal(count, 3, n)
    U[:, 9:12] = normal(count, 3, 1) * normal(count, 1, n)
    return X, X @ U + 0.1 * normal(count, 20, n)


@pytest.mark.parametrize(
    ("noise", "solver", "labels", "kind"),
    [
        (0.01, "auto", 3, complex),
        ([0.01, 0.02, 0.05], "mm", 3, float),
        (0.01, "auto", [0, 0, 1, *[2] * 3, *[3] * 3, *[4] * 3, *range(5, 17)], float),
        ("learn", "auto", 3, complex),
    ],
)
def test_covariances_of_groups_are_those_of_single_fits(kind, noise, solver, labels):
    X, y = grouped(kind)
    X = X[:, :, :12] if noise == "learn" else X
    options = {"solver": solver, "groups": labels, "group_covariance": "full"}
    # The estimator sorts the rows, which changes rounding errors and with them the order of moves
    # of nearly the same gain. Both fits stop at the same tolerance, 1e-6.
    error = 1e-5
    found = solve_batch(X, y, noise_variance=noise, **options)
    assert found.converged.all()
    for index in range(3):
        level = noise[index] if isinstance(noise, list) else noise
        one = SparseVAE(fit_intercept=False, noise_variance=level, **options)
        one.fit(X[index], y[index])
        value = found[index].value
        assert_allclose(value.energy, one.energy_, rtol=1e-8)
        for name in ("coef", "relevance", "noise_variance", "group_covariances"):
            expected = getattr(one, f"{name}_")
            assert_allclose(getattr(value, name), expected, atol=error, err_msg=name)


def test_covariances_of_groups_are_the_same_in_processes_and_in_single_precision(processes):
    X, y = grouped(float)
    options = {"groups": 3, "group_covariance": "full", "noise_variance": 0.01}
    one, two = (solve_batch(X, y, n_jobs=jobs, **options).value for jobs in (1, 2))
    for first, second in zip(one, two, strict=True):
        assert_allclose(first, second, atol=1e-12)
    narrow = solve_batch(X.astype(np.float32), y.astype(np.float32), **options).value
    assert narrow.coef.dtype == narrow.relevance.dtype == np.float32
    assert narrow.group_covariances.dtype == np.float64  # small eigenvalues are not rounded
    assert_allclose(narrow.group_covariances, one.group_covariances, atol=1e-3)


def test_covariances_of_groups_are_found_on_every_library_alike(xp):
    X, y = grouped(complex, count=2)
    options = {"groups": 3, "group_covariance": "full", "noise_variance": 0.01}
    found = solve_batch(xp.asarray(X), xp.asarray(y), **options)
    plain = solve_batch(X, y, **options)
    assert found.status == plain.status
    for moved, expected in zip(found.value, plain.value, strict=True):
        assert type(moved) is type(xp.asarray(X))
        assert_allclose(np.asarray(moved), expected, atol=1e-5)
