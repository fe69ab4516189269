"""All groups of columns evaluated from the active columns: values, fits, and the confirmed end."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from lucidae import SparseVAE
from lucidae.arrays import to_numpy
from lucidae.iteration.status import Solution, Status
from lucidae.sparsity import group_screening
from lucidae.sparsity.group_blocks import ScreenedState, group_blocks
from lucidae.sparsity.group_covariance import GroupCovariance, evaluate_covariances
from lucidae.sparsity.group_moves import rank_groups
from lucidae.sparsity.group_screening import GroupProducts, confirmed, evaluate_screened
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.low_rank import WELL_CONDITIONED
from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.problem import Problem, normalise
from lucidae.sparsity.solvers import repeat_update, solve
from lucidae.sparsity.state import empty_start, evaluate


@pytest.fixture
def always(monkeypatch):
    """Evaluate the groups of small dictionaries from the active columns too."""
    monkeypatch.setattr(group_screening, "SCREENED_ENTRIES", 0)


def draw(seed, *, d=24, size=3, count=20, n=5, noise=0.1, kind=float, shuffled=False):
    """Return a problem in which three groups are relevant, and its groups."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        real = rng.standard_normal(shape)
        return real + 1j * rng.standard_normal(shape) if kind is complex else real

    labels = np.arange(size * count) // size
    labels = rng.permutation(labels) if shuffled else labels
    groups = Groups.of(labels, labels.size)
    Phi = normal(d, labels.size)
    signal = Phi @ (normal(labels.size, n) * (groups.labels < 3)[:, None])
    y = signal + np.sqrt(noise * np.mean(np.abs(signal) ** 2)) * normal(d, n)
    problem, _ = normalise(Phi, y, groups=groups)
    return problem.with_noise(noise), groups


def products_of(problem, groups):
    return GroupProducts(
        problem.dictionary,
        groups,
        [
            group_screening.group_grams(problem.dictionary, members)
            for _, members in groups.by_size()
        ],
        np.conj(problem.responses.T) @ problem.dictionary,
        np.zeros(0, dtype=int),
        problem.dictionary[:0],
    )


CASES = {
    "seed": st.integers(0, 10**6),
    "d": st.integers(2, 40),
    "size": st.integers(1, 4),
    "count": st.sampled_from([3, 10, 250]),
    "active": st.integers(0, 12),
    "noise": st.sampled_from([1.0, 0.1, 1e-3, 1e-5]),
    "kind": st.sampled_from([float, complex]),
    "shuffled": st.booleans(),
}


@settings(deadline=None, max_examples=60)
@given(**CASES)
def test_relevances_are_evaluated_as_by_a_factorisation(active, noise, **case):
    problem, groups = draw(noise=noise, **case)
    rng = np.random.default_rng(case["seed"])
    chosen = rng.permutation(groups.count)[:active]
    weights = np.zeros(groups.count)
    weights[chosen] = rng.uniform(0.1, 3.0, chosen.size)
    relevance = groups.expand(weights)
    products = products_of(problem, groups)
    state = evaluate_screened(problem, relevance, products)
    exact = evaluate(problem, relevance, columns=True)
    columns = int(np.count_nonzero(relevance))
    served = 2 * columns <= problem.rows and relevance.sum() <= WELL_CONDITIONED * noise
    assert isinstance(state, ScreenedState) == served
    # The forms are differences of numbers of the size 1/γ.
    bound = 1e-10 / noise
    for ours, theirs in zip(group_blocks(state, groups), group_blocks(exact, groups), strict=True):
        assert_array_equal(ours.members, theirs.members)
        assert_allclose(ours.metric, theirs.metric, atol=bound)
        assert_allclose(
            ours.explained, theirs.explained, atol=bound * np.abs(theirs.explained).max()
        )
    energy = FullCovariance(groups)
    assert_allclose(energy.value(state), energy.value(exact), rtol=1e-12, atol=1e-12)
    assert_allclose(energy.violation(state), energy.violation(exact), rtol=1e-7, atol=bound)
    gains = [rank_groups(each, groups).gains for each in (state, exact)]
    assert_allclose(*gains, rtol=1e-6, atol=bound)
    index = groups.columns(np.arange(min(2, groups.count)))
    for name in ("whitened", "loading", "relevance"):
        part, expected = (getattr(each.take(index), name) for each in (state, exact))
        assert_allclose(part, expected, atol=1e-9 * max(1.0, np.abs(expected).max()))


@settings(deadline=None, max_examples=60)
@given(**CASES)
def test_covariances_are_evaluated_as_by_a_factorisation(active, noise, **case):
    problem, groups = draw(noise=noise, **case)
    rng = np.random.default_rng(case["seed"])
    numbers = np.sort(rng.permutation(groups.count)[:active])
    half = rng.standard_normal((numbers.size, case["size"], case["size"])).astype(case["kind"])
    if case["kind"] is complex:
        half = half + 1j * rng.standard_normal(half.shape)
    blocks = half @ np.conj(half.swapaxes(1, 2))
    given = (problem, groups, numbers, blocks)
    state = evaluate_covariances(*given, products_of(problem, groups))
    exact = evaluate_covariances(*given)
    bound = 1e-10 / noise
    served = not isinstance(state.matrices(), type(exact.matrices()))
    assert served == (2 * numbers.size * case["size"] <= problem.rows)
    for ours, theirs in zip(state.matrices(), exact.matrices(), strict=True):
        assert_allclose(ours.metric, theirs.metric, atol=bound)
        assert_allclose(
            ours.explained, theirs.explained, atol=bound * np.abs(theirs.explained).max()
        )
    assert_allclose(state.ranking.gains, exact.ranking.gains, rtol=1e-6, atol=1e-3 * bound)
    assert_allclose(state.ranking.violation, exact.ranking.violation, rtol=1e-6, atol=bound)
    assert state.exact().products is None


def test_products_of_columns_are_computed_once_and_forgotten_if_they_are_many(monkeypatch):
    problem, groups = draw(0, d=6)
    products = products_of(problem, groups)
    Phi = problem.dictionary
    for index in ([3, 7], [1, 3, 7], [1, 9], [2, 4, 5]):
        found = products.with_columns(np.array(index))
        assert_allclose(found, Phi[:, index].T @ Phi, atol=1e-12)
    assert set(products.index) == {2, 4, 5}  # seven columns are more than the six rows
    stored = products.rows
    products.with_columns(np.array([2, 4, 5]))
    assert products.rows is stored


def test_only_large_dense_dictionaries_with_groups_have_products(always):
    problem, groups = draw(1)
    assert isinstance(GroupProducts.of(problem, groups), GroupProducts)
    assert GroupProducts.of(problem, None) is None
    stack = problem._replace(dictionary=problem.dictionary[None])
    assert GroupProducts.of(stack, groups) is None


def test_small_dictionaries_have_no_products():
    assert GroupProducts.of(*draw(1)) is None


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("energy", [FullCovariance, GroupCovariance])
@pytest.mark.parametrize("noise", [0.2, 1e-2, 1e-7])
def test_screened_solutions_end_where_exact_ones_do(monkeypatch, energy, kind, noise):
    problem, groups = draw(3, kind=kind, noise=noise, count=60)
    objective = energy(groups)
    exact = solve(problem, objective, method="coordinate")
    monkeypatch.setattr(group_screening, "SCREENED_ENTRIES", 0)
    found = solve(problem, objective, method="coordinate")
    assert found.status is exact.status is Status.CONVERGED
    assert_allclose(objective.value(found.value), objective.value(exact.value), rtol=1e-8)
    assert found.value.complete
    # The distance is that of the state without screening.
    assert found.distance == pytest.approx(objective.violation(found.value), rel=1e-6, abs=1e-12)
    parameters = [to_numpy(objective.parameters(each.value)) for each in (found, exact)]
    assert_allclose(*parameters, atol=1e-4 * np.abs(parameters[1]).max())
    energies = np.asarray(found.history["energy"])
    rounding = 32 * np.finfo(float).eps / noise * np.abs(energies[-1])
    assert (np.diff(energies) <= rounding).all()


@pytest.mark.parametrize("seed", range(6))
def test_screened_groups_end_no_higher_than_many_updates(always, seed):
    problem, groups = draw(seed, d=20, count=12, n=[2, 5, 20][seed % 3])
    energy = FullCovariance(groups)
    updated = repeat_update(problem, energy, tolerance=1e-12, limit=300)
    found = solve(problem, energy)
    assert found.status.ok
    assert energy.value(found.value) <= energy.value(updated.value) + 1e-6


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("covariance", ["spherical", "full"])
@pytest.mark.parametrize("noise", [0.3, "cv"])
def test_fits_are_as_without_screening_and_certified(monkeypatch, covariance, noise, kind):
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((40, 5130)), rng.standard_normal((40, 4))
    if kind is complex:
        X = X + 1j * rng.standard_normal(X.shape)
    y = y + 3.0 * X[:, :6] @ rng.standard_normal((6, 4))
    options = {"groups": 3, "group_covariance": covariance, "noise_variance": noise}
    model = SparseVAE(**options).fit(X, y)
    assert model.certificate_.holds, str(model.certificate_)
    monkeypatch.setattr(group_screening, "SCREENED_ENTRIES", np.inf)
    exact = SparseVAE(**options).fit(X, y)
    assert model.energy_ == pytest.approx(exact.energy_, rel=1e-7)
    assert_array_equal(model.support_, exact.support_)
    assert model.noise_variance_ == pytest.approx(exact.noise_variance_, rel=1e-3)


def test_wrong_screened_values_are_found_out_and_the_iteration_goes_on(monkeypatch, always):
    problem, groups = draw(5, count=60)
    healthy = GroupProducts.blocks

    def blind(self, *given):  # no group seems to explain anything
        return [block._replace(explained=0.0 * block.explained) for block in healthy(self, *given)]

    for energy in (FullCovariance(groups), GroupCovariance(groups)):
        expected = energy.value(solve(problem, energy, method="coordinate").value)
        with monkeypatch.context() as broken:
            broken.setattr(GroupProducts, "blocks", blind)
            found = solve(problem, energy, method="coordinate")
        assert found.status.ok
        assert_allclose(energy.value(found.value), expected, rtol=1e-6)


@pytest.mark.parametrize("status", list(Status))
def test_an_iteration_that_was_stopped_does_not_go_on(status):
    asked = []

    def proceed(value, steps):
        asked.append(steps)
        return Solution(value, Status.CONVERGED, 0, 0.0, 1e-6)

    ended = confirmed(Solution(1.0, status, 7, 1e-7, 1e-6), lambda value: -value, proceed, 9)
    assert ended.value == -1.0
    assert ended.n_iter == 7
    assert asked == ([2] if status in (Status.CONVERGED, Status.STALLED) else [])
    assert ended.status is (Status.CONVERGED if asked else status)


@pytest.mark.parametrize("kind", [float, complex])
def test_groups_are_screened_alike_by_every_array_library(xp, kind, always):
    problem, groups = draw(6, kind=kind)
    moved = Problem(*(xp.asarray(part) for part in problem))
    relevance = groups.expand(np.where(np.arange(groups.count) < 3, 0.7, 0.0))
    ours = evaluate_screened(moved, xp.asarray(relevance), GroupProducts.of(moved, groups))
    theirs = evaluate(problem, relevance)
    assert isinstance(ours, ScreenedState)
    assert_allclose(to_numpy(ours.curvature), theirs.curvature, rtol=1e-8)
    assert_allclose(to_numpy(ours.alignment), theirs.alignment, rtol=1e-8)
    for energy in (FullCovariance(groups), GroupCovariance(groups)):
        reached = [energy.value(solve(each, energy).value) for each in (moved, problem)]
        assert_allclose(float(reached[0]), float(reached[1]), rtol=1e-7)
    assert_array_equal(to_numpy(empty_start(moved)), 0.0)
