"""The signs of components: the entry of largest magnitude of each is positive."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from lucidae import LinearAutoencoder
from lucidae.linear import METHODS

RNG = np.random.default_rng(0)
X = (
    RNG.standard_normal((80, 7))
    @ np.diag([9.0, 6.0, 4.0, 3.0, 2.0, 1.5, 1.0])
    @ np.linalg.qr(RNG.standard_normal((7, 7)))[0]
)


def peaks(rows):
    """Return the entry of largest magnitude of each row; the first one of equal magnitude."""
    return rows[np.arange(len(rows)), np.argmax(np.abs(rows), axis=1)]


def assert_convention(fitted):
    assert np.all(peaks(fitted.components_) > 0)
    assert np.all(np.sum(fitted.decoder_.T * fitted.components_, axis=1) > 0)
    assert np.all(np.sum(fitted.encoder_ * fitted.components_, axis=1) > 0)


@pytest.mark.covering
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("solver", ["exact", "gradient", "stochastic"])
def test_every_method_and_solver_keeps_the_convention(method, solver):
    for seed in range(2):
        fitted = LinearAutoencoder(
            3, method=method, solver=solver, max_iter=100, random_state=seed
        ).fit(X)
        assert_convention(fitted)


def test_signs_depend_on_the_component_alone():
    """Not on the order, the sign, the scale or the number of the rows, nor on how they are read."""
    expected = LinearAutoencoder(4).fit(X)
    order = np.random.default_rng(1).permutation(len(X))
    streamed = LinearAutoencoder(4)
    for batch in np.array_split(X, 5):
        streamed.partial_fit(batch)
    others = [
        LinearAutoencoder(4).fit(changed)
        for changed in (X[order], -X, 1e3 * X + 5.0, np.repeat(X, 2, axis=0))
    ]
    for other in (*others, streamed, LinearAutoencoder(4).fit_batches(np.array_split(X, 3))):
        np.testing.assert_allclose(other.components_, expected.components_, atol=1e-9)
        assert_convention(other)


def test_wide_rows_and_scikit_learn_agree_up_to_the_convention():
    wide = np.random.default_rng(2).standard_normal((20, 50))
    fitted, peer = LinearAutoencoder(5).fit(wide), PCA(5, svd_solver="full").fit(wide)
    assert_convention(fitted)
    signs = np.sign(peaks(peer.components_))[:, None]
    np.testing.assert_allclose(fitted.components_, signs * peer.components_, atol=1e-9)


def test_a_changed_feature_sign_changes_that_entry_alone():
    """A mirrored feature mirrors its column, unless its entry is the one that fixes the sign."""
    fitted = LinearAutoencoder(3).fit(X)
    mirror = np.ones(7)
    mirror[2] = -1.0
    other = LinearAutoencoder(3).fit(X * mirror)
    expected = fitted.components_ * mirror
    np.testing.assert_allclose(
        other.components_, expected * np.sign(peaks(expected))[:, None], atol=1e-9
    )
