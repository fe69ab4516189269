"""Completion of matrices with missing entries: optimum, duality gap, certificate, estimator."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

from extras import require
from lucidae import DropoutFactorization, certify, load, save
from lucidae.datasets import load_digits
from lucidae.dropout import LinearProblem, completion_path, solve


def complete(X, dropout=0.3, width=None, **settings):
    """Return a `DropoutFactorization` that is fitted to a matrix with missing entries."""
    width = min(X.shape) if width is None else width
    model = DropoutFactorization(width, dropout=dropout, handle_missing="complete", **settings)
    return model.fit(X)


def product(model):
    return model.left_ @ model.right_.T


def incomplete(seed, *, largest=25, n=None, m=None, share=None, noise=None):
    """Return a random matrix of low rank plus noise with missing entries, and the full matrix."""
    rng = np.random.default_rng(seed)
    n, m = n or int(rng.integers(4, largest)), m or int(rng.integers(4, largest))
    rank = int(rng.integers(1, 4))
    noise = rng.choice([0.0, 0.1, 1.0]) if noise is None else noise
    M = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, m))
    M = M + noise * rng.standard_normal((n, m))
    share = rng.uniform(0.2, 0.95) if share is None else share
    seen = rng.random((n, m)) < share
    seen[rng.integers(n), rng.integers(m)] = True
    seen[0, 0] = False
    return np.where(seen, M, np.nan), M


def factor_loss(X, U, V, strength):
    """Return the loss of factors, by its definition."""
    residual = np.where(np.isnan(X), 0.0, X - U @ V.T)
    return np.sum(residual**2) + strength * np.sum(U**2, axis=0) @ np.sum(V**2, axis=0)


def brute_force(X, strength, width, rng, starts):
    """Return the smallest loss that L-BFGS finds from random starts."""
    n, m = X.shape
    seen = ~np.isnan(X)

    def loss(z):
        U, V = z[: n * width].reshape(n, width), z[n * width :].reshape(m, width)
        residual = np.where(seen, X - U @ V.T, 0.0)
        lengths, widths = np.sum(U * U, axis=0), np.sum(V * V, axis=0)
        gradient = [-residual @ V + strength * U * widths, -residual.T @ U + strength * V * lengths]
        value = np.sum(residual**2) + strength * lengths @ widths
        return value, 2 * np.concatenate([part.ravel() for part in gradient])

    found = [
        scipy.optimize.minimize(
            loss,
            rng.standard_normal((n + m) * width),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 2000, "ftol": 1e-13, "gtol": 1e-9},
        ).fun
        for _ in range(starts)
    ]
    return min(found)


def check_optimal(seed, starts):
    """Check one random problem: the gap closes, and brute force finds nothing lower."""
    X, _ = incomplete(seed)
    rng = np.random.default_rng(seed)
    strength, width, energy = 10 ** rng.uniform(-2, 1.5), min(X.shape), np.nansum(X**2)
    model = complete(X, strength / (1 + strength))
    assert model.certificate_.holds
    assert model.rank_ <= width
    found = product(model)
    residual = np.where(np.isnan(X), 0.0, X - found)
    level = strength / width * np.linalg.norm(found, "nuc")
    value = np.sum(residual**2) + width / strength * level**2
    assert model.objective_ == pytest.approx(value, rel=1e-6)
    # the optimality conditions, by their definition
    assert np.linalg.norm(residual, 2) <= level * (1 + 1e-3)
    assert np.sum(residual * found) == pytest.approx(width / strength * level**2, rel=1e-3)
    lowest = brute_force(X, strength, width, rng, starts)
    assert model.objective_ <= lowest + 1e-6 * energy
    # the lower bound is not above what brute force reaches
    bound = model.certificate_.to_dict()["evidence"]["relative_lower_bound"]
    assert bound * energy <= lowest * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_gap_closes_and_brute_force_finds_nothing_lower(seed):
    check_optimal(seed, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_the_gap_closes_on_100_problems_and_brute_force_finds_nothing_lower(seed):
    check_optimal(1000 + seed, 3)


@pytest.mark.parametrize("seed", range(4))
def test_the_dual_value_of_any_residual_is_below_the_loss_of_any_matrix(seed):
    rng = np.random.default_rng(seed)
    X, M = incomplete(seed)
    strength, width = 10 ** rng.uniform(-2, 1), min(X.shape)
    model = complete(X, strength / (1 + strength))
    for scale in (0.0, 0.3, 1.0):
        model.left_, model.right_ = (scale * rng.standard_normal((n, width)) for n in X.shape)
        bound = certify(model, X).to_dict()["evidence"]["relative_lower_bound"] * np.nansum(X**2)
        for other in (M, 0.5 * M, rng.standard_normal(X.shape), np.zeros(X.shape)):
            norm = np.linalg.norm(other, "nuc")
            value = np.nansum((X - other) ** 2) + strength / width * norm**2
            assert bound <= value * (1 + 1e-12)


def test_nothing_missing_gives_the_closed_form():
    M = np.random.default_rng(1).standard_normal((12, 8))
    strict = DropoutFactorization(5, dropout=0.4).fit(M)
    lenient = complete(M, 0.4, 5)
    for name in ("left_", "right_", "singular_values_"):
        assert_allclose(getattr(strict, name), getattr(lenient, name), rtol=0, atol=0)


def test_the_optimum_is_the_limit_of_imputing_and_solving_in_closed_form():
    M = np.random.default_rng(2).standard_normal((9, 7))
    X = M.copy()
    X[3, 4] = np.nan
    for _ in range(200):
        left, right = solve(LinearProblem.from_matrix(M), 0.5, 7).weights
        M[3, 4] = (left @ right.T)[3, 4]
    assert_allclose(product(complete(X, 1 / 3, tol=1e-12)), left @ right.T, atol=1e-6)


def test_loss_norm_and_error_are_monotone_in_dropout():
    X, _ = incomplete(3, n=20, m=15, share=0.6, noise=0.5)
    rates = [0.01, 0.05, 0.2, 0.5, 0.8, 0.95]
    path = completion_path(X, 15, rates)
    assert_allclose(path.dropout, rates)
    assert np.all(np.diff(path.objective) > 0)
    assert np.all(np.diff(path.error) > 0)
    assert np.all(path.gap <= 1e-6)
    norms = path.threshold * 15 * (1 - path.dropout) / path.dropout
    assert np.all(np.diff(norms) < 0)
    for rate, rank, threshold, value in zip(
        rates, path.rank, path.threshold, path.objective, strict=True
    ):
        model = complete(X, rate)
        assert model.rank_ == rank
        assert model.objective_ == pytest.approx(value, rel=1e-5)
        assert model.threshold_ == pytest.approx(threshold, rel=1e-3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_each_newton_step_lowers_the_loss_and_a_limit_warns():
    X, _ = incomplete(4, n=25, m=20, share=0.5, noise=0.5)
    losses = [complete(X, 0.1, max_iter=steps, tol=1e-10).objective_ for steps in range(1, 9)]
    assert np.all(np.diff(losses) <= 1e-12 * losses[0])
    assert losses[-1] < losses[0]
    with pytest.warns(ConvergenceWarning):
        model = complete(X, 0.01, max_iter=2)
    assert model.certificate_.holds is False
    assert model.n_iter_ == 2


def test_more_observed_entries_cannot_lower_the_minimum():
    X, M = incomplete(5, n=12, m=12, share=0.5)
    more = np.where(np.random.default_rng(0).random(X.shape) < 0.5, M, X)
    assert complete(more).objective_ >= complete(X).objective_ - 1e-6


def test_order_transposition_and_scale_do_not_matter():
    X, _ = incomplete(6, n=14, m=9, share=0.7, noise=1.0)
    rng = np.random.default_rng(6)
    found = complete(X, tol=1e-10)
    rows, columns = rng.permutation(14), rng.permutation(9)
    for change, square in (
        (lambda Z: Z[rows][:, columns], 1.0),
        (lambda Z: Z.T, 1.0),
        (lambda Z: Z * 3e8, 9e16),
        (lambda Z: Z * 1e-120, 1e-240),
    ):
        other, expected = complete(change(X), width=9, tol=1e-10), change(product(found))
        assert other.objective_ == pytest.approx(found.objective_ * square, rel=1e-8)
        assert_allclose(product(other), expected, atol=1e-4 * np.abs(expected).max())


def test_dropout_on_observed_entries_has_another_penalty():
    # The mean over all masks, by enumeration: no theorem on dropout applies to this problem.
    rng = np.random.default_rng(7)
    X, _ = incomplete(7, n=6, m=5, share=0.5)
    U, V, keep = rng.standard_normal((6, 3)), rng.standard_normal((5, 3)), 0.7
    seen, strength = ~np.isnan(X), (1 - 0.7) / 0.7
    mean = 0.0
    for mask in itertools.product([0, 1], repeat=3):
        chance = keep ** sum(mask) * (1 - keep) ** (3 - sum(mask))
        mean += chance * np.sum((X - (U * mask) @ V.T / keep)[seen] ** 2)
    masked = strength * np.sum(((U**2) @ (V**2).T)[seen])
    assert mean == pytest.approx(np.sum((X - U @ V.T)[seen] ** 2) + masked, rel=1e-10)
    ours = factor_loss(X, U, V, strength)
    assert ours - mean == pytest.approx(strength * np.sum(((U**2) @ (V**2).T)[~seen]), rel=1e-10)
    model = complete(X, 0.3)
    assert "Mianjy" not in str(model.certificate_)
    model.left_ = 1.1 * model.left_
    assert "Mianjy" not in str(model.certificate_)


@pytest.mark.parametrize("dropout", [0.02, 0.3, 0.9])
def test_codes_of_training_rows_equal_fit_transform(dropout):
    X, _ = incomplete(8, n=18, m=12, share=0.6, noise=0.3)
    X[4] = np.nan
    model = DropoutFactorization(12, dropout=dropout, handle_missing="complete")
    codes = model.fit_transform(X)
    assert_allclose(model.transform(X), codes, atol=1e-12)
    assert_allclose(codes[4], 0.0)
    assert model.objective_ == pytest.approx(
        factor_loss(X, model.left_, model.right_, dropout / (1 - dropout)), rel=1e-10
    )
    assert model.certificate_.holds
    assert_allclose(model.inverse_transform(codes), codes @ model.right_.T)


def test_codes_of_new_rows_solve_the_equations_of_the_observed_entries():
    X, _ = incomplete(9, n=18, m=12, share=0.6)
    model = complete(X, 0.3, 7)
    new = np.random.default_rng(0).standard_normal((5, 12))
    new[0, 2] = new[1, 5:] = new[2] = np.nan
    V, strength = model.right_, 0.3 / 0.7
    for row, code in zip(new, model.transform(new), strict=True):
        seen = ~np.isnan(row)
        loaded = V[seen].T @ V[seen] + strength * np.diag(np.sum(V**2, axis=0))
        assert_allclose(code, np.linalg.solve(loaded, V[seen].T @ row[seen]), atol=1e-10)


def test_absent_entries_are_zeros_unless_the_user_says_that_they_are_missing():
    X, _ = incomplete(10, n=16, m=11, share=0.5)
    X[1, 1] = 0.0
    seen = ~np.isnan(X)
    ratings = scipy.sparse.coo_array((X[seen], np.nonzero(seen)), shape=X.shape)
    settings = {"dropout": 0.2, "handle_missing": "complete"}
    dense = DropoutFactorization(11, **settings).fit(X)
    for form in (ratings, ratings.tocsr(), ratings.tocsc(), scipy.sparse.csr_matrix(ratings)):
        model = DropoutFactorization(11, missing_values="absent", **settings).fit(form)
        assert_allclose(model.right_, dense.right_, atol=1e-12)
        assert_allclose(model.transform(form), dense.left_, atol=1e-12)
        assert certify(model, form).holds
    zeros = DropoutFactorization(11, **settings).fit(ratings)
    filled = DropoutFactorization(11, dropout=0.2).fit(np.nan_to_num(X))
    assert_allclose(zeros.left_, filled.left_, atol=1e-12)
    assert zeros.__sklearn_tags__().input_tags.allow_nan
    assert zeros.__sklearn_tags__().input_tags.sparse
    assert not model.__sklearn_tags__().input_tags.allow_nan
    assert not DropoutFactorization().__sklearn_tags__().input_tags.allow_nan
    full = scipy.sparse.csr_array(np.nan_to_num(X) + 10.0)
    stored = DropoutFactorization(11, missing_values="absent", **settings).fit(full)
    assert_allclose(stored.transform(full), stored.left_, atol=1e-9)


def test_weights_are_frequencies_of_rows():
    X, _ = incomplete(11, n=10, m=8, share=0.7)
    weights = np.array([1, 2, 0, 3, 1, 1, 2, 1, 0, 1])
    settings = {"dropout": 0.2, "handle_missing": "complete", "tol": 1e-12}
    model = DropoutFactorization(8, **settings).fit(X, sample_weight=weights)
    repeated = DropoutFactorization(8, **settings).fit(np.repeat(X, weights, axis=0))
    assert model.objective_ == pytest.approx(repeated.objective_, rel=1e-9)
    assert_allclose(model.transform(X), repeated.transform(X), atol=1e-5)
    assert model.certificate_.holds
    assert certify(model, X, sample_weight=weights).holds
    assert not certify(model, X).holds
    full = np.nan_to_num(X)
    weighted = DropoutFactorization(3, dropout=0.2).fit(full, sample_weight=weights)
    assert weighted.certificate_.holds
    assert certify(weighted, full, sample_weight=weights).holds
    assert certify(weighted, full).holds is False


TAMPERED = {
    "scaled": lambda U, V: (1.01 * U, V),
    "one entry": lambda U, V: (U + 0.1 * np.eye(*U.shape), V),
    "zero": lambda U, V: (0 * U, 0 * V),
    "turned": lambda U, V: (U @ np.diag([2.0] + [0.5] * (U.shape[1] - 1)), V),
    "rank one less": lambda U, V: (U - U @ np.linalg.svd(V)[2][:1].T @ np.linalg.svd(V)[2][:1], V),
    "not equalized": lambda U, V: tuple(part @ np.linalg.svd(V)[2].T for part in (U, V)),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_the_certificate_fails_for_tampered_factors(kind):
    X, _ = incomplete(12, n=15, m=10, share=0.7, noise=0.3)
    model = complete(X, 0.1)
    assert model.certificate_.holds
    assert certify(model, X).holds
    U, V = TAMPERED[kind](model.left_, model.right_)
    model.left_, model.right_ = U, V
    assert model.certificate_.holds is False
    judged = certify(model, X)
    assert judged.holds is False
    assert judged["gap"].holds is False
    gap = judged["gap"].value
    truth = factor_loss(X, U, V, 0.1 / 0.9) - model.objective_
    assert gap >= truth / np.nansum(X**2) - 1e-9


def test_a_limit_below_the_rank_of_the_optimum_is_undecided():
    X, _ = incomplete(13, n=20, m=15, share=0.8, noise=1.0)
    model = complete(X, 0.02, 2)
    certificate = model.certificate_
    assert certificate.holds is None
    assert certificate["gap"].holds is None
    assert certificate["stationarity"].holds
    assert "columns" in certificate["gap"].advice
    assert model.rank_ == certificate["rank"].value == 2
    rng = np.random.default_rng(0)
    assert model.objective_ <= brute_force(X, 0.02 / 0.98, 2, rng, 3) * (1 + 1e-6)


def test_large_sparse_problems_are_certified_without_dense_matrices(monkeypatch):
    rng = np.random.default_rng(14)
    n, m, count = 1500, 900, 20_000
    U, V = rng.standard_normal((n, 2)), rng.standard_normal((m, 2))
    places = np.unique(rng.integers(0, n * m, count))
    rows, columns = np.divmod(places, m)
    values = np.sum(U[rows] * V[columns], axis=1) + 0.3 * rng.standard_normal(len(places))
    ratings = scipy.sparse.csr_array((values, (rows, columns)), shape=(n, m))

    def refused(*args, **kwargs):
        raise AssertionError("a sparse matrix was made dense")

    monkeypatch.setattr(scipy.sparse.csr_array, "toarray", refused)
    model = DropoutFactorization(
        20, dropout=0.2, handle_missing="complete", missing_values="absent"
    ).fit(ratings)
    assert model.certificate_.holds
    assert_allclose(model.transform(ratings), model.left_, atol=1e-10)
    wide = DropoutFactorization(
        20, dropout=0.2, handle_missing="complete", missing_values="absent"
    ).fit(ratings.T.tocsr())
    assert wide.certificate_.holds
    assert wide.objective_ == pytest.approx(model.objective_, rel=1e-5)
    model.left_ = model.left_ * 1.02
    assert certify(model, ratings).holds is False


def test_rows_and_columns_without_entries_are_reported():
    X, _ = incomplete(15, n=10, m=8, share=0.8)
    X[:, 3] = X[7] = np.nan
    model = complete(X, 0.3)
    assert model.certificate_.holds
    assert_allclose(model.right_[3], 0.0, atol=1e-12)
    assert "1 rows and 1 columns" in model.certificate_["observed_share"].advice


def test_every_claim_is_described_on_the_page_of_certificates():
    X, _ = incomplete(23, n=10, m=8, share=0.8)
    model = complete(X, 0.3)
    page = Path(__file__).parents[2] / "docs" / "certificates" / "dropout.md"
    headings = {line[3:] for line in page.read_text().splitlines() if line.startswith("## ")}
    assert {claim.name for claim in model.certificate_} <= headings


def test_observed_entries_that_are_all_zero_give_zero_factors():
    X = np.zeros((4, 3))
    X[0, 1] = np.nan
    model = complete(X, 0.5, 2)
    assert model.rank_ == 0
    assert model.certificate_.holds
    assert_allclose(model.left_, 0.0)
    assert model.objective_ == 0.0


def test_cross_validation_holds_out_entries():
    X, M = incomplete(16, n=20, m=14, share=0.7, noise=0.3)
    model = complete(X, "cv", cv=3)
    assert model.dropout_ == model.cv_.best
    assert model.cv_.errors.shape == (3, len(model.cv_.dropout))
    missing = np.isnan(X)
    error = np.mean((product(model) - M)[missing] ** 2)
    # held-out entries estimate the error of the missing ones, and a poor rate does worse
    assert error < 2 * model.cv_.mean.min()
    assert error < np.mean((product(complete(X, 0.97)) - M)[missing] ** 2)
    assert 0.0 < DropoutFactorization(14, dropout="cv", cv=2).fit(M).dropout_ < 1.0
    # the error of one fold, by definition; the observed entries are numbered row by row
    rows, columns = np.nonzero(~missing)
    test = np.arange(0, len(rows), 7)
    folds = [(np.setdiff1d(np.arange(len(rows)), test), test)]
    found, kept = complete(X, "cv", cv=folds).cv_, X.copy()
    kept[rows[test], columns[test]] = np.nan
    for number in (-1, -4, 1, 0):
        fold = complete(kept, found.dropout[number], tol=1e-7)
        missed = (X - product(fold))[rows[test], columns[test]]
        assert found.errors[0, number] == pytest.approx(np.mean(missed**2), rel=1e-2)


def test_the_search_for_the_dropout_rate_ends_where_less_dropout_changes_nothing():
    # The error of images tends to that of the matrix of least nuclear norm that agrees with them.
    X = load_digits().data[:150]
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    found = complete(X, "cv", cv=2).cv_
    assert found.dropout[0] > 2e-3
    assert found.mean[0] == pytest.approx(found.mean[2], rel=0.01)
    # what is compared at the smallest rate is its own solution, not that of the rate before
    rows, columns = np.nonzero(~np.isnan(X))
    _, test = next(KFold(2, shuffle=True, random_state=0).split(rows))
    held_out = X[rows[test], columns[test]]
    X[rows[test], columns[test]] = np.nan
    fold = product(complete(X, found.dropout[0], tol=1e-8))[rows[test], columns[test]]
    assert found.errors[0, 0] == pytest.approx(np.mean((fold - held_out) ** 2), rel=1e-3)


def test_saved_models_are_read_back(tmp_path):
    X, _ = incomplete(17, n=12, m=9, share=0.7)
    model = complete(X, "cv", cv=2)
    save(model, tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    assert_allclose(again.transform(X), model.transform(X), rtol=0, atol=0)
    assert np.isnan(again.missing_values)
    assert again.certificate_.to_dict() == model.certificate_.to_dict()
    assert_allclose(again.cv_.errors, model.cv_.errors)
    save(model.set_params(missing_values="absent"), tmp_path / "absent.npz")
    assert load(tmp_path / "absent.npz").missing_values == "absent"


def test_tensors_and_single_precision_stay_what_they_are():
    X, _ = incomplete(18, n=15, m=10, share=0.6)
    model = DropoutFactorization(10, dropout=0.2, handle_missing="complete")
    double = model.fit(X).left_
    single = model.fit(X.astype(np.float32))
    assert single.left_.dtype == np.float32
    assert single.transform(X.astype(np.float32)).dtype == np.float32
    assert_allclose(single.left_, double, atol=1e-4)
    assert single.certificate_.holds
    torch = require("torch")
    tensor = model.fit(torch.as_tensor(X))
    assert isinstance(tensor.transform(torch.as_tensor(X)), torch.Tensor)
    assert_allclose(tensor.left_.numpy(), double, atol=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"handle_missing": "drop"}, "'error', 'complete'"),
        ({"missing_values": 0}, "numpy.nan"),
        ({"missing_values": "nan"}, "'absent'"),
        ({"dropout": 0.0}, "positive dropout"),
        ({"tol": 0.0}, "tol"),
        ({"max_iter": 0}, "max_iter"),
        ({"dropout": "cv", "cv": 1}, "cv"),
        ({"dropout": "best"}, "'cv'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    X, _ = incomplete(19, n=8, m=6, share=0.6)
    model = DropoutFactorization(3, **{"handle_missing": "complete"} | settings)
    with pytest.raises(ValueError, match=message):
        model.fit(X)


def test_wrong_data_are_refused():
    X, _ = incomplete(20, n=8, m=6, share=0.6)
    lenient = DropoutFactorization(3, dropout=0.2, handle_missing="complete")
    with pytest.raises(ValueError, match="NaN"):
        DropoutFactorization(3).fit(X)
    with pytest.raises(ValueError, match="infinity"):
        lenient.fit(np.where(np.isnan(X), np.inf, X))
    with pytest.raises(ValueError, match="infinity"):
        lenient.fit(scipy.sparse.csr_array([[1.0, np.inf], [1.0, 0.0]]))
    with pytest.raises(ValueError, match="no observed entry"):
        lenient.fit(np.full((3, 2), np.nan))
    with pytest.raises(ValueError, match=r"missing_values=numpy\.nan"):
        lenient.set_params(missing_values="absent").fit(X)
    huge = scipy.sparse.csr_array((np.ones(1), ([0], [0])), shape=(2**20, 2**10))
    with pytest.raises(ValueError, match="'absent'"):
        lenient.set_params(missing_values=np.nan).fit(huge)
    with pytest.raises(ValueError, match="shape"):
        certify(lenient.fit(X), X[:4])
    with pytest.raises(ValueError, match="dropout"):
        completion_path(X, 3, [0.0, 0.5])
    exact = DropoutFactorization(3, dropout=0.0, handle_missing="complete").fit(np.nan_to_num(X))
    with pytest.raises(ValueError, match="positive dropout"):
        exact.transform(X)


def test_errors_on_incomplete_matrices_name_what_to_set():
    ratings = scipy.sparse.csr_matrix([[5.0, 0.0], [0.0, 3.0], [0.0, 1.0]])
    for options in ({}, {"missing_values": "absent"}):
        with pytest.raises(ValueError, match="handle_missing='complete' and missing_values='abs"):
            DropoutFactorization(1, **options).fit(ratings)
    with pytest.raises(ValueError, match="If entries are missing, use handle_missing='compl"):
        DropoutFactorization(1).fit([[1.0, np.nan], [2.0, 3.0]])
    with pytest.raises(ValueError, match="infinity"):
        DropoutFactorization(1).fit([[1.0, np.inf], [2.0, 3.0]])
