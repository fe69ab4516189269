"""Solvers broken on purpose, one node of their source at a time: the certificate must notice.

Each mutant of the functions below fits a few fixed problems. It *crashed*, left the result
*unchanged*, or *changed* it; in the last case the certificate of the fit itself must not hold. The
choice of penalties (`l2="auto"`) is not among them: it says which problem is solved.

======================  ======  =======  =========  ========
functions               caught  crashed  unchanged  survived
======================  ======  =======  =========  ========
closed forms, moments      118       36        394         0
directions of rules         56       10         17         0
======================  ======  =======  =========  ========

The quick tests draw every second mutant of the closed forms and every fourth of the rules.

Besides, breaks by hand: a missed component, a wrong threshold, a dropped factor, stale state.
"""

import warnings
from collections import Counter
from functools import partial

import numpy as np
import pytest

from linear.problems import centred_rows
from lucidae import LinearAutoencoder, moments, spectrum
from lucidae.arrays import eigen
from lucidae.linear import solvers, weights
from lucidae.linear.objectives import (
    BrockettRule,
    ExpectedNestedDropout,
    GeneralizedHebbianRule,
    LinearVAE,
    NonUniformL2,
    Reconstruction,
    RotationAugmentedRule,
    reconstruction_gradient,
    rotation_generator,
)
from lucidae.rows import covariances, operator
from mutants import broken, calls_of, is_among, mutants

VALUES = np.array([4.0, 2.5, 1.5, 0.7, 0.3, 0.1])
TALL = 2 + centred_rows(VALUES)
GROWING = TALL * np.r_[np.ones(20), np.full(40, 9.0)][:, None]
WIDE = 1 + np.random.default_rng(1).standard_normal((5, 12)) * np.linspace(3, 1, 12)

EXACT = {
    "rag": (TALL, {"n_components": 3}),
    "all": (TALL, {"n_components": None}),
    "share": (TALL, {"n_components": 0.9}),
    "batches": (
        TALL * np.r_[np.ones(20), np.full(40, 9.0)][:, None],
        {"n_components": 3, "batches": [20, 21, 45]},
    ),
    "wide": (WIDE, {"n_components": 2}),
    "l2": (TALL, {"n_components": 3, "method": "nonuniform_l2", "l2": [0.6, 0.1, 0.3]}),
    "zero": (TALL, {"n_components": 3, "method": "nonuniform_l2", "l2": [0.1, 2.6, 1.6]}),
    "vae": (TALL, {"n_components": 3, "method": "linear_vae"}),
    "nested": (TALL, {"n_components": 3, "method": "expected_nested_dropout"}),
}
DESCENT = {
    name: (
        TALL,
        {"n_components": 2, "solver": "gradient", "max_iter": 600, "random_state": 0} | more,
    )
    for name, more in {
        "rag": {"method": "rag"},
        "gha": {"method": "gha"},
        "brockett": {"method": "brockett"},
        "l2": {"method": "nonuniform_l2", "l2": [0.1, 0.5]},
        "nested": {"method": "expected_nested_dropout", "prior": "uniform"},
    }.items()
}

CLOSED_FORMS = [
    Reconstruction.minimizer,
    NonUniformL2.minimizer,
    NonUniformL2.squared_lengths,
    ExpectedNestedDropout.minimizer,
    LinearVAE.minimizer,
    solvers.resolve_components,
    spectrum.Spectrum.leading,
    spectrum.Spectrum.noise,
    spectrum.Spectrum.resolved,
    spectrum._of_few_rows,
    spectrum.padded,
    spectrum._from_left,
    spectrum._right_vectors,
    covariances.rows_covariance,
    covariances.RowsCovariance.codes,
    covariances.RowsCovariance.centred_products,
    covariances.RowsCovariance.apply,
    operator.DenseRows._sums_about,
    operator.DenseRows._plain_gram,
    eigen.leading_eigenpairs,
    eigen.subset_eigenpairs,
    eigen.are_orthonormal,
    eigen.all_eigenpairs,
    eigen.column_signs,
    moments.covariance_spectrum,
    moments.sums_about,
    moments.dense_sums,
    moments.SecondMoment._absorb,
    moments.SecondMoment.update,
    moments._two_sum,
    moments.SecondMoment.scatter.fget,
    moments.SecondMoment.covariance.fget,
    moments.SecondMoment.mean.fget,
    moments.SecondMoment.trace.fget,
    solvers.build_model,
]
DIRECTIONS = [
    reconstruction_gradient,
    rotation_generator,
    RotationAugmentedRule.direction,
    GeneralizedHebbianRule.direction,
    BrockettRule.direction,
    BrockettRule.retract,
    NonUniformL2.gradient,
    ExpectedNestedDropout.gradient,
    ExpectedNestedDropout._masks,
    weights.products,
]


def result(X, settings):
    """Return what a user reads, and the verdict."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = LinearAutoencoder(**{k: v for k, v in settings.items() if k != "batches"})
        if "batches" in settings:
            for batch in np.split(X, settings["batches"]):
                fitted.partial_fit(batch)
        else:
            fitted.fit(X)
        ranks = np.arange(1, len(fitted.components_) + 1)[:, None]
        read = [
            fitted.mean_,
            fitted.decoder_ @ fitted.encoder_,
            fitted.components_.T @ (ranks * fitted.components_),
            fitted.explained_variance_,
            np.array([fitted.noise_variance_]),
        ]
        if settings.get("method") != "expected_nested_dropout":  # it leaves the scale free
            read.append(fitted.encoder_.T @ fitted.encoder_)
        return read, fitted.certificate_


def outcome(X, settings, healthy, tolerance):
    """Return 'crashed', 'unchanged', 'caught' or what survived."""
    try:
        read, certificate = result(X, settings)
    except Exception:
        return "crashed"
    same = all(
        a.shape == b.shape and np.allclose(a, b, rtol=tolerance, atol=tolerance * np.max(np.abs(b)))
        for a, b in zip(read, healthy, strict=True)
    )
    if same:
        return "unchanged"
    return "caught" if certificate.holds is not True else "survived"


def counts(functions, problems, tolerance, every=1):
    runs = {name: calls_of(partial(result, *problem)) for name, problem in problems.items()}
    healthy = {name: found for name, (found, _) in runs.items()}
    assert all(certificate.holds is not None for _, certificate in healthy.values())
    found, survivors, number = Counter(), [], 0
    for function in functions:
        using = {
            name: problem
            for name, problem in problems.items()
            if healthy[name][1].holds and is_among(function, runs[name][1])
        }
        for words, code in mutants(function):
            number += 1
            if number % every:
                continue
            with broken(function, code), np.errstate(all="ignore"):
                outcomes = {
                    name: outcome(*problem, healthy[name][0], tolerance)
                    for name, problem in using.items()
                }
            survivors += [(words, name) for name, kind in outcomes.items() if kind == "survived"]
            kinds = ("survived", "caught", "crashed")
            found[next((kind for kind in kinds if kind in outcomes.values()), "unchanged")] += 1
    return found, survivors


def test_the_unbroken_problems_hold():
    for name, problem in (EXACT | DESCENT).items():
        if name != "zero":
            _, certificate = result(*problem)
            assert certificate.holds, (name, certificate.summary())


def test_broken_closed_forms_and_moments_do_not_get_a_certificate():
    found, survivors = counts(CLOSED_FORMS, EXACT, 1e-6, every=2)
    assert not survivors
    assert found["caught"] >= 50


def test_broken_rules_do_not_get_a_certificate():
    found, survivors = counts(DIRECTIONS, DESCENT, 1e-3, every=4)
    assert not survivors
    assert found["caught"] >= 12


@pytest.mark.slow
def test_no_mutant_that_changes_the_result_gets_a_certificate():
    """The table at the top."""
    closed, first = counts(CLOSED_FORMS, EXACT, 1e-6)
    rules, second = counts(DIRECTIONS, DESCENT, 1e-3)
    print(dict(closed), dict(rules))
    assert not first + second
    assert closed["caught"] >= 110
    assert rules["caught"] >= 50


# Breaks by hand.


def shifted_spectrum(covariance, k):
    """Leave out the first eigenpair."""
    values, vectors = np.linalg.eigh(covariance)
    kept = slice(1, None if k is None else k + 1)
    return values[::-1][kept], vectors[:, ::-1][:, kept]


def swapped_spectrum(covariance, k):
    """Take component 4 for component 3: the off-by-one that is a saddle."""
    values, vectors = np.linalg.eigh(covariance)
    order = np.array([0, 1, 3, 2, 4, 5])[:k]
    return values[::-1][order], vectors[:, ::-1][:, order]


@pytest.mark.parametrize("method", ["rag", "plain", "nonuniform_l2", "linear_vae"])
@pytest.mark.parametrize("wrong", [shifted_spectrum, swapped_spectrum])
def test_another_subspace_gets_no_certificate(monkeypatch, method, wrong):
    monkeypatch.setattr(spectrum, "covariance_spectrum", wrong)
    # Automatic penalties refuse eigenvalues that do not descend, so that they are given here.
    l2 = [0.1, 0.2, 0.3] if method == "nonuniform_l2" else "auto"
    certificate = LinearAutoencoder(3, method=method, l2=l2).fit(TALL).certificate_
    assert certificate["subspace"].holds is False
    assert certificate["gap"].holds is False


@pytest.mark.parametrize(
    "lengths",
    [
        lambda penalties, values: 1 - penalties / np.sqrt(values),
        lambda penalties, values: 1 - penalties / (2 * values),
        lambda penalties, values: np.sqrt(1 - penalties / values),
        lambda penalties, values: np.where(penalties > 0.2, 0.0, 1 - penalties / values),
    ],
    ids=["square", "factor", "root", "threshold"],
)
def test_a_wrong_shrinkage_gets_no_certificate(monkeypatch, lengths):
    monkeypatch.setattr(
        NonUniformL2,
        "squared_lengths",
        lambda self, values: lengths(np.sort(self.penalties), values),
    )
    certificate = LinearAutoencoder(3, method="nonuniform_l2", l2=[0.1, 0.15, 0.3]).fit(TALL)
    assert certificate.certificate_["gap"].holds is False


def test_a_wrong_noise_variance_gets_no_certificate(monkeypatch):
    healthy = spectrum.Spectrum.noise
    monkeypatch.setattr(spectrum.Spectrum, "noise", lambda self, k: 0.9 * healthy(self, k))
    certificate = LinearAutoencoder(3, method="linear_vae").fit(TALL).certificate_
    assert certificate["gap"].holds is False


def test_stale_state_gets_no_certificate():
    fitted = LinearAutoencoder(3).fit(TALL)
    assert fitted.certificate_.holds
    state = fitted._state
    state.sums = state.moment.update(3 * TALL[::-1, ::-1])
    state.changed()  # the moment is new, the model is not
    assert fitted.certificate_.holds is False


@pytest.mark.parametrize("field", ["encoder", "atoms", "components", "variances", "mean", "basis"])
def test_attributes_that_were_changed_get_no_certificate(field):
    fitted = LinearAutoencoder(3).fit(TALL)
    old = fitted._state.solution
    changed = {name: getattr(old, name) for name in old.__slots__}
    changed[field] = changed[field] * (1 + 1e-6)
    fitted._state.solution = type(old)(**changed)
    fitted._state.changed()
    assert fitted.certificate_["attributes"].holds is False
