"""Every method is in all places that CONTRIBUTING names, and is what its case says."""

import inspect
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from linear import brute_force
from linear.brute_force import CASES, METHODS, VALUES, K
from linear.problems import centred_rows, covariance_from, free, spectrum_from
from lucidae import LinearAutoencoder
from lucidae import linear as family
from lucidae.linear import MethodSettings, UntiedWeights, geometric_prior, make_method

ROOT = Path(__file__).parents[2]
X = 2 + centred_rows(VALUES, n=40, seed=3)


def missing_places(name):
    """Yield a sentence for each place that must know a method and does not."""
    listed = inspect.getdoc(LinearAutoencoder).partition("method : str")[2].partition("solver :")[0]
    if f'``"{name}"``' not in listed:
        yield f'src/lucidae/linear/estimator.py: ``"{name}"`` in the docstring, under `method`'
    guide = (ROOT / "docs" / "guide" / "linear.md").read_text(encoding="utf-8")
    if f'`"{name}"`' not in guide.partition("| `method` |")[2].partition("\n\n")[0]:
        yield f'docs/guide/linear.md: `"{name}"` in the table of methods'
    if name not in CASES:
        yield f"tests/linear/brute_force.py: an entry {name!r} of CASES"
    certificate = LinearAutoencoder(K, method=name, random_state=0).fit(X).certificate_
    if any("not verified independently" in claim.reference for claim in certificate):
        yield (
            "src/lucidae/linear/references.py: a record of the objective or of the rule in "
            "REFERENCES; without it the method judges itself"
        )


@pytest.mark.parametrize("name", family.METHODS)
def test_a_method_is_in_all_places_that_contributing_names(name):
    missing = list(missing_places(name))
    assert not missing, "\n".join([f"method {name!r} lacks (see CONTRIBUTING.md)", *missing])


def test_no_case_is_left_of_a_method_that_is_gone():
    gone = sorted(set(CASES) - set(family.METHODS))
    assert not gone, (
        f"{gone} of CASES in tests/linear/brute_force.py are not registered in "
        "src/lucidae/linear/methods.py"
    )


def made(name):
    constants = CASES[name].constants
    settings = MethodSettings(
        constants.get("l2", np.zeros(K)), constants.get("prior", geometric_prior(K)), None
    )
    return make_method(name, settings)


@pytest.mark.parametrize("name", CASES)
def test_the_loss_is_that_of_its_definition(name):
    case, objective = CASES[name], made(name).objective
    covariance = covariance_from(spectrum_from(VALUES))
    for seed in range(5):
        encoder, atoms = free(np.random.default_rng(seed), (K, len(VALUES)))
        noise = case.constants.get("noise")
        weights = objective.completed(UntiedWeights(encoder, atoms), noise)
        expected = case.loss(encoder, atoms.T, covariance.matrix, **case.constants)
        assert_allclose(float(objective.value(weights, covariance)), expected, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_minimum_is_the_recorded_one(name):
    case, spectrum = CASES[name], spectrum_from(VALUES)
    assert_allclose(made(name).objective.minimum(spectrum, K), case.minimum, rtol=1e-12)
    fitted = LinearAutoencoder(K, method=name, **case.arguments).fit(X)
    assert_allclose(fitted.certificate_.evidence["minimum"], case.minimum, rtol=1e-9)
    assert fitted.certificate_.holds


@pytest.mark.parametrize("name", METHODS)
def test_the_minimum_is_that_of_a_search(name):
    constants = {key: v for key, v in CASES[name].constants.items() if key != "noise"}
    found = brute_force.minimum(name, brute_force.second_moment(X), K, **constants)
    assert_allclose(found, CASES[name].minimum, rtol=1e-6)
    assert CASES[name].minimum <= found + 1e-9


@pytest.mark.parametrize("name", CASES)
def test_what_is_promised_of_the_optimum(name):
    case, expected = CASES[name], made(name).expected()
    assert bool(expected.aligns) is case.aligned
    assert bool(expected.orders) is case.ordered
    assert bool(expected.balanced) is case.balanced


@pytest.mark.parametrize(
    ("name", "tied"), [("gha", False), ("brockett", False), ("linear_vae", True)]
)
def test_a_tying_that_contradicts_the_method_is_refused(name, tied):
    with pytest.raises(ValueError, match=f"tied={tied} was given"):
        make_method(name, MethodSettings(np.ones(2), np.ones(2) / 2, None, tied))


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="expected one of"):
        make_method("pca", MethodSettings(np.ones(2), np.ones(2) / 2, None))
