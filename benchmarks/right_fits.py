"""How often the certificate of a right fit fails, on the tables that scikit-learn brings along.

Every estimator is fitted by its exact solver with its options, on each table as it is and
standardised. Such a fit is optimal, so that a claim that fails is wrong, or tells something about
the data that is not an error of the fit. ``python -m benchmarks right_fits`` prints the counts and
each certificate that fails with its claims.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_linnerud,
    load_wine,
)
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.preprocessing import StandardScaler

from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
    __version__,
    certify,
)

METHODS = ("rag", "gha", "plain", "uniform_l2", "nonuniform_l2", "expected_nested_dropout")


def tables() -> Iterator[tuple[str, Any, Any]]:
    """Yield name, inputs and targets of each table, as it is and standardised."""
    loaders = (load_iris, load_wine, load_breast_cancer, load_diabetes, load_digits, load_linnerud)
    for load in loaders:
        found = load()
        X, y = np.asarray(found.data, float), np.asarray(found.target, float)
        Y = np.column_stack([X[:, :2], y])  # several targets, which the inputs explain in part
        yield f"{load.__name__[5:]} raw", X, Y
        yield f"{load.__name__[5:]} scaled", StandardScaler().fit_transform(X), Y


def fits(X: Any, Y: Any) -> Iterator[tuple[str, Any]]:
    """Yield a description and a function that fits and returns the certificate."""
    most = min(X.shape)
    for k in sorted({1, 2, min(5, most), most}):
        for method in METHODS:
            model = LinearAutoencoder(k, method=method, solver="exact")
            yield repr(model), lambda model=model: model.fit(X).certificate_
    for k in (None, 0.9, "mle", "parallel_analysis", "hard_threshold"):
        model = LinearAutoencoder(k)
        yield repr(model), lambda model=model: model.fit(X).certificate_
    for kind in (PCA, TruncatedSVD):
        if kind is PCA or most > 2:
            name = f"certify({kind.__name__}(2))"
            yield name, lambda kind=kind: certify(kind(2).fit(X), X)
    for rate in (0.1, 0.5, 0.9):
        for k in sorted({2, most}):
            auto, matrix = (
                DropoutAutoencoder(k, dropout=rate),
                DropoutFactorization(k, dropout=rate),
            )
            yield repr(auto), lambda model=auto: model.fit(X).certificate_
            yield repr(matrix), lambda model=matrix: model.fit(X).certificate_
    for settings in ({"dropout": 0.5}, {"dropout": 0.1, "n_components": 2}, {"shrink": False}):
        model = DropoutRegressor(**settings)
        yield repr(model), lambda model=model: model.fit(X[:, 2:], Y).certificate_
    # Inputs as columns of a dictionary, in standard units, as a regression has them.
    columns = StandardScaler().fit_transform(X[:, 2:])
    columns = columns[:, columns.std(axis=0) > 0.0]
    for posterior in ("full", "diagonal", "point"):
        for noise in ("auto", 0.1):
            model = SparseVAE(posterior=posterior, noise_variance=noise)
            targets = StandardScaler().fit_transform(Y)
            yield repr(model), lambda model=model, t=targets: model.fit(columns, t).certificate_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="fits whose description contains this")
    given = parser.parse_args()
    counts, failed = Counter[str](), Counter[str]()
    for table, X, Y in tables():
        for name, fit in fits(X, Y):
            if given.only not in f"{table} {name}":
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                certificate = fit()
            counts[str(certificate.holds)] += 1
            claims = [claim.name for claim in certificate if claim.holds is False]
            failed.update(f"{name.partition('(')[0]}: {claim}" for claim in claims)
            if claims:
                print(f"{table}: {name}: {', '.join(claims)}", flush=True)
    print(f"lucidae {__version__}, certificates by verdict:", dict(counts))
    print("claims that fail:", dict(failed.most_common()))


if __name__ == "__main__":
    main()
