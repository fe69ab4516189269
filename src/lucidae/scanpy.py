"""Principal components of single-cell data, as `scanpy.pp.pca` stores them (extra ``anndata``).

scanpy itself is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lucidae.linear import LinearAutoencoder
from lucidae.rows import blocks
from lucidae.validation import DataKind, check_flag, is_dask, kind_of

__all__ = ["pca"]

N_COMPS = 50
"""Number of components by default, as in scanpy."""


def pca(
    adata: Any,
    n_comps: Any = None,
    *,
    layer: str | None = None,
    zero_center: bool = True,
    mask_var: Any = "highly_variable",
    dtype: Any = "float32",
    key_added: str | None = None,
    copy: bool = False,
    verbose: bool | str = "auto",
) -> Any:
    """Compute principal components of an AnnData and store them as `scanpy.pp.pca` does.

    The components are exact, and computed in double precision whatever the type of the data, so
    that they do not depend on the number of threads or on a seed. Matrices on disk
    (``backed="r"``) and Dask arrays are read in blocks of rows; sparse ones stay sparse.

    Parameters
    ----------
    adata : anndata.AnnData
        The cells (observations) and their genes (variables).
    n_comps : int, float in (0, 1), str or None, default=None
        Number of components, a share of the variance, or a criterion such as
        ``"parallel_analysis"``: the argument `n_components` of `LinearAutoencoder`. Criteria
        assume equal noise in all variables, so scale these first. None means 50, or the smaller
        dimension minus 1 if this is at most 50, as in scanpy.
    layer : str, optional
        The layer to use instead of `X`.
    zero_center : bool, default=True
        Accepted for scanpy's calls; False is refused, because components without centring are not
        those of the covariance.
    mask_var : str, array of bool of shape (n_vars,) or None, default="highly_variable"
        The variables to use: a column of ``adata.var``, or a mask. All variables are used if it is
        None, or if there is no column ``"highly_variable"``.
    dtype : dtype, default="float32"
        Type of the codes that are stored.
    key_added : str, optional
        Key of the results, instead of ``"X_pca"``, ``"PCs"`` and ``"pca"``.
    copy : bool, default=False
        Whether a copy of `adata` is changed and returned.
    verbose : bool or "auto", default="auto"
        Whether the progress of long passes over the data is shown.

    Returns
    -------
    anndata.AnnData or None
        The copy, if `copy`. These fields are set:

        ``obsm["X_pca"]`` (n_obs, k): the codes.
        ``varm["PCs"]`` (n_vars, k): the components; zero for variables that are not used.
        ``uns["pca"]["variance"]``, ``uns["pca"]["variance_ratio"]`` (k,): the variances of the
        codes, and their shares of the total variance.
        ``uns["pca"]["params"]``: `zero_center`, `mask_var`, `use_highly_variable` and, if given,
        `layer`.
        ``uns["pca"]["certificate"]``: `holds` ("true", "false" or "undecided") and `summary`, the
        text of the certificate.

    Examples
    --------
    >>> import anndata
    >>> import numpy as np
    >>> import lucidae.scanpy
    >>> counts = np.random.default_rng(0).poisson(np.arange(1, 9), (100, 8)).astype("float32")
    >>> adata = anndata.AnnData(np.log1p(counts))
    >>> lucidae.scanpy.pca(adata, n_comps=3)
    >>> adata.obsm["X_pca"].shape, adata.varm["PCs"].shape
    ((100, 3), (8, 3))
    >>> adata.uns["pca"]["certificate"]["holds"]
    'true'
    """
    if kind_of(adata, "adata") is not DataKind.ANNDATA:
        raise ValueError(
            f"adata is of type {type(adata).__name__}, expected an anndata.AnnData: give arrays to "
            "lucidae.LinearAutoencoder."
        )
    if not check_flag(zero_center, "zero_center"):
        raise ValueError(
            "zero_center=False was given, expected True: scanpy.pp.pca computes a truncated SVD "
            "without centring."
        )
    if np.dtype(dtype).kind != "f":
        raise ValueError(f"dtype={dtype!r} was given, expected a type of floating numbers.")
    adata = adata.copy() if check_flag(copy, "copy") else adata
    param, mask = _mask(adata, mask_var)
    matrix = adata.X if layer is None else _layer(adata, layer)
    rows = _rows(matrix, mask)
    if n_comps is None:
        smaller = min(adata.n_obs, adata.n_vars if mask is None else int(mask.sum()))
        n_comps = smaller - 1 if smaller <= N_COMPS else N_COMPS
    model = LinearAutoencoder(n_comps, verbose=verbose).fit(rows)
    codes = np.asarray(model.transform(rows), dtype=dtype)
    loadings = np.zeros((adata.n_vars, model.n_components_))
    loadings[slice(None) if mask is None else mask] = np.asarray(model.components_).T
    obsm, varm, uns = ("X_pca", "PCs", "pca") if key_added is None else [key_added] * 3
    params = {
        "zero_center": True,
        "use_highly_variable": isinstance(param, str) and param == "highly_variable",
        "mask_var": param,
    }
    certificate = model.certificate_
    words = {True: "true", False: "false", None: "undecided"}
    adata.obsm[obsm] = codes
    adata.varm[varm] = loadings
    adata.uns[uns] = {
        "params": params if layer is None else params | {"layer": layer},
        "variance": np.asarray(model.explained_variance_),
        "variance_ratio": np.asarray(model.explained_variance_ratio_),
        "certificate": {"holds": words[certificate.holds], "summary": certificate.summary()},
    }
    return adata if copy else None


def _mask(adata: Any, mask_var: Any) -> tuple[Any, np.ndarray[Any, Any] | None]:
    """Return the parameter that is stored, and which variables are used; None means all."""
    if mask_var is None:
        return None, None
    if isinstance(mask_var, str):
        if mask_var not in adata.var:
            if mask_var == "highly_variable":
                return None, None
            raise ValueError(
                f"mask_var={mask_var!r} was given, but adata.var has only the columns "
                f"{', '.join(map(str, adata.var.columns)) or '(none)'}: give one of them, an array "
                "of bool, or None."
            )
        mask = np.asarray(adata.var[mask_var])
    else:
        mask = np.asarray(mask_var)
    if mask.dtype != bool or mask.shape != (adata.n_vars,) or not mask.any():
        raise ValueError(
            f"mask_var has shape {mask.shape}, dtype {mask.dtype} and {np.count_nonzero(mask)} "
            f"entries that are true, expected ({adata.n_vars},), bool and at least one: mark the "
            "variables to use."
        )
    return mask_var, mask


def _layer(adata: Any, layer: str) -> Any:
    """Return a layer of an AnnData."""
    if layer not in adata.layers:
        raise ValueError(
            f"layer={layer!r} was given, but adata has only the layers "
            f"{', '.join(adata.layers) or '(none)'}: give one of them, or None for X."
        )
    return adata.layers[layer]


def _rows(matrix: Any, mask: np.ndarray[Any, Any] | None) -> Any:
    """Return the variables of a matrix that are used, in double precision.

    A matrix in memory gives a matrix, one of Dask a lazy one, and one on disk a function that
    returns its blocks of rows.
    """
    if matrix is None:
        raise ValueError("adata has no X: set X, or give a layer.")
    if is_dask(matrix):
        width = matrix.shape[1] if mask is None else int(mask.sum())
        whole = matrix.rechunk({1: -1})
        chunks = (whole.chunks[0], (width,))
        return whole.map_blocks(_used, mask, dtype=np.float64, chunks=chunks)
    if kind_of(matrix) is not DataKind.STORED:
        return _used(matrix, mask)

    stored = blocks.ArrayBlocks(matrix, "adata")

    def batches() -> Iterator[Any]:
        return (_used(part, mask) for part in stored)

    return batches


def _used(rows: Any, mask: np.ndarray[Any, Any] | None) -> Any:
    """Return the columns of rows that are used, as float64."""
    return (rows if mask is None else rows[:, mask]).astype(np.float64, copy=False)
