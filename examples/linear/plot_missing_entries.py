"""
Principal components of rows with missing entries
=================================================

Sensors fail and questions stay unanswered, so that entries of a table are
missing. The usual way is to fill them first, and to compute components as if
the filled values had been measured. ``LinearAutoencoder(k,
handle_missing="em")`` fills nothing: it maximises the likelihood of the
entries that were observed (probabilistic PCA, Tipping & Bishop 1999).
"""

# %%
# A table with gaps
# -----------------
# 300 rows of 20 features come from three factors with noise of variance 0.25.
# We remove a share of the entries at random and ask two questions: how far is
# the subspace of three components from the true one, and how large is the
# error of the entries that were removed?

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA
from sklearn.impute import KNNImputer, SimpleImputer

from lucidae import LinearAutoencoder
from lucidae.metrics import subspace_distance

rng = np.random.default_rng(0)
n_rows, n_features, k = 300, 20, 3
loadings = rng.standard_normal((k, n_features))
X = rng.standard_normal((n_rows, k)) @ loadings
X += 0.5 * rng.standard_normal(X.shape)
true_axes = np.linalg.qr(loadings.T)[0]


def by_imputation(imputer, gaps):
    """Fill the gaps, then compute components as if all were observed."""
    filled = imputer.fit_transform(gaps)
    return filled, PCA(k).fit(filled).components_


def by_likelihood(gaps):
    """Fit the observed entries, and predict the missing ones."""
    model = LinearAutoencoder(k, handle_missing="em").fit(gaps)
    expected = model.inverse_transform(model.transform(gaps))
    return np.where(np.isnan(gaps), expected, gaps), model.components_


methods = {
    "mean of the feature": lambda gaps: by_imputation(SimpleImputer(), gaps),
    "nearest neighbours": lambda gaps: by_imputation(KNNImputer(), gaps),
    "likelihood (lucidae)": by_likelihood,
}

# %%
# scikit-learn's ``IterativeImputer`` is another peer; it is slower, and
# :doc:`/missing` has the comparison.

shares = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
subspace_errors = {name: [] for name in methods}
entry_errors = {name: [] for name in methods}
for share in shares:
    missing = rng.random(X.shape) < share
    gaps = np.where(missing, np.nan, X)
    for name, method in methods.items():
        filled, components = method(gaps)
        of_subspace = subspace_distance(components.T, true_axes)
        of_entries = np.sqrt(np.mean((filled - X)[missing] ** 2))
        subspace_errors[name].append(of_subspace)
        entry_errors[name].append(of_entries)
print("errors with 60 % of the entries missing")
for name in methods:
    of_subspace, of_entries = subspace_errors[name][-1], entry_errors[name][-1]
    print(f"{name:22} subspace {of_subspace:.4f}, entries {of_entries:.2f}")

# %%
# The noise has a standard deviation of 0.5, below which no method can bring
# the expected error of the entries.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(7.2, 3.4), layout="constrained"
)
for name, mark in zip(methods, "s^o", strict=True):
    left.semilogy(100 * shares, subspace_errors[name], marker=mark, label=name)
    right.plot(100 * shares, entry_errors[name], marker=mark, label=name)
right.axhline(0.5, color="gray", linestyle="--")
right.text(60, 0.52, "noise", ha="right", va="bottom", color="gray")
left.set_ylabel("distance from the true subspace")
right.set(ylabel="error of missing entries", ylim=(0, None))
for ax in (left, right):
    ax.set_xlabel("missing entries (%)")
    ax.spines[["top", "right"]].set_visible(False)
figure.legend(
    *left.get_legend_handles_labels(),
    loc="outside upper center",
    ncols=3,
    frameon=False,
)
plt.show()

# %%
# How the certificate reads
# -------------------------
# Three claims are about missing entries: whether the fit maximises the
# likelihood, whether the features that were observed together determine the
# components, and how much of each code the missing entries leave open.

model = LinearAutoencoder(k, handle_missing="em").fit(gaps)
for name in ("likelihood", "identifiability", "missing_information"):
    claim = model.certificate_[name]
    print(f"{claim.verdict}: {name} {claim.figure}\n    {claim.statement}")

# %%
# What to take home: fit the observed entries instead of filling the others.
# This assumes that entries are missing at random (Rubin 1976): whether an
# entry is missing must not depend on its own value. No method can tell from
# the data whether this is true.
