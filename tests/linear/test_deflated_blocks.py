"""Small components beside much larger ones, of data that are read in blocks."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from extras import require
from known_spectra import batches_of, memory_map, rows_with
from lucidae import LinearAutoencoder, SecondMoment, certify, load, save
from lucidae.data.passes import ReadInterrupted
from lucidae.rows.deflation import CentredBlocks

VALUES = np.concatenate([[1e12], np.linspace(3.0, 2.0, 4), np.linspace(1.0, 0.1, 15)])
TURNED = np.eye(5)[[0, 2, 1, 3, 4]]
TURNED[1:3, 1:3] = [[0.8, 0.6], [-0.6, 0.8]]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let the data have several blocks, so that they are not loaded into memory."""
    monkeypatch.setattr("lucidae.data.blocks.BLOCK_BYTES", 2**14)


@pytest.fixture(scope="module")
def problem():
    X, axes = rows_with(VALUES, 900, 20)
    return X + 3.0, axes[:, :5]


def path(X, folder):
    np.save(folder / "rows.npy", X)
    return folder / "rows.npy"


def dask_array(X, _):
    require("dask")
    import dask.array

    return dask.array.from_array(X, chunks=(100, X.shape[1]))


AGAIN = {
    "memory map": memory_map,
    "path": path,
    "function": lambda X, _: lambda: batches_of(X),
    "sparse function": lambda X, _: lambda: map(scipy.sparse.csr_array, batches_of(X)),
    "Dask array": dask_array,
}


def sines(components, axes):
    """Return the sine of the angle between each component (row) and its axis (column)."""
    components = np.asarray(components)
    along = np.sum(components.T * axes, axis=0)
    return np.linalg.norm(components.T - along * axes, axis=0)


@pytest.mark.parametrize("kind", AGAIN)
def test_data_that_can_be_read_again_give_the_components_of_the_array(kind, problem, tmp_path):
    X, axes = problem
    data = AGAIN[kind](X, tmp_path)
    model = LinearAutoencoder(5).fit(data)
    assert max(sines(model.components_, axes)) < 1e-9  # 1e-4 by the second moment alone
    ratio = len(X) / (len(X) - 1)
    assert_allclose(model.explained_variance_, ratio * VALUES[:5], rtol=1e-9)
    assert_allclose(model.noise_variance_, LinearAutoencoder(5).fit(X).noise_variance_, rtol=1e-9)
    assert model.certificate_.holds
    assert certify(model, AGAIN[kind](X, tmp_path)).holds


def test_weighted_rows_are_read_again_with_their_weights(problem):
    X, _ = problem
    weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
    weights[:100] = 0.0
    expected = LinearAutoencoder(5).fit(X, sample_weight=weights)
    model = LinearAutoencoder(5).fit(lambda: batches_of(X), sample_weight=weights)
    assert_allclose(model.components_, expected.components_, atol=1e-9)
    assert model.certificate_.holds


def test_a_certificate_is_stored_with_the_estimator(problem, tmp_path):
    X, _ = problem
    model = LinearAutoencoder(5).fit(lambda: batches_of(X))
    save(model, tmp_path / "model.lucidae")
    assert load(tmp_path / "model.lucidae").certificate_.holds


def test_wrong_components_of_small_variance_are_refused(problem):
    X, axes = problem
    wrong = SimpleNamespace(components_=TURNED @ axes.T, mean_=X.mean(axis=0))
    found = certify(wrong, lambda: batches_of(X))
    assert found["alignment"].holds is False
    right = SimpleNamespace(components_=axes.T, mean_=X.mean(axis=0))
    assert certify(right, lambda: batches_of(X))["alignment"].holds


def test_digits_that_a_stream_has_lost_are_not_blamed_on_the_data(problem):
    X, _ = problem
    moment = SecondMoment.of(X)
    streamed = LinearAutoencoder(5).fit(batches_of(X))
    stepwise = LinearAutoencoder(5)
    for batch in batches_of(X):
        stepwise.partial_fit(batch)
    for certificate in (streamed.certificate_, stepwise.certificate_, certify(streamed, moment)):
        assert certificate.holds is None
        for name in ("alignment", "eigengap"):
            assert certificate[name].undecided
            assert "lost in the second moment" in certificate[name].advice
            assert "a function that returns the batches again" in certificate[name].advice
        assert "not determined by these data" not in str(certificate)


def test_other_data_are_read_once():
    X = np.random.default_rng(0).standard_normal((900, 20)) * np.linspace(4.0, 1.0, 20)
    calls = []

    def batches():
        calls.append(1)
        return batches_of(X)

    assert LinearAutoencoder(5).fit(batches).certificate_.holds
    assert len(calls) == 1


def test_rows_that_differ_in_the_second_pass_are_refused(problem):
    X, _ = problem
    calls = []

    def augmented():
        calls.append(1)
        return batches_of(X + 0.1 * np.random.default_rng(len(calls)).standard_normal(X.shape))

    with pytest.raises(ValueError, match="differed between two passes over it: give a") as caught:
        LinearAutoencoder(5).fit(augmented)
    assert "\n" not in str(caught.value)


def test_an_interrupted_further_pass_returns_no_moment_of_deflated_rows(problem, monkeypatch):
    X, _ = problem
    model = LinearAutoencoder(5)

    def interrupted(*_, **__):
        raise ReadInterrupted(SecondMoment.of(X), 10)

    used = CentredBlocks.__dict__["moment"].func.__globals__
    monkeypatch.setitem(used, "read_moment", interrupted)
    with pytest.raises(ReadInterrupted) as caught:
        model.fit(lambda: batches_of(X))
    assert caught.value.moment is None


@pytest.mark.parametrize("change", ["augmented", "columns"])
def test_many_features_whose_rows_differ_between_passes_are_refused(change, monkeypatch):
    used = LinearAutoencoder.fit_batches.__wrapped__.__wrapped__.__wrapped__.__globals__
    monkeypatch.setitem(used, "EXACT_FEATURES", 10)
    monkeypatch.setitem(used, "LOADED_BYTES", 0)
    X = np.random.default_rng(0).standard_normal((900, 20))
    calls = []

    def batches():
        calls.append(1)
        if change == "columns":
            return batches_of(np.roll(X, len(calls), axis=1))
        return batches_of(X + 1e-3 * np.random.default_rng(len(calls)).standard_normal(X.shape))

    with pytest.raises(ValueError, match="differed between two passes"):
        LinearAutoencoder(2).fit(batches)


def test_another_order_of_the_same_rows_is_accepted(monkeypatch):
    used = LinearAutoencoder.fit_batches.__wrapped__.__wrapped__.__wrapped__.__globals__
    monkeypatch.setitem(used, "EXACT_FEATURES", 10)
    monkeypatch.setitem(used, "LOADED_BYTES", 0)
    X = 1e3 + np.random.default_rng(0).standard_normal((900, 20)) * np.linspace(4.0, 1.0, 20)
    calls = []

    def shuffled():
        calls.append(1)
        return batches_of(X[np.random.default_rng(len(calls)).permutation(len(X))])

    model = LinearAutoencoder(2).fit(shuffled)
    assert len(calls) > 3
    assert_allclose(model.components_, LinearAutoencoder(2).fit(X).components_, atol=1e-7)


def test_components_without_a_mean_are_not_compared_with_centred_rows():
    rng = np.random.default_rng(0)
    X = 1e9 * np.eye(8)[0] + rng.standard_normal((600, 8)) * np.linspace(8.0, 1.0, 8)
    axes = np.linalg.svd(X, full_matrices=False)[2][:2]
    assert certify(SimpleNamespace(components_=axes), X)["subspace"].holds is not False


PLACES = 449 * np.arange(20)


@pytest.fixture(scope="module")
def wide_problem():
    """Return rows with 9000 columns, of which 20 vary, and their principal axes."""
    rows, axes = rows_with(VALUES, 300, 20)
    X, wide = np.zeros((300, 9000)), np.zeros((9000, 5))
    X[:, PLACES], wide[PLACES] = rows + 3.0, axes[:, :5]
    return X, wide


@pytest.fixture
def read_in_blocks(monkeypatch):
    """Let rows with many features be read in blocks of 20 rows, whatever their size."""
    monkeypatch.setattr("lucidae.data.blocks.BLOCK_BYTES", 20 * 9000 * 8)
    monkeypatch.setattr("lucidae.linear.batches.LOADED_BYTES", 2**14)


def dask_columns(X, _):
    return require("dask.array").from_array(X, chunks=(50, 2500))


WIDE = {
    "memory map": memory_map,
    "function": lambda X, _: lambda: batches_of(X, 20),
    "sparse function": lambda X, _: lambda: map(scipy.sparse.csr_array, batches_of(X, 20)),
    "Dask array": dask_columns,
}


@pytest.mark.usefixtures("read_in_blocks")
@pytest.mark.parametrize("kind", WIDE)
def test_many_features_give_the_small_components_of_the_array(kind, wide_problem, tmp_path):
    X, axes = wide_problem
    model = LinearAutoencoder(5).fit(WIDE[kind](X, tmp_path))
    assert max(sines(model.components_, axes)) < 1e-9  # 0.04 without further passes
    assert_allclose(model.explained_variance_, 300 / 299 * VALUES[:5], rtol=1e-9)
    rest = VALUES[5:].sum() * 300 / 299 / (9000 - 5)
    assert_allclose(model.noise_variance_, rest, rtol=1e-9)
    # The bounds of the certificate, from products with the second moment, have not the digits.
    certificate = model.certificate_
    assert certificate.holds is None
    assert certificate["alignment"].undecided
    assert certificate["stationarity"].holds


@pytest.mark.usefixtures("read_in_blocks")
def test_weighted_rows_with_many_features_are_read_again_with_their_weights(wide_problem):
    X, _ = wide_problem
    weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
    weights[:20] = 0.0
    expected = LinearAutoencoder(5).fit(X[:, PLACES], sample_weight=weights)
    model = LinearAutoencoder(5).fit(lambda: batches_of(X, 20), sample_weight=weights)
    assert_allclose(model.components_[:, PLACES], expected.components_, atol=1e-9)


@pytest.mark.usefixtures("read_in_blocks")
def test_wrong_small_components_of_many_features_are_never_certified(wide_problem):
    X, axes = wide_problem
    wrong = SimpleNamespace(components_=TURNED @ axes.T, mean_=X.mean(axis=0))
    assert not certify(wrong, lambda: batches_of(X, 20)).holds


@pytest.mark.usefixtures("read_in_blocks")
def test_other_data_with_many_features_are_not_deflated(monkeypatch):
    def refuse(*_):
        raise AssertionError("the rows were deflated")

    monkeypatch.setattr("lucidae.rows.deflation.WideBlocks", refuse)
    X = np.zeros((300, 9000))
    rng = np.random.default_rng(0)
    X[:, PLACES] = rng.standard_normal((300, 20)) * np.linspace(4.0, 1.0, 20)
    LinearAutoencoder(3).fit(lambda: batches_of(X, 20))
