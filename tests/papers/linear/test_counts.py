"""The number of components on simulated data: wrong criteria fail the claims."""

import numpy as np
import pytest

from lucidae_papers.catalogue import experiment
from lucidae_papers.linear import counts as module
from lucidae_papers.linear.counts import by_horn, by_share, drawn_rows
from papers.judging import measured, verdicts

SMOKE = experiment("component-counts").at("smoke")
SETTINGS = {"n_features": 40, "signals": 3, "ratio": 50.0, "strength": 4.0}


@pytest.fixture(scope="module")
def results():
    return measured(SMOKE.setting)


def test_the_claims_hold(results):
    judged = verdicts(SMOKE.setting, SMOKE.expect, results)
    assert len(judged) >= 15
    assert all(judged.values())


@pytest.mark.parametrize("name", ["mle", "parallel_analysis", "hard_threshold"])
@pytest.mark.parametrize("more", [-1, 1])
def test_one_component_more_or_less_fails_the_claims(results, name, more):
    changed = [
        type(cell)(cell.settings, {**cell.arrays, name: cell.arrays[name] + more}, cell.about)
        for cell in results
    ]
    judged = verdicts(SMOKE.setting, SMOKE.expect, type(results)(tuple(changed)))
    failed = [series for series, holds in judged.items() if not holds]
    assert any(name in series for series in failed)
    assert not any("share" in series for series in failed)


def test_signals_and_noise_have_the_stated_variances():
    X = drawn_rows(SETTINGS, 0)
    assert X.shape == (2000, 40)
    values = np.linalg.eigvalsh(np.cov(X.T))[::-1]
    expected = 1.0 + np.array([8.0, 6.0, 4.0]) * np.sqrt(1 / 50)
    np.testing.assert_allclose(values[:3], expected, rtol=0.15)
    unequal = drawn_rows({**SETTINGS, "signals": 0, "spread": 9.0}, 1).var(axis=0)
    assert unequal.mean() == pytest.approx(1.0, abs=0.02)
    assert unequal[-1] / unequal[0] == pytest.approx(9.0, rel=0.2)
    heavy = drawn_rows({**SETTINGS, "signals": 0, "freedom": 5.0}, 2)
    assert heavy.var() == pytest.approx(1.0, abs=0.05)
    assert np.mean((heavy / heavy.std()) ** 4) > 4.0
    large = drawn_rows({**SETTINGS, "largest": 1000.0}, 3)
    top = np.linalg.eigvalsh(np.cov(large.T))[-1]
    assert top == pytest.approx(1000.0 * np.sqrt(1 / 50), rel=0.15)


def test_comparisons_are_what_they_say():
    assert by_share(np.array([90.0, 4.0, 3.0, 3.0]), 10) == 3
    values = np.array([50.0, 20.0, *np.linspace(1.2, 0.8, 28)])
    levels = module._horn_levels(30, 100) * values.sum()
    expected = next(j for j in range(30) if values[j] <= levels[j])
    assert by_horn(values, 100) == expected
    rng = np.random.default_rng(0)
    drawn = [
        np.linalg.svd(rng.standard_normal((99, 30)), compute_uv=False) ** 2 for _ in range(300)
    ]
    shares = np.array([found / found.sum() for found in drawn])
    np.testing.assert_allclose(
        module._horn_levels(30, 100), np.quantile(shares, 0.99, axis=0), rtol=0.05
    )
