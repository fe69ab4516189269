"""Features are called by their names in certificates, cards, displays and files."""

import numpy as np
import pytest

import lucidae
from extras import require
from lucidae import LinearAutoencoder, SparseVAE, certify, displays
from lucidae.sparsity import noise_path

NAMES = ["height", "weight", "age", "income", "size", "rent"]


def table(seed=0):
    rows = np.random.default_rng(seed).standard_normal((60, 6)) * [6, 5, 4, 3, 2, 1]
    return require("pandas").DataFrame(rows, columns=NAMES)


def test_advice_of_a_certificate_names_columns():
    X = table()
    X.iloc[:30, 0], X.iloc[30:, 1] = np.nan, np.nan
    model = LinearAutoencoder(1, handle_missing="em").fit(X)
    for certificate in (model.certificate_, certify(model, X)):
        advice = " ".join(claim.advice for claim in certificate)
        assert "Columns 'height' and 'weight' were never or hardly ever observed together" in advice
        assert "'height'" in certificate._repr_html_().replace("&#x27;", "'")
    assert model.certificate_ is model.certificate_
    unnamed = X.set_axis([f"column {at}" for at in range(6)], axis=1)  # as of a file without header
    model = LinearAutoencoder(1, handle_missing="em").fit(unnamed)
    assert model.certificate_ is model.certificate_
    assert "Columns 'column 0' and 'column 1' were never" in model.certificate_.summary()
    plain = LinearAutoencoder(1, handle_missing="em").fit(X.to_numpy())
    assert "Columns 0 and 1, counted from 0" in plain.certificate_.summary()


def test_paths_and_displays_name_columns(tmp_path):
    require("matplotlib")
    X = table()
    y = 2 * X["weight"] - X["age"] + 0.1 * np.random.default_rng(1).standard_normal(60)
    path = noise_path(X, y)
    assert "<td>weight</td>" in path._repr_html_()
    drawn = displays.NoisePathDisplay.from_path(path)
    assert {"weight", "age"} <= set(drawn.names)
    model = SparseVAE(noise_variance=0.01).fit(X, y)
    lucidae.save(model, tmp_path / "model.npz")
    for fitted in (model, lucidae.load(tmp_path / "model.npz")):
        labels = displays.RecoveryDisplay.from_estimator(fitted).ax_.get_xticklabels()
        assert [label.get_text() for label in labels] == NAMES


@pytest.mark.parametrize("kind", ["frame", "file", "anndata", "polars"])
def test_names_come_from_every_kind_of_table(kind, tmp_path):
    X = table()
    X.to_csv(tmp_path / "t.csv", index=False)
    kinds = {
        "frame": lambda: X,
        "file": lambda: tmp_path / "t.csv",
        "anndata": lambda: require("anndata").AnnData(X.set_axis(X.index.astype(str))),
        "polars": lambda: require("polars").from_pandas(X),
    }
    model = LinearAutoencoder(2).fit(kinds[kind]())
    labels = displays.ComponentsDisplay.from_estimator(model).ax_.get_xticklabels()
    assert [label.get_text() for label in labels] == NAMES
