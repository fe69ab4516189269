"""`lucidae.scanpy.pca` writes what `scanpy.pp.pca` writes, with a certificate.

`tests/data/scanpy.npz` has counts of 60 cells and 24 genes, and the components of log1p(counts)
and of the counts that scanpy 1.11 computed by ARPACK in double precision.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

import lucidae.scanpy
from extras import require

anndata = require("anndata")
STORED = dict(np.load(Path(__file__).parents[1] / "data" / "scanpy.npz"))
COUNTS = STORED["counts"].astype(float)


def cells(matrix=None):
    adata = anndata.AnnData(np.log1p(COUNTS) if matrix is None else matrix)
    adata.var["highly_variable"] = np.arange(24) % 3 != 0
    adata.layers["counts"] = COUNTS
    return adata


CALLS = {
    "default": ({}, {"mask_var": "highly_variable", "use_highly_variable": True}),
    "all": ({"mask_var": None}, {"mask_var": None, "use_highly_variable": False}),
    "layer": (
        {"layer": "counts"},
        {"mask_var": "highly_variable", "use_highly_variable": True, "layer": "counts"},
    ),
}


def on_disk(matrix, folder):
    cells(matrix).write_h5ad(folder / "cells.h5ad")
    return anndata.read_h5ad(folder / "cells.h5ad", backed="r")


def of_dask(matrix, folder):
    return cells(require("dask.array").from_array(matrix, chunks=(25, 10)))


def of_sparse_dask(matrix, folder):
    chunks = require("dask.array").from_array(matrix, chunks=(25, 24))
    return cells(chunks.map_blocks(scipy.sparse.csr_matrix))


FORMS = {
    "dense": lambda matrix, folder: cells(matrix),
    "csr": lambda matrix, folder: cells(scipy.sparse.csr_matrix(matrix)),
    "csc": lambda matrix, folder: cells(scipy.sparse.csc_array(matrix)),
    "backed": on_disk,
    "backed csr": lambda matrix, folder: on_disk(scipy.sparse.csr_matrix(matrix), folder),
    "backed csc": lambda matrix, folder: on_disk(scipy.sparse.csc_matrix(matrix), folder),
    "dask": of_dask,
    "sparse dask": of_sparse_dask,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", CALLS)
def test_results_and_fields_are_those_of_scanpy(tmp_path, form, call):
    options, params = CALLS[call]
    adata = FORMS[form](np.log1p(COUNTS), tmp_path)
    assert lucidae.scanpy.pca(adata, n_comps=5, dtype="float64", **options) is None
    expected = {what: STORED[f"{call}_{what}"] for what in ("codes", "components")}
    signs = np.sign(np.sum(adata.varm["PCs"] * expected["components"], axis=0))
    assert_allclose(adata.obsm["X_pca"] * signs, expected["codes"], atol=1e-10)
    assert_allclose(adata.varm["PCs"] * signs, expected["components"], atol=1e-10)
    found = adata.uns["pca"]
    assert_allclose(found["variance"], STORED[f"{call}_variance"])
    assert_allclose(found["variance_ratio"], STORED[f"{call}_ratio"])
    assert found["params"] == {"zero_center": True} | params
    assert found["certificate"]["holds"] == "true"
    assert "alignment" in found["certificate"]["summary"]
    assert (set(adata.obsm), set(adata.varm)) == ({"X_pca"}, {"PCs"})


def test_the_number_of_threads_changes_nothing():
    found = []
    rng = np.random.default_rng(0)
    matrix = rng.poisson(rng.gamma(0.5, 2.0, 400), (900, 400)).astype(np.float32)
    for threads in (1, 2):
        adata = anndata.AnnData(np.log1p(matrix))
        with threadpool_limits(threads):
            lucidae.scanpy.pca(adata, n_comps=10, dtype="float64")
        found.append(adata)
    assert_allclose(found[0].obsm["X_pca"], found[1].obsm["X_pca"], rtol=0, atol=1e-10)
    assert_allclose(found[0].varm["PCs"], found[1].varm["PCs"], rtol=0, atol=1e-10)


def test_keys_types_copies_and_numbers_of_components(tmp_path):
    adata = cells()
    mask = np.arange(24) < 10
    changed = lucidae.scanpy.pca(adata, 3, mask_var=mask, key_added="mine", copy=True)
    assert set(changed.obsm) == set(changed.varm) == set(changed.uns) == {"mine"}
    assert (set(adata.obsm), set(adata.uns)) == (set(), set())
    assert changed.obsm["mine"].dtype == np.float32
    assert_array_equal(np.any(changed.varm["mine"] != 0, axis=1), mask)
    assert_array_equal(changed.uns["mine"]["params"]["mask_var"], mask)
    changed.write_h5ad(tmp_path / "cells.h5ad")
    again = anndata.read_h5ad(tmp_path / "cells.h5ad")
    assert again.uns["mine"]["certificate"] == changed.uns["mine"]["certificate"]
    lucidae.scanpy.pca(adata)
    assert adata.obsm["X_pca"].shape == (60, 15)  # one less than the variables
    lucidae.scanpy.pca(adata, 0.5)
    assert np.sum(adata.uns["pca"]["variance_ratio"]) >= 0.5
    lucidae.scanpy.pca(adata, "parallel_analysis")
    assert 1 <= adata.obsm["X_pca"].shape[1] < 16
    del adata.var["highly_variable"]
    lucidae.scanpy.pca(adata, 3)
    assert adata.uns["pca"]["params"]["mask_var"] is None


REFUSED = {
    "expected an anndata.AnnData": lambda: lucidae.scanpy.pca(COUNTS),
    "zero_center=False was given": lambda: lucidae.scanpy.pca(cells(), zero_center=False),
    "only the columns highly_variable": lambda: lucidae.scanpy.pca(cells(), mask_var="chosen"),
    "mask_var has shape": lambda: lucidae.scanpy.pca(cells(), mask_var=[True, False]),
    "only the layers counts": lambda: lucidae.scanpy.pca(cells(), layer="raw"),
    "adata has no X": lambda: lucidae.scanpy.pca(anndata.AnnData(shape=(5, 3))),
    "dtype='int32' was given": lambda: lucidae.scanpy.pca(cells(), dtype="int32"),
    "n_components=99": lambda: lucidae.scanpy.pca(cells(), 99),
}


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_arguments_are_refused(words):
    with pytest.raises(ValueError, match=words):
        REFUSED[words]()


def test_neither_anndata_nor_scanpy_is_imported():
    code = "import lucidae.scanpy, sys; print({'anndata', 'scanpy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "set()\n", found.stderr
