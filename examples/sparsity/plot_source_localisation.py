"""
Source localisation in a spherical head
=======================================

Magnetometers around the head record the fields of a few active places in the
brain. Which places? The field at 102 sensors is to be explained by a few of
hundreds of candidate sources, which differ little in their fields. MNE-Python
has linear methods such as dSPM, whose maps are smooth, and sparse ones such as
``gamma_map``. :func:`lucidae.mne.sparse_vae` has the arguments of
``gamma_map``. It returns the sources that are statistically significant, and a
certificate.
"""

# %%
# A simulated recording
# ---------------------
# MNE computes the fields in a spherical head, so that no file is needed. The
# candidates are on a grid of 15 mm. The three true sources are *between* the
# points of this grid, as real ones are, so that no candidate explains the data
# exactly. Each is active at its own time.

import matplotlib.pyplot as plt
import mne
import numpy as np

from lucidae.displays import SourceDisplay
from lucidae.mne import sparse_vae

mne.set_log_level("ERROR")
info = mne.channels.read_meg_canonical_info("neuromag")
info = mne.pick_info(info, mne.pick_types(info, meg="mag"))
centre = np.array([0.0, 0.0, 0.02])
head = mne.make_sphere_model(centre, 0.09, info=info)


def fields(space):
    """Return the forward solution: the field of every source."""
    return mne.make_forward_solution(
        info, None, space, head, eeg=False, mindist=0.0
    )


grid = mne.setup_volume_source_space(
    pos=15.0, sphere=(*centre, 0.075), sphere_units="m", exclude=35.0
)
forward = fields(grid)
candidates = forward["source_rr"]

true = np.array(
    [[-0.045, 0.012, 0.055], [0.04, -0.03, 0.06], [0.012, 0.05, 0.05]]
)
space = mne.setup_volume_source_space(pos={"rr": true, "nn": true})
field = fields(space)["sol"]["data"]
times = np.arange(40) / 400
peaks = (0.03, 0.05, 0.07)
rng = np.random.default_rng(0)
data = np.zeros((102, 40))
for source, peak in enumerate(peaks):
    direction = np.cross(true[source] - centre, rng.standard_normal(3))
    direction /= np.linalg.norm(direction)
    course = 5e-9 * np.exp(-(((times - peak) / 0.015) ** 2))
    columns = slice(3 * source, 3 * source + 3)
    data += field[:, columns] @ np.outer(direction, course)
data += 5e-15 * rng.standard_normal(data.shape)
evoked = mne.EvokedArray(data, info, tmin=0.0)
noise_cov = mne.make_ad_hoc_cov(info)
print(f"{len(candidates)} candidates, {len(info['ch_names'])} sensors")

# %%
# Three methods
# -------------
# The map of dSPM is read as usual: its largest value at the time at which a
# source is strongest. The other two methods return a short list of sources.

result = sparse_vae(evoked, forward, noise_cov, return_result=True)

inverse = mne.minimum_norm.make_inverse_operator(
    info, forward, noise_cov, loose=1.0
)
smooth = mne.minimum_norm.apply_inverse(evoked, inverse, method="dSPM")
highest = [
    int(np.argmax(smooth.data[:, np.argmin(abs(times - peak))]))
    for peak in peaks
]
gamma_map = mne.inverse_sparse.gamma_map(
    evoked, forward, noise_cov, alpha=1.0, loose=1.0, xyz_same_gamma=True
)


def distances(found):
    """Return the distance of each true source to the nearest one found."""
    differences = 1e3 * (true[:, None] - found[None])  # in mm
    return np.linalg.norm(differences, axis=2).min(axis=1)


best_possible = distances(candidates)
errors = {
    "dSPM": distances(candidates[highest]),
    "gamma_map": distances(grid[0]["rr"][gamma_map.vertices[0]]),
    "sparse_vae": distances(result.positions),
}
n_found = {
    "dSPM": 3,
    "gamma_map": len(gamma_map.data),
    "sparse_vae": len(result.sources),
}
print(f"{'nearest candidate':18}", best_possible.round(1), "mm")
for name, values in errors.items():
    print(f"{name:18}", values.round(1), f"mm, {n_found[name]} sources")

# %%
# ``sparse_vae`` returns three sources, and each is the candidate that is
# nearest to a true one. Crosses mark the true positions.

display = SourceDisplay.prepared(result, path=False)
figure = plt.figure(figsize=(10.0, display.height), layout="constrained")
display.plot(ax=display.arranged(figure))
cross = {"marker": "+", "color": "tab:red", "s": 200, "zorder": 5}
for ax, pair in zip(display.ax_, ([0, 1], [0, 2], [1, 2]), strict=True):
    ax.scatter(*1e3 * true[:, pair].T, **cross)
plt.show()

# %%
# How the certificate reads
# -------------------------

certificate = result.certificate
for name in ("stationarity", "support", "posterior_collapse"):
    claim = certificate[name]
    print(f"{claim.verdict}: {name} {claim.figure}\n    {claim.statement}")
print("all claims hold:", certificate.holds)
print(f"share of the data that is explained: {result.goodness_of_fit:.0f} %")

# %%
# What to take home: call ``sparse_vae`` where you call ``gamma_map``, and read
# the certificate. This is one simulation. In the many simulations of
# :doc:`/meg` there are conditions in which ``gamma_map`` is better, and
# sources between the points of the grid are one of them: with stronger sources
# than here a fit at the noise level of the sensors can divide a source over
# neighbouring candidates. A larger ``noise_variance`` is the remedy.
