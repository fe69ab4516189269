"""Options of `SparseVAE` that do not work together, and what changed attributes show."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from lucidae import SparseVAE, certify
from lucidae.sparsity import noise_path


def data(seed=0, d=12, kappa=6, n=4):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((d, kappa))
    return X, X[:, :1] @ rng.standard_normal((1, n)) + 0.3 * rng.standard_normal((d, n))


def large_sparse():
    return scipy.sparse.random(600, 500, 0.02, format="csr", random_state=0)


def test_a_path_of_correlated_outputs_is_refused():
    with pytest.raises(ValueError, match="noise_path was given response_covariance"):
        noise_path(*data(), [1.0, 0.1], cv=False, response_covariance="learn")


def test_a_path_of_a_sparse_dictionary_is_that_of_the_dense_one():
    X = large_sparse()
    rng = np.random.default_rng(0)
    y = X[:, :2] @ rng.standard_normal((2, 3)) + 0.1 * rng.standard_normal((600, 3))
    sparse, dense = (noise_path(A, y, [1e-1, 1e-2], cv=2) for A in (X, X.toarray()))
    assert_allclose(sparse.energies, dense.energies, rtol=1e-8)
    assert_allclose(sparse.select(rule="min").coef_, dense.select(rule="min").coef_, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "fit"),
    [
        ({}, {"noise_cov": np.ones(600)}),
        ({"noise_variance": "learn_diagonal"}, {}),
        ({"groups": 2, "group_covariance": "full"}, {}),
    ],
)
def test_what_needs_a_dense_dictionary_says_so(settings, fit):
    model = SparseVAE(**settings)
    with pytest.raises(ValueError, match=r"with a sparse X, but needs a dense one"):
        model.fit(large_sparse(), np.ones((600, 2)) * np.arange(600)[:, None], **fit)
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize(
    ("settings", "fit"),
    [
        ({}, {"noise_cov": np.ones(12)}),
        ({"groups": 2, "group_covariance": "full"}, {}),
    ],
)
def test_what_does_not_work_with_correlated_outputs_says_so(settings, fit):
    model = SparseVAE(response_covariance="learn", **settings)
    with pytest.raises(ValueError, match="response_covariance"):
        model.fit(*data(), **fit)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (X, scipy.sparse.csr_array(y)), "y is a sparse matrix"),
        (lambda X, y: (scipy.sparse.csr_array(X), y + 1j), "sparse X was given with complex"),
        (lambda X, y: (scipy.sparse.csr_array(X + 1j), y), "sparse X was given with complex"),
    ],
)
def test_sparse_and_complex_data_are_refused_with_a_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        SparseVAE().fit(*change(*data()))


@pytest.mark.parametrize("groups", [2.0, True, "abc", np.timedelta64(3, "s")])
def test_groups_that_are_one_value_are_named(groups):
    with pytest.raises(ValueError, match=r"groups=.* was given, expected an integer number"):
        SparseVAE(groups=groups).fit(*data())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.array([[1.0, 0.5], [0.0, 1.0]]), "is not symmetric"),
        (np.zeros((2, 2)), "is zero"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "negative eigenvalue -1"),
    ],
)
def test_a_wrong_covariance_of_the_outputs_is_described(given, message):
    X, y = data(n=2)
    with pytest.raises(ValueError, match=message):
        SparseVAE(response_covariance=given).fit(X, y)
    with pytest.raises(ValueError, match="complex data"):
        SparseVAE(response_covariance="learn").fit(X, y + 1j)


def test_a_ragged_noise_covariance_is_refused_and_a_sparse_one_is_accepted():
    X, y = data()
    with pytest.raises(ValueError, match="rows have different lengths"):
        SparseVAE().fit(X, y, noise_cov=[[1.0, 0.0], [1.0]])
    cov = np.diag(np.arange(1.0, 13.0))
    dense = SparseVAE(noise_variance=0.1).fit(X, y, noise_cov=cov)
    sparse = SparseVAE(noise_variance=0.1).fit(X, y, noise_cov=scipy.sparse.csr_array(cov))
    assert_allclose(sparse.coef_, dense.coef_)


@pytest.mark.parametrize("rule", [0.1, "learn_diagonal"])
def test_changed_noise_variances_fail(rule):
    X, y = data(d=20, n=30)
    cov = np.linspace(1.0, 2.0, 20) if rule != "learn_diagonal" else None
    model = SparseVAE(noise_variance=rule).fit(X, y, noise_cov=cov)
    before = certify(model, X, y, noise_cov=cov).holds
    model.noise_variances_ = model.noise_variances_ * 100
    assert certify(model, X, y, noise_cov=cov).holds is False
    assert before is not False


def test_weights_count_in_the_noise_of_predictions():
    X, y = data()
    weights, variances = np.r_[3.0, np.ones(11)], np.r_[5.0, np.ones(11)]
    index = np.repeat(np.arange(12), weights.astype(int))
    one = SparseVAE(noise_variance=0.1).fit(X, y, sample_weight=weights, noise_cov=variances)
    two = SparseVAE(noise_variance=0.1).fit(X[index], y[index], noise_cov=variances[index])
    assert_allclose(one.coef_, two.coef_, atol=1e-9)
    assert_allclose(one.predict(X, return_std=True)[1], two.predict(X, return_std=True)[1])


@pytest.mark.parametrize("noise", ["learn_diagonal", "cv_1se"])
def test_responses_that_are_constant(noise):
    X, y = data()
    with pytest.raises(ValueError, match="no noise to learn"):
        SparseVAE(noise_variance=noise).fit(X, 0.0 * y + 1.0)
