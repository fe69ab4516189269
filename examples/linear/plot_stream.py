"""
A stream of rows: exact after every batch
=========================================

Rows arrive in batches, or the file is larger than the memory. scikit-learn's
``IncrementalPCA`` keeps k components after each batch and forgets the rest, so
that its result depends on the batches and on their order.
:class:`~lucidae.LinearAutoencoder` keeps the second moment of all rows seen
(up to 1024 features). Therefore the components after each batch are those of
all rows seen so far, whatever the batches were.
"""

# %%
# Two estimators on one stream
# ----------------------------
# The data have 300 features with slowly decreasing variances, and arrive in
# batches of 20 rows. After every tenth batch we compare both estimators with
# PCA of all rows seen so far. The error is the mean squared sine of the angles
# between the two subspaces of ten components.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA, IncrementalPCA

from lucidae import LinearAutoencoder
from lucidae.metrics import subspace_distance

rng = np.random.default_rng(0)
n_rows, n_features, k = 2000, 300, 10
deviations = 1.0 / np.sqrt(1 + np.arange(n_features) / 5)
X = rng.standard_normal((n_rows, n_features)) * deviations
X = X @ np.linalg.qr(rng.standard_normal((n_features, n_features)))[0]

exact, incremental = LinearAutoencoder(k), IncrementalPCA(k)
seen, errors = [], {"LinearAutoencoder": [], "IncrementalPCA": []}
for end in range(20, n_rows + 1, 20):
    for model in (exact, incremental):
        model.partial_fit(X[end - 20 : end])
    if end % 200 == 0:
        seen.append(end)
        pca = PCA(k, svd_solver="full").fit(X[:end])
        axes = pca.components_.T
        for model in (exact, incremental):
            distance = subspace_distance(model.components_.T, axes)
            errors[type(model).__name__].append(distance)
for name, values in errors.items():
    print(f"{name:18} distance after {seen[-1]} rows: {values[-1]:.1e}")

# %%
# Distances below 1e-16 are rounding errors; they are drawn at 1e-16.

figure, ax = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
for (name, values), mark in zip(errors.items(), "os", strict=True):
    ax.semilogy(seen, np.maximum(values, 1e-16), marker=mark, label=name)
ax.set(
    xlabel="rows seen, in batches of 20",
    ylabel="distance from PCA of all rows seen",
    title="Ten components of a stream with 300 features",
    ylim=(3e-17, 1),
)
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, loc="center right")
plt.show()

# %%
# From a file
# -----------
# A file is a stream, too. ``fit`` accepts the path of an ``.npy`` file (and
# CSV, Parquet, HDF5 and Zarr, iterables of batches, and Dask collections); it
# reads in blocks what does not fit into memory. The result is the same.

with tempfile.TemporaryDirectory() as folder:
    place = Path(folder) / "rows.npy"
    np.save(place, X)
    from_file = LinearAutoencoder(k).fit(place)
batches = LinearAutoencoder(k).fit_batches(np.array_split(X, 7))

full = LinearAutoencoder(k).fit(X)
same = [
    bool(np.allclose(other.components_, full.components_))
    for other in (exact, from_file, batches)
]
print("equal to the fit of all rows: stream, file, batches =", same)

# %%
# What to take home: if the features number at most 1024, there is no reason to
# approximate a stream. The certificate of the stream's fit needs no second
# look at the rows: it is computed from the second moment. The page
# :doc:`/data` lists all kinds of data.

certified = exact.certificate_.holds
claim = exact.certificate_["subspace"]
print(f"{claim.verdict}: {claim.name} {claim.figure}\n    {claim.statement}")
print("all claims hold:", certified)
