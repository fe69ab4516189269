"""Completion of matrices with missing entries: optimum, duality gap, certificate, estimator."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

import lucidae
from extras import require
from lucidae import DropoutFactorization, certify
from lucidae.dropout import completion_path
from lucidae.dropout.completion import complete
from lucidae.dropout.completion_path import cross_validate_entries
from lucidae.dropout.objectives import LinearProblem
from lucidae.dropout.observed import CompletionObjective, ObservedEntries, observed_codes
from lucidae.dropout.solvers import solve


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
    strength, width = 10 ** rng.uniform(-2, 1.5), min(X.shape)
    entries = ObservedEntries.of(X)
    solution = complete(entries, strength, width)
    found = solution.value
    assert solution.status.ok
    assert found.gap < 1e-6
    assert found.rank <= width
    assert not found.limited
    product = (found.left * found.values) @ found.right.T
    residual = np.where(np.isnan(X), 0.0, X - product)
    level = strength / width * np.linalg.norm(product, "nuc")
    assert found.value == pytest.approx(np.sum(residual**2) + width / strength * level**2, rel=1e-9)
    # the optimality conditions, by their definition
    assert np.linalg.norm(residual, 2) <= level * (1 + 1e-3)
    assert np.sum(residual * product) == pytest.approx(width / strength * level**2, rel=1e-3)
    lowest = brute_force(X, strength, width, rng, starts)
    assert found.value <= lowest + 1e-6 * entries.energy
    # the lower bound is not above what brute force reaches
    assert found.value - found.gap * entries.energy <= lowest * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_gap_closes_and_brute_force_finds_nothing_lower(seed):
    check_optimal(seed, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_the_gap_closes_on_100_problems_and_brute_force_finds_nothing_lower(seed):
    check_optimal(1000 + seed, 3)


@pytest.mark.parametrize("seed", range(20))
def test_the_dual_value_of_any_residual_is_below_the_loss_of_any_matrix(seed):
    rng = np.random.default_rng(seed)
    X, M = incomplete(seed)
    entries = ObservedEntries.of(X)
    objective = CompletionObjective(entries, 10 ** rng.uniform(-3, 1))
    seen = ~np.isnan(X)
    for scale in (0.0, 0.3, 1.0):
        residual = np.where(seen, X - scale * rng.standard_normal(X.shape), 0.0)
        bound = objective.lower_bound(residual[seen], np.linalg.norm(residual, 2))
        for other in (M, 0.5 * M, rng.standard_normal(X.shape), np.zeros(X.shape)):
            missed = (X - other)[seen]
            assert bound <= objective.value(missed, np.linalg.norm(other, "nuc")) * (1 + 1e-12)


def test_nothing_missing_gives_the_closed_form():
    rng = np.random.default_rng(1)
    M = rng.standard_normal((12, 8))
    for strength, width in ((0.3, 8), (2.0, 5), (20.0, 12)):
        exact = solve(LinearProblem.from_matrix(M), strength, width)
        found = complete(ObservedEntries.of(M), strength, width, tolerance=1e-10).value
        if found.limited:
            assert found.rank == width == exact.rank
        product = (found.left * found.values) @ found.right.T
        assert found.value == pytest.approx(exact.value, rel=1e-9)
        assert_allclose(product, exact.weights.left @ exact.weights.right.T, atol=1e-5)
    strict = DropoutFactorization(5, dropout=0.4).fit(M)
    lenient = DropoutFactorization(5, dropout=0.4, handle_missing="complete").fit(M)
    for name in ("left_", "right_", "singular_values_"):
        assert_allclose(getattr(strict, name), getattr(lenient, name), rtol=0, atol=0)


def test_the_optimum_is_the_limit_of_imputing_and_solving_in_closed_form():
    M = np.random.default_rng(2).standard_normal((9, 7))
    exact = solve(LinearProblem.from_matrix(M), 0.5, 7)
    product = exact.weights.left @ exact.weights.right.T
    X = M.copy()
    X[3, 4] = np.nan
    M[3, 4] = product[3, 4]
    for _ in range(200):
        exact = solve(LinearProblem.from_matrix(M), 0.5, 7)
        M[3, 4] = (exact.weights.left @ exact.weights.right.T)[3, 4]
    found = complete(ObservedEntries.of(X), 0.5, 7, tolerance=1e-12).value
    completed = (found.left * found.values) @ found.right.T
    assert_allclose(completed, exact.weights.left @ exact.weights.right.T, atol=1e-6)


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
        model = DropoutFactorization(15, dropout=rate, handle_missing="complete").fit(X)
        assert model.rank_ == rank
        assert model.objective_ == pytest.approx(value, rel=1e-5)
        assert model.threshold_ == pytest.approx(threshold, rel=1e-3)


def test_each_newton_step_lowers_the_loss():
    X, _ = incomplete(4, n=25, m=20, share=0.5, noise=0.5)
    losses = []
    complete(
        ObservedEntries.of(X),
        0.1,
        20,
        tolerance=1e-10,
        callbacks=[lambda progress: losses.append(progress.state.value)],
    )
    assert len(losses) > 5
    assert np.all(np.diff(losses) <= 1e-12 * losses[0])


def test_more_observed_entries_cannot_lower_the_minimum():
    X, M = incomplete(5, n=12, m=12, share=0.5)
    fewer = complete(ObservedEntries.of(X), 0.5, 12).value
    more = np.where(np.random.default_rng(0).random(X.shape) < 0.5, M, X)
    assert complete(ObservedEntries.of(more), 0.5, 12).value.value >= fewer.value - 1e-6


def test_order_transposition_and_scale_do_not_matter():
    X, _ = incomplete(6, n=14, m=9, share=0.7, noise=1.0)
    rng = np.random.default_rng(6)
    found = complete(ObservedEntries.of(X), 0.4, 9, tolerance=1e-10).value
    product = (found.left * found.values) @ found.right.T
    rows, columns = rng.permutation(14), rng.permutation(9)
    variants = [
        (X[rows][:, columns], lambda Z: Z[rows][:, columns], 1.0),
        (X.T, lambda Z: Z.T, 1.0),
        (X * 3e8, lambda Z: Z * 3e8, 9e16),
        (X * 1e-120, lambda Z: Z * 1e-120, 1e-240),
    ]
    for other, change, square in variants:
        got = complete(ObservedEntries.of(other), 0.4, 9, tolerance=1e-10).value
        assert got.value == pytest.approx(found.value * square, rel=1e-8)
        expected = change(product)
        assert_allclose(
            (got.left * got.values) @ got.right.T, expected, atol=1e-4 * np.abs(expected).max()
        )


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
    model = DropoutFactorization(5, dropout=0.3, handle_missing="complete").fit(X)
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
    # the factors that the solver found already had these rows: the sweep over U changed nothing
    found = complete(ObservedEntries.of(X), dropout / (1 - dropout), 12, tolerance=1e-12).value
    product = (found.left * found.values) @ found.right.T
    assert_allclose(model.left_ @ model.right_.T, product, atol=1e-3 * np.abs(product).max())


def test_codes_of_new_rows_solve_the_equations_of_the_observed_entries():
    X, _ = incomplete(9, n=18, m=12, share=0.6)
    model = DropoutFactorization(7, dropout=0.3, handle_missing="complete").fit(X)
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
    model = DropoutFactorization(10, dropout=0.1, handle_missing="complete").fit(X)
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
    model = DropoutFactorization(2, dropout=0.02, handle_missing="complete").fit(X)
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
    model = DropoutFactorization(8, dropout=0.3, handle_missing="complete").fit(X)
    assert model.certificate_.holds
    assert_allclose(model.right_[3], 0.0, atol=1e-12)
    assert "1 rows and 1 columns" in model.certificate_["observed_share"].advice


def test_every_claim_is_described_on_the_page_of_certificates():
    X, _ = incomplete(23, n=10, m=8, share=0.8)
    model = DropoutFactorization(8, dropout=0.3, handle_missing="complete").fit(X)
    page = Path(__file__).parents[2] / "docs" / "certificates" / "dropout.md"
    headings = {line[3:] for line in page.read_text().splitlines() if line.startswith("## ")}
    assert {claim.name for claim in model.certificate_} <= headings


def test_observed_entries_that_are_all_zero_give_zero_factors():
    X = np.zeros((4, 3))
    X[0, 1] = np.nan
    model = DropoutFactorization(2, handle_missing="complete").fit(X)
    assert model.rank_ == 0
    assert model.certificate_.holds
    assert_allclose(model.left_, 0.0)
    assert model.objective_ == 0.0


def test_cross_validation_holds_out_entries():
    X, M = incomplete(16, n=30, m=20, share=0.7, noise=0.3)
    model = DropoutFactorization(20, dropout="cv", cv=4, handle_missing="complete").fit(X)
    assert model.dropout_ == model.cv_.best
    assert model.cv_.errors.shape == (4, len(model.cv_.dropout))
    missing = np.isnan(X)
    error = np.mean((model.left_ @ model.right_.T - M)[missing] ** 2)
    # held-out entries estimate the error of the missing ones, and a poor rate does worse
    assert error < 2 * model.cv_.mean.min()
    strong = DropoutFactorization(20, dropout=0.97, handle_missing="complete").fit(X)
    assert error < np.mean((strong.left_ @ strong.right_.T - M)[missing] ** 2)
    complete_rows = DropoutFactorization(20, dropout="cv").fit(M)
    assert 0.0 < complete_rows.dropout_ < 1.0
    # the error of one fold, by definition
    entries = ObservedEntries.of(X)
    test = np.arange(0, entries.count, 7)
    train = np.setdiff1d(np.arange(entries.count), test)
    found = cross_validate_entries(entries, 20, [(train, test)], strengths=np.array([0.1]))
    kept = X.copy()
    kept[entries.rows[test], entries.columns[test]] = np.nan
    fold = complete(ObservedEntries.of(kept), 0.1, 20, tolerance=1e-4, limit=100).value
    product = (fold.left * fold.values) @ fold.right.T
    missed = (X - product)[entries.rows[test], entries.columns[test]]
    assert found.errors[0, 0] == pytest.approx(np.mean(missed**2), rel=1e-9)


def test_saved_models_are_read_back(tmp_path):
    X, _ = incomplete(17, n=12, m=9, share=0.7)
    model = DropoutFactorization(9, dropout="cv", cv=3, handle_missing="complete").fit(X)
    lucidae.save(model, tmp_path / "model.npz")
    again = lucidae.load(tmp_path / "model.npz")
    assert_allclose(again.transform(X), model.transform(X), rtol=0, atol=0)
    assert np.isnan(again.missing_values)
    assert again.certificate_.to_dict() == model.certificate_.to_dict()
    assert_allclose(again.cv_.errors, model.cv_.errors)
    lucidae.save(model.set_params(missing_values="absent"), tmp_path / "absent.npz")
    assert lucidae.load(tmp_path / "absent.npz").missing_values == "absent"


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


def test_an_iteration_that_is_cut_short_warns_and_is_not_certified():
    X, _ = incomplete(21, n=20, m=15, share=0.5, noise=1.0)
    model = DropoutFactorization(15, dropout=0.01, handle_missing="complete", max_iter=2)
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    assert model.certificate_.holds is False
    assert model.n_iter_ == 2


def test_codes_of_rows_are_solutions_of_ridge_regressions():
    rng = np.random.default_rng(22)
    V = rng.standard_normal((6, 2)) @ rng.standard_normal((2, 5))  # of deficient rank
    X, _ = incomplete(22, n=7, m=6, share=0.5)
    codes = observed_codes(ObservedEntries.of(X), V, 0.7)
    lengths = np.sum(V**2, axis=0)
    for row, code in zip(X, codes, strict=True):
        seen = ~np.isnan(row)
        gradient = V[seen].T @ (V[seen] @ code - row[seen]) + 0.7 * lengths * code
        assert_allclose(gradient, 0.0, atol=1e-10)
