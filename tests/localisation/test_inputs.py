"""What `lucidae.mne` refuses, warns of, leaves unchanged, and does not depend on."""

import importlib
import sys
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require

mne = require("mne")

from evoked_recordings import localised, simulated
from lucidae.mne import solver, sparse_vae

pytestmark = pytest.mark.filterwarnings("ignore:The model does not fit:UserWarning")

REFUSED = [
    ({"noise_variance": "learn_diagonal"}, "learn_diagonal"),
    ({"noise_variance": -1.0}, "or one of 'auto', 'learn', 'cv', 'cv_1se'"),
    ({"noise_variance": "most"}, "expected one of 'auto', 'learn', 'cv', 'cv_1se' or a finite"),
    ({"noise_variance": None}, "noise_variance"),
    ({"depth": "a"}, "depth='a' was given, expected a finite number of at least 0, a dict or None"),
    ({"depth": -1.0}, "depth=-1.0 was given"),
    ({"group_covariance": "round"}, "group_covariance='round' was given"),
    ({"significance": 2.0}, "significance=2.0 was given"),
    ({"nave": 0}, "nave=0 was given"),
    ({"weights": [1.0, 2.0]}, "for each of the 81 sources"),
    ({"weights": -np.ones(81)}, "weights"),
    ({"weights": np.r_[np.nan, np.ones(80)]}, "weights is negative, NaN or infinite for 1 of"),
    ({"weights_min": -1.0}, "weights_min=-1.0 was given"),
    ({"debias": 1}, "debias=1 was given"),
    ({"return_residual": True, "return_result": True}, "leave these arguments out"),
    ({"patches": []}, "patches is an empty list"),
    ({"patches": [-0.01]}, "patches=-0.01 was given"),
    ({"patches": [0]}, "patches=0 was given"),
    ({"patches": [1e-4]}, "no patch of this size"),
    ({"patches": 15.0}, r"the radius 15, but radii are in metres .* 0\.015 for 15 mm"),
    ({"patches": [0.01, 0.2]}, r"the radius 0\.2, but radii are in metres .* 0\.015 for 15 mm"),
    ({"pick_ori": "normal"}, "pick_ori"),
    ({"noise_variance": "cv", "cv": 1000}, "cv=1000 was given, expected at most 51 folds"),
]


@pytest.mark.parametrize(("option", "words"), REFUSED)
def test_wrong_arguments_are_refused_with_what_was_expected(option, words):
    with pytest.raises(ValueError, match=words):
        localised(simulated(), **{"return_result": False, **option})


def projection(evoked, seed):
    """Return a projection along one random direction of all channels."""
    row = np.random.default_rng(seed).standard_normal((1, len(evoked.ch_names)))
    data = {
        "nrow": 1, "ncol": row.size, "row_names": None, "col_names": evoked.ch_names,
        "data": row / np.linalg.norm(row),
    }  # fmt: skip
    return mne.Projection(kind=1, active=False, desc=f"direction {seed}", data=data)


def moved(evoked, metres):
    """Return an evoked that was recorded at another position of the head."""
    other = evoked.copy()
    with other.info._unlock():
        trans = other.info["dev_head_t"]["trans"] + metres * np.eye(4, k=3)
        other.info["dev_head_t"] = mne.transforms.Transform("meg", "head", trans)
    return other


def changed(given, **values):
    """Return a copy of a forward solution or covariance with other entries."""
    copy = given.copy()
    for name, value in values.items():
        copy[name] = value
    return copy


def with_field(forward, value):
    sol = dict(forward["sol"], data=forward["sol"]["data"].copy())
    sol["data"][0, 0] = value
    return changed(forward, sol=sol)


def renamed(evoked):
    other = evoked.copy()
    other.rename_channels({name: f"X{name}" for name in other.ch_names}, verbose=False)
    return other


def with_bads(evoked, names):
    other = evoked.copy()
    other.info["bads"] = list(names)
    return other


def full(cov, entry=0.0):
    """Return a diagonal covariance as a matrix, with one entry that is not on the diagonal."""
    values = np.diag(cov["data"])
    values[0, 1] = entry * values[0, 0]
    return mne.Covariance(values, cov["names"], [], cov["projs"], 0)


# Words of the error, and functions of evoked e, forward f and covariance c that return the inputs.
BAD = {
    r"evoked is of type ndarray, expected mne\.Evoked": lambda e, f, c: (e.data, f, c),
    "forward is of type Evoked": lambda e, f, c: (e, e, c),
    "noise_cov is of type NoneType": lambda e, f, c: (e, f, None),
    "empty list": lambda e, f, c: ([], f, c),
    "equalize_channels": lambda e, f, c: ([e, e.copy().drop_channels(e.ch_names[:1])], f, c),
    "real and its imaginary part": lambda e, f, c: (mne.EvokedArray(1j * e.data, e.info), f, c),
    "evoked contains NaN or infinity in 1 of the 51": lambda e, f, c: (
        mne.EvokedArray(np.where(np.arange(51) == 3, np.nan, e.data.T).T, e.info), f, c,
    ),
    "different projections.*add_proj": lambda e, f, c: (
        [e, e.copy().add_proj(projection(e, 1), verbose=False)], f, c,
    ),
    "'direction 1'.* and .*'direction 2'": lambda e, f, c: (
        [e.copy().add_proj(projection(e, seed), verbose=False) for seed in (1, 2)], f, c,
    ),
    "different positions of the head.*maxwell_filter": lambda e, f, c: (
        [e, moved(e, 0.005)], f, c,
    ),
    "forward has none of the 51 good channels of evoked: .*'MEG 0111'.*'XMEG 0111'": (
        lambda e, f, c: (renamed(e), f, c)
    ),
    "noise_cov has none of the 51 good channels of evoked: .*'XMEG 0111'.*'MEG 0111'": (
        lambda e, f, c: (e, f, mne.make_ad_hoc_cov(renamed(e).info, verbose=False))
    ),
    "All 51 channels of evoked are marked as bad": lambda e, f, c: (with_bads(e, e.ch_names), f, c),
    r"noise_cov\['bads'\] marks all 51 that both have": lambda e, f, c: (
        e, f, changed(c, bads=list(e.ch_names)),
    ),
    "forward has 20 and .* but no channel is in both": lambda e, f, c: (
        e, mne.pick_channels_forward(f, e.ch_names[:20], verbose=False),
        mne.pick_channels_cov(c, e.ch_names[20:]),
    ),
    "forward contains NaN or infinity": lambda e, f, c: (e, with_field(f, np.nan), c),
    "noise_cov contains NaN or infinity": lambda e, f, c: (
        e, f, changed(c, data=np.full(51, np.nan)),
    ),
    "noise_cov contains NaN or infinity in the": lambda e, f, c: (e, f, full(c, np.nan)),
    "noise_cov has no positive variance in the 51": lambda e, f, c: (
        e, f, changed(c, data=0 * c["data"]),
    ),
    "noise_cov is not symmetric": lambda e, f, c: (e, f, full(c, 0.5)),
}  # fmt: skip


@pytest.mark.parametrize("words", BAD)
def test_wrong_objects_are_refused_by_name(words):
    data = simulated()
    given = BAD[words](data.evoked, data.forward, data.cov)
    with pytest.raises(ValueError, match=words):
        sparse_vae(*given, verbose=False)


def test_electrodes_need_an_average_reference():
    data = simulated("surface", "eeg")
    data.evoked.del_proj()
    with pytest.raises(ValueError, match="average reference"):
        localised(data)


@pytest.mark.parametrize("count", [np.inf, np.nan, 0, -3])
def test_an_evoked_without_a_number_of_averages_is_refused(count):
    data = simulated(noise=0.3)
    expected = localised(data).amplitudes
    data.evoked.nave = count
    with pytest.raises(ValueError, match=rf"evoked\.nave is {count}, expected a finite number"):
        localised(data)
    assert_array_equal(localised(data, nave=1).amplitudes, expected)


def test_inputs_that_differ_little_are_taken():
    data = simulated(noise=0.3)
    sparse_vae([data.evoked, moved(data.evoked, 1e-7)], data.forward, data.cov, verbose=False)
    eeg = simulated("surface", "eeg", noise=0.3)  # electrodes move with the head
    sparse_vae([eeg.evoked, moved(eeg.evoked, 0.005)], eeg.forward, eeg.cov, verbose=False)
    evoked = data.evoked.copy().add_proj(projection(data.evoked, 1), verbose=False)
    pair = [evoked, evoked.copy().apply_proj(verbose=False)]
    first, second = sparse_vae(pair, data.forward, data.cov, return_result=True, verbose=False)
    assert np.abs(first.amplitudes - second.amplitudes).max() < 1e-6 * first.amplitudes.max()
    expected = localised(data)
    data.cov = full(data.cov)
    assert_allclose(localised(data).amplitudes, expected.amplitudes, rtol=1e-6)
    other = simulated(noise=0.3, seed=1).evoked
    data.evoked = mne.combine_evoked([data.evoked, other], weights=[1, -1])
    assert data.evoked.nave == 0.5  # the difference of two epochs has twice their noise
    assert_array_equal(localised(data).amplitudes, localised(data, nave=0.5).amplitudes)


def test_channels_that_are_not_in_use_may_contain_anything():
    data = simulated(noise=0.3)
    name = data.evoked.ch_names[0]
    data.evoked.info["bads"] = [name]
    expected = localised(data)
    data.evoked.data[0] = np.nan
    data.forward = with_field(data.forward, np.nan)
    data.cov = changed(data.cov, data=np.r_[np.nan, data.cov["data"][1:]])
    found = localised(data)
    assert_array_equal(found.amplitudes, expected.amplitudes)
    assert np.isfinite(found.residual.data).all()
    data = simulated(noise=0.3)
    data.evoked = data.evoked.copy().drop_channels(data.evoked.ch_names[::5])
    assert_array_equal(np.sort(localised(data).sources), data.sources)


def test_many_missing_channels_give_a_warning_and_a_missing_type_does_not():
    data = simulated(noise=0.3)
    names, cov = data.evoked.ch_names, data.cov
    data.cov = mne.pick_channels_cov(cov, names[11:])
    with pytest.warns(UserWarning, match="noise_cov lacks 11 of 51 good .* 40 channels are used"):
        localised(data)
    data.cov = mne.pick_channels_cov(cov, names[3:])
    localised(data)  # few are missing: no warning
    data.cov, data.forward = cov, mne.pick_channels_forward(data.forward, names[:40], verbose=False)
    with pytest.warns(UserWarning, match="forward lacks 11 of 51 good .* 40 channels are used"):
        localised(data)
    both = simulated("scattered", "both")
    both.forward = simulated("scattered").forward
    localised(both)  # no electrode in the forward: no warning


def test_a_fixed_orientation_in_a_volume_is_warned_of():
    with pytest.warns(UserWarning, match="have no normals"):
        localised(simulated("grid"), loose=0.0, significance=None)


def first_samples(data, count):
    data.evoked.crop(data.evoked.times[0], data.evoked.times[count - 1])
    return data


def test_a_noise_variance_that_is_learned_from_few_samples_is_warned_of():
    few, enough = (first_samples(simulated("surface", "eeg"), count) for count in (4, 5))
    with pytest.warns(UserWarning, match=r"learned from 4 samples.*noise alone.*'cv'"):
        localised(few, noise_variance="learn")
    rng = np.random.default_rng(0)
    G = rng.standard_normal((40, 3))
    M = 5.0 * G[:, :1] + rng.standard_normal((40, 5))
    for rule in ("learn", "auto"):
        with pytest.warns(UserWarning, match="learned from 4 samples, expected"):
            solver(M[:, :4], G, noise_variance=rule)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "The model does not fit")
        localised(enough, noise_variance="learn")
        for rule in (1.0, "cv", "auto"):  # more columns than rows: "auto" is "cv"
            localised(few, noise_variance=rule)
        halves = [first_samples(simulated("surface", "eeg"), 3).evoked for _ in range(2)]
        sparse_vae(halves, few.forward, few.cov, noise_variance="learn", verbose=False)
        for rule in ("learn", "auto"):
            solver(M, G, noise_variance=rule)


def with_estimated_covariance(n_samples, seed=0):
    """Return a recording of one source whose covariance is estimated from samples of noise."""
    data = simulated("scattered", "mag", sources=(5,), n_times=30, noise=1.0, seed=seed)
    spread = np.sqrt(data.cov.data)
    noise = spread[:, None] * np.random.default_rng(seed).standard_normal((spread.size, n_samples))
    estimate = noise @ noise.T / n_samples
    data.cov = mne.Covariance(estimate, data.cov.ch_names, [], [], n_samples, verbose=False)
    return data


def test_a_covariance_of_few_samples_is_named_and_the_advised_variance_helps():
    # Whitening by a covariance of N samples makes the noise at most (1 − √(d/N))⁻² large.
    samples = np.random.default_rng(0).standard_normal((1200, 300))
    smallest = np.linalg.eigvalsh(samples.T @ samples / 1200)[0]
    assert_allclose((1.0 - (300 / 1200) ** 0.5) ** -2, 1.0 / smallest, rtol=0.1)
    spurious, advised = 0, 0
    for n_samples, seed in ((153, 0), (153, 1), (204, 2), (204, 3)):
        data = with_estimated_covariance(n_samples, seed)
        with pytest.warns(UserWarning, match="noise_cov was estimated from") as caught:
            found = localised(data)
        largest = (1.0 - (51 / n_samples) ** 0.5) ** -2
        advice = f"noise_variance={largest:.2g}, or " if largest < 20 else "Give a covariance"
        assert advice in str(caught[0].message)
        safe = localised(data, noise_variance=largest)  # without a warning
        assert found.certificate["noise_covariance"].holds is False
        assert safe.certificate["noise_covariance"].holds is True
        assert 5 in found.sources
        assert 5 in safe.sources
        spurious += found.sources.size - 1
        advised += safe.sources.size - 1
    assert spurious > advised
    assert advised <= 1
    few = data.cov
    shrunk, many, diagonal = few.copy(), few.copy(), few.copy().as_diag()
    shrunk["method"], many["nfree"] = "shrunk", 10**5
    for data.cov, holds in ((shrunk, None), (many, True), (diagonal, None)):
        assert localised(data).certificate["noise_covariance"].holds is holds
    data.cov = few.copy()
    data.cov["nfree"] = 40  # fewer than dimensions
    with pytest.warns(UserWarning, match="variances of up to inf instead of 1"):
        localised(data)


def in_other_units(data, factor):
    """Return evoked and covariance in another unit; the lead field keeps its own."""
    evoked = data.evoked.copy()
    evoked.data *= factor
    return evoked, changed(data.cov, data=factor**2 * data.cov["data"])


@pytest.mark.filterwarnings("ignore:The largest amplitude:UserWarning")
@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2))])
def test_the_cross_validated_noise_depends_neither_on_units_nor_on_the_order_of_channels(seed):
    data = simulated("scattered", "eeg", sources=(5, 11, 21, 30), strength=0.2, seed=seed)
    expected = localised(data, noise_variance="cv")
    turned = data.evoked.copy().reorder_channels(data.evoked.ch_names[::-1]), data.cov
    for evoked, cov in (in_other_units(data, 1e3), turned):
        data.evoked, data.cov = evoked, cov
        found = localised(data, noise_variance="cv")
        # Fits along the path of noise variances are of low accuracy.
        assert_allclose(found.noise_variance, expected.noise_variance, rtol=5e-3)
        assert_array_equal(found.sources, expected.sources)


def test_inputs_are_not_changed():
    data, rank = simulated("surface", "both"), {"mag": 51}
    before = data.evoked.copy(), data.forward.copy(), data.cov.copy()
    for depth, kind in ((None, "full"), (0.8, "spherical")):
        localised(data, loose=0.0, debias=True, rank=rank, depth=depth, group_covariance=kind)
    assert_array_equal(data.evoked.data, before[0].data)
    assert_array_equal(data.forward["sol"]["data"], before[1]["sol"]["data"])
    assert_array_equal(data.cov["data"], before[2]["data"])
    assert data.evoked.info["bads"] == before[0].info["bads"]
    assert rank == {"mag": 51}
    assert_array_equal(localised(data, rank=rank).sources, localised(data).sources)


def test_a_result_does_not_change_with_the_evokeds_of_the_user():
    data = simulated(noise=0.3)
    pair = [data.evoked, data.evoked.copy().crop(-0.005, None)]
    given = (data.forward, data.cov)
    expected = sparse_vae(pair, *given, return_result=True, verbose=False)
    stc, residual = expected[0].stc.data.copy(), expected[0].residual.data.copy()
    amplitudes = expected[1].amplitudes
    results = sparse_vae(pair, *given, return_result=True, verbose=False)
    data.evoked.data[:] = 0.0
    data.evoked.crop(0.0, None)
    assert_array_equal(results[0].stc.data, stc)
    assert_array_equal(results[0].residual.data, residual)
    assert_array_equal(results[1].amplitudes, amplitudes)


def test_arguments_of_solver():
    rng = np.random.default_rng(0)
    G = rng.standard_normal((30, 12))
    M = 5.0 * G[:, :1] @ rng.standard_normal((1, 8)) + rng.standard_normal((30, 8))
    settings = {
        "cv": 3, "random_state": 0, "max_iter": 500, "tol": 1e-7, "solver": "auto", "n_jobs": 1,
        "verbose": False,
    }  # fmt: skip
    assert_array_equal(np.flatnonzero(solver(M, G, 1, **settings)[1]), [0])
    names = ", ".join(settings)
    for refused in ({"posterior": "point"}, {"response_covariance": "learn"}, {"groups": 3}):
        with pytest.raises(ValueError, match=rf"called with {next(iter(refused))}, .* {names}:"):
            solver(M, G, 1, **refused)
    with pytest.raises(ValueError, match="debias='yes' was given"):  # before the fit
        solver(None, None, debias="yes")
    with pytest.raises(ValueError, match="n_orient=2 was given"):
        solver(np.ones((4, 2)), np.ones((4, 3)), 2)


def test_importing_without_mne_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("lucidae.mne")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mne", None)
    words = r"^lucidae\.mne needs MNE-Python, which is not installed: pip install .lucidae\[mne\]"
    with pytest.raises(ImportError, match=words):
        importlib.import_module("lucidae.mne")
