"""
A certificate that fails, and what to do
========================================

Most programs return a result and no word about its quality. A certificate of
lucidae can fail, and then says which claim fails, by how much, and what to do.
It is not limited to our own estimators: :func:`~lucidae.certify` judges any
fitted object with ``components_`` and ``mean_``, and any pair of weights. Here
it judges scikit-learn's ``PCA``.
"""

# %%
# A fast PCA
# ----------
# For large data ``PCA`` computes its components by a randomised algorithm, and
# so do many other libraries. Its accuracy depends on the number of power
# iterations. The data have 200 features whose variances decrease slowly, and
# somebody in a hurry has set the number of iterations to 0.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA

from lucidae import LinearAutoencoder, certify

rng = np.random.default_rng(0)
variances = 1.0 / (1.0 + np.arange(200) / 10)
X = rng.standard_normal((1000, 200)) * np.sqrt(variances)

settings = {"svd_solver": "randomized", "random_state": 0}
hurried = PCA(10, iterated_power=0, **settings).fit(X)
share = hurried.explained_variance_ratio_.sum()
print(f"share of the variance: {share:.3f}")

# %%
# Nothing looks wrong: there are ten components and their variances. Now we ask
# for a certificate.

before = certify(hurried, X)
before

# %%
# How to read it
# --------------
# ``✗`` marks a claim that fails. The claim ``subspace`` says that the
# components do not span the principal subspace: the mean squared sine of the
# angles between the two is far above its limit. ``gap`` says what this costs:
# the reconstruction error exceeds its minimum by this share of the total
# variance. The line below each failed claim is advice.

failed = [claim.name for claim in before if claim.holds is False]
print("failed:", failed)

# %%
# The fix
# -------
# More power iterations help, until the certificate holds. The exact solver
# needs no such choice.

iterations = (0, 1, 2, 4, 8, 16, 32)
certificates = []
for power in iterations:
    pca = PCA(10, iterated_power=power, **settings).fit(X)
    certificates.append(certify(pca, X))
after = certify(LinearAutoencoder(10).fit(X), X)
for power, certificate in zip(iterations, certificates, strict=True):
    print(f"{power:2} power iterations: holds = {certificate.holds}")
print(f"closed form: holds = {after.holds}")

# %%
# Values below 1e-16 are drawn at 1e-16.

figure, ax = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
places = np.arange(len(iterations))
for name, mark in (("subspace", "o"), ("alignment", "s"), ("gap", "^")):
    values = [max(found[name].value, 1e-16) for found in certificates]
    (line,) = ax.semilogy(places, values, marker=mark, label=name)
    limit = certificates[0][name].threshold
    ax.axhline(limit, color=line.get_color(), linestyle=":", linewidth=1)
for place, certificate in zip(places, certificates, strict=True):
    sign, colour = ("✓", "green") if certificate.holds else ("✗", "red")
    ax.text(place, 10, sign, color=colour, ha="center", fontsize=14)
ax.set_xticks(places, iterations)
ax.set(
    xlabel="power iterations of the randomised PCA",
    ylabel="measured value of the claim",
    title="Claims of the certificate and their limits (dotted)",
    ylim=(3e-17, 100),
)
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, loc="lower left")
plt.show()

# %%
# What to take home: ``certify(model, X)`` costs one line. Use it where a
# result was computed by an approximation, was trained by somebody else, or
# came from a file. If a claim fails, read its advice.
