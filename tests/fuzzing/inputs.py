"""Hostile input of every estimator and function: shapes, dtypes, containers and extreme numbers.

Input is given as pieces of Python source, so that every finding is a program to repeat it. Pieces
refer to ``A``, a matrix of normal numbers with ``n`` rows and ``d`` columns, and to the generator
``R``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuzzing.oracle import Case, Finding, judged, runnable

SHAPES = ((30, 5), (30, 5), (30, 5), (12, 3), (2, 2), (3, 7), (1, 4), (8, 1), (40, 2), (5, 5))
"""Shapes of A; the first ones are the usual case."""

EQUAL = (
    "A",
    "np.asfortranarray(A)",
    "A.tolist()",
    "tuple(map(tuple, A.tolist()))",
    "np.repeat(A, 2, axis=0)[::2]",
    "np.repeat(A, 2, axis=1)[:, ::2]",
    "A[::-1][::-1]",
    "(lambda B: (B.setflags(write=False), B)[1])(A.copy())",
    "A.astype('>f8')",
    "np.frombuffer(b'x' + A.tobytes(), dtype='u1')[1:].view(float).reshape(n, d)",
    "A.astype(object)",
    "pd.DataFrame(A)",
    "pd.DataFrame(A, columns=[f'c{j}' for j in range(d)])",
    "pd.DataFrame(A, index=range(7, 7 + n))",
    "pd.DataFrame({j: pd.array(A[:, j], dtype='Float64') for j in range(d)})",
    "pl.DataFrame(A)",
    "np.ma.array(A, mask=False)",
)
"""Other forms of A itself, which every function of rows accepts."""

SPARSE = (
    "sp.csr_matrix(A * (A > 0))",
    "sp.csc_array(A * (A > 0))",
    "sp.coo_matrix(A * (A > 1))",
    "sp.csr_array(A)",
    "sp.lil_matrix(A * (A > 0))",
    "sp.dia_matrix(A)",
    "sp.bsr_matrix(A)",
    "sp.csr_matrix((n, d))",
    "sp.csr_matrix((np.ones(2 * n), (np.tile(np.arange(n), 2), np.zeros(2 * n, int))), (n, d))",
    "sp.coo_matrix((np.ones(2 * n), (np.tile(np.arange(n), 2), np.zeros(2 * n, int))), (n, d))",
    "sp.csr_matrix(A.astype('f4'))",
    "sp.csr_matrix(A > 0)",
    "sp.csr_matrix(A * 1e200)",
)

NUMBERS = (
    "A.astype('f4')",
    "A.astype('f2')",
    "A.astype(np.longdouble)",
    "np.round(3 * A)",
    "(3 * A).astype(int)",
    "(A * 1e18).astype('i8')",
    "(A * 1e9).astype('i4')",
    "(A * 40).astype('i1')",
    "(A * 40).astype('i8').astype('u1')",
    "A > 0",
    "A * 1e80",
    "A * 1e-80",
    "A * 1e150",
    "A * 1e-150",
    "A * 1e160",
    "A * 1e-160",
    "A * 1e300",
    "A * 1e-300",
    "A * 1e307",
    "A * 5e-324",
    "(A * 1e20).astype('f4')",
    "(A * 1e-20).astype('f4')",
    "(A * 1e37).astype('f4')",
    "(A * 1e-38).astype('f4')",
    "A + 1e6",
    "A + 1e12",
    "A + 1e15",
    "A + 1e17",
    "1e12 * (A + 1e9)",
    "(A + 1e5).astype('f4')",
    "(A + 1e8).astype('f4')",
    "A * np.logspace(0, -8, d)",
    "A * np.logspace(0, -20, d)",
    "A * np.logspace(-150, 150, d)",
    "A * np.logspace(-60, 60, d)",
    "A * np.logspace(0, 14, n)[:, None]",
    "np.vstack([A[1:], np.full(d, 1e14)])",
    "np.vstack([A[1:], np.eye(d)[0] * 1e14 + np.eye(d)[-1] * 1e14])",
    "np.vstack([A[1:], np.full(d, 1e150)])",
    "np.zeros((n, d))",
    "np.ones((n, d))",
    "np.full((n, d), 1e300)",
    "np.full((n, d), 0.1)",
    "np.repeat(A[:1], n, axis=0)",
    "np.broadcast_to(A[0], (n, d))",
    "A[:, [0] * d]",
    "A[:, [0] * d] + 1e-9 * A",
    "A[:, [0] * d] + 1e-13 * A",
    "A * (np.arange(d) == 0)",
    "A * (np.arange(n) == 0)[:, None]",
    "np.tile(A[:2], (n, 1))[:n]",
    "np.eye(n, d)",
    "np.outer(A[:, 0], A[0])",
    "np.where(A > 2, 1e308, A)",
    "np.where(A > 1, -0.0, 0.0)",
    "A.astype(str)",
    "(1e9 * A).astype('i8').astype('M8[s]')",
    "(1e9 * A).astype('i8').astype('m8[s]')",
)
"""Numbers at the limits of what can be computed, and what scikit-learn takes for numbers."""

NO_ROWS = (
    "np.where(np.arange(d) == d // 2, nan, A)",
    "np.where(A == A.max(), inf, A)",
    "np.where(A == A.min(), -inf, A)",
    "np.full((n, d), nan)",
    "np.where(A == A.max(), np.float32(inf), A).astype('f4')",
    "A + 1j * A",
    "A.astype(complex)",
    "(A + 1j).tolist()",
    "np.array([['a'] * d] * n)",
    "np.array([['a'] * d] * n, dtype=object)",
    "np.where(A == A.max(), None, A)",
    "[[None] * d] * n",
    "A[:0]",
    "A[:, :0]",
    "np.empty((0, 0))",
    "[]",
    "[[]]",
    "A[:, :, None]",
    "A[None]",
    "A[:, 0]",
    "A[0, 0]",
    "3.5",
    "None",
    "'rows.csv'",
    "b'rows'",
    "{}",
    "set()",
    "object()",
    "iter(A.tolist())",
    "[[1.0], [1.0, 2.0]]",
    "np.ma.array(A, mask=A == A.max())",
    "np.ma.array(A, mask=True)",
    "pd.DataFrame({'word': ['a'] * n})",
    "pd.DataFrame({j: pd.array(A[:, j], dtype='Float64') for j in range(d)}).mask(A == A.max())",
    "pd.DataFrame(A).mask(A == A.max())",
    "pd.DataFrame({'when': pd.date_range('2020', periods=n)})",
    "np.zeros(n, dtype=[('a', float), ('b', int)])",
    "sp.csr_matrix(np.where(A == A.max(), nan, A))",
    "sp.csr_matrix(A + 1j * A)",
    "sp.csr_matrix((0, d))",
    "sp.coo_array(A[:, 0])",
)
"""What is not a matrix of finite real numbers: refused by every function of rows."""

TARGETS = (
    "A[:, 0] + R.normal(size=n)",
    "A @ R.normal(size=(d, 3))",
    "A @ R.normal(size=(d, 3)) + R.normal(size=(n, 3))",
    "(A @ R.normal(size=(d, 2))).tolist()",
    "pd.DataFrame(A @ R.normal(size=(d, 2)))",
    "pd.Series(A[:, 0])",
    "(A @ R.normal(size=(d, 2))).astype('f4')",
)
"""Responses that are accepted wherever responses are."""

ODD_TARGETS = (
    "A[:, :1]",
    "np.zeros(n)",
    "np.zeros((n, 2))",
    "np.ones(n)",
    "np.full((n, 2), 1e300)",
    "A[:, 0] * 1e160",
    "A[:, 0] * 1e-160",
    "A[:, 0] * 1e80",
    "A * np.logspace(-100, 100, d)",
    "A[:, 0] > 0",
    "np.arange(n)",
    "np.arange(n) // 2 * 2**60",
    "A[:, 0] + 1e15",
    "A",
    "np.tile(A, 5)",
    "np.where(np.arange(n) == 0, 1e200, A[:, 0])",
    "A[:, 0].astype(object)",
    "A[:, 0].astype('f2')",
    "A[:, [0, 0]]",
)

NO_TARGETS = (
    "np.where(np.arange(n) == 0, nan, A[:, 0])",
    "np.where(np.arange(n) == 0, inf, A[:, 0])",
    "A[:, 0] + 1j",
    "np.array(['a'] * n)",
    "[None] * n",
    "[1.0, None] * n",
    "None",
    "A[:, 0][: n - 1]",
    "np.append(A[:, 0], 1.0)",
    "A[:, :0]",
    "A[:, :, None]",
    "3.0",
    "'target'",
    "[]",
    "(1e9 * A[:, 0]).astype('i8').astype('M8[s]')",
    "np.ma.array(A[:, 0], mask=A[:, 0] == A[:, 0].max())",
    "pd.Series(['a'] * n)",
    "pd.Series(A[:, 0]).mask(A[:, 0] == A[:, 0].max())",
)

WEIGHTS = (
    "None",
    "None",
    "None",
    "np.ones(n)",
    "np.arange(1, n + 1)",
    "[2.0] * n",
    "R.random(n) + 1",
)

ODD_WEIGHTS = (
    "(np.arange(n) >= n // 3) * 1.0",
    "(np.arange(n) == 0) * 5.0",
    "(np.arange(n) < 2) * 5",
    "np.full(n, 1e300)",
    "np.full(n, 1e308)",
    "np.full(n, 1e-300)",
    "np.full(n, 1e150)",
    "np.where(np.arange(n) == 0, 1e200, 1.0)",
    "np.where(np.arange(n) == 0, 1e16, 1.0)",
    "np.logspace(-20, 20, n)",
    "A[:, 0] > 0",
    "np.full(n, 0.01)",
    "2.0",
    "np.arange(n) % 2",
    "np.ones(n, dtype='f4') * 3e38",
    "pd.Series(np.ones(n))",
)

NO_WEIGHTS = (
    "np.zeros(n)",
    "-np.ones(n)",
    "np.where(np.arange(n) == 0, nan, 1.0)",
    "np.where(np.arange(n) == 0, inf, 1.0)",
    "np.ones(n + 1)",
    "np.ones((n, 2))",
    "np.ones((n, 1))",
    "np.array(['a'] * n)",
    "'balanced'",
    "[None] * n",
    "np.ones(n) + 1j",
    "np.ones(n).astype(complex)",
    "np.arange(n).astype('M8[s]')",
    "np.arange(1, n + 1).astype('m8[s]')",
    "{}",
    "object()",
    "[[1.0], [2.0, 3.0]]",
    "np.full(max(n, 2), 1e308)",
)


AUTOENCODERS = (
    "LinearAutoencoder()",
    "LinearAutoencoder(1)",
    "LinearAutoencoder(2)",
    "LinearAutoencoder(0.9)",
    "LinearAutoencoder(2, whiten=True)",
    "LinearAutoencoder(2, method='uniform_l2')",
    "LinearAutoencoder(2, method='nonuniform_l2')",
    "LinearAutoencoder(2, method='expected_nested_dropout')",
    "LinearAutoencoder(1, method='linear_vae')",
    "LinearAutoencoder(2, method='plain')",
    "LinearAutoencoder(1, solver='gradient', max_iter=40, random_state=0)",
    "LinearAutoencoder(1, solver='stochastic', max_iter=40, random_state=0)",
    "LinearAutoencoder(1, method='linear_vae', solver='gradient', max_iter=40, random_state=0)",
    "LinearAutoencoder(1, method='gha', solver='gradient', max_iter=40, random_state=0)",
    "DropoutAutoencoder(2)",
    "DropoutAutoencoder()",
    "DropoutAutoencoder(2, dropout=0.0)",
    "DropoutAutoencoder(2, solver='sgd', max_iter=100, random_state=0)",
    "DropoutFactorization(2)",
    "DropoutFactorization()",
)
REGRESSORS = (
    "DropoutRegressor()",
    "DropoutRegressor(2)",
    "DropoutRegressor(2, dropout=0.0)",
    "DropoutRegressor(3, dropout=0.9, fit_intercept=False)",
    "DropoutRegressor(2, dropout='cv', cv=3)",
    "DropoutRegressor(2, solver='sgd', max_iter=100, random_state=0)",
    "SparseVAE(noise_variance=0.1, max_iter=50)",
    "SparseVAE(noise_variance='learn', max_iter=50)",
    "SparseVAE(noise_variance='cv', cv=3, max_iter=50)",
    "SparseVAE(max_iter=50)",
    "SparseVAE(posterior='diagonal', noise_variance=0.1, max_iter=50)",
    "SparseVAE(posterior='point', noise_variance=0.1, max_iter=50)",
    "SparseVAE(noise_variance=0.1, solver='mm', max_iter=50)",
    "SparseVAE(noise_variance=0.1, fit_intercept=False, max_iter=50)",
)
PLAIN = ((30, 5),)


def cases(rng: Any) -> Iterator[Case]:
    """Yield one case of each kind."""
    yield fit_case(rng, refit=False)
    yield fit_case(rng, refit=True)
    yield apply_case(rng)
    yield certify_case(rng)
    yield function_case(rng)


def check(case: Case) -> list[Finding]:
    """Return what the oracle forbids."""
    return judged(case)


def pick(rng: Any, *tables: tuple[str, ...]) -> str:
    """Return a random piece whose packages are installed, of a random table."""
    while True:
        table = tables[int(rng.integers(len(tables)))]
        piece = table[int(rng.integers(len(table)))]
        if runnable(piece):
            return piece


def matrix(rng: Any, shapes: tuple[tuple[int, int], ...] = SHAPES) -> tuple[str, str]:
    """Return the two statements that make R and A, of a random shape."""
    n, d = shapes[int(rng.integers(len(shapes)))]
    seed = int(rng.integers(1000))
    return f"R = np.random.default_rng({seed})", f"n, d = {n}, {d}; A = R.normal(size=(n, d))"


def class_of(constructor: str) -> str:
    """Return the name of the class that a piece of source calls."""
    return constructor.partition("(")[0]


def hostile_rows(rng: Any, sparse: bool) -> tuple[str, str]:
    """Return a piece of source for rows, and what is expected of a call with it."""
    kind = rng.integers(10)
    if kind < 4:
        return pick(rng, NUMBERS), "any"
    if kind < 6:
        return pick(rng, NO_ROWS), "refusal"
    if kind < 8:
        return pick(rng, EQUAL), "success"
    return pick(rng, SPARSE), "any" if sparse else "refusal"


def data_of(rng: Any, constructor: str) -> tuple[list[str], str, str]:
    """Return statements that make X, y and w with one of them hostile, the call and its fate."""
    supervised = constructor in REGRESSORS
    weighted = "Factorization" not in constructor
    attacked = str(rng.choice(["X", "X", "y", "w"] if supervised else ["X", "X", "w"]))
    rows, fate = hostile_rows(rng, True) if attacked == "X" else ("A", "success")
    lines = [f"X = {rows}"]
    arguments = "X"
    if supervised:
        responses = pick(rng, TARGETS)
        if attacked == "y":
            bad = rng.random() < 0.5
            responses, fate = pick(rng, NO_TARGETS if bad else ODD_TARGETS), "any"
            fate = "refusal" if bad else "any"
        lines.append(f"y = {responses}")
        arguments += ", y"
    if weighted and (attacked == "w" or rng.random() < 0.2):
        weights = pick(rng, WEIGHTS)
        if attacked == "w":
            bad = rng.random() < 0.5
            weights, fate = pick(rng, NO_WEIGHTS if bad else ODD_WEIGHTS), "any"
            fate = "refusal" if bad else "any"
        lines.append(f"w = {weights}")
        arguments += ", sample_weight=w"
    if "SparseVAE" in constructor and attacked != "w" and is_complex(lines):
        fate = "any"
    return lines, arguments, fate


def is_complex(lines: list[str]) -> bool:
    """Tell whether statements make complex data, which the sparse family accepts."""
    return any("1j" in line or "complex" in line for line in lines)


def softened(fate: str, plain: bool) -> str:
    """Return the expectation for small or odd shapes, which may be refused for their shape."""
    return fate if plain or fate == "refusal" else "any"


def fit_case(rng: Any, *, refit: bool) -> Case:
    """Fit an estimator to hostile data, freshly or after a good fit."""
    table = AUTOENCODERS if rng.random() < 0.5 else REGRESSORS
    constructor = pick(rng, table)
    plain = refit or rng.random() < 0.6
    head = matrix(rng, PLAIN) if plain else matrix(rng)
    lines, arguments, fate = data_of(rng, constructor)
    streams = not any(word in constructor for word in ("SparseVAE", "Factorization", "cv", "sgd"))
    method = "partial_fit" if refit and streams and rng.random() < 0.5 else "fit"
    setup = [*head, f"model = {constructor}"]
    if refit:
        known = "A, A[:, :2] + A[:, 1:3]" if table is REGRESSORS else "A"
        setup.append(f"model.fit({known})")
    else:
        method = "partial_fit" if streams and rng.random() < 0.2 else "fit"
    follow = "predict" if table is REGRESSORS else "transform"
    if method == "partial_fit" and refit:
        fate = "any" if fate == "success" else fate
    after = (f"result = model.{follow}(X)", "result = certify(model)") if not refit else ()
    return Case(
        f"{class_of(constructor)}.{method}",
        (*setup, *lines),
        f"result = model.{method}({arguments})",
        softened(fate, plain),
        after=after,
    )


APPLIED = {
    "LinearAutoencoder": ("transform", "score_samples", "score", "inverse_transform"),
    "DropoutAutoencoder": ("transform", "inverse_transform", "score"),
    "DropoutFactorization": ("transform", "inverse_transform"),
    "DropoutRegressor": ("predict",),
    "SparseVAE": ("predict",),
}
DENSE_ONLY = (
    ("LinearAutoencoder", "inverse_transform"),
    ("DropoutAutoencoder", "inverse_transform"),
    ("DropoutFactorization", "inverse_transform"),
)


def apply_case(rng: Any) -> Case:
    """Apply a fitted estimator to hostile rows."""
    supervised = rng.random() < 0.4
    constructor = pick(rng, REGRESSORS if supervised else AUTOENCODERS)
    name = class_of(constructor)
    methods = APPLIED[name]
    method = methods[int(rng.integers(len(methods)))]
    sparse = (name, method) not in DENSE_ONLY
    rows, fate = hostile_rows(rng, sparse)
    known = "A, A[:, :2] + A[:, 1:3]" if supervised else "A"
    setup = [*matrix(rng, PLAIN), f"model = {constructor}", f"model.fit({known})"]
    if method == "inverse_transform":
        setup.append("A = model.transform(A); d = A.shape[1]")
    fate = "any" if fate == "success" and method == "score" else fate
    return Case(f"{name}.{method}", (*setup, f"X = {rows}"), f"result = model.{method}(X)", fate)


def certify_case(rng: Any) -> Case:
    """Certify a fitted estimator, or weights from elsewhere, on hostile data."""
    kind = rng.integers(4)
    if kind < 2:
        constructor = pick(rng, AUTOENCODERS if kind else REGRESSORS)
        lines, arguments, fate = data_of(rng, constructor)
        known = "A, A[:, :3]" if constructor in REGRESSORS else "A"
        setup = [*matrix(rng, PLAIN), f"model = {constructor}", f"model.fit({known})"]
        lines = [line.replace("(d, 2)", "(d, 3)") for line in lines]
        fate = "any" if fate == "success" or "X = None" in lines else fate
        call = f"result = certify(model, {arguments})"
        return Case(f"certify {class_of(constructor)}", (*setup, *lines), call, fate)
    rows, fate = hostile_rows(rng, sparse=True)
    head = matrix(rng, PLAIN)
    if kind == 2:
        method = str(rng.choice(["rag", "plain", "uniform_l2", "linear_vae", "gha"]))
        settings = ", l2=0.1" if method == "uniform_l2" else ""
        settings += ", noise_variance=1.0" if method == "linear_vae" else ""
        setup = (*head, "W = np.eye(2, d)", f"X = {rows}")
        call = f"result = certify((W, W.T), X, family='linear', method='{method}'{settings})"
        return Case("certify weights, linear", setup, call, "any" if fate == "success" else fate)
    setup = (*head, "U = R.normal(size=(2, 3)); V = R.normal(size=(d, 3))", f"X = {rows}")
    call = "result = certify((U, V), X, R.normal(size=(n, 2)), family='dropout', dropout=0.5)"
    return Case("certify weights, dropout", setup, call, "any" if fate == "success" else fate)


FUNCTIONS = (
    ("SecondMoment", "result = SecondMoment.of(X).covariance"),
    ("SecondMoment", "result = SecondMoment.of(X).spectrum()"),
    ("SecondMoment", "result = SecondMoment.of(A).update(X).covariance"),
    ("SecondMoment", "result = SecondMoment.of(A).merge(SecondMoment.of(X)).covariance"),
    ("metrics", "result = metrics.axis_alignment_distance(X, X)"),
    ("metrics", "result = metrics.axis_alignment_distance(X, np.eye(n, d))"),
    ("metrics", "result = metrics.subspace_distance(X, X)"),
    ("metrics", "result = metrics.subspace_distance(np.eye(n, d), X)"),
    ("metrics", "result = metrics.imbalance(A.T, X)"),
    ("metrics", "result = metrics.non_diagonality(X)"),
    ("metrics", "result = metrics.importance_scores(X, A)"),
    ("metrics", "result = metrics.equalization_variance(X, X)"),
    ("metrics", "result = metrics.path_norm(X, A)"),
    ("metrics", "result = metrics.support_recovery(X, A)"),
    ("metrics", "result = metrics.exact_recovery(A, X)"),
    ("metrics", "result = metrics.exact_recovery(X, A, criterion='rows')"),
    ("metrics", "result = metrics.active_dimensions(A, X)"),
    ("metrics", "result = metrics.active_dimensions(X, np.ones((n, d)))"),
    ("equalize", "result = equalize(X)"),
    ("equalize", "result = equalize(X, method='hadamard')"),
    ("equalize", "result = equalize_pair(X, A)"),
    (
        "dropout.solve",
        (
            "result = lucidae.dropout.solve("
            "lucidae.dropout.LinearProblem.from_matrix(X), 1.0, 2).weights"
        ),
    ),
    ("dropout.solve_tied", "result = lucidae.dropout.solve_tied(X, 1.0, 2).weights"),
    (
        "sparsity.solve_batch",
        (
            "result = lucidae.sparsity.solve_batch("
            "X, A[None, :, :1], noise_variance=0.1, max_iter=30).value"
        ),
    ),
    (
        "sparsity.solve_batch",
        ("result = lucidae.sparsity.solve_batch(A, X, noise_variance=0.1, max_iter=30).value"),
    ),
    (
        "sparsity.group_lasso",
        "result = lucidae.sparsity.group_lasso(X, A[:, :2], noise_variance=0.1, max_iter=50)",
    ),
    ("certify coefficients", "result = certify(np.zeros((2, d)), X, A[:, :2])"),
    ("certify coefficients", "result = certify(X, A, A[:, :2])"),
    ("linear.best_penalties", "result = lucidae.linear.best_penalties(X, 2)"),
)
"""Functions of one hostile array ``X`` beside a good one."""


def function_case(rng: Any) -> Case:
    """Call a function with one hostile array."""
    name, call = FUNCTIONS[int(rng.integers(len(FUNCTIONS)))]
    rows, fate = hostile_rows(rng, sparse=True)
    of_rows = name == "SecondMoment" or (name == "certify coefficients" and "zeros" in call)
    fate = fate if of_rows and fate != "success" else "any"
    fate = "any" if name == "certify coefficients" and is_complex([rows]) else fate
    head = matrix(rng, PLAIN) if rng.random() < 0.7 else matrix(rng)
    return Case(name, (*head, f"X = {rows}"), call, softened(fate, False))
