"""Certificates and second moments that are computed from the training rows when first read."""

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

import lucidae
from lucidae import LinearAutoencoder, SecondMoment, certify

WIDE = np.random.default_rng(0).standard_normal((130, 1100)) * np.geomspace(3, 0.1, 1100) + 0.2


@pytest.mark.covering
@pytest.mark.parametrize("convert", [np.array, np.float32, scipy.sparse.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_certificate_that_is_read_later_is_that_of_the_fit(monkeypatch, convert, weighted):
    X = convert(WIDE)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 130) if weighted else None
    later = LinearAutoencoder(3).fit(X, sample_weight=weights)
    monkeypatch.setattr("lucidae.rows.operator.REFERENCED_BYTES", 0)
    at_once = LinearAutoencoder(3).fit(X, sample_weight=weights)
    assert later.certificate_ == at_once.certificate_
    assert later.certificate_["subspace"].holds


def test_drawn_rows_that_may_not_be_referenced_are_judged_by_all_eigenvalues(monkeypatch):
    X = np.random.default_rng(0).standard_normal((6000, 30)) * np.geomspace(10, 0.1, 30)
    model = LinearAutoencoder(2, solver="stochastic", random_state=0)
    expected = model.fit(X).certificate_
    monkeypatch.setattr("lucidae.rows.operator.REFERENCED_BYTES", 0)
    found = model.fit(X).certificate_
    assert found == expected
    assert found.evidence["all_eigenvalues_computed"]


@pytest.mark.parametrize("convert", [np.array, np.float32, scipy.sparse.csr_array])
def test_rows_that_were_changed_after_fit_are_not_judged(convert):
    X = convert(WIDE)
    model = LinearAutoencoder(3).fit(X)
    entries = X.data if scipy.sparse.issparse(X) else X.reshape(-1)
    entries[17] *= 1.001
    (claim,) = model.certificate_
    assert claim.holds is None
    assert "X was changed in place after fit" in claim.advice
    entries[17] = convert(WIDE).reshape(1, -1).toarray()[0, 17] if scipy.sparse.issparse(X) else 0
    assert certify(model, convert(WIDE))["subspace"].holds


def test_the_rows_are_released_with_the_certificate_and_never_saved(tmp_path):
    X = WIDE.copy()
    model, dead = LinearAutoencoder(3).fit(X), weakref.ref(X)
    size = len(pickle.dumps(LinearAutoencoder(3).fit(X)))
    assert size < X.nbytes / 2
    lucidae.save(LinearAutoencoder(3).fit(X), tmp_path / "model.npz")
    again = lucidae.load(tmp_path / "model.npz")
    assert model.certificate_ == again.certificate_
    del X
    gc.collect()
    assert dead() is None


@pytest.mark.parametrize("convert", [np.array, scipy.sparse.csr_array])
def test_small_rows_are_stored_and_their_moment_is_computed_when_needed(convert):
    rng = np.random.default_rng(2)
    X, more = rng.standard_normal((90, 500)) + 1.0, rng.standard_normal((20, 500))
    given = convert(X)
    model = LinearAutoencoder(3).fit(given)
    assert model._state.sums is None
    (given.data if scipy.sparse.issparse(given) else given)[:] = 0.0  # the copy stays as it was
    expected = SecondMoment.of(np.concatenate([X, more]))
    model.partial_fit(more)
    assert_allclose(model._state.moment.covariance, expected.covariance, atol=1e-12)
    assert pickle.loads(pickle.dumps(model))._state.sums is not None
    whole = LinearAutoencoder(3).fit(np.concatenate([X, more]))
    assert_allclose(model.components_, whole.components_, atol=1e-10)
    assert all(c.holds for c in model.certificate_ if c.name in ("subspace", "moment"))


def test_an_error_while_the_certificate_is_computed_leaves_the_rows_for_another_try(monkeypatch):
    model = LinearAutoencoder(3).fit(WIDE)
    with monkeypatch.context() as broken:
        broken.setattr("lucidae.linear.state.data_of", lambda *_, **__: 1 / 0)
        assert "ZeroDivisionError" in model.certificate_["certificate"].advice
    assert model.certificate_["subspace"].holds


def sparse(X):
    return scipy.sparse.csr_array(np.where(np.abs(X) > 1.0, X, 0.0))


CHANGES = {
    "exchanged entries of a column": (np.array, lambda X: X[:, 5].put(range(130), X[::-1, 5])),
    "another shape": (np.array, lambda X: X.resize((130, 1000), refcheck=False)),
    "beside a large constant": (
        lambda X: np.where(np.arange(1100) == 0, 1e8, X).astype(np.float32),
        lambda X: X[:, 1:].__imul__(np.float32(1.01)),
    ),
    "an index outside": (sparse, lambda X: X.indices.__setitem__(5, 10**6)),
    "exchanged indices": (sparse, lambda X: X.indices.__setitem__([5, 6], X.indices[[6, 5]])),
    "a moved row": (sparse, lambda X: X.indptr.__setitem__(5, X.indptr[5] + 1)),
    "descending pointers": (sparse, lambda X: X.indptr.__setitem__(5, 0)),
    "resized": (sparse, lambda X: X.resize((130, 1090))),
    "replaced data": (sparse, lambda X: setattr(X, "data", 2.0 * X.data)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_were_changed_in_any_way_are_not_judged(change):
    convert, changed = CHANGES[change]
    X = convert(WIDE)
    model = LinearAutoencoder(3).fit(X)
    changed(X)
    (claim,) = model.certificate_
    assert claim.holds is None
    assert "X was changed in place after fit" in claim.advice


def test_changed_rows_that_were_changed_back_are_judged():
    X, weights = WIDE.copy(), np.full(130, 2.0)
    model = LinearAutoencoder(3).fit(X, sample_weight=weights)
    X[3] += 1.0
    X[:], weights[:] = WIDE, np.arange(130.0)  # the weights are copied
    assert model.certificate_.holds


def test_rows_that_change_while_the_certificate_is_computed_are_not_judged(monkeypatch):
    X = WIDE.copy()
    model = LinearAutoencoder(3).fit(X)
    original = lucidae.linear.state.data_of

    def changing(*args, **keywords):
        found = original(*args, **keywords)
        X[3] += 1e-3
        return found

    monkeypatch.setattr("lucidae.linear.state.data_of", changing)
    assert [claim.holds for claim in model.certificate_] == [None]


def test_estimators_do_not_refer_to_memory_maps(tmp_path):
    np.save(tmp_path / "rows.npy", WIDE)
    X = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for rows in (X, np.asarray(X), X[:, :]):
        model = LinearAutoencoder(3).fit(rows)
        held = model._state.rows  # small maps are copied; otherwise fit computes the certificate
        assert held is None or not np.shares_memory(held.rows, X)
    with (tmp_path / "rows.npy").open("r+b") as file:
        file.truncate(1000)  # reading the map would now end the process
    assert model.certificate_.holds


@pytest.mark.parametrize("n_features", [500, 1100])  # a stored moment, and rows referred to
def test_threads_that_read_at_once_get_the_same_certificate(n_features):
    X = np.ascontiguousarray(WIDE[:, :n_features])
    for _ in range(3):
        model, found = LinearAutoencoder(3).fit(X), []
        gate = threading.Barrier(6)

        def read(model=model, found=found, gate=gate):
            gate.wait()
            found.append(model.certificate_)

        threads = [threading.Thread(target=read) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [certificate.holds for certificate in found] == [True] * 6


def test_copies_made_before_the_certificate_was_read_have_their_own():
    X = WIDE.copy()
    model = LinearAutoencoder(3).fit(X)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    changed = LinearAutoencoder(3).fit(X)
    X[3] += 1.0
    assert all(one.certificate_.holds for one in copies)
    late = copy.deepcopy(changed)
    X[:] = WIDE
    assert [claim.holds for claim in late.certificate_] == [None]


def test_parameters_set_after_fit_do_not_change_the_certificate_but_another_fit_does():
    X = WIDE.copy()
    model = LinearAutoencoder(3).fit(X).set_params(n_components=5, method="plain")
    assert "rag" in model.certificate_.title
    model.fit(WIDE[:, ::-1])
    X[:] = 0.0  # rows of the first fit
    assert model.certificate_.holds
    assert "plain" in model.certificate_.title
