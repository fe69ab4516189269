"""The computing parts of the benchmarks: errors and references; all of them can be imported."""

import importlib
import math
import pkgutil

import benchmarks
import numpy as np
import pytest
import scipy.sparse
from benchmarks import _tables, shapes
from benchmarks.shapes import Shape
from numpy.testing import assert_allclose

import extras


@pytest.mark.parametrize(
    "name", sorted(one.name for one in pkgutil.iter_modules(benchmarks.__path__))
)
def test_every_benchmark_can_be_imported(name):
    if "meg" in name or name in ("misfit", "orientations", "noise_rules"):
        extras.require("mne")
    importlib.import_module(f"benchmarks.{name}")


def test_the_error_of_components():
    reference = np.eye(3, 8)
    for angle in (1e-9, 1e-3, 0.4):  # one component leaves the subspace
        found = reference.copy()
        found[-1, 2], found[-1, 3] = math.cos(angle), math.sin(angle)
        # A chord is longer than the sine of its angle.
        assert_allclose(_tables.component_error(-2.0 * found, reference), 2 * math.sin(angle / 2))
    reference, turn = np.eye(2, 5), np.array([[0.6, 0.8], [-0.8, 0.6]])
    assert_allclose(_tables.component_error(turn @ reference, reference), math.sqrt(0.8))
    assert math.isnan(_tables.component_error(np.zeros((2, 5)), reference))
    assert _tables.component_error(reference[[0, 0]], reference) == 1.0


# The grid of shapes.


def sample(kind):
    shape = {
        "tall": Shape(300, 40, 5, "decaying"),
        "wide": Shape(40, 300, 5, "decaying"),
        "float32": Shape(300, 40, 5, "decaying", "float32"),
        "sparse tall": Shape(300, 60, 4, "decaying", density=0.2),
        "sparse wide": Shape(60, 300, 4, "decaying", density=0.2),
    }[kind]
    return shape, shapes.rows_of(shape)


@pytest.mark.parametrize("kind", ["tall", "wide", "float32", "sparse tall", "sparse wide"])
def test_references_are_the_singular_vectors_of_the_centred_rows(kind):
    shape, X = sample(kind)
    rows = (X.toarray() if scipy.sparse.issparse(X) else X).astype(float)
    exact = np.linalg.svd(rows - rows.mean(axis=0))[2][: shape.k]
    mean = shapes.mean_of(X)
    assert _tables.component_error(shapes.dense_reference(X, mean, shape.k), exact) < 1e-12
    noise = 1e-4 * np.random.default_rng(0).standard_normal(exact.shape)
    # Each round takes the residuals into the span, so that the error is at least squared.
    refined = shapes.refined_reference(X, mean, shape.k, [exact + noise], rounds=12)
    assert _tables.component_error(refined, exact) < 1e-11
    good = shapes.refined_reference(X, mean, shape.k, [exact + 1e-6 * noise, exact])
    assert _tables.component_error(good, exact) < 1e-12


# Missing entries.
