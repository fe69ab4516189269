"""Draw the picture of the README: ``python docs/figures/overview.py``.

One panel for each family, with the verdict of the certificate below.
"""

import warnings
from pathlib import Path

import numpy as np
from scipy.spatial import ConvexHull
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import MultiTaskLassoCV

from lucidae import DropoutRegressor, LinearAutoencoder, SparseVAE
from lucidae.datasets import (
    load_digits,
    make_linear_network,
    make_meg_leadfield,
    make_sparse_regression,
)
from lucidae.metrics import axis_alignment_distance
from lucidae_app.report.style import LIGHT, drawing, new_figure

TARGET = Path(__file__).with_name("overview.png")
BLUE, ORANGE, MUTED = LIGHT["blue"], LIGHT["orange"], LIGHT["muted"]


def verdict(axis, model, subject):
    """Write below a panel which fit is certified, and how many claims hold."""
    words = model.certificate_.summary().partition(": ")[2].partition(".")[0]
    mark = "✓" if model.certificate_.holds else "✗"
    axis.annotate(
        f"{mark} {subject}: {words}", (0.5, -0.3), xycoords="axes fraction", ha="center",
        fontsize=9.5, color=LIGHT["green"] if mark == "✓" else ORANGE, annotation_clip=False,
    )  # fmt: skip


def linear(axis):
    """Draw how far the latents of two trained autoencoders are from the principal components."""
    X = load_digits().data
    exact = LinearAutoencoder(10).fit(X)
    axes = exact.components_.T
    for method, colour, words, place in (
        ("plain", ORANGE, "plain gradient descent", (200, 1.6)),
        ("rag", BLUE, "rotation-augmented\ngradient", (14, 2e-5)),
    ):
        steps = np.unique(np.geomspace(1, 4000, 24).astype(int))
        distances = []
        for limit in steps:
            model = LinearAutoencoder(
                10, method=method, solver="gradient", max_iter=int(limit), tol=1e-12, random_state=0
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # stopped early on purpose
                model.fit(X)
            distances.append(axis_alignment_distance(model.decoder_, axes))
        axis.loglog(steps, distances, color=colour, linestyle="-")
        axis.annotate(words, place, color=colour, fontsize=9.5, ha="center")
    axis.set(xlabel="iterations", title="Linear: distance to the principal axes", ylim=(1e-9, 50))
    verdict(axis, exact, "exact solution")


def dropout(axis):
    """Draw the singular values of a network trained with dropout, and those of the optimum."""
    network = make_linear_network(noise=0.1, random_state=0)
    X, y = network.data, network.target
    exact = DropoutRegressor(20, dropout=0.5).fit(X, y)
    trained = DropoutRegressor(
        20, dropout=0.5, solver="sgd", max_iter=40_000, batch_size=100, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        trained.fit(X, y)
    index = np.arange(1, 21)
    before = DropoutRegressor(20, dropout=0.0).fit(X, y)
    for model, style, words in (
        (before, {"color": MUTED, "linestyle": ":"}, "without dropout"),
        (exact, {"color": BLUE, "linestyle": "-"}, "optimum with dropout"),
        (trained, {"color": ORANGE, "linestyle": "", "marker": "o"}, "after training by SGD"),
    ):
        values = np.linalg.svd(model.coef_, compute_uv=False)[:20]
        axis.plot(index, values, label=words, **style)
    axis.set(xlabel="singular value of the network", title="Dropout: where training ends")
    axis.set_xticks([1, 5, 10, 15, 20])
    axis.legend(fontsize=9)
    verdict(axis, exact, "optimum")


def sparsity(axis):
    """Draw current sources in a spherical head from above, as two methods find them."""
    geometry = make_meg_leadfield(102, 500, return_geometry=True, random_state=0)
    data = make_sparse_regression(
        r=6, n=10, tau=3, snr_db=20, dictionary=geometry.leadfield, random_state=1
    )
    model = SparseVAE().fit(data.dictionary, data.responses)
    lasso = MultiTaskLassoCV(cv=5, max_iter=20_000).fit(data.dictionary, data.responses)
    places = 1000 * geometry.source_positions[:, :2]
    used = np.flatnonzero(np.linalg.norm(lasso.coef_, axis=0))
    hull = places[ConvexHull(places).vertices]
    axis.fill(*hull.T, color=LIGHT["grid"], alpha=0.6)
    rings = {"markersize": 13, "markerfacecolor": "none", "markeredgewidth": 1.6}
    axis.plot(*places[used].T, "x", color=ORANGE, markersize=4,
              label=f"in use by MultiTaskLassoCV: {len(used)}")  # fmt: skip
    axis.plot(*places[model.support_].T, "o", color=BLUE, markersize=6,
              label=f"found by SparseVAE: {len(model.support_)}")  # fmt: skip
    axis.plot(*places[data.support].T, "o", color=LIGHT["ink"],
              label=f"true: {len(data.support)}", **rings)  # fmt: skip
    axis.set_aspect("equal")
    axis.set(xlabel="head from above (mm)", title="Sparsity: which sources are active?")
    axis.grid(False)
    axis.legend(fontsize=9, loc="upper left", bbox_to_anchor=(0.98, 1.0), handletextpad=0.4)
    verdict(axis, model, "SparseVAE")


def main():
    """Draw the three panels and write the picture."""
    with drawing():
        figure, axes = new_figure(1, 3, figsize=(12, 3.5), width_ratios=[1, 1, 1.3])
        for draw, axis in zip((linear, dropout, sparsity), axes, strict=True):
            draw(axis)
        figure.savefig(TARGET, dpi=130, transparent=False, metadata={"Software": None})


if __name__ == "__main__":
    main()
