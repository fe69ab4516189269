"""Certificates distinguish optima, saddles and unfinished training, and give advice."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dropout.problems import symmetric
from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    SecondMoment,
    certify,
    equalize_pair,
)
from lucidae.dropout import (
    LinearProblem,
    certify_weights,
    equalized_critical_points,
    solve,
    solve_tied,
)


def regression_data(n=100):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 5)) @ rng.standard_normal((5, 5)) + 1.0
    return X, X @ rng.standard_normal((5, 3)) + rng.standard_normal((n, 3))


@pytest.mark.parametrize("dropout", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_the_optimum_is_certified(dropout, width):
    X, Y = regression_data()
    model = DropoutRegressor(width, dropout=dropout).fit(X, Y)
    for certificate in (
        model.certificate_,
        certify(model),
        certify(model, X, Y),
        certify_weights(model.left_, model.right_, X, Y, dropout=dropout),
    ):
        assert certificate.holds, certificate.summary()
        assert certificate["gap"].value < 1e-12
        assert certificate["rank"].value == model.rank_
    assert model.certificate_ is model.certificate_  # cached


def test_autoencoder_and_factorization_are_certified_on_their_data_and_fail_on_others():
    X, _ = regression_data()
    coder = DropoutAutoencoder(3, dropout=0.2).fit(X)
    assert coder.certificate_.holds
    assert certify(coder, X).holds
    assert certify(coder, X[:, ::-1]).holds is False
    weighted = DropoutAutoencoder(3, dropout=0.2).fit(X, sample_weight=np.arange(100))
    assert certify(weighted, X, sample_weight=np.arange(100)).holds
    factors = DropoutFactorization(3, dropout=0.2).fit(X)
    assert factors.certificate_.holds
    assert certify(factors, X).holds
    assert certify(factors, X[::-1]).holds is False
    assert certify(factors, X, sample_weight=np.ones(100)).holds
    assert certify(factors, X, sample_weight=np.arange(100)).holds is False
    with pytest.raises(ValueError, match="given without y"):
        certify(DropoutRegressor(2).fit(X, X), X)


def test_gap_is_the_true_distance_to_the_minimum():
    X, Y = regression_data()
    problem = LinearProblem.from_moment(SecondMoment.of(np.hstack([X, Y])), 5)
    rng = np.random.default_rng(1)
    U, V = rng.standard_normal((3, 4)), rng.standard_normal((5, 4))
    certificate = certify_weights(U, V, X, Y, dropout=0.5)
    error = np.mean(np.sum((Y - Y.mean(0) - (X - X.mean(0)) @ V @ U.T) ** 2, axis=1))
    hidden = np.mean(((X - X.mean(0)) @ V) ** 2, axis=0)
    value = error + np.sum(np.sum(U**2, axis=0) * hidden)
    near = X - X.mean(0)
    explained = np.sum((near @ np.linalg.lstsq(near, Y)[0]) ** 2) / len(X)
    gap = (value - solve(problem, 1.0, 4).value) / explained
    assert certificate["gap"].value == pytest.approx(gap)
    assert certificate["gap"].holds is False
    assert certificate["stationarity"].holds is False
    assert certificate["curvature"].holds is None


def test_the_right_function_in_unequal_units_is_recognised():
    X, Y = regression_data()
    best = DropoutRegressor(3, dropout=0.4).fit(X, Y)
    U, s, Vt = np.linalg.svd(best.coef_, full_matrices=False)
    certificate = certify_weights(U * s, Vt.T, X, Y, dropout=0.4)
    assert certificate["product"].holds
    assert certificate["equalized"].holds is False
    assert certificate["path_norm"].holds is False
    assert "equalize_pair" in certificate["equalized"].advice
    centred = X - X.mean(0)
    lower = np.linalg.cholesky(np.cov(X.T, bias=True))
    left, right = equalize_pair(U * s, lower.T @ Vt.T)
    repaired = certify_weights(left, np.linalg.solve(lower.T, right), X, Y, dropout=0.4)
    assert repaired.holds, repaired.summary()
    assert centred.shape == X.shape


def test_saddles_of_untied_weights_show_negative_curvature():
    M = np.diag([3.0, 2.0, 1.0])
    one = solve(LinearProblem.from_matrix(np.diag([0.0, 2.0, 0.0])), 0.5, 2).weights
    certificate = certify_weights(*one, matrix=M, dropout=1 / 3)
    assert certificate["stationarity"].holds
    assert certificate["gap"].holds is False
    assert certificate["curvature"].holds is False
    assert "saddle" in certificate["curvature"].advice


@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
def test_tied_saddles_are_named_with_a_direction_of_descent(strength):
    M = symmetric(np.random.default_rng(2), 4, shift=2.0)
    dropout = strength / (1 + strength)
    for point in equalized_critical_points(M, strength, 3):
        certificate = certify_weights(point.factor, None, matrix=M, dropout=dropout)
        assert certificate["stationarity"].holds
        assert certificate["gap"].holds is (point.index == 0)
        assert certificate["curvature"].holds is (point.index == 0)
        if point.index:
            advice = certificate["curvature"].advice
            assert "strict saddle" in advice
            assert "eigenvector" in advice or "columns" in advice
            assert "classify" in advice
            assert certificate["gap"].advice == advice
        # The paper's condition is reported and never fails.
        assert certificate["small_dropout"].holds is None
        assert "In both cases every local minimum" in certificate["small_dropout"].advice


def test_tied_weights_on_white_data_meet_the_theory_and_others_only_measure():
    rng = np.random.default_rng(3)
    X = np.linalg.qr(rng.standard_normal((200, 4)))[0] * np.sqrt(200)
    M = symmetric(rng, 4, shift=2.0)
    U = solve_tied(M, 0.5, 3).weights.left
    settings = {"dropout": 1 / 3, "tied": True, "fit_intercept": False}
    white = certify_weights(U, U, X, X @ M.T, **settings)
    assert white.holds, white.summary()
    assert "small_dropout" in white
    coloured = certify_weights(U, U, X * [1, 2, 3, 4], X @ M.T, **settings)
    assert coloured["gap"].holds is False
    assert "L-BFGS" in coloured["gap"].advice
    assert coloured["stationarity"].holds is False


def test_weights_of_a_torch_model_are_certified():
    torch = require("torch")
    X, Y = regression_data()
    best = DropoutRegressor(3, dropout=0.4).fit(X, Y)
    first, second = torch.nn.Linear(5, 3), torch.nn.Linear(3, 3)
    with torch.no_grad():
        first.weight.copy_(torch.as_tensor(best.right_.T))
        second.weight.copy_(torch.as_tensor(best.left_))
    for data in ((X, Y), (torch.as_tensor(X), torch.as_tensor(Y))):
        certificate = certify_weights(second.weight, first.weight.T, *data, dropout=0.4)
        assert certificate["gap"].holds
        assert certificate["product"].value < 1e-5


def test_sgd_is_judged_by_what_it_was_asked_for():
    X, Y = regression_data()
    model = DropoutRegressor(2, dropout=0.4, solver="sgd", tol=2e-2, random_state=0).fit(X, Y)
    assert model.certificate_["gap"].threshold == 2e-2
    assert model.certificate_["gap"].holds
    assert certify_weights(model.left_, model.right_, X, Y, dropout=0.4)["gap"].holds is False


def test_no_unique_product_where_singular_values_tie():
    problem = LinearProblem.from_matrix(np.eye(3))
    weights = solve(problem, 0.1, 2).weights
    certificate = certify_weights(*weights, matrix=np.eye(3), dropout=0.1 / 1.1)
    assert certificate["product"].holds is None
    assert certificate.holds


def test_a_certificate_that_cannot_be_drawn_says_why(monkeypatch):
    X, Y = regression_data()
    model = DropoutRegressor(2).fit(X, Y)

    def fail(*args, **kwargs):
        raise ArithmeticError("no luck")

    monkeypatch.setattr("lucidae.dropout.certificate.measure", fail)
    certificate = model.certificate_
    assert certificate.holds is None
    assert "no luck" in certificate.summary()


def test_certificates_print_and_serialise():
    X, Y = regression_data()
    certificate = DropoutRegressor(2).fit(X, Y).certificate_
    assert "Mianjy et al. 2018" in certificate.summary()
    assert certificate.to_dict()["holds"] is True
    assert "<table>" in certificate._repr_html_()
    assert_allclose(certificate["rank"].value, certificate["rank"].threshold)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda U, V, X, Y: certify_weights(U, V, dropout=0.5), "data"),
        (lambda U, V, X, Y: certify_weights(U, V, X, Y, matrix=X, dropout=0.5), "either"),
        (lambda U, V, X, Y: certify_weights(U, V[:, :1], X, Y, dropout=0.5), "columns"),
        (lambda U, V, X, Y: certify_weights(U, V, Y, X, dropout=0.5), "rows"),
        (lambda U, V, X, Y: certify_weights(U, V, X, Y[:5], dropout=0.5), "rows"),
        (lambda U, V, X, Y: certify_weights(U, V, X, Y, dropout=1.0), "dropout"),
        (lambda U, V, X, Y: certify_weights(U * np.nan, V, X, Y, dropout=0.5), "NaN"),
        (lambda U, V, X, Y: certify_weights(U, V, np.full_like(X, np.inf), Y, dropout=0.5), "inf"),
        (lambda U, V, X, Y: certify_weights(U, V, X, Y, dropout=0.5, tolerance=0.0), "tolerance"),
        (lambda U, V, X, Y: certify_weights(U[:, 0], V, X, Y, dropout=0.5), "1D|2D"),
    ],
)
def test_bad_input_is_refused(call, match):
    X, Y = regression_data()
    with pytest.raises(ValueError, match=match):
        call(np.ones((3, 2)), np.ones((5, 2)), X, Y)


def test_every_claim_is_described_on_the_page_of_certificates():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((20, 4)), rng.standard_normal((20, 3))
    fits = [
        DropoutRegressor(2, dropout=0.3).fit(X, Y).certificate_,
        DropoutRegressor(2, shrink=False, alpha=0.1).fit(X, Y).certificate_,
        certify_weights(np.eye(3), None, matrix=np.eye(3), dropout=0.3),
    ]
    page = Path(__file__).parents[2] / "docs" / "certificates" / "dropout.md"
    described = {line[3:] for line in page.read_text().splitlines() if line.startswith("## ")}
    assert {claim.name for certificate in fits for claim in certificate} <= described
