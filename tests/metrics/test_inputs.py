"""Input validation of the metrics: what is accepted, and the errors for everything else."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require
from lucidae import metrics

RNG = np.random.default_rng

ONES = np.ones((4, 2))
PAIRWISE = ["axis_alignment_distance", "subspace_distance", "imbalance", "importance_scores",
            "equalization_variance", "path_norm", "support_recovery", "exact_recovery",
            "active_dimensions"]  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize(
    "bad",
    [
        np.full((4, 2), np.nan),
        np.full((4, 2), np.inf),
        np.ones((4, 0)),
        np.float64(1.0),
        np.ones((4, 2), dtype=complex),
        np.array([["a", "b"]]),
        [[1.0], [1.0, 2.0]],
    ],
    ids=["nan", "inf", "empty", "scalar", "complex", "text", "ragged"],
)
def test_nonsense_values_are_refused_by_name(name, bad):
    metric = getattr(metrics, name)
    takes_complex = name in ("support_recovery", "exact_recovery")
    if takes_complex and getattr(bad, "dtype", None) == np.complex128:
        assert metric(bad, bad) == 1  # the coefficients of a sparse code may be complex
        return
    with pytest.raises(ValueError, match=r"must|contains|expected real numbers"):
        metric(bad, ONES)
    with pytest.raises(ValueError, match=r"must|contains|expected real numbers"):
        metric(ONES, bad)


@pytest.mark.parametrize("name", PAIRWISE)
def test_shapes_that_do_not_belong_together_are_refused(name):
    with pytest.raises(ValueError, match=r"expected .* got shapes \(4, 2\) and \(5, 3\)"):
        getattr(metrics, name)(ONES, np.ones((5, 3)))


def test_leading_axes_must_match():
    with pytest.raises(ValueError, match="leading axes"):
        metrics.path_norm(np.ones((3, 4, 2)), np.ones((2, 4, 2)))


def test_other_refusals_say_what_to_do():
    with pytest.raises(ValueError, match="square"):
        metrics.non_diagonality(ONES)
    with pytest.raises(ValueError, match="orthonormal"):
        metrics.subspace_distance(ONES, ONES)
    with pytest.raises(ValueError, match="criterion"):
        metrics.exact_recovery(ONES, ONES, criterion="columns")
    with pytest.raises(ValueError, match="rtol"):
        metrics.exact_recovery(ONES, ONES, rtol=math.nan)
    with pytest.raises(ValueError, match="one sample"):
        metrics.active_dimensions(ONES[:1], ONES[:1])
    with pytest.raises(ValueError, match="negative"):
        metrics.active_dimensions(ONES, -ONES)


def test_inputs_are_left_alone_and_lists_and_integers_welcome():
    decoder, U = RNG(7).standard_normal((5, 2)), np.linalg.qr(RNG(8).standard_normal((5, 2)))[0]
    before = decoder.copy(), U.copy()
    metrics.axis_alignment_distance(decoder, U)
    metrics.subspace_distance(decoder, U)
    assert (decoder == before[0]).all()
    assert (before[1] == U).all()
    assert metrics.axis_alignment_distance([[2, 0], [0, 1]], np.eye(2, dtype=int)) == 0.0


def test_reference_may_come_from_another_library(xp):
    decoder, U = RNG(9).standard_normal((5, 2)), np.linalg.qr(RNG(10).standard_normal((5, 2)))[0]
    mixed = metrics.axis_alignment_distance(xp.asarray(decoder), U)
    assert_allclose(mixed, metrics.axis_alignment_distance(decoder, U), rtol=1e-12)


def test_weights_of_a_torch_layer_are_welcome():
    torch = require("torch")
    layer = torch.nn.Linear(2, 5, bias=False)
    value = metrics.axis_alignment_distance(layer.weight, np.eye(5)[:, :2])
    assert type(value) is float
    assert not metrics.importance_scores(layer.weight, layer.weight).requires_grad


JUNK_NUMBERS = (np.nan, np.inf, -1.0, True, "1e-3", 1j, None, np.datetime64("2024-01-01"), [0.1])
NUMBERS = [
    ("axis_alignment_distance", "rtol"),
    ("subspace_distance", "rtol"),
    ("exact_recovery", "rtol"),
    ("active_dimensions", "max_variance"),
    ("active_dimensions", "min_spread"),
]


@pytest.mark.covering
@pytest.mark.parametrize("junk", JUNK_NUMBERS)
@pytest.mark.parametrize(("name", "parameter"), NUMBERS)
def test_a_number_that_is_none_is_refused_by_its_name(name, parameter, junk):
    with pytest.raises(ValueError, match=f"{parameter}=.*expected a finite number of at least 0"):
        getattr(metrics, name)(np.eye(3), np.eye(3), **{parameter: junk})


def test_a_flag_that_is_none_is_refused():
    with pytest.raises(ValueError, match="return_mask='no' was given, expected True or False"):
        metrics.active_dimensions(np.eye(3), np.eye(3), return_mask="no")


@pytest.mark.covering
@pytest.mark.parametrize(
    "junk",
    [
        np.ma.array(np.ones((2, 2)), mask=np.eye(2)),
        np.full((2, 2), np.datetime64("2024-01-01")),
        np.array([[None, 1.0], [1.0, 1.0]], dtype=object),
        [["1", "2"], ["3", "4"]],
    ],
    ids=["masked", "dates", "objects", "text"],
)
@pytest.mark.parametrize("name", sorted(metrics.__all__))
def test_entries_that_are_no_numbers_are_refused(name, junk):
    metric = getattr(metrics, name)
    arguments = (junk,) if name == "non_diagonality" else (junk, np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"masked|expected real (or complex )?numbers"):
        metric(*arguments)


LARGE = {np.float64: (1e160, 1e307), np.float32: (1e20, 1e37)}
CASES = [(dtype, size) for dtype, sizes in LARGE.items() for size in sizes]


@pytest.mark.parametrize(("dtype", "size"), CASES)
def test_metrics_without_a_unit_are_those_of_small_numbers(dtype, size):
    weights, other = RNG(0).uniform(-9, 9, (2, 40, 3)).astype(dtype)
    U = np.linalg.qr(other)[0]
    large = weights * dtype(size)
    for metric in (metrics.axis_alignment_distance, metrics.subspace_distance):
        assert_allclose(metric(large, U), metric(weights, U), rtol=1e-5)
    assert_allclose(
        metrics.axis_alignment_distance(weights, large),
        metrics.axis_alignment_distance(weights, weights),
        atol=1e-6,
    )
    assert metrics.exact_recovery(large, large)
    assert not metrics.exact_recovery(large, -large)
    assert not metrics.exact_recovery(large, -large, criterion="rows")
    assert not metrics.exact_recovery(weights, large)
    assert metrics.support_recovery(large, large) == metrics.support_recovery(weights, weights)
    assert metrics.active_dimensions(large, np.zeros(3)) == 3
    assert metrics.active_dimensions(large[:1] + 0 * large, np.zeros(3)) == 0
    assert metrics.active_dimensions(weights, abs(large)) == 0
    with pytest.raises(ValueError, match="orthonormal"):
        metrics.subspace_distance(weights, large)


@pytest.mark.covering
@pytest.mark.parametrize(("dtype", "size"), CASES)
@pytest.mark.parametrize(
    "metric",
    [
        lambda large, small: metrics.imbalance(small.T, large),
        lambda large, small: metrics.imbalance(large.T, -large),
        lambda large, small: metrics.importance_scores(large, large),
        lambda large, small: metrics.path_norm(large, large),
        lambda large, small: metrics.equalization_variance(large, small),
        lambda large, small: metrics.equalization_variance(large, large),
    ],
)
def test_a_result_beyond_the_range_is_refused_with_the_way_out(metric, dtype, size):
    small = RNG(0).uniform(-9, 9, (40, 3)).astype(dtype)
    with pytest.raises(ValueError, match=r"overflows float.*largest entry.*Divide them"):
        metric(small * dtype(size), small)


def test_a_sum_beyond_the_range_is_refused():
    with pytest.raises(ValueError, match=r"overflows float64.*is 1e\+308\. Divide"):
        metrics.non_diagonality(np.full((3, 3), 1e308))
    assert metrics.non_diagonality(np.full((3, 3), 1e307)) == pytest.approx(6e307)
