"""Certificates: true claims hold, false ones do not, and what cannot be judged says why."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from lucidae import DropoutRegressor, SparseVAE, certify
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import certify_coefficients, solve_joint

GENERAL, COHERENT = "unique_in_general_position", "unique_by_coherence"


@pytest.fixture(scope="module")
def exact():
    p = make_sparse_regression(20, 40, 4, 6, 3, random_state=0)
    model = SparseVAE(noise_variance=1e-10, fit_intercept=False).fit(p.dictionary, p.responses)
    return model, p


def test_an_exact_sparse_fit_is_certified_as_the_sparsest(exact):
    model, p = exact
    certificate = model.certificate_
    assert certificate["stationarity"].holds
    assert certificate["active_dimensions"].value == 4
    assert certificate[GENERAL].holds
    # 4 columns, rank 3
    assert "All sets of 2 columns were checked: no other" in certificate[GENERAL].advice
    assert_allclose(certificate.evidence["bound"], (20 + 3) / 2)
    assert certificate[COHERENT].verdict == "does not apply"
    assert "sufficient but not necessary" in certificate[COHERENT].advice
    full = certify(model, p.dictionary, p.responses)
    unit = p.dictionary / np.linalg.norm(p.dictionary, axis=0)
    bound = (1 / np.abs(unit.T @ unit - np.eye(40)).max() + 3) / 2
    assert f"so fewer than {bound:.3g} columns" in full[COHERENT].advice
    assert full["reconstruction"].value < 1e-6
    assert full["posterior_collapse"].holds
    assert full.holds


def test_a_noisy_fit_is_not_certified_and_says_why():
    p = make_sparse_regression(20, 40, 4, 6, snr_db=10, random_state=1)
    model = SparseVAE(noise_variance=p.noise_variance).fit(p.dictionary, p.responses)
    claim = model.certificate_[GENERAL]
    assert claim.holds is None
    assert "exact fits" in claim.advice
    assert model.certificate_.holds


def test_an_unconverged_fit_fails_its_stationarity():
    p = make_sparse_regression(20, 40, 4, 6, snr_db=10, random_state=2)
    model = SparseVAE(noise_variance=p.noise_variance, solver="em", max_iter=3)
    with pytest.warns(UserWarning, match="limit"):
        model.fit(p.dictionary, p.responses)
    assert model.certificate_["stationarity"].holds is False
    assert certify(model, p.dictionary, p.responses)["stationarity"].holds is False


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), r=st.integers(1, 3), n=st.integers(1, 3))
def test_certified_uniqueness_is_true_by_brute_force(seed, r, n):
    rng = np.random.default_rng(seed)
    Phi = rng.integers(-2, 3, (4, 7)).astype(float)  # often not in general position
    U = np.zeros((7, n))
    U[rng.choice(7, r, replace=False)] = rng.standard_normal((r, n))
    X = Phi @ U
    if not X.any() or (np.linalg.norm(Phi, axis=0) == 0).any():
        return
    if certify_coefficients(U.T, Phi, X)[COHERENT].holds:
        used = np.flatnonzero(U.any(axis=1))
        for size in range(1, used.size + 1):
            for chosen in combinations(range(7), size):
                if set(chosen) == set(used):
                    continue
                fit = np.linalg.lstsq(Phi[:, chosen], X, rcond=None)[0]
                dense = fit.any(axis=1).all() and (np.linalg.norm(fit, axis=1) > 1e-9).all()
                assert not (dense and np.allclose(Phi[:, chosen] @ fit, X, atol=1e-9))


def test_too_many_columns_are_not_certified_which_is_no_failure():
    p = make_sparse_regression(10, 30, 8, 2, random_state=3)
    certificate = certify_coefficients(p.coef, p.dictionary, p.responses)
    assert certificate[GENERAL].holds is None
    assert "It is not known whether" in certificate[GENERAL].advice
    assert certificate.holds is None


def test_coefficients_with_a_noise_variance_are_judged_on_their_energy():
    p = make_sparse_regression(20, 40, 3, 8, snr_db=20, random_state=5)
    model = SparseVAE(noise_variance=p.noise_variance, fit_intercept=False, tol=1e-8)
    coef = model.fit(p.dictionary, p.responses).coef_
    judge = {"noise_variance": p.noise_variance, "tol": 1e-5}
    good = certify_coefficients(coef, p.dictionary, p.responses, **judge)
    assert good["stationarity"].holds
    assert good["posterior_collapse"].holds
    bad = certify_coefficients(1.1 * coef, p.dictionary, p.responses, **judge)
    assert bad["stationarity"].holds is False
    none = certify_coefficients(0 * coef, p.dictionary, p.responses, **judge)
    assert none["posterior_collapse"].holds is False


@pytest.mark.parametrize("posterior", ["diagonal", "point"])
def test_collapse_is_judged_by_the_energy_that_was_minimised(posterior):
    advice = []
    for seed in range(6):
        p = make_sparse_regression(15, 40, 8, 4, snr_db=15, random_state=seed)
        model = SparseVAE(posterior=posterior, noise_variance=p.noise_variance, max_iter=5000)
        certificate = model.fit(p.dictionary, p.responses).certificate_
        assert certificate.holds, certificate
        claim = certificate["posterior_collapse"]
        assert claim.holds is (True if posterior == "diagonal" else None)
        advice.append("would lower the energy of posterior='full'" in claim.advice)
    assert any(advice)


@pytest.mark.parametrize("options", [{}, {"solver": "em"}, {"response_covariance": "learn"}])
def test_a_copy_of_a_column_is_an_alternative(options):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 20))
    y = X[:, [2, 9]] @ rng.standard_normal((2, 4)) + 0.3 * rng.standard_normal((60, 4))
    model = SparseVAE(noise_variance=0.09, **options).fit(np.column_stack([X, -2 * X[:, 2]]), y)
    assert model.support_.tolist() == [2, 9]
    assert model.certificate_.holds
    assert "Alternatives: 2 or 20." in model.certificate_["support"].advice
    assert model.certificate_.evidence["tied_columns"] == [[2, 20]]
    # Without the copy nothing is tied.
    plain = SparseVAE(noise_variance=0.09, **options).fit(X, y)
    assert plain.support_.tolist() == [2, 9]
    assert "tied_columns" not in plain.certificate_.evidence


def test_a_copy_of_a_column_in_all_parts_of_a_joint_problem():
    rng = np.random.default_rng(2)
    X = [rng.standard_normal((30, 12)) for _ in range(2)]
    y = [part[:, [3, 7]] @ rng.standard_normal((2, 5)) + 0.3 * rng.standard_normal((30, 5))
         for part in X]  # fmt: skip
    twice = [np.column_stack([part, part[:, 3]]) for part in X]
    found = solve_joint(twice, y, noise_variance=0.09).value
    assert np.isin([3, 12], found.support).sum() == 1
    assert 7 in found.support
    assert found.certificate.holds
    other = [twice[0], np.column_stack([X[1], X[1][:, 4]])]  # no copy in the second part
    assert "tied_columns" not in solve_joint(other, y).value.certificate.evidence


@pytest.mark.parametrize("place", ["both", "X", "y"])
def test_a_row_in_another_unit_is_named(place):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((100, 30))
    y = X[:, [2, 9]] @ rng.standard_normal((2, 4)) + 0.3 * rng.standard_normal((100, 4))
    assert not SparseVAE().fit(X, y).certificate_["leverage"].advice
    X[17] *= 500 if place != "y" else 1
    y[17] *= 500 if place != "X" else 1
    certificate = SparseVAE().fit(X, y).certificate_
    claim = certificate["leverage"]
    assert claim.holds is None
    assert "row 17" in claim.advice
    headline = certificate.summary().splitlines()[0]
    assert "Stationary point of the loss: yes." in headline
    assert "Influence: row 17." in headline
    assert claim.value == pytest.approx(max(certificate.evidence["leverage_shares"]))
    assert certificate.evidence["leverage_rows"].tolist() == [17]
    # A row that is given often is not one row with a large share.
    X, y, weights = np.delete(X, 17, 0), np.delete(y, 17, 0), np.ones(99)
    weights[3] = 1e6
    often = SparseVAE(noise_variance=0.09).fit(X, y, sample_weight=weights)
    assert not often.certificate_["leverage"].advice


def test_an_outlier_in_one_column_is_named_and_a_column_of_one_row_is_not():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((50, 8))
    y = X[:, [1, 5]] @ rng.standard_normal((2, 4)) + 0.3 * rng.standard_normal((50, 4))
    spike = np.eye(50)[:, [7]]
    for column, named in ((spike, []), (1e4 * spike + X[:, [0]], [7])):
        model = SparseVAE(noise_variance=0.01).fit(np.column_stack([X, column]), y)
        assert model.relevance_[8] > 0
        assert model.certificate_.evidence["leverage_rows"].tolist() == named


def test_an_attribute_that_a_subclass_overrides_is_noticed():
    class Other(SparseVAE):
        @property
        def noise_variance_(self):
            return 2.0 * self._state.results["noise_variance_"]

    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((20, 5)), rng.standard_normal((20, 2))
    claim = Other(noise_variance=0.5).fit(X, y).certificate_["attributes"]
    assert claim.holds is False
    assert "noise_variance_" in claim.advice


def test_one_response_and_other_data():
    p = make_sparse_regression(20, 40, 3, 1, 1, random_state=6)
    model = SparseVAE(noise_variance=1e-9).fit(p.dictionary, p.responses[:, 0])
    assert certify(model, p.dictionary, p.responses[:, 0])[GENERAL].holds
    with pytest.raises(ValueError, match="fitted to 1"):
        certify(model, p.dictionary, np.ones((20, 2)))
    with pytest.raises(ValueError, match="give one row of y"):
        certify(model, p.dictionary, np.ones(3))


def test_the_card_and_the_table_show_every_claim(exact):
    certificate = exact[0].certificate_
    assert [claim.name for claim in certificate] == [
        "stationarity", "posterior_mean", "noise_variance", "energy", "predictive_variance",
        "support", "reconstruction", "active_dimensions", "unique_in_general_position",
        "unique_by_coherence", "row_scales", "posterior_collapse", "leverage",
        "path_stability",
    ]  # fmt: skip
    assert all(claim.name in str(certificate) for claim in certificate)
    assert "Chen &amp; Huo 2006" in certificate._repr_html_()


def test_a_fit_and_its_data_are_certified_alike(exact):
    model, p = exact
    fit, data = model.certificate_, certify(model, p.dictionary, p.responses)
    for name in ("active_dimensions", "reconstruction", "row_scales", "posterior_collapse"):
        assert_allclose(fit[name].value, data[name].value, rtol=1e-6)
    assert certify(model) is fit


def test_coefficients_of_another_shape_are_refused(exact):
    _, p = exact
    with pytest.raises(ValueError, match=r"expected .responses, columns."):
        certify_coefficients(np.ones((2, 5)), p.dictionary, p.responses)


@pytest.mark.parametrize("sparse", [scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_coefficients_may_be_a_sparse_matrix(exact, sparse):
    _, p = exact
    coef = p.coef
    one, other = (certify(each, p.dictionary, p.responses) for each in (coef, sparse(coef)))
    assert other.to_dict() == one.to_dict()
    with pytest.raises(ValueError, match=r"coef has shape \(6, 39\)"):
        certify(sparse(coef[:, 1:]), p.dictionary, p.responses)


def test_a_fit_is_not_certified_on_rows_without_responses(exact):
    model, p = exact
    with pytest.raises(ValueError, match=r"y is missing: .* give X and y"):
        certify(model, p.dictionary)
    assert certify(model).to_dict() == model.certificate_.to_dict()


def pinned_data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 10))
    return X, X[:, :2] @ rng.standard_normal((2, 4)) + 0.3 * rng.standard_normal((20, 4))


def test_every_claim_is_described_on_the_page_of_certificates():
    X, y = pinned_data()
    fits = [
        SparseVAE(noise_variance="cv").fit(X, y),
        SparseVAE(noise_variance=0.1, groups=2, group_covariance="full").fit(X, y),
        SparseVAE(noise_variance=0.1).fit(X, y, noise_cov=np.ones(len(X))),
        SparseVAE(noise_variance=0.1, response_covariance="learn").fit(X, y),
    ]
    page = Path(__file__).parents[2] / "docs" / "certificates" / "sparsity.md"
    headings = [line for line in page.read_text().splitlines() if line.startswith("## ")]
    described = {word.strip(",") for line in headings for word in line.split()}
    assert {claim.name for fit in fits for claim in fit.certificate_} <= described


@pytest.mark.parametrize("convert", [np.array, np.float32, scipy.sparse.csr_array])
@pytest.mark.parametrize(
    "options", [{}, {"noise_cov": np.linspace(0.5, 2.0, 30)}, {"sample_weight": np.arange(30.0)}]
)
def test_a_certificate_that_is_read_later_is_that_of_the_fit(monkeypatch, convert, options):
    p = make_sparse_regression(30, 60, 2, 4, snr_db=20, random_state=0)
    X = convert(p.dictionary)
    if scipy.sparse.issparse(X) and "noise_cov" in options:
        X = X.toarray()
    later = SparseVAE(noise_variance=0.1).fit(X, p.responses, **options)
    monkeypatch.setattr("lucidae.rows.operator.REFERENCED_BYTES", 0)
    at_once = SparseVAE(noise_variance=0.1).fit(X, p.responses, **options)
    later.set_params(tol=1e3)  # the certificate is about the parameters of the fit
    assert later.certificate_ == at_once.certificate_
    assert later.certificate_["stationarity"].holds
    with pytest.raises(ValueError, match="not stored"):
        at_once.energy(at_once.relevance_)


@pytest.mark.parametrize("name", ["X", "y"])
def test_data_that_were_changed_after_fit_are_not_judged(name):
    p = make_sparse_regression(30, 60, 2, 4, snr_db=20, random_state=0)
    data = {"X": p.dictionary.copy(), "y": p.responses.copy()}
    model = SparseVAE(noise_variance=0.1).fit(**data)
    data[name][3, 2] *= 1.001
    (claim,) = model.certificate_
    assert claim.undecided
    assert "changed in place after fit" in claim.advice
    assert certify(model, p.dictionary, p.responses).holds


@pytest.mark.parametrize("model", [SparseVAE(noise_variance=0.1), DropoutRegressor(1)], ids=repr)
def test_a_column_of_large_numbers_does_not_hide_that_others_were_changed(model):
    rng = np.random.default_rng(0)
    X = np.column_stack([1.7e18 + 6e10 * np.arange(300.0), rng.standard_normal((300, 3))])
    model.fit(X, X[:, 1:2] + 0.3 * rng.standard_normal((300, 1)))
    X[:, 1:] = 0.0
    assert model.certificate_.holds is None
