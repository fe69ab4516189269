"""Components against sampling noise: simulations of what the two tests promise."""

import numpy as np
import pytest

from lucidae.counting import (
    component_sampling_error,
    components_above_noise,
    separated_components,
)


def spectrum(rows):
    return np.linalg.eigvalsh(rows.T @ rows / len(rows))[::-1]


def test_the_expected_angle_is_that_of_repeated_samples():
    rng = np.random.default_rng(0)
    deviations = np.array([5.0, 3.0, 2.0, 1.0])
    sines = []
    for _ in range(400):
        rows = rng.standard_normal((500, 4)) * deviations
        vectors = np.linalg.eigh(rows.T @ rows)[1][:, ::-1]
        sines.append(1 - np.diag(vectors) ** 2)
    assert component_sampling_error(deviations**2, 500) == pytest.approx(
        np.mean(sines, 0), rel=0.15
    )


@pytest.mark.parametrize("shape", [(200, 50), (50, 200), (1000, 5), (30, 30), (100, 2)])
def test_white_noise_has_no_separated_component(shape):
    rng = np.random.default_rng(1)
    found = sum(
        separated_components(spectrum(rng.standard_normal(shape)), shape[0], 1).any()
        for _ in range(100)
    )
    assert found <= 1


@pytest.mark.parametrize(("strength", "seen"), [(3.0, True), (0.3, False)])
def test_a_direction_is_seen_where_its_variance_exceeds_the_noise(strength, seen):
    # A variance of 1 + s² is visible for s² > √(m/n) = 0.5 (Baik, Ben Arous & Péché 2005).
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((200, 50))
    rows[:, 0] += strength * rng.standard_normal(200)
    assert separated_components(spectrum(rows), 200, 1)[0] == seen


def test_a_scale_changes_nothing():
    values = spectrum(np.random.default_rng(3).standard_normal((40, 6)) * np.arange(1, 7))
    for scale in (1e-200, 1e200):
        assert (
            separated_components(values, 40, 6) == separated_components(values * scale, 40, 6)
        ).all()


def spiked(first, size):
    """Return eigenvalues of mean one: a given largest one, and equal others."""
    return np.array([first] + [(size - first) / (size - 1)] * (size - 1))


@pytest.mark.parametrize(("n_rows", "size"), [(200, 5), (1000, 5), (60, 3), (400, 40), (20.5, 3)])
def test_the_threshold_is_the_quantile_of_the_largest_eigenvalue(n_rows, size):
    # Johnstone 2001, Theorem 1.1, with the corrections by one half of Ma 2012, Theorem 2.
    a, b = n_rows - 0.5, size - 0.5
    centre = a + b + 2 * np.sqrt(a * b)
    spread = (np.sqrt(a) + np.sqrt(b)) * np.cbrt(1 / np.sqrt(a) + 1 / np.sqrt(b))
    critical = (centre + 3.2724 * spread) / n_rows
    assert not separated_components(spiked(critical * (1 - 1e-9), size), n_rows, 1)[0]
    assert separated_components(spiked(critical * (1 + 1e-9), size), n_rows, 1)[0]


def test_the_last_component_is_judged_by_its_angle_alone():
    assert separated_components(np.array([100.0, 1.0]), 1000, 2).tolist() == [True, True]
    assert separated_components(np.array([3.0]), 10, 1).tolist() == [True]
    assert separated_components(np.array([0.5]), 1.5, 1).tolist() == [True]
    assert separated_components(np.array([0.0]), 10, 1).tolist() == [False]


@pytest.mark.parametrize("size", [1, 4])
def test_one_row_separates_nothing(size):
    assert not separated_components(np.geomspace(100.0, 1.0, size), 1.0, size).any()


def test_a_component_that_another_sample_would_turn_by_45_degrees_is_not_separated():
    # (1/n) λ₁λ₂ / (λ₁ − λ₂)² = 2/4 for n = 4 and λ = (2, 1), both far above the zeros behind them.
    values = np.r_[2.0, 1.0, np.zeros(48)]
    assert component_sampling_error(values, 4)[:2].tolist() == [0.5, 0.5]
    assert not separated_components(values, 4, 2).any()
    assert separated_components(values, 4.5, 2).all()


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_expected_angle_does_not_depend_on_the_scale(scale):
    values = np.array([5.0, 3.0, 2.0])
    assert component_sampling_error(values * scale, 30) == pytest.approx(
        component_sampling_error(values, 30)
    )


def test_negative_rounding_errors_count_as_zero():
    values = np.array([4.0, 1.0, -1e-17])
    assert component_sampling_error(values, 50).tolist() == (
        component_sampling_error(np.maximum(values, 0), 50).tolist()
    )
    assert component_sampling_error(np.array([0.5, 0.25]), 2).tolist() == [1.0, 1.0]
    assert np.isinf(component_sampling_error(np.zeros(2), 2)).all()


def test_one_eigenvalue_exceeds_noise_if_it_is_positive():
    for value, n_rows, above in ((2.0, 2, True), (0.0, 2, False), (2.0, 1, False)):
        assert components_above_noise(np.array([value]), n_rows, 1).tolist() == [above]
