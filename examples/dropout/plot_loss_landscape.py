"""
What dropout does to a loss landscape
=====================================

Why does dropout training of a linear network spread the work evenly over its
hidden units? Mianjy et al. (2018) answer with a picture (their Figure 1) of
the smallest network that can show it: one input, one output and two hidden
units with tied weights u₁ and u₂. This example draws it again, and lets
gradient descent walk in it.
"""

# %%
# The expected loss
# -----------------
# For the target m the expected dropout loss is (m − u₁² − u₂²)² + λ(u₁⁴ +
# u₂⁴), where λ = dropout/(1 − dropout).
# :func:`~lucidae.dropout.scalar_surface` computes it on a grid, with its
# global minima. Without dropout the minima form a circle: any division of the
# work between the two units is optimal. With dropout there are four, and in
# all of them u₁ and u₂ have the same absolute value.

import matplotlib.pyplot as plt
import numpy as np

from lucidae.dropout import (
    certify_weights,
    equalized_critical_points,
    scalar_surface,
)

m = 2.0
dropouts = (0.0, 1 / 3, 2 / 3)
strengths = [dropout / (1 - dropout) for dropout in dropouts]
surfaces = [scalar_surface(m, strength, extent=1.8) for strength in strengths]
for dropout, surface in zip(dropouts, surfaces, strict=True):
    minima = surface.minima.round(3).tolist() or "a circle"
    print(f"dropout {dropout:.2f}: minima {minima}")

# %%
# Gradient descent from six random starts
# ---------------------------------------


def descend(start, strength, steps=2000, rate=0.01):
    """Return the weights at every step of gradient descent."""
    walk = [np.asarray(start)]
    for _ in range(steps):
        u = walk[-1]
        gradient = -4 * (m - u @ u) * u + 4 * strength * u**3
        walk.append(u - rate * gradient)
    return np.array(walk)


starts = np.random.default_rng(3).uniform(-1.7, 1.7, size=(6, 2))
walks = [[descend(start, level) for start in starts] for level in strengths]
ends = np.abs([[walk[-1] for walk in group] for group in walks])
inequality = np.abs(ends[:, :, 0] - ends[:, :, 1]).max(axis=1)
print("largest difference of |u₁| and |u₂| at the end of a descent:")
for dropout, value in zip(dropouts, inequality, strict=True):
    print(f"dropout {dropout:.2f}: {value:.2g}")

# %%

figure, axes = plt.subplots(
    1, 3, figsize=(9.0, 3.7), sharey=True, layout="constrained"
)
for ax, dropout, surface, group in zip(
    axes, dropouts, surfaces, walks, strict=True
):
    # Colours by rank, not by value, show the flat valley.
    levels = np.quantile(surface.values, np.linspace(0, 1, 16))
    ranks = np.searchsorted(levels, surface.values)
    ax.contourf(surface.axis, surface.axis, ranks, 15, cmap="GnBu_r")
    for walk in group:
        ax.plot(*walk.T, color="tab:orange", linewidth=1.2)
        ax.plot(*walk[0], ".", color="tab:orange")
    if len(surface.minima):
        ax.plot(*surface.minima.T, "k*", markersize=11)
    else:
        ax.add_patch(plt.Circle((0, 0), np.sqrt(m), fill=False, linewidth=1.2))
    ax.set(title=f"dropout {dropout:.2g}", xlabel="u₁", aspect="equal")
axes[0].set_ylabel("u₂")
figure.suptitle("Expected loss, global minima (stars, circle) and descents")
plt.show()

# %%
# Is the end of a descent optimal?
# --------------------------------
# :func:`~lucidae.dropout.certify_weights` judges weights from anywhere, and
# returns their certificate. A descent without dropout is not optimal for the
# loss with dropout; a descent with it is.

problem = {"matrix": [[m]], "tied": True, "dropout": 1 / 3}
without = certify_weights(walks[0][0][-1:], None, **problem)
trained = certify_weights(walks[1][0][-1:], None, **problem)
for name, judged in (("without", without), ("with", trained)):
    gap, equalized = judged["gap"], judged["equalized"]
    print(f"trained {name}: gap {gap.figure}, equalized {equalized.figure}")

# %%
# Larger networks
# ---------------
# The same holds for a matrix M in place of m: every set of eigenvectors of M
# gives a critical point with units of equal importance, and all but the global
# minimum have directions of descent. Here M has the eigenvalues 3 and 2.

points = equalized_critical_points(np.diag([3.0, 2.0]), strength=0.5, width=2)
for point in points:
    found = f"eigenvectors {point.eigenvectors!s:7} loss {point.value:6.3f}"
    print(f"{found}, directions of descent: {point.index}")

# %%
# What to take home: dropout is a regulariser with a known optimum. It makes
# hidden units equally important, shrinks what they compute, and creates no
# minima in which training could be trapped here. Therefore
# :class:`~lucidae.DropoutRegressor` needs no training.
#
# **Reference.** Mianjy, Arora & Vidal (2018), On the implicit bias of dropout.
# ICML.
