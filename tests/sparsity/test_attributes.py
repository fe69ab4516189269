"""Changed attributes and parameters, and rows of other data: what `predict` uses is certified."""

import copy
import functools
import pickle
import warnings

import numpy as np
import pytest

from extras import require
from lucidae import SparseVAE, certify, load, save
from lucidae.datasets import make_sparse_regression
from sparsity.brute_force import centred, parts

OPTIONS = {
    "full": {}, "diagonal": {"posterior": "diagonal"},
    "point": {"posterior": "point", "penalty": "arctan", "max_iter": 5000},
    "groups": {"groups": np.arange(16) // 2}, "cross-validated": {"noise_variance": "cv"},
    "no intercept": {"fit_intercept": False}, "learned": {"noise_variance": "learn"},
}  # fmt: skip


def fitted(name="full", dtype=np.float64, n=3):
    """Return a copy of a fitted model, which a test may change, and its data."""
    model, X, y = fitted_once(name, dtype, n)
    return copy.deepcopy(model), X.copy(), y.copy()


@functools.cache
def fitted_once(name, dtype, n):
    d = 40 if name == "learned" else 12
    p = make_sparse_regression(d, 16, 3, n, snr_db=15, random_state=1)
    X, y = (p.dictionary + 0.3).astype(dtype), p.responses - 1.0
    model = SparseVAE(**({"noise_variance": 0.02} | OPTIONS[name]))
    return model.fit(X, y), X, y


def failing(model, X, y, **options):
    return {claim.name for claim in certify(model, X, y, **options) if claim.holds is False}


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", OPTIONS)
def test_what_was_fitted_is_certified(name, dtype):
    model, X, y = fitted(name, dtype)
    for certificate in (model.certificate_, certify(model, X, y)):
        for claim in ("posterior_mean", "predictive_variance", "support"):
            assert certificate[claim].holds, str(certificate)


@pytest.mark.parametrize("name", OPTIONS)
def test_another_support_fails(name):
    model, X, y = fitted(name)
    right, others = model.support_, np.setdiff1d(np.arange(16), model.support_)
    for support in (np.append(right, others[0]), right[1:], others, np.arange(16)):
        model.support_ = support
        assert failing(model, X, y) - {"posterior_collapse"} == {"support"}
        expected = np.setxor1d(support, right).size
        assert certify(model, X, y)["support"].value == expected
    model.support_ = right[::-1].tolist()
    assert certify(model, X, y)["support"].holds  # the order of the columns does not matter


@pytest.mark.covering
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("attribute", ["coef_", "intercept_", "relevance_", "noise_variance_"])
@pytest.mark.parametrize("factor", [1.001, 5.0])
def test_other_values_fail(name, attribute, factor):
    model, X, y = fitted(name)
    if attribute == "intercept_" and not model.fit_intercept:
        model.intercept_ = np.array([0.0, 0.0, factor - 1.0])
    else:
        setattr(model, attribute, getattr(model, attribute) * factor)
    assert certify(model, X, y).holds is False
    assert model.certificate_["posterior_mean"].holds  # that of the fit does not change
    assert model.certificate_["attributes"].holds is False
    assert model.certificate_.holds is False
    assert attribute in model.certificate_["attributes"].advice


def test_a_consistent_change_of_coefficients_and_relevances_still_fails():
    # the posterior mean of other relevances: only stationarity and the stored covariance tell
    model, X, y = fitted()
    rows, targets = centred(X, y)
    model.relevance_ = model.relevance_ * 3.0
    mean = parts(rows, targets, model.relevance_, model.noise_variance_)[2]
    model.coef_ = mean.T
    model.intercept_ = y.mean(axis=0) - mean.T @ X.mean(axis=0)
    assert certify(model, X, y)["posterior_mean"].holds
    assert failing(model, X, y) >= {"stationarity", "energy", "predictive_variance"}


def test_a_noise_variance_from_held_out_rows_that_was_changed_fails():
    model, X, y = fitted("cross-validated")
    assert certify(model, X, y)["noise_variance"].verdict == "does not apply"
    model.noise_variance_ *= 1.0 + 1e-6
    assert certify(model, X, y)["noise_variance"].holds is False


def test_the_rule_of_the_noise_variance_is_that_of_the_fit():
    model, X, y = fitted("learned")
    assert certify(model, X[:20], y[:20])["noise_variance"].holds is False  # 20 rows: no "cv"


WRONG_ROWS = {
    "X + 100": lambda X, y: (X + 100.0, y), "y + 1000": lambda X, y: (X, y + 1000.0),
    "X scaled": lambda X, y: (X * 1.5, y), "y scaled": lambda X, y: (X, y * 1.5),
    "both scaled": lambda X, y: (X * 2.0, y * 2.0), "both shifted": lambda X, y: (X + 1, y + 1),
    "one row": lambda X, y: (X[:1], y[:1]), "constant X": lambda X, y: (0 * X + 1.0, y),
    "y = 0": lambda X, y: (X, 0.0 * y), "rows reversed": lambda X, y: (X, y[::-1]),
    "columns reversed": lambda X, y: (X[:, ::-1], y), "negative": lambda X, y: (-X, y),
    "one entry": lambda X, y: (X, y * np.where(np.arange(y.size).reshape(y.shape) == 4, 1.1, 1.0)),
    "fewer rows": lambda X, y: (X[:-1], y[:-1]), "y + 0.1": lambda X, y: (X, y + 0.1),
    "huge": lambda X, y: (X * 1e60, y), "tiny": lambda X, y: (X, y * 1e-60),
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("change", WRONG_ROWS)
@pytest.mark.parametrize("name", OPTIONS)
def test_other_rows_fail(name, change):
    model, X, y = fitted(name)
    assert certify(model, *WRONG_ROWS[change](X, y)).holds is False


@pytest.mark.parametrize("change", WRONG_ROWS)
def test_coefficients_on_other_rows_are_judged_without_an_exception(change):
    p = make_sparse_regression(12, 16, 3, 3, snr_db=15, random_state=1)
    fit = SparseVAE(noise_variance=0.02, fit_intercept=False, tol=1e-9)
    coef = fit.fit(p.dictionary, p.responses).coef_
    X, y = WRONG_ROWS[change](p.dictionary, p.responses)
    assert certify(coef, X, y, noise_variance=0.02).holds is False
    assert certify(coef, X, y).holds is not False  # nothing can be refuted without γ
    nothing = certify(0.0 * coef, X, y, noise_variance=0.02)
    if change == "y = 0":
        assert nothing.holds  # and zero is the optimum for y = 0


def test_a_fit_without_active_columns_holds_on_rows_for_which_it_is_the_optimum():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 4)), rng.standard_normal((20, 2))
    model = SparseVAE(noise_variance=50.0).fit(X, y)
    assert not model.coef_.any()
    assert certify(model, X + 100.0, y).holds  # the mean response, whatever X
    assert certify(model, X, y + 1000.0).holds is False


def test_assigned_values_are_what_predict_uses():
    model, X, y = fitted()
    model.intercept_ = model.intercept_ + 1.0
    np.testing.assert_allclose(model.predict(X), X @ model.coef_.T + model.intercept_)
    model.coef_ = model.coef_ * 2.0
    np.testing.assert_allclose(model.predict(X), X @ model.coef_.T + model.intercept_)
    model.coef_ = model.coef_.tolist()
    np.testing.assert_allclose(model.predict(X), X @ np.array(model.coef_).T + model.intercept_)
    assert failing(model, X, y) >= {"posterior_mean"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("coef_", np.ones((3, 5)), r"coef_ was overwritten .* shape \(3, 5\), expected \(3, 16\)"),
        ("relevance_", np.full(16, 1j), "relevance_ contains values of dtype complex128"),
        ("relevance_", np.ones(3), r"relevance_ was overwritten .* shape \(3,\), expected \(16,\)"),
        ("relevance_", ["a"] * 16, "relevance_ contains values of dtype"),
        ("intercept_", np.ones(2), r"intercept_ was overwritten .* shape \(2,\), expected \(3,\)"),
        (
            "noise_variance_",
            "small",
            "noise_variance_ was overwritten with 'small', expected a real",
        ),
        ("energy_", None, "energy_ was overwritten with None, expected a real number"),
        ("support_", [0.5], r"expected different integers in \[0, 15\]"),
        ("support_", [16], r"expected different integers in \[0, 15\]"),
        ("support_", [1, 1], r"expected different integers in \[0, 15\]"),
        ("support_", [[1]], r"expected different integers in \[0, 15\]"),
    ],
)
def test_values_that_cannot_be_judged_are_refused(name, value, words):
    model, X, y = fitted()
    setattr(model, name, value)
    with pytest.raises(ValueError, match=words):
        certify(model, X, y)


def test_the_support_is_judged_by_the_significance_of_the_fit():
    model, X, y = fitted()
    strict = SparseVAE(noise_variance=0.02, significance=1e-9).fit(X, y)
    assert certify(strict, X, y)["support"].holds
    loose = SparseVAE(noise_variance=0.02, significance=1.0).fit(X, y)
    assert certify(loose, X, y)["support"].holds
    loose.set_params(significance=1e-300)
    assert certify(loose, X, y)["support"].holds
    assert model.support_.size >= strict.support_.size


def test_torch_attributes_are_judged_alike():
    torch = require("torch")
    model, X, y = fitted()
    tensors = torch.asarray(X), torch.asarray(y)
    other = SparseVAE(**model.get_params()).fit(*tensors)
    mine, theirs = model.certificate_, certify(other, *tensors)
    assert [c.verdict for c in mine] == [c.verdict for c in theirs]
    other.support_ = torch.asarray([0])
    assert failing(other, *tensors) == {"support"}
    other.intercept_ = other.intercept_ + 0.1
    assert failing(other, *tensors) == {"support", "posterior_mean"}


GRID = [
    (posterior, groups, noise)
    for posterior in ("full", "diagonal", "point")
    for groups in (None, 3)
    for noise in (1e-30, 1e-12, 1e-4, 1.0)
]


@pytest.mark.parametrize(("posterior", "groups", "noise"), GRID)
def test_both_ways_give_the_same_verdicts(posterior, groups, noise):
    dtype = np.float32 if noise == 1e-4 else np.float64
    p = make_sparse_regression(10, 14, 2, 3, 2, snr_db=15, random_state=3)
    X, y = (p.dictionary + 0.3).astype(dtype), p.responses - 1.0
    labels = None if groups is None else np.arange(14) // groups
    model = SparseVAE(posterior=posterior, groups=labels, noise_variance=noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model.fit(X, y)
    mine, theirs = model.certificate_, certify(model, X, y)
    assert [claim.verdict for claim in mine] == [claim.verdict for claim in theirs]
    assert mine.holds == theirs.holds
    if model.status_.ok:
        names = {claim.name for claim in mine if claim.holds is False}
        assert names <= {"posterior_collapse"}, str(mine)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("attribute", ["coef_", "intercept_", "relevance_", "support_"])
def test_attributes_changed_in_place_fail_also_after_saving(attribute, dtype, tmp_path):
    model, X, y = fitted(dtype=dtype)
    assert "attributes" not in [claim.name for claim in model.certificate_]
    getattr(model, attribute)[...] = 0
    save(model, tmp_path / "model.npz")
    for other in (model, pickle.loads(pickle.dumps(model)), load(tmp_path / "model.npz")):
        assert other.certificate_["attributes"].holds is False
        assert not getattr(other, attribute).any()
        np.testing.assert_array_equal(other.predict(X), model.predict(X))
    assert model.fit(X, y).certificate_.holds


def test_attributes_that_were_assigned_without_a_change_hold():
    model, _, _ = fitted()
    model.coef_ = model.coef_.tolist()
    model.relevance_ = model.relevance_ * (1.0 + 1e-16)
    model.noise_variance_ = np.float64(model.noise_variance_)
    assert model.certificate_.holds


def test_attributes_of_another_kind_fail_without_an_exception():
    model, _, _ = fitted()
    for value in ("none", None, 3.0, np.ones(2), object()):
        for name in ("coef_", "noise_variance_", "status_"):
            setattr(model, name, value)
        assert model.certificate_["attributes"].holds is False


CHANGED_PARAMETERS = {
    "posterior": "diagonal", "fit_intercept": False, "groups": np.arange(16) // 4, "tol": 1.0,
    "noise_variance": 0.5, "significance": 1e-300, "penalty": "power", "solver": "nonsense",
    "max_iter": -1, "verbose": "nonsense",
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("parameter", CHANGED_PARAMETERS)
@pytest.mark.parametrize("name", ["full", "groups", "learned"])
def test_the_parameters_are_those_of_the_fit(name, parameter, tmp_path):
    model, X, y = fitted(name)
    expected = [claim.verdict for claim in certify(model, X, y)]
    assert expected == [claim.verdict for claim in model.certificate_]
    model.set_params(**{parameter: CHANGED_PARAMETERS[parameter]})
    assert [claim.verdict for claim in certify(model, X, y)] == expected
    save(model, tmp_path / "model.npz")
    other = load(tmp_path / "model.npz")
    assert [claim.verdict for claim in certify(other, X, y)] == expected


def test_groups_that_are_written_into_are_those_of_the_fit():
    p = make_sparse_regression(12, 16, 3, 3, snr_db=15, random_state=1)
    groups = np.arange(16) // 2
    model = SparseVAE(noise_variance=0.02, groups=groups).fit(p.dictionary, p.responses)
    groups[:] = 0
    assert certify(model, p.dictionary, p.responses)["stationarity"].holds


def test_a_tolerance_that_is_loosened_after_the_fit_changes_no_verdict():
    p = make_sparse_regression(12, 16, 3, 3, snr_db=15, random_state=1)
    loosened = 0
    for max_iter in range(1, 40, 3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = SparseVAE(
                posterior="diagonal", noise_variance=0.02, max_iter=max_iter, tol=1e-12
            ).fit(p.dictionary, p.responses)
        before = model.certificate_["stationarity"]
        loosened += before.holds is False and before.value < 1e-2
        model.set_params(tol=1.0)
        after = certify(model, p.dictionary, p.responses)["stationarity"]
        assert (after.holds, after.threshold) == (before.holds, before.threshold)
    assert loosened


@pytest.mark.parametrize("wrong", ["nonsense", None, np.ones((3, 2))])
def test_rows_without_responses_are_refused(wrong):
    model, X, _ = fitted()
    with pytest.raises(ValueError, match="give X and y"):
        certify(model, X if wrong is None else wrong)


def test_changed_noise_variances_of_the_rows_fail():
    p = make_sparse_regression(20, 6, 1, 30, snr_db=10, random_state=0)
    X, y = p.dictionary, p.responses
    cov = np.linspace(1.0, 2.0, 20)
    model = SparseVAE(noise_variance=0.1).fit(X, y, noise_cov=cov)
    assert certify(model, X, y, noise_cov=cov).holds is not False
    model.noise_variances_ = model.noise_variances_ * 100
    assert certify(model, X, y, noise_cov=cov).holds is False
