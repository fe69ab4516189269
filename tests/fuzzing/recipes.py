"""Hostile input as pieces of Python source, so that every finding is a program to repeat it.

Pieces refer to ``A``, a matrix of normal numbers with ``n`` rows and ``d`` columns, and to the
generator ``R``.
"""

from __future__ import annotations

from typing import Any

from fuzzing.oracle import runnable

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
    "pd.DataFrame(A).assign(word='a')",
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
