"""The linear family: the optimum, what training finds of it, and the certificates of both."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.io.tables import Table
from lucidae.linear.estimator import LinearAutoencoder
from lucidae.report import figures
from lucidae.report.blocks import Block, Card, Clock, Plot, Prose, Section
from lucidae.report.sections.common import count, quietly
from lucidae.report.sections.data import KEPT

SHOWN = 20
TRAINED = 10
HASTY = 30
METHODS = {"Plain gradient descent": "plain", "Rotation-augmented gradients": "rag"}
WIDEST_TRAINING = 1500
"""Beyond this many columns a full-batch training would hold up the page."""


def build(table: Table, clock: Clock) -> list[Block]:
    """Fit exactly, then train twice, and let the certificates speak."""
    with clock("linear: exact fit"):
        exact = LinearAutoencoder(KEPT, solver="exact").fit(table.values)
    blocks: list[Block] = [
        Prose(
            "A linear autoencoder with k latents can do no better than the k leading principal "
            f"components. Keeping {KEPT:.0%} of the variance takes "
            f"{count(exact.n_components_, 'component')}; the exact solver reads them off the "
            "second moment."
        ),
        _components(table, exact),
    ]
    if table.image_shape is not None:
        blocks.append(_reconstructions(table, table.image_shape, exact, clock))
    blocks.append(Card("The exact fit", exact.certificate_))
    if len(table.columns) <= WIDEST_TRAINING:
        blocks += _training(table, exact, clock)
    return blocks


def _components(table: Table, model: Any) -> Plot:
    shown = model.components_[:SHOWN]
    shares = model.explained_variance_ratio_[:SHOWN]
    titles = [f"{index}: {share:.1%}" for index, share in enumerate(shares, start=1)]
    if table.image_shape is None:
        figure = figures.loadings(shown, table.columns)
    else:
        figure = figures.pictures(shown.reshape(-1, *table.image_shape), titles, signed=True)
    numbers = {
        "component": list(range(1, len(shown) + 1)),
        "share of variance": shares.tolist(),
    } | {name: column.tolist() for name, column in zip(table.columns, shown.T, strict=True)}
    caption = (
        f"The first {count(len(shown), 'component')}, strongest first: red positive, blue negative."
    )
    return Plot.of("components", figure, caption, numbers)


def _reconstructions(table: Table, shape: tuple[int, int], exact: Any, clock: Clock) -> Plot:
    """Draw a few rows beside what codes of growing length keep of them."""
    rows = np.linspace(0, len(table.values) - 1, num=min(10, len(table.values)), dtype=int)
    originals = table.values[rows]
    drawn = {"original": originals}
    for k in sorted({min(k, exact.n_components_) for k in (2, 5, 10, exact.n_components_)}):
        with clock("linear: codes and reconstructions"):
            model = LinearAutoencoder(k, solver="exact").fit(table.values)
            drawn[f"k = {k}"] = model.inverse_transform(model.transform(originals))
    pictures = {name: values.reshape(-1, *shape) for name, values in drawn.items()}
    numbers = {
        "row": np.tile(rows + 1, len(drawn)).tolist(),
        "version": np.repeat(list(drawn), len(rows)).tolist(),
    } | {
        name: column.tolist()
        for name, column in zip(table.columns, np.vstack(list(drawn.values())).T, strict=True)
    }
    caption = "Rows of the data, and what is left of them after k numbers each."
    return Plot.of("reconstructions", figures.picture_rows(pictures), caption, numbers)


def _training(table: Table, exact: Any, clock: Clock) -> list[Block]:
    """Train with plain gradient descent and with rotation-augmented gradients."""
    k = min(TRAINED, exact.n_components_)
    models = {}
    for name, method in METHODS.items():
        with clock(f"linear: {name}, {count(k, 'component')}"):
            models[name] = _trained(table, k, method)
    return [
        Prose(
            "Training reaches the same loss in more than one way. Plain gradient descent finds "
            "the right subspace but any axes within it; the rotation-augmented rule turns them "
            "into the principal components, in their order (Bao et al. 2020). The squares show "
            "which, and the certificates say it in figures."
        ),
        _agreement(exact, models),
        _histories(models),
        *(Card(name, model.certificate_, unfolded=False) for name, model in models.items()),
        Prose(
            f"And this is what a certificate says of a training that ended after {HASTY} epochs:"
        ),
        Card("Ended too early", _trained(table, k, "rag", max_iter=HASTY).certificate_),
    ]


def _trained(table: Table, k: int, method: str, **settings: Any) -> Any:
    model = LinearAutoencoder(k, method=method, solver="gradient", random_state=0, **settings)
    with quietly():
        return model.fit(table.values)


def _agreement(exact: Any, models: dict[str, Any]) -> Plot:
    panels = {
        name: (model.components_ @ exact.components_[: len(model.components_)].T) ** 2
        for name, model in models.items()
    }
    k = len(next(iter(panels.values())))
    numbers = {
        "latent": np.repeat(np.arange(1, k + 1), k).tolist(),
        "component": np.tile(np.arange(1, k + 1), k).tolist(),
    } | {name: values.ravel().tolist() for name, values in panels.items()}
    figure = figures.matrices(panels, xlabel="principal component", ylabel="trained latent")
    caption = (
        "Squared cosine between each trained latent's decoder column and each principal "
        "component. A dark diagonal means that training found the components themselves."
    )
    return Plot.of("alignment", figure, caption, numbers)


def _histories(models: dict[str, Any]) -> Plot:
    histories = {name: model.history_ for name, model in models.items()}
    lines = {name: (history.iterations, history["distance"]) for name, history in histories.items()}
    numbers = {
        "method": [name for name, history in histories.items() for _ in history.iterations],
        "epoch": np.concatenate([epochs for epochs, _ in lines.values()]).tolist(),
        "distance": np.concatenate([distance for _, distance in lines.values()]).tolist(),
        "loss": np.concatenate([history["loss"] for history in histories.values()]).tolist(),
    }
    figure = figures.curves(
        lines, xlabel="epoch", ylabel="distance to a fixed point", logarithmic=True
    )
    caption = (
        "Training stops on its distance to a fixed point, not on how little it moved. An epoch "
        "goes through the second moment alone, so its cost does not depend on the number of rows."
    )
    return Plot.of("training", figure, caption, numbers)


SECTION = Section("linear", "The linear optimum", build)
