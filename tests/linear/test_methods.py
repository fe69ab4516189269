"""The table of methods and the checked arguments."""

import inspect
import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from lucidae import LinearAutoencoder, load, save
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


@pytest.mark.parametrize(
    ("method", "tag"),
    [
        ("plain", "lucidae.linear.rule.gradient/1"),
        ("linear_vae", "lucidae.linear.rule.variational/1"),
    ],
)
def test_a_file_that_holds_descent_as_a_rule_of_its_own_loads(method, tag, tmp_path):
    """Files of earlier versions hold a rule whose only field is the objective."""
    X = np.random.default_rng(0).standard_normal((30, 5))
    fitted = LinearAutoencoder(2, method=method).fit(X)
    path = tmp_path / "model.npz"
    save(fitted, path)
    with np.load(path) as file:
        arrays = dict(file)

    def older(record):
        if "rule" in record:
            record["rule"] = {"record": tag, "fields": {"objective": record["rule"]}}
        return record

    header = json.dumps(json.loads(str(arrays.pop("header")), object_hook=older))
    assert tag in header
    np.savez(path, header=header, **arrays)
    loaded = load(path)
    assert_array_equal(loaded.decoder_, fitted.decoder_)
    assert loaded.certificate_.summary() == fitted.certificate_.summary()
