"""Small simulated recordings of evoked responses, computed by MNE without any file."""

from functools import lru_cache
from types import SimpleNamespace

import numpy as np

from extras import require

mne = require("mne")
from lucidae.mne import sparse_vae

CENTRE = (0.0, 0.0, 0.0)


@lru_cache
def icosphere(grade):
    """Return the vertices and triangles of a unit sphere, a subdivided icosahedron."""
    golden = (1 + 5**0.5) / 2
    corners = [(0, a, b * golden) for a in (-1, 1) for b in (-1, 1)]
    rr = np.array([np.roll(corner, turn) for turn in range(3) for corner in corners])
    edge = 2.01
    near = np.linalg.norm(rr[:, None] - rr[None], axis=2) < edge
    tris = np.array([
        (a, b, c)
        for a in range(12) for b in range(a + 1, 12) for c in range(b + 1, 12)
        if near[a, b] and near[b, c] and near[a, c]
    ])  # fmt: skip
    outward = np.einsum("ij,ij->i", np.cross(rr[tris[:, 0]], rr[tris[:, 1]]), rr[tris[:, 2]])
    tris[outward < 0] = tris[outward < 0][:, ::-1]
    for _ in range(grade):
        places, halves = [tuple(point) for point in rr], {}

        def middle(a, b, places=places, halves=halves, rr=rr):
            key = (min(a, b), max(a, b))
            if key not in halves:
                halves[key] = len(places)
                places.append(tuple((rr[a] + rr[b]) / 2))
            return halves[key]

        split = []
        for a, b, c in tris:
            ab, bc, ca = middle(a, b), middle(b, c), middle(c, a)
            split += [(a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca)]
        rr, tris = np.array(places), np.array(split)
    return rr / np.linalg.norm(rr, axis=1, keepdims=True), tris


def hemisphere(side, grade):
    """Return a source space on a bent sphere left (-1) or right (1) of the middle of the head."""
    rr, tris = icosphere(grade)
    place = rr * [0.024, 0.04, 0.032] + [0.03 * side, 0.0, 0.02]
    nn = rr / [0.024, 0.04, 0.032]
    nn /= np.linalg.norm(nn, axis=1, keepdims=True)
    n = len(rr)
    return {
        "type": "surf", "id": 101 if side < 0 else 102, "coord_frame": 5,
        "rr": place, "nn": nn, "np": n, "tris": tris, "ntri": len(tris),
        "inuse": np.ones(n, dtype=int), "nuse": n, "vertno": np.arange(n),
        "use_tris": tris, "nuse_tri": len(tris), "nearest": None, "nearest_dist": None,
        "pinfo": None, "patch_inds": None, "dist": None, "dist_limit": None,
        "subject_his_id": "simulated",
    }  # fmt: skip


def surface_space(grade=1):
    return mne.SourceSpaces([hemisphere(-1, grade), hemisphere(1, grade)])


def patch_around(vertex, order):
    """Return the vertices of the left surface that are at most `order` edges from a vertex."""
    tris, patch = surface_space()[0]["use_tris"], np.array([vertex])
    for _ in range(order):
        patch = np.unique(tris[np.isin(tris, patch).any(axis=1)])
    return patch


def grid_space(spacing=25.0):
    return mne.setup_volume_source_space(
        pos=spacing, sphere=(*CENTRE, 0.075), sphere_units="m", verbose=False
    )


def scattered_space(count=40):
    """Return sources at random places, without a grid."""
    rng = np.random.default_rng(3)
    rr = rng.standard_normal((count, 3))
    rr *= 0.065 * rng.uniform(0.5, 1.0, (count, 1)) / np.linalg.norm(rr, axis=1, keepdims=True)
    nn = rng.standard_normal((count, 3))
    nn /= np.linalg.norm(nn, axis=1, keepdims=True)
    return mne.setup_volume_source_space(pos={"rr": rr + CENTRE, "nn": nn}, verbose=False)


@lru_cache
def sensors(kind):
    """Return the channels: magnetometers ("mag"), electrodes ("eeg") or both."""
    helmet = mne.channels.read_meg_canonical_info("neuromag")
    helmet = mne.pick_info(helmet, mne.pick_types(helmet, meg="mag")[::2])
    montage = mne.channels.make_standard_montage("biosemi32")
    electrodes = mne.create_info(montage.ch_names, helmet["sfreq"], "eeg")
    with electrodes._unlock():
        electrodes["dev_head_t"] = helmet["dev_head_t"]
    electrodes.set_montage(montage)
    if kind == "mag":
        return helmet
    if kind == "eeg":
        return electrodes
    parts = [
        mne.EvokedArray(np.zeros((len(info["ch_names"]), 1)), info, verbose=False)
        for info in (helmet, electrodes)
    ]
    return parts[0].add_channels(parts[1:]).info


SPACES = {"surface": surface_space, "grid": grid_space, "scattered": scattered_space}


@lru_cache
def forward_of(space="grid", kind="mag"):
    """Return the forward solution of a source space ("surface", "grid", …, "mixed")."""
    info = sensors(kind)
    src = surface_space() + scattered_space() if space == "mixed" else SPACES[space]()
    sphere = mne.make_sphere_model(CENTRE, 0.09, info=info, verbose=False)
    return mne.make_forward_solution(
        info, None, src, sphere, meg=kind != "eeg", eeg=kind != "mag", mindist=0.0, verbose=False
    )


def simulated(
    space="grid", kind="mag", *, sources=(5, 21), n_times=12, noise=1.0, seed=0, fixed=False,
    strength=1.0,
):  # fmt: skip
    """Return an evoked with the given sources, its forward, noise covariance and amplitudes."""
    rng = np.random.default_rng(seed)
    forward = forward_of(space, kind)
    if fixed:
        forward = mne.convert_forward_solution(forward, surf_ori=True, force_fixed=True, verbose=0)
    info, field = sensors(kind), forward["sol"]["data"]
    axes = 1 if fixed else 3
    amplitudes = np.zeros((field.shape[1], n_times))
    for source in sources:
        direction = rng.standard_normal((axes, 1))
        course = rng.standard_normal((1, n_times))
        part = direction @ course / np.linalg.norm(direction)
        amplitudes[source * axes : (source + 1) * axes] = 60e-9 * strength * part
    cov = mne.make_ad_hoc_cov(info, verbose=False)
    spread = np.sqrt(np.diag(cov.data) if cov.data.ndim == 2 else cov.data)
    data = field @ amplitudes + noise * spread[:, None] * rng.standard_normal((len(field), n_times))
    evoked = mne.EvokedArray(data, info, tmin=-0.01, comment="simulated", verbose=False)
    if kind != "mag":
        evoked.set_eeg_reference(projection=True, verbose=False)
    return SimpleNamespace(
        evoked=evoked, forward=forward_of(space, kind), cov=cov, amplitudes=amplitudes, field=field,
        sources=np.array(sources), used=forward,
    )  # fmt: skip


PLAIN = {"position_error": 0.0, "model_error": 0.0, "samples": "independent"}
"""The model whose forward solution is exact and whose samples are independent."""


def localised(data, **settings):
    """Return the result with the plain model, which most theorems are about."""
    settings = {"return_result": True, "verbose": False, **PLAIN, **settings}
    return sparse_vae(data.evoked, data.forward, data.cov, **settings)


def spoiled(evoked):
    """Add artefacts: a pattern that a projection removes, another EEG reference, bad channels."""
    rng = np.random.default_rng(5)
    kinds = evoked.get_channel_types()
    bads = []
    for kind in sorted(set(kinds)):
        names = [name for name, other in zip(evoked.ch_names, kinds, strict=True) if other == kind]
        rows = [evoked.ch_names.index(name) for name in names]
        if kind == "mag":
            pattern = rng.standard_normal((1, len(names)))
            pattern /= np.linalg.norm(pattern)
            vector = {
                "col_names": names, "row_names": None, "data": pattern, "nrow": 1,
                "ncol": len(names),
            }  # fmt: skip
            evoked.add_proj(mne.Projection(active=False, data=vector, desc="ECG"), verbose=False)
            evoked.data[rows] += 5e-12 * pattern.T @ rng.standard_normal((1, len(evoked.times)))
        else:
            evoked.data[rows] += 1e-5 * rng.standard_normal(len(evoked.times))
        bads += [names[3], names[-2]]
    evoked.data[[evoked.ch_names.index(name) for name in bads]] = 1.0
    evoked.info["bads"] = bads
    return evoked


def whitened(data, *, loose="auto", pca=True):
    """Return MNE's whitened data and gain, and the rest of what it prepares."""
    from mne.inverse_sparse.mxne_inverse import _prepare_gain

    with mne.use_log_level("error"):
        forward, gain, info, whitener, weighting, _ = _prepare_gain(
            data.forward, data.evoked.info, data.cov, pca, 0.8, loose, None
        )
    rows = [data.evoked.ch_names.index(name) for name in info["ch_names"]]
    return whitener @ data.evoked.data[rows], gain, forward, weighting
