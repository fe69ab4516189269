"""Partitions of the columns."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

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
