"""Draw the three figures of the landing page: ``python docs/figures/landing.py``.

Each shows what one family computes, beside what is used otherwise. The figures have no background,
and the site draws their colours anew for its dark theme.
"""

import re
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_rgb
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import MultiTaskLassoCV

from lucidae import DropoutRegressor, LinearAutoencoder, SparseVAE
from lucidae.datasets import load_digits, make_linear_network, make_sparse_regression
from lucidae_app.report.style import LIGHT, drawing, new_figure, to_svg
from lucidae_papers.pages import NAMESPACES

FOLDER = Path(__file__).parent
SIZE = (4.4, 2.2)


def write(figure, name, description):
    """Write a figure as an SVG file of its own, in the colours of the light theme."""
    svg = to_svg(figure, name, description)
    for colour, value in LIGHT.items():
        svg = svg.replace(f"var(--{colour})", value)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    (FOLDER / f"{name}.svg").write_text(
        svg.replace("<svg ", f"<svg {NAMESPACES} ", 1) + "\n", "utf-8"
    )


def translucent(component):
    """Return an image of positive (blue) and negative (orange) weights; zero is transparent."""
    scaled = component / np.abs(component).max()
    image = np.empty((*scaled.shape, 4))
    image[..., :3] = np.where(scaled[..., None] > 0, to_rgb(LIGHT["blue"]), to_rgb(LIGHT["orange"]))
    image[..., 3] = np.abs(scaled)
    return image


def linear():
    """Draw components of the digits: of a trained autoencoder and of the exact one."""
    X = load_digits().data
    exact = LinearAutoencoder(6).fit(X)
    trained = LinearAutoencoder(6, method="plain", solver="gradient", random_state=0).fit(X)
    with mpl.rc_context({"figure.constrained_layout.use": False}):
        figure, axes = new_figure(2, 6, figsize=SIZE)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.02, top=0.9, wspace=0.08, hspace=0.32)
    rows = [
        (trained, "trained by gradient descent: mixed"),
        (exact, "lucidae: principal components, in order"),
    ]
    for row, (model, words) in zip(axes, rows, strict=True):
        for axis, component in zip(row, model.components_, strict=True):
            axis.imshow(translucent(component.reshape(8, 8)))
            axis.set(xticks=[], yticks=[])
            axis.spines[["top", "right"]].set_visible(True)
        row[0].set_title(words, loc="left")
    write(figure, "landing-linear", "Components of handwritten digits, by two methods.")


def dropout():
    """Draw the loss of dropout training over its steps, and the minimum from one decomposition."""
    network = make_linear_network(noise=0.1, random_state=0)
    X, y = network.data, network.target
    exact = DropoutRegressor(20, dropout=0.5).fit(X, y)
    trained = DropoutRegressor(20, dropout=0.5, solver="sgd", max_iter=20_000, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is the point of the figure
        trained.fit(X, y)
    steps, loss = trained.history_.iterations[1:], trained.history_.values["objective"][1:, 0]
    figure, axis = new_figure(figsize=SIZE)
    axis.semilogx(steps, loss, color=LIGHT["orange"])
    axis.axhline(exact.objective_, color=LIGHT["blue"], linestyle="--")
    axis.text(steps[8], loss[8] + 0.03, "training with dropout (SGD)", color=LIGHT["orange"])
    axis.text(steps[0], exact.objective_ - 0.055, "lucidae: global minimum", color=LIGHT["blue"])
    axis.set(xlabel="steps of training", ylim=(exact.objective_ - 0.1, loss[0] + 0.02))
    axis.set_title("expected dropout loss", loc="left")
    write(figure, "landing-dropout", "Loss of dropout training over its steps, above its minimum.")


def sparsity():
    """Draw the columns that two methods select, beside the true ones."""
    problem = make_sparse_regression(d=50, kappa=200, r=15, n=5, snr_db=20, random_state=0)
    lasso = MultiTaskLassoCV(cv=5).fit(problem.dictionary, problem.responses)
    model = SparseVAE().fit(problem.dictionary, problem.responses)
    figure, axes = new_figure(2, 1, figsize=SIZE, sharex=True)
    selected = np.count_nonzero(lasso.coef_.any(axis=0))
    for axis, coefficients, words in [
        (axes[0], lasso.coef_, f"MultiTaskLassoCV: {selected} columns in use"),
        (axes[1], model.coef_, f"lucidae: {len(model.support_)} significant columns"),
    ]:
        norms = np.linalg.norm(coefficients, axis=0)
        columns = np.flatnonzero(norms)
        axis.vlines(columns, 0, norms[columns], color=LIGHT["blue"], linewidth=1.6)
        axis.plot(problem.support, norms[problem.support], "o", color=LIGHT["orange"], markersize=4)
        axis.set_title(words, loc="left")
        axis.set(yticks=[], ylim=(0, None))
        axis.grid(False)
    axes[1].set_xlabel("column of the dictionary (dots: the 15 true columns)")
    write(figure, "landing-sparsity", "Columns of a dictionary that two methods select.")


if __name__ == "__main__":
    with drawing():
        linear()
        dropout()
        sparsity()
