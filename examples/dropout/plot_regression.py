"""
Dropout against ridge and reduced-rank regression
=================================================

Several targets are to be predicted from the same inputs, and there are few
rows. Least squares then fits noise. Ridge regression shrinks all coefficients.
Reduced-rank regression uses that related targets depend on few common
combinations of the inputs. Dropout training of a linear network with one
hidden layer does a bit of both: Mianjy et al. (2018) show that its optimum
reduces all singular values by one threshold and removes those below it.
:class:`~lucidae.DropoutRegressor` computes this optimum in closed form, and
reduced-rank regression with ``shrink=False``.
"""

# %%
# Forty inputs, fifteen targets, three components
# -----------------------------------------------
# The targets depend on the inputs by coefficients of rank 3, and half of their
# variance is noise. We compare independent inputs with inputs of which
# neighbours have a correlation of 0.9, as in spectra. All methods choose their
# setting by cross-validation on the training rows, and are tested on 2000
# other rows; the results are means over three training sets.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LinearRegression, RidgeCV

from lucidae import DropoutRegressor
from lucidae.displays import RankPathDisplay
from lucidae.dropout import rank_path

rng = np.random.default_rng(0)
coefficients = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 15))
distances = np.abs(np.subtract.outer(np.arange(40), np.arange(40)))


def sample(n_rows, correlation):
    """Draw inputs, and targets with as much noise as signal."""
    root = np.linalg.cholesky(correlation**distances)
    X = rng.standard_normal((n_rows, 40)) @ root.T
    noise = np.linalg.norm(root.T @ coefficients) / np.sqrt(15)
    return X, X @ coefficients + noise * rng.standard_normal((n_rows, 15))


methods = {
    "least squares": LinearRegression(),
    "ridge": RidgeCV(np.logspace(-2, 4, 25)),
    "reduced rank (lucidae)": DropoutRegressor("cv", shrink=False),
    "dropout (lucidae)": DropoutRegressor(dropout="cv"),
}
sizes = (60, 100, 200, 400)
scores = {}
for correlation in (0.0, 0.9):
    found = np.zeros((len(methods), len(sizes), 3))
    test = sample(2000, correlation)
    for (column, repeat), _ in np.ndenumerate(found[0]):
        train = sample(sizes[column], correlation)
        for row, method in enumerate(methods.values()):
            found[row, column, repeat] = method.fit(*train).score(*test)
    scores[correlation] = dict(zip(methods, found.mean(axis=2), strict=True))
    print(f"R² on new rows, correlation {correlation}, training rows", sizes)
    for name, values in scores[correlation].items():
        print(f"  {name:23}", *(f"{value:6.2f}" for value in values))

# %%
# With independent inputs both methods that know about common components win
# from 100 rows on. With correlated inputs and 60 rows ridge is best, because
# it does not trust directions in which the inputs hardly vary. (Both of our
# methods accept a ridge penalty ``alpha``, too; see :doc:`/reduced_rank`.)

figure, axes = plt.subplots(
    1, 2, figsize=(7.2, 3.6), sharey=True, layout="constrained"
)
for ax, correlation in zip(axes, (0.0, 0.9), strict=True):
    for name, mark in zip(methods, "xs^o", strict=True):
        ax.semilogx(sizes, scores[correlation][name], marker=mark, label=name)
    ax.set_xticks(sizes, sizes)
    ax.minorticks_off()
    ax.set(xlabel="training rows", ylim=(0, 0.5))
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set(ylabel="R² on new rows", title="independent inputs")
axes[1].set_title("correlated inputs")
figure.legend(
    *axes[0].get_legend_handles_labels(),
    loc="outside upper center",
    ncols=4,
    frameon=False,
    fontsize=9,
    handlelength=1.5,
    columnspacing=1.2,
)
plt.show()

# %%
# Which rank do the data support?
# -------------------------------
# :func:`~lucidae.dropout.rank_path` computes reduced-rank regression of all
# ranks at once, with errors on held-out rows.

X, Y = sample(200, 0.0)
path = rank_path(X, Y)
print("rank of the smallest held-out error:", path.best)
print("smallest rank within one standard error of it:", path.one_se)
figure, ax = plt.subplots(figsize=(7.2, 4.0), layout="constrained")
RankPathDisplay.from_path(path, ax=ax)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The certificate
# ---------------
# ``gap`` compares the expected dropout loss with its global minimum, and
# ``equalized`` states a property of every optimum: dropout gives all hidden
# units the same importance.

model = DropoutRegressor(dropout="cv").fit(X, Y)
certificate = model.certificate_
for name in ("gap", "equalized"):
    claim = certificate[name]
    print(f"{claim.verdict}: {name} {claim.figure}\n    {claim.statement}")
print("all claims hold:", certificate.holds)

# %%
# What to take home: if many targets are related, use their common components,
# and look at the path of ranks. If inputs are nearly collinear and rows are
# few, use ridge, or add ``alpha``. There is no need to train a network to get
# the effect of dropout on a linear model.
#
# **Reference.** Mianjy, Arora & Vidal (2018), On the implicit bias of dropout.
# ICML.
