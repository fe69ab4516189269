"""Draw the figure of the page on compression: ``python docs/figures/compress.py``.

A network for digits is compressed by its plan, and by the singular value decomposition of its
weights: with the ranks of the plan, and with an equal share for every layer.
"""

import copy

import numpy as np
import torch
from landing import write
from torch import nn

from lucidae.datasets import load_digits
from lucidae.nn import compress
from lucidae_app.report.style import LIGHT, drawing, new_figure

SHARES = np.geomspace(0.05, 0.9, 24)


def trained():
    """Return a network, its calibration inputs, and test inputs with labels."""
    torch.manual_seed(0)
    digits = load_digits()
    order = torch.randperm(len(digits.data))
    x = torch.tensor(digits.data, dtype=torch.float32)[order]
    labels = torch.tensor(digits.target)[order]
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(30):
        for batch in torch.randperm(1200).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), labels[batch]).backward()
            optimizer.step()
    return model, x[:1200], x[1200:], labels[1200:]


def truncated(model, ranks):
    """Return a model whose weights are truncated singular value decompositions."""
    small = copy.deepcopy(model)
    for name, rank in ranks.items():
        weight = small.get_submodule(name).weight.data
        U, s, Vt = torch.linalg.svd(weight, full_matrices=False)
        weight.copy_((U[:, :rank] * s[:rank]) @ Vt[:rank])
    return small


def equal_ranks(model, share):
    """Return the ranks for which every layer keeps the same share of its parameters."""
    ranks = {}
    for name in ("0", "2", "4"):
        n, m = model.get_submodule(name).weight.shape
        ranks[name] = max(1, int((share * (n * m + n) - n) / (m + n)))
    return ranks


def main():
    """Draw test accuracy against the share of parameters."""
    model, train, test, labels = trained()
    plan = compress.plan(model, train, importance="relative")

    def accuracy(network):
        return 100 * (network(test).argmax(1) == labels).float().mean().item()

    curves = {"plan": [], "ranks": [], "equal": []}
    for share in SHARES:
        now = plan.at(budget=float(share))
        curves["plan"].append(accuracy(now.apply(model)))
        curves["ranks"].append(accuracy(truncated(model, now.rank_pattern())))
        curves["equal"].append(accuracy(truncated(model, equal_ranks(model, share))))
    with drawing():
        figure, axis = new_figure(figsize=(6.4, 3.4))
        axis.axhline(accuracy(model), color=LIGHT["muted"], linewidth=0.8, linestyle=":")
        for name, colour, words, place in (
            ("plan", "blue", "lucidae", (0.051, 84)),
            ("ranks", "green", "SVD of the weights,\nranks of the plan", (0.09, 62)),
            ("equal", "orange", "SVD of the weights,\nequal shares", (0.36, 26)),
        ):
            axis.plot(100 * SHARES, curves[name], color=LIGHT[colour], linestyle="-")
            axis.annotate(words, (100 * place[0], place[1]), color=LIGHT[colour], fontsize=9.5)
        axis.annotate("original network", (5.1, 99), color=LIGHT["muted"], fontsize=9.5)
        axis.set_xscale("log")
        axis.set_xticks([5, 10, 20, 50, 90], ["5", "10", "20", "50", "90"])
        axis.minorticks_off()
        axis.set(xlabel="parameters kept, %", ylabel="test accuracy, %", ylim=(0, 107))
        write(figure, "compress", "Test accuracy of a compressed network against its size")


if __name__ == "__main__":
    main()
