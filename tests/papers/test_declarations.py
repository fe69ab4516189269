import json
import math
import pickle
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import extras
from lucidae_papers import NAMES, experiment
from lucidae_papers.engine import NEEDS_TORCH, available, run
from lucidae_papers.linear.training import DATA, penalties
from lucidae_papers.store import Store
from lucidae_papers.verdicts import LABELS, Reported, judge
from papers.judging import flat

BOTH = [(name, scale) for name in NAMES for scale in ("smoke", "paper")]
INTERNAL_NAMES = tuple(method for method in LABELS if "_" in method)
QUICK = ("lae-landscape", "dropout-landscape", "sparse-slices")


def require_packages(name):
    if name in NEEDS_TORCH:
        extras.require("torch")


@pytest.mark.parametrize(("name", "scale"), BOTH)
def test_a_declaration_is_complete(name, scale):
    require_packages(name)
    declared = experiment(name)
    assert declared.name == name
    assert declared.title
    assert declared.about.endswith(".")
    assert not declared.title.endswith(".")
    assert any(author in declared.reference for author in ("Bao", "Mianjy", "Wipf", "Gavish"))
    chosen = declared.at(scale)
    assert not any(isinstance(verdict, Reported) for verdict in flat(chosen.expect))
    assert all(isinstance(verdict, Reported) for verdict in chosen.reported)
    assert all(isinstance(value, str) for value in chosen.setting.facts().values())
    cells = chosen.setting.cells()
    assert len({cell.key for cell in cells}) == len(cells)
    for cell in cells:
        assert json.loads(json.dumps(cell.settings)) == cell.settings
        assert pickle.loads(pickle.dumps(cell.work)) is cell.work
        assert 0 < cell.cost < math.inf


@pytest.mark.parametrize("name", NAMES)
def test_every_statement_has_a_kind_and_is_judged_or_says_why_not(name):
    require_packages(name)
    declared = experiment(name)
    kinds = [statement.kind for statement in declared.statements.values()]
    assert kinds
    for statement in declared.statements.values():
        assert statement.words[0].isupper()
        assert statement.words.endswith(".")
    for chosen in (declared.smoke, declared.paper):
        assert {*chosen.expect, *chosen.unjudged} == {*declared.statements}
        assert all(why.endswith(".") for why in chosen.unjudged.values())


@pytest.mark.parametrize("name", NAMES)
def test_statements_of_figures_use_the_names_of_the_drawings(name):
    require_packages(name)
    for chosen in (experiment(name).smoke, experiment(name).paper):
        for verdict in (*flat(chosen.expect), *chosen.reported):
            assert verdict.says, "a claim needs the name of its figure"
            assert not any(method in verdict.says for method in INTERNAL_NAMES), verdict.says


@pytest.mark.parametrize("name", NAMES)
def test_smoke_uses_embedded_data_alone(name):
    require_packages(name)
    for cell in experiment(name).at("smoke").setting.cells():
        assert DATA[cell.settings.get("data", "digits")].embedded


def test_the_papers_settings_are_the_papers():
    rates = {
        (trial.method, trial.optimizer): trial.learning_rate
        for trial in experiment("lae-dynamics").at("paper").setting.trials
    }
    assert rates["rag", "nesterov"] == 3e-3
    assert rates["nonuniform_l2", "adam"] == 1e-2
    assert ("rag", "adam") not in rates
    assert len(rates) == 11
    spaced = penalties({"rule": "spaced", "low": 0.1, "high": 0.9}, "digits", 20)
    assert np.sqrt(spaced[[0, -1]]) == pytest.approx([0.1, 0.9])
    sizes = experiment("lae-scaling").at("paper").setting
    assert sizes.sizes == (2, 5, 10, 20, 50, 100, 200, 300, 400, 500)
    assert sizes.limit == 50_000
    for panel in ("unit", "scaled", "leadfield", "noise"):
        setting = experiment(f"sparse-{panel}").at("paper").setting
        assert (setting.d, setting.kappa, setting.trials) == (100, 200, 100)
        assert setting.active == tuple(range(1, 101))
    dropout = experiment("dropout-convergence").at("paper").setting
    assert (dropout.shape, dropout.widths, dropout.runs) == ((120, 80), (20, 80), 50)


def test_without_torch_the_rest_can_run(monkeypatch):
    monkeypatch.setattr("lucidae_papers.engine.find_spec", lambda name: None)
    assert set(NAMES) - set(available()) == set(NEEDS_TORCH)


def test_an_unknown_experiment_or_scale_is_named():
    with pytest.raises(ValueError, match="expected one of lae-landscape"):
        experiment("lae-nothing")
    with pytest.raises(ValueError, match="scale='huge'"):
        experiment("lae-landscape").at("huge")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("cells"))
    chosen = [experiment(name) for name in QUICK]
    run([cell for one in chosen for cell in one.at("smoke").setting.cells()], store, jobs=1)
    return [judge(one, "smoke", store) for one in chosen]


def test_what_takes_no_time_is_seen(outcomes):
    for outcome in outcomes:
        assert [one.name for one in outcome.judgements if one.holds is False] == []


def test_the_page_is_one_file_that_asks_the_network_for_nothing(outcomes, tmp_path):
    extras.require("matplotlib")
    extras.require("jinja2")
    from lucidae_papers.pages import write_page

    text = write_page(outcomes, tmp_path / "page.html", 1.0).read_text("utf-8")
    for outcome in outcomes:
        assert f'href="#{outcome.experiment.name}"' in text
        assert outcome.experiment.reference in text
    for asked in ('src="http', 'href="http', "url(http", "@import", "fetch(", "XMLHttpRequest"):
        assert asked not in text
    assert text.count("data:text/csv") >= 3


def test_notes_have_claims_settings_and_figures_that_stand_alone(outcomes, tmp_path):
    extras.require("matplotlib")
    extras.require("jinja2")
    from lucidae_papers.pages import write_notes

    index = write_notes(outcomes, tmp_path).read_text("utf-8")
    for outcome in outcomes:
        name = outcome.experiment.name
        assert f"({name}.md)" in index
        note = (tmp_path / f"{name}.md").read_text("utf-8")
        assert all(claim.statement in note for claim in outcome.claims)
        assert all(one.prose in note for one in outcome.judgements)
        assert "| machine |" in note
    figures = list(tmp_path.glob("*.svg"))
    assert len(figures) >= 2
    for figure in figures:
        text = figure.read_text("utf-8")
        assert "var(--" not in text
        assert ET.fromstring(text).tag.endswith("svg")


@pytest.mark.slow
def test_only_what_paper_scale_refutes_too_fails_at_smoke_scale(tmp_path):
    from lucidae_papers.engine import reproduce

    done = reproduce(scale="smoke", out=tmp_path, page=False)
    failed = [
        (outcome.experiment.name, one.name)
        for outcome in done.outcomes
        for one in outcome.judgements
        if one.holds is False
    ]
    assert failed == [("lae-penalties", "slow")]
    assert done.exit_code == 1
