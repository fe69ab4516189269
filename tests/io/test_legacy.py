"""Files of earlier versions load, with the outputs that they had.

The archives contain saved models and ``expected.npz``: the inputs by name, the attributes and
outputs as ``model:attribute`` or ``model:method(inputs)``, and the verdicts as JSON. Those of 0.3.0
were written by that version; those of 0.1.0 and 0.2.0 are what 0.3.0 returned for these files.
"""

import io
import json
import re
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import lucidae

DATA = Path(__file__).parents[1] / "data"


def archive(version):
    return zipfile.ZipFile(DATA / f"{version}.zip")


def members(version):
    with archive(version) as files:
        return [
            name[:-4] for name in files.namelist() if name not in ("expected.npz", "moment.npz")
        ]


@cache
def expected(version):
    with archive(version) as files:
        return dict(np.load(io.BytesIO(files.read("expected.npz"))))


def value(model, expression, known):
    """Return what an expression of ``expected.npz`` gives for a loaded model."""
    for step in re.findall(r"(\w+)(?:\(([^)]*)\))?", expression):
        name, given = step
        if not given:
            model = getattr(model, name)
            continue
        arguments = [known[key] for key in given.split(",") if key in known]
        if not arguments:
            arguments = [[int(number) for number in given.split(",")]]
        if name == "predict_std":
            model = model.predict(*arguments, return_std=True)[1]
        else:
            model = getattr(model, name)(*arguments)
    return model


def last_of(model):
    while hasattr(model, "steps"):
        model = model.steps[-1][1]
    return model


FILES = [(version, name) for version in ("0.1.0", "0.2.0", "0.3.0") for name in members(version)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("version", "name"), FILES)
def test_a_model_of_an_earlier_version_gives_the_same(version, name, tmp_path):
    with archive(version) as files:
        path = Path(files.extract(f"{name}.npz", tmp_path))
    known = expected(version)
    verdicts = json.loads(str(known["verdicts"]))[name]
    if name == "linear-em-stream":  # online EM, which does not converge: nothing is claimed now
        verdicts = {key: "undecided" if word == "holds" else word for key, word in verdicts.items()}
    model = lucidae.load(path)
    own = last_of(model)
    if "status_" in verdicts:  # a factorisation has it since 0.4
        assert verdicts.pop("status_") == own.status_
    if isinstance(own, lucidae.LinearAutoencoder):
        # Later versions add claims, and name equal eigenvalues without calling the fit a failure.
        found = {claim.name: claim.verdict for claim in own.certificate_}
        assert {name: found[name] for name in verdicts if name != "moment"} == {
            name: verdict for name, verdict in verdicts.items() if name != "moment"
        }
    else:  # what earlier versions measured is not repeated
        assert own.certificate_.holds is None
        assert "lucidae.certify" in own.certificate_.summary()
    expressions = [key.partition(":")[2] for key in known if key.startswith(f"{name}:")]
    if name.startswith("linear-em"):  # batches with missing entries are refused since 0.4
        expressions = [text for text in expressions if "partial_fit" not in text]
    assert expressions
    for expression in expressions:
        asked = model if "(" in expression else own
        asked = lucidae.load(path) if "partial_fit" in expression else asked
        found, wanted = value(asked, expression, known), known[f"{name}:{expression}"]
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10, err_msg=expression)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("version", "name"), FILES)
def test_a_model_that_is_saved_again_says_what_it_said_before(version, name, tmp_path):
    with archive(version) as files:
        model = lucidae.load(files.extract(f"{name}.npz", tmp_path))
    lucidae.save(model, tmp_path / "again.npz")
    again = last_of(lucidae.load(tmp_path / "again.npz"))
    assert again.certificate_.summary() == last_of(model).certificate_.summary()


def test_a_moment_of_an_earlier_version_loads(tmp_path):
    with archive("0.3.0") as files:
        moment = lucidae.SecondMoment.load(files.extract("moment.npz", tmp_path))
    X = expected("0.3.0")["X"]
    np.testing.assert_allclose(moment.covariance, np.cov(X.T, bias=True), rtol=1e-12)
