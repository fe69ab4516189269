"""Certificates of principal components from other libraries."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.decomposition import PCA, FastICA, IncrementalPCA, TruncatedSVD

from extras import require
from linear.problems import centred_rows, orthogonal
from lucidae import SecondMoment, certify

VALUES = [9.0, 5.0, 2.0, 1.0, 0.5]
X = 3 + centred_rows(VALUES, n=80)
MEASURED = (
    "explained_variance_",
    "explained_variance_ratio_",
    "singular_values_",
    "noise_variance_",
)
NAMES = ["subspace", "alignment", "order", "gap", "eigengap", "sampling", "leverage", "attributes"]


def failing(certificate):
    return {claim.name for claim in certificate if claim.holds is False}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "estimator",
    [
        PCA(2),
        PCA(2, whiten=True),
        PCA(0.8),
        PCA(),
        PCA(3, svd_solver="randomized", random_state=0),
        PCA(3, svd_solver="covariance_eigh"),
        IncrementalPCA(2, batch_size=40),
        TruncatedSVD(2, algorithm="arpack", random_state=0),
    ],
    ids=repr,
)
def test_the_components_of_scikit_learn_are_certified(estimator, dtype):
    rows = X.astype(dtype)
    certificate = certify(estimator.fit(rows), rows)
    assert [claim.name for claim in certificate] == NAMES
    if isinstance(estimator, IncrementalPCA):  # it forgets what earlier batches had outside
        assert failing(certificate) <= {"subspace", "alignment", "gap", "attributes"}
    else:
        assert certificate.holds, certificate.summary()
    assert certificate.title.startswith(type(estimator).__name__)
    assert "latent" not in certificate.summary()
    assert "decoder" not in certificate.summary()


def test_a_moment_and_sparse_rows_are_data_too():
    assert certify(PCA(2).fit(X), SecondMoment.of(X)).holds
    sparse = scipy.sparse.random(60, 8, 0.3, random_state=0, format="csr")
    certificate = certify(TruncatedSVD(2, algorithm="arpack").fit(sparse), sparse)
    assert certificate.holds, certificate.summary()
    assert certificate["sampling"].verdict == "does not apply"
    assert "not centred" in certificate["sampling"].advice


def test_weights_of_rows_are_frequencies():
    weights = np.arange(1, 81) % 3
    repeated = PCA(2).fit(np.repeat(X, weights, axis=0))
    assert certify(repeated, X, sample_weight=weights).holds
    assert certify(repeated, X).holds is False


CHANGES = {
    "order": lambda pca: {"components_": pca.components_[[1, 0]]},
    "alignment": lambda pca: {
        "components_": orthogonal(np.random.default_rng(0), 2) @ pca.components_
    },
    "subspace": lambda pca: {"components_": orthogonal(np.random.default_rng(0), 5)[:2]},
    "gap": lambda pca: {"components_": 1.1 * pca.components_},
    "attributes": lambda pca: {"explained_variance_": 1.1 * pca.explained_variance_},
}


@pytest.mark.parametrize("name", CHANGES)
def test_wrong_components_fail_the_claim_that_is_about_it(name):
    pca = PCA(2).fit(X)
    changed = vars(pca) | CHANGES[name](pca)
    assert name in failing(certify(SimpleNamespace(**changed), X))


@pytest.mark.parametrize(
    "changed",
    [
        {"mean_": X.mean(axis=0) + 0.1},
        {"mean_": "text"},
        {"mean_": np.zeros(3)},
        {"explained_variance_": np.array([9.0, np.nan])},
        {"explained_variance_": np.array([9.0])},
    ],
)
def test_wrong_attributes_fail(changed):
    pca = SimpleNamespace(**(vars(PCA(2).fit(X)) | changed))
    assert failing(certify(pca, X)) == {"attributes"}
    assert next(iter(changed)) in certify(pca, X)["attributes"].advice


@pytest.mark.parametrize(("factor", "holds"), [(3.0, False), (1 / 3, True)])
def test_the_accuracy_of_attributes_is_half_a_thousandth(factor, holds):
    pca = PCA(2).fit(X)
    pca.explained_variance_[1] *= 1 + factor * 5e-4
    assert certify(pca, X)["attributes"].holds is holds
    pca = PCA(2).fit(X)
    pca.mean_ = pca.mean_ + factor * 5e-4 * X.std(axis=0) * np.eye(5)[0]
    assert certify(pca, X)["attributes"].holds is holds


@pytest.mark.parametrize("solver", ["full", "covariance_eigh"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_each_mean_and_each_variance_is_judged_in_its_own_units(dtype, solver):
    rows = (X * np.array([1e3 if dtype == np.float32 else 1e6, 1, 1, 1, 1])).astype(dtype)
    pca = PCA(2, svd_solver=solver).fit(rows)
    assert certify(pca, rows)["attributes"].holds
    for name, factor in (("explained_variance_", -50), ("explained_variance_", 50), ("mean_", 20)):
        changed = PCA(2, svd_solver=solver).fit(rows)
        getattr(changed, name)[1] *= factor
        claim = certify(changed, rows)["attributes"]
        assert claim.holds is False
        assert name in claim.advice


def test_a_component_without_variance_has_none():
    rows = np.zeros((20, 3))
    rows[:, 0] = np.random.default_rng(0).standard_normal(20)
    pca = PCA(2).fit(rows)
    assert certify(pca, rows)["attributes"].holds
    pca.explained_variance_[1] = 5.0
    assert certify(pca, rows)["attributes"].holds is False


def test_independent_components_are_no_principal_components():
    ica = FastICA(2, whiten="unit-variance", random_state=0, tol=0.1, max_iter=1000).fit(X)
    assert {"alignment", "gap"} <= failing(certify(ica, X))


def test_components_without_mean_and_variances_have_no_attributes():
    bare = SimpleNamespace(components_=TruncatedSVD(2, algorithm="arpack").fit(X).components_)
    assert certify(bare, X)["attributes"].verdict == "does not apply"
    assert certify(bare, X).holds


def test_components_of_torch_are_certified():
    torch = require("torch")
    pca = PCA(2).fit(X)
    tensors = SimpleNamespace(
        components_=torch.asarray(pca.components_), mean_=torch.asarray(pca.mean_)
    )
    assert certify(tensors, torch.asarray(X)).holds


@pytest.mark.parametrize(
    ("subject", "data", "message"),
    [
        (PCA(2).fit(X), None, "with PCA but without data: give the rows X"),
        (PCA(2), X, "a fitted object with components_"),
        (PCA(2).fit(X), X[:, :3], "5 columns, but X has 3 features"),
        (SimpleNamespace(components_=np.ones((6, 5))), X, "6 rows, but X has 5 features"),
        (SimpleNamespace(components_="text"), X, "components_ is not a matrix"),
        (SimpleNamespace(components_=np.ones(5)), X, "components_ is not a matrix"),
        (SimpleNamespace(components_=np.full((2, 5), np.nan)), X, "components_ is not a matrix"),
    ],
)
def test_what_cannot_be_judged_is_refused(subject, data, message):
    with pytest.raises(ValueError, match=message):
        certify(subject, data)


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(200, 6), (30, 60)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "fitted",
    [
        PCA(3),
        PCA(3, whiten=True),
        PCA(3, svd_solver="randomized", random_state=0),
        IncrementalPCA(3, batch_size=200),
        TruncatedSVD(3, algorithm="arpack"),
    ],
)
def test_every_attribute_that_is_changed_by_a_thousandth_is_noticed(fitted, dtype, shape):
    rng = np.random.default_rng(5)
    X = (rng.standard_normal(shape) * np.linspace(6, 1, shape[1]) + 1).astype(dtype)
    fitted = clone(fitted).fit(X)
    assert certify(fitted, X)["attributes"].holds
    names = [name for name in MEASURED if hasattr(fitted, name)]
    assert len(names) == (3 if isinstance(fitted, TruncatedSVD) else 4)
    for name in names:
        right = getattr(fitted, name)
        for at, factor in ((0, 1.001), (-1, 0.999)):
            wrong = np.array(right, dtype=dtype)
            wrong.reshape(-1)[at] *= factor
            setattr(fitted, name, wrong)
            claim = certify(fitted, X)["attributes"]
            assert claim.holds is False
            assert claim.advice.startswith(f"{name} does not agree")
            assert certify(fitted, SecondMoment.of(X))["attributes"].holds is False
        for wrong in (right[:-1] if np.ndim(right) else np.ones(2), np.nan * right, "text"):
            setattr(fitted, name, wrong)
            assert certify(fitted, X)["attributes"].holds is False
        setattr(fitted, name, right)
    assert certify(fitted, X)["attributes"].holds


def test_a_noise_variance_of_several_batches_is_not_judged():
    X = np.random.default_rng(5).standard_normal((200, 6)) * [30, 20, 1e-3, 1e-3, 1e-3, 1e-3]
    fitted = IncrementalPCA(2, batch_size=20).fit(X)
    assert certify(fitted, X)["attributes"].holds
    fitted.noise_variance_ *= 2.0
    assert certify(fitted, X)["attributes"].holds
    fitted.singular_values_ = fitted.singular_values_ * 1.001
    assert certify(fitted, X)["attributes"].holds is False
