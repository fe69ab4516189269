"""Dropout optima beside a dominant eigenvalue, of data that are read in blocks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require
from known_spectra import batches_of, memory_map, rows_with
from lucidae import DropoutAutoencoder, DropoutRegressor, certify, load, save

VALUES = np.concatenate([[1e12], np.linspace(6.0, 4.0, 4), np.linspace(1.0, 0.5, 20)])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let the data have several blocks, so that they are not loaded into memory."""
    monkeypatch.setattr("lucidae.data.blocks.BLOCK_BYTES", 2**14)


@pytest.fixture(scope="module")
def problem():
    X, axes = rows_with(VALUES, 900, 40)
    return X + 3.0, axes[:, :5]


def dask_array(X, _):
    return require("dask.array").from_array(X, chunks=(100, X.shape[1]))


AGAIN = {
    "memory map": memory_map,
    "function": lambda X, _: lambda: batches_of(X),
    "Dask array": dask_array,
}


def angle(weights, axes):
    """Return the sine of the largest angle of the axes to the span of the weights' columns."""
    basis, _, _ = np.linalg.svd(np.asarray(weights), full_matrices=False)
    basis = basis[:, : axes.shape[1]]
    return float(np.linalg.norm(axes - basis @ (basis.T @ axes), 2))


@pytest.mark.parametrize("kind", AGAIN)
def test_an_autoencoder_of_blocks_contains_the_exact_small_components(kind, problem, tmp_path):
    X, axes = problem
    centred = X - X.mean(axis=0)
    _, values, rows = np.linalg.svd(centred, full_matrices=False)
    model = DropoutAutoencoder(5, dropout=1e-10).fit(AGAIN[kind](X, tmp_path))
    assert model.rank_ == 5
    assert angle(model.left_, rows[:5].T) <= 1e-9  # 2e-5 by the second moment alone
    assert angle(model.left_, axes) <= 1e-9
    assert_allclose(model.singular_values_[:5], values[:5] / np.sqrt(900), rtol=1e-9)
    save(model, tmp_path / "model.npz")
    assert load(tmp_path / "model.npz").left_.tobytes() == model.left_.tobytes()
    # The second moment, by which the certificate judges, has lost the digits of one claim.
    for certificate in (model.certificate_, certify(model, AGAIN[kind](X, tmp_path))):
        assert certificate.holds is None
        assert certificate["attributes"].undecided
        assert all(certificate[name].holds for name in ("gap", "rank", "stationarity"))


def test_a_wrong_small_component_of_an_autoencoder_of_blocks_is_never_certified(problem):
    X, axes = problem
    model = DropoutAutoencoder(5, dropout=0.0).fit(lambda: batches_of(X))
    other = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][7]
    wrong = np.column_stack([axes[:, :4], other])
    model.left_ = model.right_ = wrong
    assert not model.certificate_.holds


def test_weights_count_in_the_further_passes(problem):
    X, _ = problem
    weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
    weights[:100] = 0.0
    model = DropoutAutoencoder(5, dropout=1e-10).fit(lambda: batches_of(X), sample_weight=weights)
    repeated = np.repeat(X, weights.astype(int), axis=0)
    _, _, rows = np.linalg.svd(repeated - repeated.mean(axis=0), full_matrices=False)
    assert angle(model.left_, rows[:5].T) <= 1e-9


@pytest.mark.parametrize("dropout", [0.5, 1e-10])
def test_data_are_read_again_only_where_the_optimum_needs_it(problem, dropout):
    X, calls = problem[0], []

    def batches():
        calls.append(1)
        return batches_of(X)

    model = DropoutAutoencoder(5, dropout=dropout).fit(batches)
    assert model.rank_ == (1 if dropout == 0.5 else 5)
    assert (len(calls) > 1) is (dropout < 0.5)


def test_rows_that_differ_in_the_second_pass_are_refused(problem):
    X, rng = problem[0], np.random.default_rng(0)
    with pytest.raises(ValueError, match="differed between two passes"):
        DropoutAutoencoder(5, dropout=1e-10).fit(
            lambda: batches_of(X + 1e3 * rng.standard_normal(X.shape[1]))
        )


def test_a_regression_on_blocks_uses_the_exact_small_components(problem):
    X, axes = problem
    centred = X - X.mean(axis=0)
    noise = 0.1 * np.random.default_rng(0).standard_normal((900, 3))
    Y = centred @ axes[:, 1:4] + noise
    exact = np.linalg.lstsq(centred, Y - Y.mean(axis=0), rcond=1e-12)[0]
    model = DropoutRegressor(dropout=1e-12).fit_batches(
        lambda: zip(batches_of(X), batches_of(Y), strict=True)
    )
    basis = np.linalg.qr(model.coef_.T)[0]
    assert angle(basis, np.linalg.qr(exact)[0]) <= 1e-9
    assert_allclose(model.coef_, exact.T, atol=1e-6)  # dropout shrinks it a little
    assert model.certificate_.holds
