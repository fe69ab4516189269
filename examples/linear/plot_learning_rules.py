"""
Components that each learning rule finds
========================================

A linear autoencoder compresses a row of data to k numbers, the *latents*, and
reconstructs the row from them. The reconstruction is best if the decoder spans
the k leading principal components. The training loss does not say which axes
of this subspace the latents use: any rotation of them has the same loss. Bao
et al. (2020) compare training methods that remove this freedom. This example
trains six of them on images of digits, for at most 500 steps each, and
compares what they have learned.
"""

# %%
# Six methods on the same data
# ----------------------------
# The data are 1797 images of 8 × 8 pixels, and k is 8. The method ``"plain"``
# minimises the reconstruction error alone. ``"uniform_l2"`` adds the same ℓ₂
# penalty for all latents, and ``"nonuniform_l2"`` a penalty of its own for
# each latent. ``"nested_dropout"`` hides the latents behind a random one in
# every step. ``"rag"`` is the rotation augmented gradient, which adds a
# rotation to each gradient step. The last fit is the closed form. Some methods
# do not converge in 500 steps, and ``fit`` warns about it; here the warning is
# expected.

import warnings

import matplotlib.pyplot as plt
from sklearn.exceptions import ConvergenceWarning

from lucidae import LinearAutoencoder
from lucidae.datasets import load_digits
from lucidae.displays import ComponentsDisplay

X = load_digits().data
methods = {
    "plain": {"method": "plain", "solver": "gradient"},
    "uniform ℓ₂": {"method": "uniform_l2", "solver": "gradient"},
    "non-uniform ℓ₂": {"method": "nonuniform_l2", "solver": "gradient"},
    "nested dropout": {"method": "nested_dropout", "solver": "stochastic"},
    "rotation augmented": {"method": "rag", "solver": "gradient"},
    "closed form": {"method": "rag", "solver": "exact"},
}
autoencoders = {
    name: LinearAutoencoder(8, max_iter=500, random_state=0, **method)
    for name, method in methods.items()
}
for autoencoder in autoencoders.values():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        autoencoder.fit(X)

# %%
# What the certificates say
# -------------------------
# Every fit has a certificate. Its claim ``subspace`` measures the distance
# between the span of the decoder and the principal subspace, and ``alignment``
# the distance between the columns of the decoder and the principal directions,
# each from 0 (equal) to 1.

subspace, alignment = {}, {}
print(f"{'method':20} subspace  alignment  steps")
for name, fit in autoencoders.items():
    subspace[name] = fit.certificate_["subspace"].value
    alignment[name] = fit.certificate_["alignment"].value
    distances = f"{subspace[name]:8.1e}  {alignment[name]:9.1e}"
    print(f"{name:20} {distances}  {fit.n_iter_:5}")

# %%
# All methods have found the subspace. Only the rotation augmented gradient has
# found the axes within these 500 steps; the non-uniform penalty and nested
# dropout are on their way, and the plain loss and the uniform penalty never
# get there. The pictures show the same: the rows of the rotation augmented
# gradient and of the closed form are equal, and those of the plain loss are
# mixtures.

figure, axes = plt.subplots(6, 1, figsize=(7.2, 6.6), layout="constrained")
for ax, (name, fit) in zip(axes, autoencoders.items(), strict=True):
    ComponentsDisplay.from_estimator(fit, image_shape=(8, 8), ax=ax)
    title = f"{name}: distance from the principal axes {alignment[name]:.1g}"
    ax.set_title(title, fontsize=10)
figure.suptitle("Eight components of digits, after at most 500 steps")
plt.show()

# %%
# What to do about it
# -------------------
# The certificate knows what each method promises. Where a method cannot
# determine the axes, the claim is not judged; where it could but has not, the
# claim fails, with advice.

for name in ("plain", "non-uniform ℓ₂"):
    claim = autoencoders[name].certificate_["alignment"]
    print(f"{name}: holds = {claim.holds}\n    {claim.advice}")

# %%
# What to take home: for the principal components themselves, use the default,
# which computes them in closed form. If you must train (as one layer of a
# network, or to study training), the rotation augmented gradient finds the
# axes in far fewer steps than a penalty.
#
# **Reference.** Bao, Lucas, Sachdeva & Grosse (2020), Regularized linear
# autoencoders recover the principal components, eventually. NeurIPS.
