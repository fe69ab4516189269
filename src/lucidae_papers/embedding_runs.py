"""Training of classifiers with four losses, and their evaluation with truncated embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn

from lucidae.datasets import fetch_mnist, load_digits
from lucidae.linear import LinearAutoencoder
from lucidae.nn import NestedDropout, PrefixLoss, order_dimensions
from lucidae.nn.layers import Tensor, evaluation
from lucidae.validation import check_choice
from lucidae_papers.cells import work

Arrays = dict[str, np.ndarray[Any, Any]]
Split = tuple[Tensor, Tensor]

CHUNK = 1000
"""Number of queries whose similarities to all training embeddings are computed at once."""


class Classifier(nn.Module):
    """Network with two hidden layers, a linear embedding layer and a linear classifier on it."""

    def __init__(self, n_features: int, hidden: int, dim: int, n_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(n_features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.embedding = nn.Linear(hidden, dim)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the embeddings of a batch of inputs."""
        return self.embedding(self.features(x))


Loss = Callable[[Tensor, Tensor], Tensor]


def _at_full_width(model: Classifier, _dims: Sequence[int], _seed: int) -> Loss:
    """Return the loss function: cross-entropy of the classifier on whole embeddings."""
    return lambda z, y: nn.functional.cross_entropy(model.head(z), y)


def _nested(model: Classifier, _dims: Sequence[int], _seed: int) -> Loss:
    """Return the loss function: cross-entropy with nested dropout on the embeddings.

    The dimensions of an embedding after a random length, drawn for each sample, are set to zero.
    """
    dropout = NestedDropout(model.embedding.out_features, "uniform").to(model.head.weight.device)
    return lambda z, y: nn.functional.cross_entropy(model.head(dropout(z)), y)


def _prefixes(model: Classifier, dims: Sequence[int], _seed: int) -> Loss:
    """Return the loss function: mean cross-entropy of prefixes of the embeddings.

    A prefix consists of the first dimensions; `dims` are the lengths of the prefixes.
    """
    weights = np.full(len(dims), 1 / len(dims))
    return PrefixLoss(_at_full_width(model, dims, 0), dims, weights=weights)


def _sampled(model: Classifier, dims: Sequence[int], seed: int) -> Loss:
    """Return the loss function: cross-entropy of one random prefix of the embeddings per step.

    A prefix consists of the first dimensions; its length is drawn from `dims` with equal
    probability.
    """
    return PrefixLoss(_at_full_width(model, dims, 0), dims, prior="uniform", seed=seed)


LOSSES: dict[str, Callable[[Classifier, Sequence[int], int], Loss]] = {
    "plain": _at_full_width,
    "nested": _nested,
    "prefix": _prefixes,
    "sampled": _sampled,
}
"""Loss of each kind of training, from the network, the lengths of the prefixes, and a seed."""


def _digits() -> tuple[Any, Any, Any, Any]:
    """Return the digits of scikit-learn: 1300 images for training and 497 for evaluation."""
    bunch = load_digits()
    return bunch.data[:1300], bunch.target[:1300], bunch.data[1300:], bunch.target[1300:]


def _mnist() -> tuple[Any, Any, Any, Any]:
    """Return the training and the test images of MNIST, as rows, with their digits."""
    train, test = (fetch_mnist(part, return_X_y=True) for part in ("train", "test"))
    return *train, *test


SOURCES: dict[str, Callable[[], tuple[Any, Any, Any, Any]]] = {"digits": _digits, "mnist": _mnist}


@work("embeddings.truncation/1")
def measure(group: Sequence[Mapping[str, Any]], device: str) -> list[Arrays]:
    """Train the network of each run, and evaluate its embeddings at each number of dimensions."""
    return [_measure_one(settings, device) for settings in group]


def _measure_one(settings: Mapping[str, Any], device: str) -> Arrays:
    """Train the network of one run, and return its accuracies and recalls by name."""
    source = SOURCES[check_choice(settings["data"], "data", SOURCES)]
    x, y, held_x, held_y = source()
    train, test = _split(x, y, device), _split(held_x, held_y, device)
    kind, dims = check_choice(settings["loss"], "loss", LOSSES), list(settings["dims"])
    with torch.random.fork_rng(devices=[] if device == "cpu" else None):
        torch.manual_seed(settings["seed"])
        classes = int(train[1].max()) + 1
        model = Classifier(train[0].shape[1], settings["hidden"], max(dims), classes).to(device)
        _fit(model, LOSSES[kind](model, dims, settings["seed"]), train, settings)
    with evaluation(model):
        found = _evaluate(kind, model, train, test, dims)
        if kind == "plain":
            found |= _evaluate("ordered", _ordered(model, train[0]), train, test, dims)
            found |= _evaluate_pca(model, train, test, dims)
    return found


def _split(x: Any, y: Any, device: str) -> Split:
    """Return inputs as float32 and labels as int64 on a device."""
    rows = torch.as_tensor(np.asarray(x), dtype=torch.float32, device=device)
    return rows, torch.as_tensor(np.asarray(y).astype(np.int64), device=device)


def _fit(model: Classifier, loss: Loss, train: Split, settings: Mapping[str, Any]) -> None:
    """Train a network with Adam; the learning rate decreases to zero along a half cosine."""
    x, y = train
    batch, epochs = settings["batch_size"], settings["epochs"]
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"])
    steps = epochs * (len(x) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        order = torch.randperm(len(x)).to(x.device)
        for rows in order[: len(x) // batch * batch].split(batch):
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()


def _ordered(model: Classifier, x: Tensor) -> Classifier:
    """Return a copy of a network whose dimensions are ordered by their effect on its classifier."""
    copy = deepcopy(model)
    order_dimensions(copy.embedding, copy.head, copy.features(x), center=True)
    return copy


def _evaluate(
    name: str, model: Classifier, train: Split, test: Split, dims: Sequence[int]
) -> Arrays:
    """Return accuracy and recall with the first dimensions of a network's embeddings.

    Embeddings of the images `test` are classified, and compared with those of the images `train`.
    """
    stored, queries = model(train[0]), model(test[0])
    accuracy = [_accuracy(model, _padded(queries, b), test[1]) for b in dims]
    recall = [_recall(stored[:, :b], train[1], queries[:, :b], test[1]) for b in dims]
    return {f"accuracy/{name}": np.array(accuracy), f"recall/{name}": np.array(recall)}


def _evaluate_pca(model: Classifier, train: Split, test: Split, dims: Sequence[int]) -> Arrays:
    """Return accuracy and recall of the first principal components of a network's embeddings.

    The classifier of the network is applied to the embeddings that the components reconstruct. The
    components are those of the images `train`; `dims` are the numbers of components.
    """
    stored, queries = model(train[0]), model(test[0])
    rotation = LinearAutoencoder(max(dims), solver="exact").fit(stored.cpu().numpy())
    codes, asked = (rotation.transform(z.cpu().numpy()) for z in (stored, queries))
    accuracy, recall = [], []
    for b in dims:
        cut = np.where(np.arange(asked.shape[1]) < b, asked, 0.0)
        decoded = torch.as_tensor(rotation.inverse_transform(cut)).to(queries)
        accuracy.append(_accuracy(model, decoded, test[1]))
        first, second = (torch.as_tensor(part[:, :b]).to(queries) for part in (codes, asked))
        recall.append(_recall(first, train[1], second, test[1]))
    return {"accuracy/pca": np.array(accuracy), "recall/pca": np.array(recall)}


def _padded(embeddings: Tensor, count: int) -> Tensor:
    """Return embeddings with all dimensions after the first `count` set to zero."""
    kept = torch.arange(embeddings.shape[1], device=embeddings.device) < count
    return embeddings * kept


def _accuracy(model: Classifier, embeddings: Tensor, labels: Tensor) -> float:
    """Return the share of embeddings that the classifier of the network assigns correctly."""
    return float((model.head(embeddings).argmax(1) == labels).double().mean())


def _recall(stored: Tensor, classes: Tensor, queries: Tensor, labels: Tensor) -> float:
    """Return the share of queries whose most similar stored embedding has the same class.

    This is the recall at 1 of a search by cosines.
    """
    gallery = nn.functional.normalize(stored, dim=1)
    found = [
        classes[(nn.functional.normalize(part, dim=1) @ gallery.mT).argmax(1)]
        for part in queries.split(CHUNK)
    ]
    return float((torch.cat(found) == labels).double().mean())
