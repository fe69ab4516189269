"""Draw the figures of guides and how-to pages: ``python docs/figures/pages.py [NAME…]``.

Every figure is computed anew, with the data and settings of the page that shows it.
"""

import sys
import warnings

import numpy as np
from landing import LIGHT, drawing, new_figure, write
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

from lucidae import DropoutFactorization, DropoutRegressor, LinearAutoencoder
from lucidae.datasets import load_digits, make_meg_leadfield, make_sparse_regression
from lucidae.displays import ComponentCountDisplay
from lucidae.dropout import rank_path
from lucidae.sparsity import noise_path

WIDE = (6.8, 2.3)


def component_count():
    """Draw eigenvalues of a table and of noise: the hard threshold between them."""
    X = StandardScaler().fit_transform(load_wine().data)
    eigenvalues = LinearAutoencoder(13).fit(X).explained_variance_
    criteria = ComponentCountDisplay.from_spectrum(eigenvalues, len(X), ax=new_figure()[1])
    level = criteria.levels["hard_threshold"][0]
    noise = np.random.default_rng(0).standard_normal(X.shape)
    figure, axis = new_figure(figsize=WIDE)
    places = np.arange(13)
    of_noise = LinearAutoencoder(13).fit(noise).explained_variance_
    axis.plot(places, of_noise, "s--", color=LIGHT["orange"], label="pure noise of the same shape")
    axis.plot(places, eigenvalues, "o-", color=LIGHT["blue"], label="wines, standardised")
    axis.axhline(level, color=LIGHT["green"], linestyle=":", label="hard threshold")
    axis.set(xlabel="component", ylabel="variance", yscale="log", xticks=places)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure, "Variances of components of wines and of noise, and the hard threshold."


def stream():
    """Draw the error of components over the rows that have been read."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 30)) * np.linspace(2.0, 1.0, 30)
    figure, axis = new_figure(figsize=WIDE)
    models = {
        "IncrementalPCA": (IncrementalPCA(4), LIGHT["orange"], "s--"),
        "LinearAutoencoder": (LinearAutoencoder(4), LIGHT["blue"], "o-"),
    }
    for name, (model, colour, line) in models.items():
        errors = []
        for start in range(0, 3000, 200):
            model.partial_fit(X[start : start + 200])
            exact = PCA(4).fit(X[: start + 200]).components_
            errors.append(max(np.abs(model.components_ - exact).max(), 1e-16))
        rows = np.arange(200, 3001, 200)
        axis.semilogy(rows, errors, line, color=colour, label=name)
    axis.set(xlabel="rows read, in batches of 200", ylabel="largest error", ylim=(1e-16, 10))
    axis.legend(loc="center right")
    return figure, "Error of the components of a stream against the rows that were read."


def shrinkage():
    """Draw singular values of least squares and of the dropout optimum."""
    images = load_digits().data
    X, Y = images[:, :32], images[:, 32:]
    full = DropoutRegressor(dropout=0.0).fit(X, Y).singular_values_
    figure, axis = new_figure(figsize=WIDE)
    places = np.arange(len(full))
    axis.plot(places, full, "o-", color=LIGHT["ink"], label="least squares")
    for rate, colour, line in [(0.2, "blue", "s--"), (0.5, "orange", "^-.")]:
        model = DropoutRegressor(dropout=rate).fit(X, Y)
        shrunk = np.maximum(full - model.threshold_, 0.0)
        label = f"dropout {rate}: rank {model.rank_}"
        axis.plot(places, shrunk, line, color=LIGHT[colour], label=label)
    axis.set(xlabel="component", ylabel="singular value", ylim=(0, None), xlim=(-1, 32))
    axis.legend(loc="upper right")
    return figure, "Singular values of least squares, reduced by the threshold of dropout."


def ranks():
    """Draw the error on held-out rows against the rank of a regression."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 20))
    Y = X @ rng.standard_normal((20, 3)) @ rng.standard_normal((3, 12))
    Y += 6 * rng.standard_normal(Y.shape)
    path = rank_path(X, Y)
    figure, axis = new_figure(figsize=WIDE)
    places = np.arange(len(path.error))
    axis.plot(places, path.error, "s--", color=LIGHT["muted"], label="training rows")
    axis.errorbar(
        places, path.held_out_error, path.standard_error, fmt="o-", color=LIGHT["blue"],
        label="held-out rows, ± standard error",
    )  # fmt: skip
    axis.axvline(3, color=LIGHT["green"], linestyle=":", label="true rank")
    axis.set(xlabel="rank", ylabel="mean squared error", ylim=(0, None))
    axis.legend(loc="upper right")
    return figure, "Errors of a regression against its rank, on training and on held-out rows."


def _paths(axes, dictionaries, responses):
    """Draw the number of significant columns against the noise variance, one line each."""
    for (words, dictionary), colour, line in zip(
        dictionaries.items(), ("blue", "orange"), ("o-", "s--"), strict=False
    ):
        path = noise_path(dictionary, responses)
        axes.plot(path.noise_variances, path.n_columns, line, color=LIGHT[colour], label=words)
    axes.set(xscale="log", xlabel="noise variance γ", ylabel="significant columns")
    axes.invert_xaxis()


def path():
    """Draw the columns along the path, for a right dictionary and one with errors."""
    problem = make_sparse_regression(d=50, kappa=80, r=4, snr_db=15, random_state=1)
    X, Y = problem.dictionary, problem.responses
    wrong = X + 0.08 * np.random.default_rng(0).standard_normal(X.shape)
    figure, axis = new_figure(figsize=WIDE)
    _paths(axis, {"the right dictionary": X, "a dictionary with errors": wrong}, Y)
    axis.axhline(4, color=LIGHT["green"], linestyle=":", label="4 true columns")
    axis.axvline(problem.noise_variance, color=LIGHT["muted"], linestyle="-.", label="true γ")
    axis.legend(loc="upper left")
    return figure, "Number of significant columns against the noise variance, in two situations."


def noise():
    """Draw the error on held-out rows along the path of noise variances."""
    rng = np.random.default_rng(0)
    leadfield = make_meg_leadfield(n_sensors=60, n_sources=200, random_state=0)
    clean = make_sparse_regression(dictionary=leadfield, r=3, n=40, random_state=4)
    deviations = 0.1 * clean.responses.std() * rng.uniform(0.5, 1.5, size=60)
    noise = deviations[:, None] * rng.standard_normal(clean.responses.shape)
    found = noise_path(clean.dictionary, clean.responses + noise)
    figure, axis = new_figure(figsize=WIDE)
    axis.plot(found.noise_variances, found.held_out_error, "o-", color=LIGHT["blue"])
    axis.axvline(
        np.mean(deviations**2), color=LIGHT["muted"], linestyle="-.", label="true noise variance"
    )
    least = np.nanmin(found.held_out_error)
    axis.axhline(least, color=LIGHT["green"], linestyle=":", label='smallest error, the γ of "cv"')
    axis.axvline(least, color=LIGHT["green"], linestyle=":")
    axis.set(xscale="log", yscale="log", xlabel="noise variance γ", ylabel="error of held-out rows")
    axis.invert_xaxis()
    axis.legend(loc="upper center")
    return figure, "Error of held-out rows along a path of noise variances."


def missing():
    """Draw codes of rows of which most entries are hidden, with their standard deviations."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2)) * [3, 1.5] @ rng.standard_normal((2, 10))
    X += rng.standard_normal(X.shape)
    gaps = np.where(rng.random(X.shape) < 0.6, np.nan, X)
    model = LinearAutoencoder(2, handle_missing="em").fit(gaps)
    rows = slice(0, 25)
    complete = model.transform(X)[rows, 0]
    codes = model.transform(gaps)[rows, 0]
    spread = np.sqrt(model.posterior_covariance(gaps)[rows, 0, 0])
    order, figure_axis = np.argsort(complete), new_figure(figsize=WIDE)
    figure, axis = figure_axis
    places = np.arange(25)
    axis.errorbar(
        places, codes[order], 2 * spread[order], fmt="o", color=LIGHT["blue"],
        label="from about 4 of 10 entries, ± 2 standard deviations",
    )  # fmt: skip
    axis.plot(places, complete[order], "_", color=LIGHT["orange"], markersize=10, markeredgewidth=2)
    axis.plot([], [], "_", color=LIGHT["orange"], markersize=10, label="from all entries")
    axis.set(xlabel="row", ylabel="first code", xticks=[])
    axis.legend(loc="upper left")
    return figure, "Codes of rows with missing entries beside those of the complete rows."


def completion():
    """Draw the error of hidden entries against the dropout rate."""
    rng = np.random.default_rng(0)
    M = rng.standard_normal((60, 4)) @ rng.standard_normal((4, 40))
    M += 0.5 * rng.standard_normal(M.shape)
    hidden = rng.random(M.shape) < 0.5
    X = np.where(hidden, np.nan, M)
    rates, errors, ranks_found = np.linspace(0.05, 0.95, 13), [], []
    for rate in rates:
        model = DropoutFactorization(20, dropout=rate, handle_missing="complete").fit(X)
        filled = model.inverse_transform(model.transform(X))
        errors.append(np.sqrt(np.mean((filled - M)[hidden] ** 2)))
        ranks_found.append(model.rank_)
    chosen = DropoutFactorization(20, dropout="cv", handle_missing="complete").fit(X).dropout_
    figure, axes = new_figure(1, 2, figsize=WIDE)
    axes[0].plot(rates, errors, "o-", color=LIGHT["blue"])
    axes[0].set(ylabel="error of hidden entries", ylim=(0, None))
    axes[1].plot(rates, ranks_found, "o-", color=LIGHT["blue"])
    axes[1].set(ylabel="rank", ylim=(0, None))
    for axis in axes:
        axis.axvline(chosen, color=LIGHT["green"], linestyle=":", label='dropout="cv"')
        axis.set(xlabel="dropout")
    axes[1].legend(loc="upper right")
    return figure, "Error of hidden entries and rank against the dropout rate."


def cells():
    """Draw the first two codes of simulated cells, one colour for each type."""
    rng = np.random.default_rng(0)
    programmes = np.exp(rng.normal(0, 1, (6, 300)))
    types = rng.integers(0, 6, 800)
    counts = rng.poisson(programmes[types]).astype(float)
    codes = LinearAutoencoder(5).fit_transform(np.log1p(counts))
    figure, axes = new_figure(1, 2, figsize=WIDE)
    colours = ("blue", "orange", "green", "purple", "yellow", "muted")
    for axis, (i, j) in zip(axes, ((0, 1), (2, 3)), strict=True):
        for kind, colour in enumerate(colours):
            chosen = codes[types == kind][:30]
            axis.plot(chosen[:, i], chosen[:, j], ".", color=LIGHT[colour])
        axis.set(xlabel=f"component {i}", ylabel=f"component {j}")
    return figure, "Codes of 180 simulated cells of six types."


def blocks():
    """Draw how the moments of blocks of rows are merged in a tree."""
    figure, axis = new_figure(figsize=(6.8, 1.9))
    axis.set_axis_off()
    axis.set(xlim=(0, 10), ylim=(0, 4))
    for i in range(4):
        height = 3.2 - 0.95 * i
        for words, x, colour in ((f"rows, block {i}", 1.0, "muted"), ("moment", 3.8, "blue")):
            axis.text(x, height, words, ha="center", va="center", color=LIGHT[colour])
        arrow = {"arrowstyle": "->", "color": LIGHT["muted"]}
        axis.annotate("", (3.2, height), (1.9, height), arrowprops=arrow)
        joined = 2.72 if i < 2 else 0.82
        axis.annotate("", (5.7, joined), (4.4, height), arrowprops=arrow)
    for joined in (2.72, 0.82):
        axis.text(6.3, joined, "merged", ha="center", va="center", color=LIGHT["blue"])
        axis.annotate("", (7.9, 1.77), (6.9, joined), arrowprops=arrow)
    words = "moment of all rows:\nmean, m × m covariance"
    axis.text(8.0, 1.77, words, ha="left", va="center", color=LIGHT["green"])
    return figure, "Moments of blocks of rows are merged in a tree to the moment of all rows."


def prefixes():
    """Draw the loss of each prefix while the network of the how-to page is trained."""
    import torch

    from lucidae.nn import PrefixLoss

    torch.manual_seed(0)
    images = torch.tensor(load_digits().data, dtype=torch.float32)
    train, test = images[:1200], images[1200:]
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    encoder = torch.nn.Sequential(linear(64, 64), relu(), linear(64, 8))
    decoder = torch.nn.Sequential(linear(8, 64), relu(), linear(64, 64))
    loss = PrefixLoss(lambda z, x: (decoder(z) - x).square().sum(dim=1).mean(), dims=[2, 4, 8])
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer, history = torch.optim.Adam(parameters, lr=3e-3), []
    for _ in range(20):
        for batch in train.split(200):
            optimizer.zero_grad()
            loss(encoder(batch), batch).backward()
            optimizer.step()
        loss.eval()
        loss(encoder(test), test)
        history.append(list(loss.last.values()))
        loss.train()
    figure, axis = new_figure(figsize=WIDE)
    curves = zip((2, 4, 8), np.transpose(history), ("o-", "s--", "^-."), strict=True)
    for (length, values, line), colour in zip(curves, ("orange", "green", "blue"), strict=True):
        axis.plot(range(1, 21), values, line, color=LIGHT[colour], label=f"{length} dimensions")
    axis.set(xlabel="epoch", ylabel="squared error of new rows", ylim=(0, None))
    axis.set_xticks(range(0, 21, 5))
    axis.legend(loc="upper right")
    return figure, "Error of the reconstruction from 2, 4 and 8 dimensions while training."


FIGURES = (
    component_count, stream, shrinkage, ranks, path, noise, missing, completion, cells, blocks,
    prefixes,
)  # fmt: skip


if __name__ == "__main__":
    wanted = sys.argv[1:]
    with drawing(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for function in FIGURES:
            name = function.__name__.replace("_", "-")
            if not wanted or name in wanted:
                figure, description = function()
                write(figure, name, description)
