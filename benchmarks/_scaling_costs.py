"""Operations, bytes and messages of each route of `LinearAutoencoder.fit`, by formulas.

The arguments of the formulas are n rows, m features, k components, and numbers of `size` bytes.
``docs/benchmarks/scaling.md`` explains the formulas, and `benchmarks.scaling` fits the time of each
operation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

FAN_IN = 8
"""Number of moments that one task of a Dask reduction joins."""

BLOCK_BYTES = 2**25
"""Bytes of a block of rows that is read from a file."""

DOUBLE = 8
"""Bytes of a float64 number, in which moments and bases are stored."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Work on the critical path of a fit, and the memory that one process needs at once.

    Parameters
    ----------
    products : float
        Floating-point operations in products of matrices.
    eigen : float
        Floating-point operations of dense factorisations: eigendecompositions, singular value
        decompositions and QR.
    memory : float
        Bytes moved between memory and processor.
    disk : float
        Bytes read from files.
    network : float
        Bytes sent between processes.
    messages : float
        Number of tasks or messages, which one scheduler handles one after the other.
    space : float
        Bytes that the process with the largest need holds at once; takes no time.
    """

    products: float = 0.0
    eigen: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    network: float = 0.0
    messages: float = 0.0
    space: float = 0.0

    def terms(self) -> np.ndarray:
        """Return the quantities that take time, in the order of `TERMS`."""
        return np.array([getattr(self, name) for name in TERMS])


TERMS = tuple(field.name for field in fields(Cost) if field.name != "space")

WORDS = {
    "products": ("matrix products", "flop"),
    "eigen": ("factorisations", "flop"),
    "memory": ("memory", "byte"),
    "disk": ("reading files", "byte"),
    "network": ("network", "byte"),
    "messages": ("tasks", "task"),
}


def eigen_operations(size: int, k: int) -> float:
    """Return the operations of an eigendecomposition of a `size` × `size` matrix with k vectors.

    They are 4/3 size³ for the reduction to tridiagonal form, and 2 size² k for the vectors.
    """
    return 4 / 3 * size**3 + 2.0 * size**2 * k


def block_width(m: int, k: int) -> int:
    """Return the number of vectors in a block of Krylov iteration for k components."""
    return min(k + 1 + 6, 32, m)


def basis_sizes(k: int, b: int, passes: int) -> list[int]:
    """Return the number of vectors in the basis of a Krylov space in each pass, for k components.

    A pass adds b vectors. A restart keeps the basis below a largest size; after the first restart
    the basis is counted with this size.
    """
    largest = 2 * (k + 1 + max(2 * b, 24)) + 4 * b
    return [min(j * b, largest) for j in range(1, passes + 1)]


def orthogonalisation(m: int, k: int, b: int, passes: int) -> tuple[float, float]:
    """Return the operations of products and of factorisations that orthogonalise a Krylov basis.

    The vectors have m entries, and k components are sought. In each pass, the new block of b
    vectors is projected three times on the B vectors of the basis, which takes 12 m b B operations.
    Its QR decomposition takes 10 m b² operations, and the eigendecomposition of the restricted
    matrix takes 9 B³.
    """
    sizes = np.array(basis_sizes(k, b, passes), dtype=float)
    products, restricted = 12.0 * m * b * sizes.sum(), 9.0 * np.sum(sizes**3)
    return float(products), float(10.0 * m * b * b * passes + restricted)


def tree_depth(chunks: int) -> int:
    """Return the number of levels of a tree that joins `FAN_IN` parts at a time."""
    return math.ceil(math.log(chunks, FAN_IN) - 1e-9) if chunks > 1 else 0


def moment_cost(n: int, m: int, k: int, size: int = 8) -> Cost:
    """Return the cost of a fit by the second moment of rows in memory."""
    return Cost(
        products=float(n) * m * m,
        eigen=eigen_operations(m, k),
        memory=float(n) * m * size + DOUBLE * m * m,
        space=float(n) * m * size + 3.0 * DOUBLE * m * m,
    )


def gram_cost(n: int, m: int, k: int, size: int = 8) -> Cost:
    """Return the cost of a fit by the Gram matrix of rows in memory, with k components.

    The rows are read four times (mean, total variance, Gram matrix, components). A centred copy is
    written and read twice for the total variance, and written and read once for the Gram matrix.
    """
    return Cost(
        products=float(n) * n * m + 2.0 * n * m * k,
        eigen=eigen_operations(n, k),
        memory=float(n) * m * (4 * size + 5 * DOUBLE) + DOUBLE * n * n,
        space=float(n) * m * size + 3.0 * DOUBLE * n * n,
    )


def krylov_cost(n: int, m: int, k: int, passes: int, size: int = 8) -> Cost:
    """Return the cost of a fit by block Krylov iteration on rows in memory."""
    b = block_width(m, k)
    products, factorisations = orthogonalisation(m, k, b, passes)
    return Cost(
        products=passes * 4.0 * n * m * b + products,
        eigen=factorisations,
        memory=passes * 2.0 * n * m * size,
        space=float(n) * m * size + DOUBLE * float(m) * (basis_sizes(k, b, passes)[-1] + 2 * b),
    )


def streamed_moment_cost(n: int, m: int, k: int, size: int = 4) -> Cost:
    """Return the cost of a fit by the second moment of a file, read once, converted to float64."""
    blocks = max(1.0, n * m * size / BLOCK_BYTES)
    return Cost(
        products=float(n) * m * m,
        eigen=eigen_operations(m, k),
        memory=float(n) * m * (size + 2 * DOUBLE) + blocks * 3 * DOUBLE * m * m,
        disk=float(n) * m * size,
        space=2.0 * BLOCK_BYTES * (1 + DOUBLE / size) + 3.0 * DOUBLE * m * m,
    )


def tree_moment_cost(
    n: int, m: int, k: int, size: int = 4, *, chunks: int, workers: int, stored: bool = True
) -> Cost:
    """Return the cost of a fit by second moments of the chunks of a Dask array, merged in a tree.

    The leaves are divided among the workers. A worker sends the moments of its chunks to the tasks
    that join them, and on the last levels of the tree, where fewer tasks than workers are left, one
    worker receives all parts of a task. Without `stored`, the chunks are in the memory of the
    workers and nothing is read.
    """
    share, moment = 1.0 / workers, DOUBLE * float(m) * m
    sent = chunks * share * (1 - share) + FAN_IN * tree_depth(min(chunks, workers))
    entries = float(n) * m
    return Cost(
        products=entries * m * share,
        eigen=eigen_operations(m, k),
        memory=share * (entries * (size + 2 * DOUBLE) + 3 * moment * chunks),
        disk=entries * size * share if stored else 0.0,
        network=moment * sent,
        messages=tasks_of_tree(chunks),
        space=entries / chunks * (size + DOUBLE) + (FAN_IN + 2.0) * moment,
    )


def tasks_of_tree(chunks: int) -> float:
    """Return the number of tasks: one for each chunk, and those that join `FAN_IN` parts each."""
    count, tasks = chunks, float(chunks)
    while count > 1:
        count = math.ceil(count / FAN_IN)
        tasks += count
    return tasks


def pass_cost(
    n: int,
    m: int,
    k: int,
    passes: int,
    size: int = 4,
    *,
    row_chunks: int = 1,
    column_chunks: int = 1,
    workers: int = 1,
) -> Cost:
    """Return the cost of a fit by block Krylov iteration that reads files in each pass.

    With several workers, each pass sends the block of b vectors to all of them, each of which can
    pass it on, so that it is sent 1 + ⌈log₂ workers⌉ times one after the other. Then it merges the
    products of the chunks, b × (columns of the chunk) numbers each, in a tree. If the columns are
    divided too, the codes of each chunk, b numbers for each of its rows, are summed over its
    row of chunks first. The basis is in one process.
    """
    b, share, entries = block_width(m, k), 1.0 / workers, float(n) * m
    block = DOUBLE * float(m) * b
    products, factorisations = orthogonalisation(m, k, b, passes)
    tree = float(row_chunks) * m * b
    codes = float(n) * column_chunks * b if column_chunks > 1 else 0.0
    sent = DOUBLE * (tree + codes) * share * (1 - share)
    copies = 1 + math.ceil(math.log2(workers)) + FAN_IN * tree_depth(min(row_chunks, workers))
    sent += block * copies
    joins = tasks_of_tree(row_chunks) - row_chunks
    chunks = row_chunks * column_chunks
    tasks = (
        chunks + joins if column_chunks == 1 else 3 * chunks + row_chunks + column_chunks * joins
    )
    return Cost(
        products=passes * 4.0 * entries * b * share + products,
        eigen=factorisations,
        memory=passes * share * entries * (size + 4 * DOUBLE),
        disk=passes * share * entries * size,
        network=0.0 if workers == 1 else passes * sent,
        messages=0.0 if workers == 1 else passes * tasks,
        space=DOUBLE * float(m) * (basis_sizes(k, b, passes)[-1] + 2 * b)
        + 2.0 * BLOCK_BYTES * (1 + DOUBLE / size),
    )
