"""
A noise path: which columns can be trusted?
===========================================

How many columns of a dictionary explain the responses depends on how much of
them is noise. If the variance of the noise is known, there is one answer; if
it is not, every sparse method has to guess it, by an information criterion, by
cross-validation or by a penalty. :func:`~lucidae.sparsity.noise_path` shows
the answers for all noise variances at once. Columns that are found early and
stay can be trusted more than those that come and go.
"""

# %%
# A dictionary of correlated columns
# ----------------------------------
# 60 rows, 100 columns whose neighbours have a correlation of 0.9, and five of
# them with an effect on five responses.

import matplotlib.pyplot as plt
import numpy as np

from lucidae.displays import NoisePathDisplay
from lucidae.sparsity import noise_path

rng = np.random.default_rng(0)
distances = np.abs(np.subtract.outer(np.arange(100), np.arange(100)))
X = rng.standard_normal((60, 100)) @ np.linalg.cholesky(0.9**distances).T
relevant = np.sort(rng.choice(100, 5, replace=False))
effects = rng.standard_normal((5, 5)) * np.linspace(2.0, 0.6, 5)[:, None]
clean = X[:, relevant] @ effects
noise_variance = (0.4 * clean.std()) ** 2
y = clean + np.sqrt(noise_variance) * rng.standard_normal(clean.shape)
print("relevant columns:", relevant, f"noise variance: {noise_variance:.2f}")

# %%
# The path
# --------
# Each line is a column, in the order in which it enters. Cells are coloured by
# the share of the responses that the column explains at this noise variance.
# On the right the assumed noise variance is too small, noise is taken for
# signal, and further columns enter. Columns that come and go are marked by a
# star.

path = noise_path(X, y, np.geomspace(40.0, 0.2, 24))
figure, ax = plt.subplots(figsize=(8.0, 5.2), layout="constrained")
display = NoisePathDisplay.from_path(path, max_columns=16, ax=ax)
ax.axvline(noise_variance, color="gray", linestyle="--", linewidth=1.2)
place = (1.05 * noise_variance, 15.8)
ax.text(*place, "true noise\nvariance", ha="right", va="bottom")
plt.show()

# %%
# Choosing one point of it
# ------------------------
# Three ways to select a fit: the largest noise variance whose held-out error
# is within one standard error of the smallest one, a share of the responses
# that is to be explained, or a number of columns.

choices = {
    "one standard error": path.select(rule="one_se"),
    "explain 80 %": path.select(explained=0.8),
    "three columns": path.select(n_columns=3),
}
for name, model in choices.items():
    gamma = model.noise_variance_
    print(f"{name:19} noise variance {gamma:5.2f}, columns {model.support_}")
first_five = np.sort(display.columns[:5])
print("the five columns that enter first:", first_five)

# %%
# Each of them is a fitted :class:`~lucidae.SparseVAE` with its certificate.

certificate = choices["one standard error"].certificate_
print("all claims hold:", certificate.holds)

# %%
# What to take home: do not report the columns of one noise variance alone. If
# the same columns are found over a wide range of noise variances, as the first
# five here, the result does not hinge on the guess.
