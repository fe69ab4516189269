"""
Digits: components, reconstructions and the certificate
=======================================================

How many numbers does an image of a digit need?
:class:`~lucidae.LinearAutoencoder` computes the linear code of k numbers with
the smallest reconstruction error. It has the interface of scikit-learn's
``PCA``, and its result; in addition, every fit has a certificate that judges
the result without using the code that has computed it.
"""

# %%
# Fit and compare
# ---------------
# We fit on 1200 images and look at the other 597.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA

from lucidae import LinearAutoencoder
from lucidae.datasets import load_digits
from lucidae.displays import ComponentsDisplay

X, digits = load_digits(return_X_y=True)
train, test = X[:1200], X[1200:]

autoencoder = LinearAutoencoder(20).fit(train)
pca = PCA(20).fit(train)
ratios = autoencoder.explained_variance_ / pca.explained_variance_
difference = np.abs(ratios - 1).max()
print(f"largest relative difference from variances of PCA: {difference:.1e}")

# %%
# Reconstructions of new images
# -----------------------------
# One model for several k is enough: the latents are ordered, so the first five
# of twenty are the best five. We set the others to zero.

sizes = (2, 5, 10, 20)
codes = autoencoder.transform(test)
reconstructions = {
    size: autoencoder.inverse_transform(codes * (np.arange(20) < size))
    for size in sizes
}
total = np.mean((test - autoencoder.mean_) ** 2)
errors = {
    size: np.mean((test - rows) ** 2) / total
    for size, rows in reconstructions.items()
}
print("share of the variance of new images that is lost:")
for size in sizes:
    print(f"{size:2} numbers: {100 * errors[size]:3.0f} %")

# %%
# The components are images, too: red pixels are brighter and blue ones darker
# where the code is positive.

figure, (above, below) = plt.subplots(
    2, 1, figsize=(7.2, 5.6), height_ratios=(1, 2.5), layout="constrained"
)
ComponentsDisplay.from_estimator(autoencoder, image_shape=(8, 8), ax=above)
above.set_title("The twenty components", loc="left")

shown = [int(np.flatnonzero(digits[1200:] == digit)[0]) for digit in range(10)]
rows = [test[shown], *(reconstructions[size][shown] for size in sizes)]
images = np.reshape(rows, (5, 10, 8, 8))
images = np.pad(images, ((0, 0), (0, 0), (0, 1), (0, 1)))  # space between
sheet = images.transpose(0, 2, 1, 3).reshape(45, 90)
below.imshow(sheet, cmap="gray_r", vmin=0, vmax=1)
below.set_title("New images and their reconstructions", loc="left")
labels = ["image", *(f"{size} numbers" for size in sizes)]
below.set_yticks(np.arange(5) * 9 + 3.5, labels)
below.set_xticks([])
below.tick_params(length=0)
below.spines[:].set_visible(False)
plt.show()

# %%
# The certificate
# ---------------
# Each line is a claim with the measured value, its limit and the theorem
# behind it. The claims are computed from the weights and the second moment of
# the data by code that is not that of the solver. ``–`` marks claims that do
# not apply or numbers that are only reported.

certificate = autoencoder.certificate_
certificate

# %%
# What to take home: use it where you use ``PCA``; the numbers are the same.
# The certificate says that no other twenty numbers per image reconstruct these
# 1200 images better, and how many of the components exceed sampling noise.
