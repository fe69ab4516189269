"""The table of methods and the checked arguments."""

import inspect

import numpy as np
import pytest

from lucidae import LinearAutoencoder
from lucidae.linear.methods import METHODS, MethodSettings, Options, make_method


@pytest.mark.parametrize(
    ("name", "tied"), [("gha", False), ("brockett", False), ("linear_vae", True)]
)
def test_a_tying_that_contradicts_the_method_is_refused(name, tied):
    with pytest.raises(ValueError, match=f"tied={tied} was given"):
        make_method(name, MethodSettings(np.ones(2), np.ones(2) / 2, None, tied))


def test_every_method_has_a_name_that_others_do_not():
    assert len(METHODS) == 9
    with pytest.raises(ValueError, match="expected one of"):
        make_method("pca", MethodSettings(np.ones(2), np.ones(2) / 2, None))


def test_arguments_are_checked_with_the_defaults_of_the_estimator():
    checked, given = (inspect.signature(f) for f in (Options.of, LinearAutoencoder))
    assert {n: p.default for n, p in checked.parameters.items()} == {
        n: p.default for n, p in given.parameters.items()
    }
