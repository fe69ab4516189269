"""
Embeddings that can be cut after any dimension
==============================================

An *embedding* is a vector that a network computes for an item, such as an
image. Searching among millions of embeddings is cheaper with fewer dimensions.
Keeping only the first ones loses much: a network has no reason to put first
what matters most. Two remedies exist. One is to train the network for it, by
:class:`lucidae.nn.PrefixLoss` or nested dropout, which need torch. The other
is to rotate the embeddings after the training, so that the first dimensions
carry most of the variance. This example shows the second one.
"""

# %%
# Embeddings of digits
# --------------------
# A small network learns to classify images of digits. Its hidden layer of 128
# units is the embedding. Retrieval is tested on images that the network has
# not seen: does the nearest training image, by the Euclidean distance of the
# embeddings, show the same digit? Training is stopped after 50 passes, about
# which scikit-learn warns.

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier

from lucidae import LinearAutoencoder
from lucidae.datasets import load_digits

X, digits = load_digits(return_X_y=True)
network = MLPClassifier(128, max_iter=50, random_state=0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    network.fit(X[:1200], digits[:1200])
embeddings = np.maximum(X @ network.coefs_[0] + network.intercepts_[0], 0.0)

# %%
# Three orders of the dimensions
# ------------------------------
# As the network gave them; by their variance, which costs nothing; and rotated
# to the principal axes of the training embeddings.

autoencoder = LinearAutoencoder().fit(embeddings[:1200])
by_variance = np.argsort(-embeddings[:1200].var(axis=0))
orders = {
    "as trained": embeddings,
    "largest variances": embeddings[:, by_variance],
    "rotated (lucidae)": autoencoder.transform(embeddings),
}


def retrieval(vectors):
    """Return how often the nearest training image shows the same digit."""
    nearest = KNeighborsClassifier(1).fit(vectors[:1200], digits[:1200])
    return nearest.score(vectors[1200:], digits[1200:])


sizes = (2, 4, 8, 16, 32, 64, 128)
accuracy = {
    name: [retrieval(vectors[:, :size]) for size in sizes]
    for name, vectors in orders.items()
}
print("dimensions        ", *(f"{size:5}" for size in sizes))
for name, values in accuracy.items():
    print(f"{name:18}", *(f"{value:5.2f}" for value in values))

# %%
figure, ax = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
for (name, values), mark in zip(accuracy.items(), "s^o", strict=True):
    ax.semilogx(sizes, values, marker=mark, base=2, label=name)
ax.set_xticks(sizes, sizes)
ax.set(
    xlabel="dimensions that are kept",
    ylabel="nearest image shows the same digit",
    title="Retrieval with truncated embeddings",
    ylim=(0, 1),
)
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, loc="lower right")
plt.show()

# %%
# All 128 dimensions are as good before and after the rotation, which keeps all
# distances. The difference is what is left after a cut.
#
# What to take home: rotate first, then cut. The rotation is one matrix, so it
# can be stored in the last layer of the network
# (:func:`lucidae.nn.order_dimensions` does so, with torch). The page
# :doc:`/results/embeddings-truncation` measures what training for truncation
# adds to it.
#
# Is the rotation to be trusted? The certificate says so.

certified = autoencoder.certificate_.holds
print("all claims hold:", certified)
