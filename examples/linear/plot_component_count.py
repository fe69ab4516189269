"""
How many components?
====================

A common answer is "as many as explain 90 % of the variance". This answer
depends on the noise: the more features with noise, the more components are
needed, although the structure in the data is the same.
:class:`~lucidae.LinearAutoencoder` has three criteria that compare the
eigenvalues of the covariance with what noise alone would give: Minka's
evidence (``"mle"``), parallel analysis and the optimal hard threshold of
Gavish and Donoho.
"""

# %%
# Data with a known answer
# ------------------------
# 300 rows of 60 features are mixtures of six factors of decreasing strength,
# plus noise of variance 1 in every feature.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA

from lucidae import LinearAutoencoder
from lucidae.displays import ComponentCountDisplay

rng = np.random.default_rng(0)
true_count = 6
strengths = np.array([6.0, 5.0, 4.0, 3.0, 2.5, 2.0])
directions = np.linalg.qr(rng.standard_normal((60, true_count)))[0]
X = rng.standard_normal((300, true_count)) * strengths @ directions.T
X += rng.standard_normal(X.shape)

# %%
# Four answers
# ------------

counts = {"90 % of the variance": int(PCA(0.9).fit(X).n_components_)}
for criterion in ("mle", "parallel_analysis", "hard_threshold"):
    counts[criterion] = LinearAutoencoder(criterion).fit(X).n_components_
for name, count in counts.items():
    print(f"{name:22} {count:3}")

# %%
# The scree plot shows why. The curve of the eigenvalues does not fall to zero
# after the sixth: noise has eigenvalues, too, and with 300 rows the largest of
# them is well above its variance 1.
# :class:`~lucidae.displays.ComponentCountDisplay` draws the levels that an
# eigenvalue must exceed to count (for the two criteria that have such levels),
# and the number that each criterion finds.

autoencoder = LinearAutoencoder("parallel_analysis").fit(X)
figure, ax = plt.subplots(figsize=(7.2, 4.0), layout="constrained")
ComponentCountDisplay.from_estimator(autoencoder, max_components=45, ax=ax)
share = counts["90 % of the variance"]
ax.axvline(share + 0.5, color="gray", linestyle=":")
ax.text(share + 0.2, 4, "90 % of\nthe variance", ha="right")
ax.set_title("Six factors in noise: eigenvalues and criteria")
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Number and direction are different questions
# --------------------------------------------
# A component can be real although its direction is uncertain. The claim
# ``sampling`` of the certificate reports which components are separated from
# noise and from their neighbours, so that another sample would show them
# again.

print(autoencoder.certificate_["sampling"].advice)

# %%
# What to take home: parallel analysis is the best choice of these if the noise
# has the same variance in all features, which all three criteria assume. If
# features have different units or noise, standardise them first, and do not
# trust any of the three blindly. The page :doc:`/results/component-counts`
# compares the criteria on many data sets.
