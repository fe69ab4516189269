"""Dictionaries that share their relevances: the sum of energies, its minimum, and the support."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require
from lucidae import SparseVAE, certify
from lucidae.datasets import make_array_snapshots
from lucidae.sparsity import joint_blocks, solve_batch, solve_joint


def gaussian(rng, *shape):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / np.sqrt(2)


def draw(seed=0, rows=(10, 14, 8), counts=(4, 6, 3), kappa=25, complex_data=True):
    """Return dictionaries and responses of several parts with the support {2, 11}."""
    rng = np.random.default_rng(seed)
    make = (lambda *shape: gaussian(rng, *shape)) if complex_data else rng.standard_normal
    X = [make(*shape) if complex_data else make(shape) for shape in ((d, kappa) for d in rows)]
    y = []
    for dictionary, n in zip(X, counts, strict=True):
        parts = [(2, n), (dictionary.shape[0], n)]
        signal, noise = (make(*shape) if complex_data else make(shape) for shape in parts)
        y.append(2 * dictionary[:, [2, 11]] @ signal + 0.3 * noise)
    return X, y


def energy(X, y, relevance, noise):
    """Return the sum of n log|Σ| + tr(XXᴴΣ⁻¹) over all parts, by its definition."""
    total = 0.0
    for dictionary, responses, level in zip(X, y, noise, strict=True):
        sigma = dictionary * relevance @ dictionary.conj().T + level * np.eye(len(dictionary))
        total += responses.shape[1] * np.linalg.slogdet(sigma)[1]
        total += np.trace(responses.conj().T @ np.linalg.solve(sigma, responses)).real
    return total


@pytest.mark.covering
@pytest.mark.parametrize("complex_data", [True, False])
@pytest.mark.parametrize("solver", ["auto", "mm", "em", "mackay"])
def test_the_solution_is_a_minimum_of_the_sum_of_energies(complex_data, solver):
    X, y = draw(1, complex_data=complex_data)
    noise = [0.09, 0.2, 0.05]
    found = solve_joint(X, y, noise_variance=noise, solver=solver, tol=1e-8)
    assert found.status.ok
    assert (np.diff(found.history["energy"]) <= 1e-9).all()
    w = found.value.relevance
    assert w.dtype == np.float64
    assert_allclose(found.value.energy, energy(X, y, w, noise), rtol=1e-10)
    lowest = energy(X, y, w, noise)
    for index in range(25):
        size = 1e-3 * (w[index] + 1e-2)
        for change in (-size, size):
            moved = w.copy()
            moved[index] = max(0.0, moved[index] + change)
            assert energy(X, y, moved, noise) >= lowest - 1e-7
    assert_array_equal(found.value.support, [2, 11])
    for dictionary, responses, level, coef in zip(X, y, noise, found.value.coef, strict=True):
        sigma = dictionary * w @ dictionary.conj().T + level * np.eye(len(dictionary))
        mean = w[:, None] * (dictionary.conj().T @ np.linalg.solve(sigma, responses))
        assert_allclose(coef, mean.T, atol=1e-9)


def test_one_part_is_the_problem_of_solve_batch():
    X, y = draw(3)
    for index in range(3):
        one = solve_joint(X[index : index + 1], y[index : index + 1], noise_variance=0.09)
        batch = solve_batch(X[index][None], y[index][None], noise_variance=0.09)
        assert_allclose(one.value.energy, batch.value.energy[0], rtol=1e-8)
        assert_allclose(one.value.relevance, batch.value.relevance[0], atol=1e-4)


def test_equal_parts_count_as_more_responses():
    X, y = draw(4)
    twice = solve_joint([X[0]] * 2, [y[0], y[0][:, ::-1]], noise_variance=0.09)
    once = solve_joint([X[0]], [np.hstack([y[0], y[0]])], noise_variance=0.09)
    assert_allclose(twice.value.relevance, once.value.relevance, atol=1e-5)
    assert_allclose(twice.value.energy, once.value.energy, rtol=1e-9)


def test_blocks_with_groups_have_the_same_energy_and_a_certificate():
    X, y = draw(5, counts=(5, 5, 5))
    dictionary, responses, groups = joint_blocks(X, y)
    model = SparseVAE(noise_variance=0.09, groups=groups, fit_intercept=False, tol=1e-8)
    model.fit(dictionary, responses)
    joint = solve_joint(X, y, noise_variance=0.09, tol=1e-8).value
    assert_allclose(model.energy_, joint.energy, rtol=1e-8)
    assert_allclose(model.relevance_[:25], joint.relevance, atol=1e-4)
    assert_array_equal(np.unique(model.support_ % 25), joint.support)
    assert model.certificate_.holds
    given = model.relevance_.reshape(3, 25)
    assert_allclose(given, np.broadcast_to(given[0], (3, 25)))
    # The joint solution itself passes the certificate of the blocks.
    model.relevance_ = np.tile(joint.relevance, 3)
    model.coef_ = np.hstack(joint.coef)
    assert certify(model, dictionary, responses)["stationarity"].holds
    model.relevance_ = np.tile(1.05 * joint.relevance, 3)
    assert certify(model, dictionary, responses)["stationarity"].holds is False


def test_each_part_learns_its_noise_variance():
    rng = np.random.default_rng(6)
    X = [gaussian(rng, 60, 20), gaussian(rng, 80, 20)]
    y = [
        part[:, :2] @ gaussian(rng, 2, 30) + level**0.5 * gaussian(rng, len(part), 30)
        for part, level in zip(X, (0.1, 0.9), strict=True)
    ]
    found = solve_joint(X, y, tol=1e-7)
    assert found.status.ok
    assert_allclose(found.value.noise_variance, [0.1, 0.9], rtol=0.1)
    noise, w = found.value.noise_variance, found.value.relevance
    lowest = energy(X, y, w, noise)
    for change in ([1.01, 1.0], [0.99, 1.0], [1.0, 1.01], [1.0, 0.99]):
        assert energy(X, y, w, noise * np.array(change)) > lowest
    assert_array_equal(found.value.support, [0, 1])


def test_several_frequencies_find_sources_that_one_does_not():
    # A sparse array with grating lobes: at one frequency, another direction explains a source as
    # well; at another frequency, other directions do.
    hits = {"one": 0, "joint": 0}
    for seed in range(8):
        data = make_array_snapshots(
            positions=2.0 * np.arange(6), n_snapshots=4, source_angles=[-20.0, 12.0],
            frequencies=[0.8, 0.9, 1.0, 1.15], snr_db=15.0, random_state=seed,
        )  # fmt: skip
        settings = {"noise_variance": data.noise_variance}
        joint = solve_joint(data.dictionary, data.responses, **settings)
        single = solve_joint(data.dictionary[2:3], data.responses[2:3], **settings)
        for name, found in (("one", single), ("joint", joint)):
            hits[name] += np.array_equal(found.value.support, np.sort(data.support))
    assert hits["joint"] >= 7
    assert hits["one"] <= 4


NOISE = [0.09, 0.2, 0.05]


@pytest.mark.parametrize("complex_data", [True, False])
@pytest.mark.parametrize("noise", ["learn", NOISE])
def test_the_certificate_holds_and_its_numbers_follow_from_the_data(complex_data, noise):
    X, y = draw(11, rows=(60, 70, 55), complex_data=complex_data)
    found = solve_joint(X, y, noise_variance=noise).value
    certificate = found.certificate
    assert certificate.holds, certificate
    assert certify(found) is certificate
    again = certify(found, X, y)
    assert again == certificate
    evidence = again.evidence
    levels, w = np.asarray(found.noise_variance), found.relevance
    assert_allclose(evidence["energy"], energy(X, y, w, levels), rtol=1e-12)
    slopes = np.zeros((2, 25))
    for dictionary, responses, level in zip(X, y, levels, strict=True):
        sigma = dictionary * w @ dictionary.conj().T + level * np.eye(len(dictionary))
        precise = np.linalg.solve(sigma, dictionary)
        n = responses.shape[1]
        slopes[0] += n * (dictionary.conj() * precise).sum(axis=0).real
        slopes[1] += (np.abs(precise.conj().T @ responses) ** 2).sum(axis=1)
    ratio = slopes[1] / slopes[0]
    assert_allclose(evidence["ratio"], ratio[evidence["active"]], rtol=1e-9)
    assert_allclose(evidence["largest_ratio_outside"], np.delete(ratio, evidence["active"]).max())
    count = sum(responses.shape[1] for responses in y)
    distance = max((w * np.abs(slopes[1] - slopes[0])).max() / count, (ratio - 1.0).max())
    assert_allclose(evidence["violation"], distance, atol=1e-12)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("name", "change", "claims"),
    [
        ("relevance", lambda w: w * 1.001, ("stationarity", "posterior_mean", "energy")),
        ("relevance", lambda w: w * 0.0, ("stationarity", "posterior_collapse")),
        ("relevance", lambda w: -w, ("stationarity", "energy")),
        ("relevance", lambda w: w * np.nan, ("stationarity", "posterior_mean")),
        ("coef", lambda U: [U[0], U[1], U[2] * 1.001], ("posterior_mean",)),
        ("coef", lambda U: [U[0], U[1] + 1e-5, U[2]], ("posterior_mean",)),
        ("noise_variance", lambda g: g * [1.0, 1.0, 1.001], ("noise_variance", "energy")),
        ("energy", lambda e: e + 1e-4, ("energy",)),
        ("support", lambda s: s[1:], ("support",)),
        ("support", lambda s: np.append(s, 5), ("support",)),
        ("support", lambda s: np.append(s, 1000), ("support",)),
    ],
)
@pytest.mark.parametrize("noise", ["learn", NOISE])
def test_wrong_numbers_fail_their_claims(name, change, claims, noise):
    X, y = draw(12, rows=(60, 70, 55))
    found = solve_joint(X, y, noise_variance=noise).value
    assert found.certificate.holds
    wrong = found._replace(**{name: change(getattr(found, name))})
    certificate = certify(wrong, X, y)
    for claim in claims:
        assert certificate[claim].holds is False, claim


def test_the_certificate_of_one_part_is_that_of_the_estimator():
    X, y = draw(13)
    joint = solve_joint(X[1:2], y[1:2], noise_variance=0.2).value
    model = SparseVAE(noise_variance=0.2, fit_intercept=False).fit(X[1], y[1])
    model.relevance_, model.coef_ = joint.relevance, joint.coef[0]
    model.energy_, model.support_ = joint.energy, joint.support
    single = certify(model, X[1], y[1])
    for claim in joint.certificate:
        assert claim.verdict == single[claim.name].verdict, claim
        if claim.value is not None:
            assert_allclose(claim.value, single[claim.name].value, atol=1e-12, err_msg=claim.name)


def test_units_of_columns_and_responses_change_no_verdict():
    X, y = draw(14)
    plain = solve_joint(X, y, noise_variance=NOISE).value
    factors = 10.0 ** np.linspace(-9, 9, 25)
    scaled = [1e5 * part for part in y]
    moved = solve_joint(
        [part * factors for part in X], scaled, noise_variance=[1e10 * g for g in NOISE]
    )
    assert_array_equal(moved.value.support, plain.support)
    for claim in moved.value.certificate:
        assert claim.verdict == plain.certificate[claim.name].verdict, claim


def test_a_solver_that_stops_early_and_a_noise_variance_at_its_limit_are_told():
    X, y = draw(15)
    early = solve_joint(X, y, noise_variance=NOISE, max_iter=2)
    assert not early.status.ok
    assert early.value.certificate["stationarity"].holds is False
    rng = np.random.default_rng(15)
    X = [rng.standard_normal((30, 8)), rng.standard_normal((20, 8))]
    y = [part[:, :2] @ rng.standard_normal((2, 5)) for part in X]  # no noise
    claim = solve_joint(X, y).value.certificate["noise_variance"]
    assert claim.holds is None
    assert "no minimum" in claim.advice


def test_the_result_shows_its_certificate_and_refuses_other_data():
    X, y = draw(16)
    found = solve_joint(X, y, noise_variance=NOISE).value
    page = found._repr_html_()
    assert "lucidae-certificate" in page
    assert "stationarity" in page
    with pytest.raises(ValueError, match="give the data of the fit"):
        certify(found, X[:2], y[:2])
    with pytest.raises(ValueError, match="give X and y"):
        certify(found, X)
    with pytest.raises(ValueError, match="has no certificate"):
        certify(found._replace(certificate=None))
    assert certify(found._replace(certificate=None), X, y)["stationarity"].holds


def test_a_column_may_be_zero_in_one_part():
    X, y = draw(7)
    X[0][:, 11], X[1][:, 5], X[2][:, 5], X[0][:, 5] = 0.0, 0.0, 0.0, 0.0
    found = solve_joint(X, y, noise_variance=0.5)
    assert found.status.ok
    assert found.value.relevance[5] == 0.0
    assert found.value.certificate.holds
    assert 11 in found.value.support


MIXTURES = {
    "one complex part": lambda X, y: ([X[0].real, X[1], X[2].real], [y[0].real, y[1], y[2].real]),
    "complex responses": lambda X, y: ([part.real for part in X], y),
    "complex dictionaries": lambda X, y: (X, [part.real for part in y]),
    "one complex response": lambda X, y: ([part.real for part in X], [y[0], y[1].real, y[2].real]),
    "integers": lambda X, y: ([np.round(3 * X[0].real).astype(int), X[1], X[2].real], y),
    "single precision": lambda X, y: ([X[0].real.astype(np.float32), *X[1:]], y),
}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_real_and_complex_parts_are_solved_as_complex_ones(mixture):
    noise = "learn" if "responses" in mixture else [0.3, 0.5, 0.4]
    X, y = MIXTURES[mixture](*draw(17, rows=(60, 70, 55)))
    mixed = solve_joint(X, y, noise_variance=noise).value
    parts = [[np.asarray(part, dtype=complex) for part in side] for side in (X, y)]
    plain = solve_joint(*parts, noise_variance=noise).value
    assert_array_equal(mixed.support, plain.support)
    assert_allclose(mixed.relevance, plain.relevance, rtol=1e-12)
    assert_allclose(mixed.energy, plain.energy, rtol=1e-12)
    for one, other in zip(mixed.coef, plain.coef, strict=True):
        assert one.dtype == np.complex128
        assert_allclose(one, other, atol=1e-12)
    assert mixed.certificate.holds
    assert certify(mixed, X, y) == certify(plain, *parts)


def test_torch_solves_as_numpy_does():
    torch = require("torch")
    X, y = draw(8)
    plain = solve_joint(X, y, noise_variance=0.09).value
    moved = solve_joint(
        [torch.asarray(part) for part in X], [torch.asarray(part) for part in y],
        noise_variance=0.09,
    ).value  # fmt: skip
    assert_allclose(moved.relevance.numpy(), plain.relevance, atol=1e-5)
    assert_allclose(moved.coef[1].numpy(), plain.coef[1], atol=1e-5)
    assert_array_equal(moved.support, plain.support)
    assert moved.certificate.holds
