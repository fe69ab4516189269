"""Partitions of the columns."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from lucidae import SparseVAE, certify
from lucidae.sparsity.groups import Groups


def test_totals_are_those_of_a_loop_whatever_the_labels():
    rng = np.random.default_rng(0)
    labels = rng.integers(-3, 4, 20)
    values = rng.standard_normal((2, 20))
    groups = Groups.of(labels, 20)
    expected = [values[:, labels == label].sum(axis=1) for label in np.unique(labels)]
    np.testing.assert_allclose(groups.total(values), np.transpose(expected))
    np.testing.assert_allclose(groups.share(values), groups.expand(groups.total(values)))


def test_some_columns_of_a_partition_are_a_partition():
    groups = Groups.of([5, 5, 1, 1, 5], 5).restricted(np.array([0, 2, 4]))
    assert_array_equal(groups.labels, [1, 0, 1])


@pytest.mark.parametrize("labels", [[[0]], [0, 1]])
def test_labels_of_another_shape_are_refused(labels):
    with pytest.raises(ValueError, match="one label per column"):
        Groups.of(labels, 1)


def dummies():
    """Return dummy columns of a category whose first level does not occur, with three others."""
    rng = np.random.default_rng(0)
    level = np.eye(4)[rng.integers(1, 4, 80)]
    X = np.column_stack([level, rng.standard_normal((80, 3))])
    return X, level @ [0.0, 3.0, -2.0, 1.0] + 0.1 * rng.standard_normal(80)


@pytest.mark.parametrize("noise", ["learn", "cv", 0.01])
@pytest.mark.parametrize(
    ("posterior", "solver"),
    [(posterior, "auto") for posterior in ("full", "diagonal", "point")]
    + [("full", solver) for solver in ("mm", "em", "mackay")],
)
@pytest.mark.parametrize(("place", "dtype"), [(0, np.float64), (2, np.float32), (3, np.float64)])
def test_a_constant_column_has_the_relevance_of_its_group(posterior, solver, noise, place, dtype):
    if posterior == "point" and noise == "learn":
        return  # a point estimate has no variance from which to learn
    X, y = dummies()
    X[:, [0, place]] = X[:, [place, 0]]
    model = SparseVAE(
        posterior=posterior, solver=solver, noise_variance=noise, groups=[0, 0, 0, 0, 1, 2, 3],
        warm_start=True,
    )  # fmt: skip
    for _ in range(2):
        model.fit(X.astype(dtype), y)
        assert_array_equal(model.relevance_[:4], model.relevance_[1])
        assert model.relevance_[1] > 0.1
        assert_array_equal(model.support_, [0, 1, 2, 3])
        assert model.certificate_["stationarity"].holds
        assert model.certificate_["support"].holds


def test_a_constant_column_changes_nothing_about_the_others():
    X, y = dummies()
    with_it = SparseVAE(groups=[0, 0, 0, 0, 1, 2, 3]).fit(X, y)
    without = SparseVAE(groups=[0, 0, 0, 1, 2, 3]).fit(X[:, 1:], y)
    np.testing.assert_allclose(with_it.relevance_[1:], without.relevance_, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(with_it.energy_, without.energy_)


def test_a_group_of_constant_columns_has_no_relevance():
    X, y = dummies()
    X = np.column_stack([np.full((80, 2), 3.0), X])
    model = SparseVAE(groups=[9, 9, 0, 0, 0, 0, 1, 2, 3]).fit(X, y)
    assert_array_equal(model.relevance_[:2], 0.0)
    assert_array_equal(model.support_, [2, 3, 4, 5])


def test_another_relevance_of_a_constant_column_fails():
    X, y = dummies()
    model = SparseVAE(groups=[0, 0, 0, 0, 1, 2, 3]).fit(X, y)
    for value in (0.0, 100.0):
        relevance = model.relevance_.copy()
        relevance[0] = value
        model.relevance_ = relevance
        assert certify(model, X, y)["stationarity"].holds is False
        model.fit(X, y)


def test_groups_of_unequal_sizes_are_gathered_and_spread():
    groups = Groups.of([5, 2, 5, 7, 2, 5], 6)
    values = np.arange(10.0, 16.0)
    assert_array_equal(groups.gather(values), [[11, 14, 0], [10, 12, 15], [13, 0, 0]])
    assert_array_equal(groups.spread(groups.gather(values)), values)
    # Places without a column do not matter, whatever they contain.
    filled = np.where(groups.present > 0, groups.gather(values), -99.0)
    assert_array_equal(groups.spread(filled), values)
    sizes = [(numbers.tolist(), members.tolist()) for numbers, members in groups.by_size()]
    assert sizes == [([2], [[3]]), ([0], [[1, 4]]), ([1], [[0, 2, 5]])]


def test_a_number_of_columns_per_group():
    assert_array_equal(Groups.of(3, 6).labels, [0, 0, 0, 1, 1, 1])
    assert_array_equal(Groups.of(1, 3).labels, [0, 1, 2])
    for wrong in (0, -2, 4):
        with pytest.raises(ValueError, match=f"groups={wrong} was given for 6 columns"):
            Groups.of(wrong, 6)
