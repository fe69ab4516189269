"""Section of the report on linear autoencoders: the optimum, trained models and certificates."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.data.tables import Table
from lucidae.linear.estimator import LinearAutoencoder
from lucidae_app.report import figures
from lucidae_app.report.blocks import (
    Block,
    Card,
    Clock,
    Plot,
    Prose,
    Section,
    count,
    fitted,
    without_convergence_warnings,
)
from lucidae_app.report.sections.data import EXPLAINED

DRAWN = 20
"""Largest number of components that are drawn."""

TRAINED = 10
"""Largest number of latents of the trained models."""

EARLY = 30
"""Number of epochs after which one training is stopped too early, as an example."""

LEGEND = (
    "A certificate lists claims about a fit, each with the measured value and the theorem: ✓ the "
    "claim holds, ✗ it fails, ? it could not be decided, – it does not apply, or its value is "
    "only reported."
)

METHODS = {"Plain gradient descent": "plain", "Rotation-augmented gradients": "rag"}
WIDEST_TRAINING = 1500
"""Largest number of columns for which models are trained; for more it would take too long."""


def build(table: Table, clock: Clock) -> list[Block]:
    """Return the parts of the section: the exact fit, two trained models and certificates."""
    with clock("linear: exact fit"):
        exact = fitted(LinearAutoencoder(EXPLAINED, solver="exact"), table)
    blocks: list[Block] = [
        Prose(
            "The optimal linear autoencoder with k latent variables (latents) projects on the k "
            f"leading principal components. To explain {EXPLAINED:.0%} of the variance it needs "
            f"{count(exact.n_components_, 'component')}; the exact solver computes them from the "
            "covariance matrix of the columns."
        ),
        _components(table, exact),
    ]
    if table.image_shape is not None:
        blocks.append(_reconstructions(table, table.image_shape, exact, clock))
    blocks += [Prose(LEGEND), Card("The exact fit", exact.certificate_)]
    if len(table.columns) <= WIDEST_TRAINING:
        blocks += _training(table, exact, clock)
    return blocks


def _components(table: Table, model: Any) -> Plot:
    """Return a plot of the first components, as images or as a matrix of loadings."""
    drawn = model.components_[:DRAWN]
    shares = model.explained_variance_ratio_[:DRAWN]
    titles = [f"{index}: {share:.1%}" for index, share in enumerate(shares)]
    if table.image_shape is None:
        figure = figures.loadings(drawn, table.columns)
    else:
        figure = figures.image_grid(drawn.reshape(-1, *table.image_shape), titles, signed=True)
    numbers = {
        "component": list(range(len(drawn))),
        "share of variance": shares.tolist(),
    } | {name: column.tolist() for name, column in zip(table.columns, drawn.T, strict=True)}
    number = count(len(drawn), "component")
    caption = (
        f"The first {number}, by decreasing variance and numbered from 0; red is positive, white "
        "is zero, blue is negative."
    )
    return Plot.of("components", figure, caption, numbers, keeps_colours=True)


def _reconstructions(table: Table, shape: tuple[int, int], exact: Any, clock: Clock) -> Plot:
    """Return a plot of a few rows and of their reconstructions from codes of increasing length.

    The rows are images of the given shape, and `exact` is the fitted exact autoencoder.
    """
    rows = np.linspace(0, len(table.values) - 1, num=min(10, len(table.values)), dtype=int)
    originals = table.values[rows]
    drawn = {"original": originals}
    for k in sorted({min(k, exact.n_components_) for k in (2, 5, 10, exact.n_components_)}):
        with clock("linear: codes and reconstructions"):
            model = fitted(LinearAutoencoder(k, solver="exact"), table)
            drawn[f"k = {k}"] = model.inverse_transform(model.transform(originals))
    images = {name: values.reshape(-1, *shape) for name, values in drawn.items()}
    numbers = {
        "row": np.tile(rows, len(drawn)).tolist(),
        "version": np.repeat(list(drawn), len(rows)).tolist(),
    } | {
        name: column.tolist()
        for name, column in zip(table.columns, np.vstack(list(drawn.values())).T, strict=True)
    }
    caption = "Rows of the data, and their reconstructions from the first k components."
    return Plot.of("reconstructions", figures.image_rows(images), caption, numbers)


def _training(table: Table, exact: Any, clock: Clock) -> list[Block]:
    """Return the parts on training by plain gradient descent and rotation-augmented gradients.

    `exact` is the exact autoencoder, with which the trained ones are compared.
    """
    k = min(TRAINED, exact.n_components_)
    models = {}
    for name, method in METHODS.items():
        with clock(f"linear: {name}, {count(k, 'component')}"):
            models[name] = _trained(table, k, method)
    return [
        Prose(
            "Different weights have the same minimal loss. Plain gradient descent converges to the "
            "principal subspace with arbitrary axes; the rotation-augmented rule rotates them to "
            "the principal components, in their order (Bao et al. 2020). The matrices compare the "
            "trained latents with the components, and the certificates give the distances."
        ),
        _agreement(exact, models),
        _histories(models),
        *(Card(name, model.certificate_, unfolded=False) for name, model in models.items()),
        Prose(
            f"For comparison, the certificate of a training that was stopped after {EARLY} epochs:"
        ),
        Card("Stopped too early", _trained(table, k, "rag", max_iter=EARLY).certificate_),
    ]


def _trained(table: Table, k: int, method: str, **settings: Any) -> Any:
    """Return a linear autoencoder with `k` latents, trained by gradient steps of `method`."""
    model = LinearAutoencoder(k, method=method, solver="gradient", random_state=0, **settings)
    with without_convergence_warnings():
        return fitted(model, table)


def _agreement(exact: Any, models: dict[str, Any]) -> Plot:
    """Return a plot of squared cosines between trained latents and principal components.

    `exact` is the exact autoencoder, and `models` are the trained ones by name.
    """
    panels = {
        name: (model.components_ @ exact.components_[: len(model.components_)].T) ** 2
        for name, model in models.items()
    }
    k = len(next(iter(panels.values())))
    numbers = {
        "latent": np.repeat(np.arange(k), k).tolist(),
        "component": np.tile(np.arange(k), k).tolist(),
    } | {name: values.ravel().tolist() for name, values in panels.items()}
    figure = figures.matrices(panels, xlabel="principal component", ylabel="trained latent")
    caption = (
        "Squared cosine between each trained latent's decoder column and each principal "
        "component, both numbered from 0. A diagonal that stands out from the background means "
        "that the latents are the components, in their order."
    )
    return Plot.of("alignment", figure, caption, numbers)


def _histories(models: dict[str, Any]) -> Plot:
    """Return a plot of each training's distance to a fixed point of its update, against epochs."""
    histories = {name: model.history_ for name, model in models.items()}
    lines = {name: (history.iterations, history["distance"]) for name, history in histories.items()}
    numbers = {
        "method": [name for name, history in histories.items() for _ in history.iterations],
        "epoch": np.concatenate([epochs for epochs, _ in lines.values()]).tolist(),
        "distance": np.concatenate([distance for _, distance in lines.values()]).tolist(),
        "loss": np.concatenate([history["loss"] for history in histories.values()]).tolist(),
    }
    figure = figures.curves(
        lines, xlabel="epoch", ylabel="distance to a fixed point of the update", logarithmic=True
    )
    caption = (
        "Training stops when the distance to a fixed point of the update rule is below the "
        "tolerance. An epoch uses only the covariance matrix, so that its cost does not depend on "
        "the number of rows."
    ) + "".join(
        f" The curve of {hidden} is hidden under that of {above}."
        for hidden, above in figures.hidden_curves(lines)
    )
    return Plot.of("training", figure, caption, numbers)


SECTION = Section("linear", "The optimal linear autoencoder", build)
