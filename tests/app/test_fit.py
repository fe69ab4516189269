"""`lucidae fit`: what it prints, the files that it writes, and its errors."""

import csv
import shlex
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import lucidae
from extras import require

require("typer")
require("rich")
pandas = require("pandas")
from lucidae.iteration import progress

COLUMNS = ("a", "b", "c", "d", "e", "f")


@pytest.fixture(scope="module")
def samples():
    """Return X and Y; Y depends on the columns b and e only, up to little noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 6)) * [6, 5, 4, 3, 2, 1]
    Y = X[:, [1, 4]] @ [[2.0, 1.0], [-3.0, 4.0]]
    return X, Y + 0.1 * rng.standard_normal(Y.shape)


@pytest.fixture
def folder(samples, tmp_path, monkeypatch):
    """Change to a folder that contains the samples as text and as arrays."""
    X, Y = samples
    monkeypatch.chdir(tmp_path)
    with Path("rows.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["who", *COLUMNS, "u", "v"])
        writer.writerows(["x", *row] for row in np.hstack([X, Y]).tolist())
    np.save("X.npy", X)
    np.save("y.npy", Y[:, 0])
    np.savez("both.npz", X=X, y=Y)
    return tmp_path


@pytest.fixture
def run(call_main, folder):
    """Return `call_main`, in the folder with the files."""
    return call_main


@pytest.mark.filterwarnings("ignore:Columns of 'rows")  # the command prints a note instead
@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "X.npy", "both.npz", "images.npy"])
def test_a_file_is_fitted_as_the_estimator_fits_it(run, samples, name):
    require("pandas").read_csv("rows.csv").to_parquet("rows.parquet")
    np.save("images.npy", samples[0].reshape(40, 2, 3))
    assert run("fit", "linear", name, "--components", "2", "--out", "m")[0] == 0
    model, expected = lucidae.load("m-model.npz"), lucidae.LinearAutoencoder(2).fit(name)
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-12)
    names = [getattr(fitted, "feature_names_in_", ()) for fitted in (model, expected)]
    assert list(names[0]) == list(names[1])
    assert (len(names[0]) > 0) == name.startswith("rows")


def numbers_of(path):
    """Return the columns of numbers of a file that a command wrote, as a data frame."""
    pandas, path = require("pandas"), Path(path)
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return pandas.DataFrame(arrays["X"], columns=arrays["columns"])
    if path.suffix == ".parquet":
        return pandas.read_parquet(path)
    return pandas.read_csv(path, float_precision="round_trip").select_dtypes("number")


def rows_of(path):
    with Path(path).open(newline="") as stream:
        return list(csv.reader(stream))


def test_linear_codes_and_model_are_those_of_the_estimator(run, folder, samples):
    X, _ = samples
    code, out, err = run("fit", "linear", "X.npy", "--components", 3)
    expected = lucidae.LinearAutoencoder(3).fit(X)
    assert (code, err) == (0, "")
    assert "all 8 claims hold" in out
    assert "✓ alignment" in out
    assert "\x1b" not in out  # no colours where there is no terminal
    model = lucidae.load("X-linear-model.npz")
    assert np.array_equal(model.transform(X), expected.transform(X))
    assert np.array_equal(numbers_of("X-linear-codes.npz").values, expected.transform(X))
    assert sorted(path.name for path in folder.glob("X-*")) == [
        "X-linear-codes.npz",
        "X-linear-components.npz",
        "X-linear-model.npz",
    ]
    assert np.array_equal(numbers_of("X-linear-components.npz").values, expected.components_.T)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("mle", "mle"),
        ("parallel-analysis", "parallel_analysis"),
        ("hard_threshold", "hard_threshold"),
        ("hard_threshold:0.5", ("hard_threshold", 0.5)),
    ],
)
def test_criteria_for_the_number_of_components_reach_the_estimator(run, samples, text, given):
    code, out, _ = run("fit", "linear", "X.npy", "--components", text)
    assert code == 0
    model = lucidae.load("X-linear-model.npz")
    assert model.n_components == given
    assert model.n_components_ == lucidae.LinearAutoencoder(given).fit(samples[0]).n_components_
    assert "component_count" in out


def test_share_of_variance_method_and_whitening_reach_the_estimator(run, samples):
    run("fit", "linear", "X.npy", "--components", 0.9, "--method", "linear_vae", "--whiten")
    model = lucidae.load("X-linear-model.npz")
    assert (model.n_components, model.method, model.whiten) == (0.9, "linear_vae", True)
    assert model.n_components_ < 6
    assert np.allclose(numbers_of("X-linear-codes.npz").values.std(axis=0, ddof=1), 1)


def test_dropout_without_a_target_is_an_autoencoder(run, samples):
    X, _ = samples
    assert run("fit", "dropout", "X.npy", "--components", 4, "--dropout", 0.2)[0] == 0
    expected = lucidae.DropoutAutoencoder(4, dropout=0.2).fit(X)
    assert isinstance(lucidae.load("X-dropout-model.npz"), lucidae.DropoutAutoencoder)
    assert np.allclose(numbers_of("X-dropout-codes.npz").values, expected.transform(X))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("--target u", "halves the coefficients of least squares"),
        ("--target u --components 3", "shrinks the coefficients"),
        ("--target u --target v", "shrinks the coefficients"),
        ("--target u --dropout 0.5", ""),
        ("--target u --dropout cv", ""),
        ("", ""),
    ],
)
def test_a_rate_that_was_not_given_is_mentioned_with_what_to_do(run, samples, arguments, hint):
    code, _, err = run("fit", "dropout", "rows.csv", *arguments.split())
    assert code == 0
    assert hint in err
    assert ("--dropout cv chooses the rate" in err) is bool(hint)


def test_dropout_with_targets_is_a_regression(run, samples):
    X, Y = samples
    arguments = ("--target", "u", "--target", "v", "--dropout", "cv")
    assert run("fit", "dropout", "rows.csv", *arguments)[0] == 0
    expected = lucidae.DropoutRegressor(dropout="cv", random_state=0).fit(X, Y)
    predictions = numbers_of("rows-dropout-predictions.csv")
    assert list(predictions) == ["u", "v"]
    assert np.allclose(predictions.values, expected.predict(X))
    coefficients = numbers_of("rows-dropout-coefficients.csv")
    assert np.allclose(coefficients.values, expected.coef_.T)
    assert [row[0] for row in rows_of("rows-dropout-coefficients.csv")] == ["feature", *COLUMNS]


def test_sparse_finds_the_columns_that_explain_the_target(run, samples):
    X, Y = samples
    code, out, _ = run("fit", "sparse", "rows.csv", "--target", "u", "--target", "v")
    assert code == 0
    assert "Significant columns: b, e\n" in out
    expected = lucidae.SparseVAE().fit(X, Y)
    header, *rows = rows_of("rows-sparse-coefficients.csv")
    assert header == ["feature", "in support", "relevance", "u", "v"]
    assert [row[0] for row in rows if float(row[1])] == ["b", "e"]
    table = numbers_of("rows-sparse-coefficients.csv").values
    assert np.array_equal(table[:, 1], expected.relevance_)
    assert np.array_equal(table[:, 2:], expected.coef_.T)
    predictions = numbers_of("rows-sparse-predictions.csv").values
    assert np.array_equal(predictions, expected.predict(X))
    named = require("pandas").DataFrame(X, columns=COLUMNS)
    assert np.array_equal(lucidae.load("rows-sparse-model.npz").predict(named), predictions)


@pytest.mark.parametrize(("file", "outputs"), [("y.npy", 1), ("both.npz", 2)])
def test_target_from_a_second_file(run, samples, file, outputs):
    X, Y = samples
    settings = ("--noise-variance", 0.01, "--posterior", "diagonal")
    assert run("fit", "sparse", "X.npy", "--target", file, *settings)[0] == 0
    model = lucidae.load("X-sparse-model.npz")
    assert (model.noise_variance, model.posterior) == (0.01, "diagonal")
    predictions = numbers_of("X-sparse-predictions.npz").values
    assert predictions.shape == (40, outputs)
    assert np.abs(predictions - Y[:, :outputs]).max() < 1
    assert model.predict(X).shape == ((40,) if outputs == 1 else (40, 2))


def test_sparse_with_groups_and_without_an_intercept(run, samples):
    settings = ("--noise-variance", 0.01, "--groups", 2, "--no-intercept")
    assert run("fit", "sparse", "X.npy", "--target", "y.npy", *settings)[0] == 0
    model = lucidae.load("X-sparse-model.npz")
    X, Y = samples
    expected = lucidae.SparseVAE(noise_variance=0.01, groups=2, fit_intercept=False)
    assert np.allclose(model.coef_, expected.fit(X, Y[:, 0]).coef_)
    assert model.intercept_ == 0.0
    code, _, err = run("fit", "sparse", "X.npy", "--target", "y.npy", "--groups", 4)
    assert code != 0
    assert "--groups 4 was given for 6 columns" in " ".join(err.split())


def test_column_that_looks_like_a_file_is_a_column(run, folder):
    text = (folder / "rows.csv").read_text().replace(",u,v", ",u.csv,v")
    (folder / "rows.csv").write_text(text)
    assert run("fit", "sparse", "rows.csv", "--target", "u.csv")[0] == 0
    assert list(numbers_of("rows-sparse-predictions.csv")) == ["u.csv"]


def test_out_names_a_prefix_and_printed_paths_exist(run, folder):
    _, out, _ = run("fit", "linear", "X.npy", "--out", "deep/mine.1")
    written = [line.removeprefix("Written: ") for line in out.splitlines() if "Written" in line]
    names = ("model", "codes", "components")
    assert written == [str(folder / "deep" / f"mine.1-{name}.npz") for name in names]
    assert sorted(map(str, (folder / "deep").iterdir())) == sorted(written)


SENTENCES = {
    "sparse rows.csv": "--target",
    "sparse X.npy --target short.npy": "'short.npy' has 5 rows, but 'X.npy' has 40",
    "sparse X.npy --target none.csv": "There is no file 'none.csv'",
    "sparse rows.csv --target who": "no numeric column 'who'",
    "sparse rows.csv --target u --target y.npy": "no numeric column 'y.npy'",
    "sparse X.npy --target y.npy --noise-variance -1": "above 0",
    "sparse X.npy --target y.npy --posterior half": "'diagonal'",
    "dropout X.npy --dropout 1.5": "--dropout 1.5 was given, expected a probability of at least 0",
    "dropout X.npy --dropout cv": "or cv or cv_1se (cross-validation) if --target is given",
    "dropout X.npy --dropout 1": "less than 1",
    "dropout X.npy --target y.npy --dropout nan": "or cv",
    "linear X.npy --components 2.5": "strictly between 0 and 1",
    "linear X.npy --components 0": "an integer of at least 1, a share",
    "linear X.npy --components x": "an integer of at least 1, a share",
    "sparse X.npy --target y.npy --noise-variance x": "above 0, auto, learn, cv or cv_1se",
    "linear X.npy --decimal x": "--decimal x was given, expected . or ,",
    "linear X.npy --columns 6": "no numeric column '6'",
    "dropout X.npy --components few": "--components",
    "linear X.npy --components 7": "6 features",
    "linear X.npy --method best": "'nonuniform_l2'",
    "linear X.npy --target y.npy": "--target",
    "linear none.npy": "There is no file",
    "linear words.csv": "no numeric column",
    "linear holes.csv": "missing values in 1 of 2 rows, by column: b (1). Give --missing em",
    "linear X.npy --missing some": "expected one of error, em, drop, mean",
    "linear holes.csv --missing drop": "leaves fewer than two: give --missing em",
    "linear X.npy --keep Z": "--keep Z was given, expected names of columns of numbers of 'X.npy'",
    "linear X.npy --solver quick": "--solver quick was given, expected one of 'auto', 'exact'",
    "linear X.npy --method pca": "--method pca was given, expected one of 'rag'",
    "sparse X.npy --target y.npy --posterior none": "--posterior none was given, expected",
    "linear": "Missing argument 'file'. See lucidae fit linear --help.",
    "cubic X.npy": "cubic",
}


@pytest.mark.parametrize("arguments", SENTENCES)
def test_bad_file_or_setting_is_one_sentence_and_leaves_no_file(run, folder, arguments):
    np.save("short.npy", np.arange(5.0))
    (folder / "words.csv").write_text("a,b\nx,y\n")
    (folder / "holes.csv").write_text("a,b\n1,\n2,3\n")
    before = set(folder.iterdir())
    code, out, err = run("fit", *arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert SENTENCES[arguments] in err
    assert set(folder.iterdir()) == before


def test_warning_of_a_fit_is_one_sentence(run, monkeypatch):
    fit = lucidae.LinearAutoencoder.fit

    def warn(self, X, y=None):
        for _ in range(2):
            warnings.warn("two\nlines", UserWarning, stacklevel=2)
        return fit(self, X)

    monkeypatch.setattr(lucidae.LinearAutoencoder, "fit", warn)
    assert run("fit", "linear", "X.npy")[2] == "two lines\n"


def test_failed_write_leaves_the_old_file(run, folder, monkeypatch):
    run("fit", "linear", "rows.csv", "--components", 1)
    old = (folder / "rows-linear-codes.csv").read_bytes()

    def tear(frame, stream, **options):
        stream.write("half of the hea")
        raise OSError("disk full")

    monkeypatch.setattr("pandas.DataFrame.to_csv", tear)
    code, _, err = run("fit", "linear", "rows.csv", "--components", 2)
    assert code == 2
    assert err.splitlines()[-1] == "disk full"
    assert (folder / "rows-linear-codes.csv").read_bytes() == old
    assert not list(folder.glob(".*"))


def terminal(**options):
    from rich.console import Console

    return Console(force_terminal=True, width=60, highlight=False, **options)


def test_terminal_gets_a_table_that_fits_it(folder, monkeypatch, capsys):
    from lucidae_app import console

    monkeypatch.setattr(console, "output", terminal(soft_wrap=True, color_system=None))
    model = lucidae.LinearAutoencoder(3).fit(np.load("X.npy"))
    console.print_certificate(model.certificate_)
    out = capsys.readouterr().out
    assert all(len(line) <= 60 for line in out.splitlines())
    for claim in model.certificate_:
        assert claim.name in out
        assert claim.figure in out


def test_the_time_of_a_long_command_is_shown_without_the_progress_of_its_fits(monkeypatch, capsys):
    from lucidae_app import console

    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "TICK", 0.001)
    monkeypatch.setattr(progress, "_screen", lambda: "terminal")
    seen, end = "", time.monotonic() + 30
    with console.timed("Fitting [b]"):
        assert not progress.is_shown("auto")
        while "Fitting [b]" not in seen and time.monotonic() < end:
            seen += capsys.readouterr().err
    assert "Fitting [b]" in seen
    assert progress.is_shown("auto")


def test_header_columns_and_decimal_reach_the_reader(run, folder):
    text = "country;2020;2021;x\nFrance;67,5;67,7;1\nPeru;32,9;33,3;2\nMali;21,7;22,4;5\n"
    (folder / "a.csv").write_text(text)
    code, _, err = run("fit", "linear", "a.csv", "--components", 1)
    assert code == 0
    assert err == (
        "a.csv: the first line is the header (country, 2020, 2021, x); columns left out: country "
        "('France' in row 0 is not a number).\n"
    )
    assert lucidae.load("a-linear-model.npz").n_features_in_ == 3
    assert run("fit", "linear", "a.csv", "--columns", "2020,3")[0] == 0
    assert lucidae.load("a-linear-model.npz").n_features_in_ == 2
    assert run("fit", "dropout", "a.csv", "--columns", "2020", "--target", "3")[0] == 0
    assert list(numbers_of("a-dropout-predictions.csv")) == ["x"]
    (folder / "a.csv").write_text(text.replace("x", "7"))
    code, _, err = run("fit", "linear", "a.csv", "--no-header", "--decimal", ".")
    assert (code, err.count("\n")) == (0, 1)
    assert "no header, and its columns are numbered from 0" in err
    assert "column 1 ('67,5' in row 1 is not a number; if ',' is the decimal sign, give" in err


def test_header_is_refused_for_a_file_that_has_none_but_not_for_its_targets(run, folder):
    np.save("a.npy", np.random.default_rng(0).standard_normal((30, 3)))
    (folder / "a.csv").write_text("a,b\n" + "1,2\n2,3\n5,7\n" * 10)
    code, _, err = run("fit", "linear", "a.npy", "--header")
    assert code == 2
    assert "leave out --header and --decimal" in err
    assert run("fit", "dropout", "a.csv", "--header", "--target", "a.npy")[0] == 0


def test_warnings_of_the_library_name_the_options(run, folder):
    scales = np.random.default_rng(0).standard_normal((40, 6)) * [600, 500, 4, 3, 2, 0.01]
    np.save("scales.npy", scales)
    arguments = ("--components", 5, "--method", "nonuniform_l2", "--solver", "gradient")
    code, _, err = run("fit", "linear", "scales.npy", *arguments)
    assert code == 0
    assert "aise max_iter (in Python)" in err
    assert "--solver exact gives the optimum" in err
    assert "scale the columns (--standardize)." in err
    text = "a;b\nx;1,5\ny;1.5\nz;2.5\n"
    (folder / "a.csv").write_text(text)
    assert "sign, give --decimal ,; if" in run("fit", "linear", "a.csv")[2]


def test_columns_of_different_scales_are_a_note_with_the_option(run, folder):
    rows = np.random.default_rng(0).standard_normal((30, 3)) * [1, 1000, 2]
    np.savetxt("a.csv", rows, delimiter=",")
    words = "so that the largest columns dominate: --standardize scales them."
    assert words in run("fit", "linear", "a.csv")[2]
    assert words in run("fit", "dropout", "a.csv")[2]
    assert words not in run("fit", "linear", "a.csv", "--standardize")[2]
    assert words not in run("fit", "linear", "a.csv", "--columns", "0,2")[2]
    assert words not in run("fit", "dropout", "a.csv", "--target", "1")[2]


def test_an_input_is_never_replaced(run, folder):
    (folder / "X.npy").rename(folder / "rows-codes.npz.npy")
    np.savez("rows-codes.npz", X=np.load("rows-codes.npz.npy"))
    np.savez("t-predictions.npz", X=np.arange(40.0)[:, None])
    before = {path: path.read_bytes() for path in folder.iterdir()}
    link = folder / "link.npz"
    link.symlink_to("rows-codes.npz")
    calls = (
        ("linear", "rows-codes.npz", "--out", "rows"),
        ("linear", "link.npz", "--out", "rows", "--force"),
        ("sparse", "both.npz", "--target", "t-predictions.npz", "--out", "t", "--force"),
    )
    for call in calls:
        code, _, err = run("fit", *call)
        assert (code, err.count("\n")) == (2, 1)
        assert "is an input file of this command" in err
    link.unlink()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_results_of_another_file_are_replaced_only_by_force(run, folder):
    (folder / "other").mkdir()
    np.save("other/X.npy", np.random.default_rng(1).standard_normal((20, 6)))
    assert run("fit", "linear", "X.npy")[0] == 0
    assert run("fit", "linear", "X.npy", "--components", 2)[0] == 0  # its own results
    model = Path("X-linear-model.npz").read_bytes()
    code, _, err = run("fit", "linear", "other/X.npy")
    assert (code, err.count("\n")) == (2, 1)
    assert "is the result for another file named 'X.npy': give another prefix with --out" in err
    code, _, err = run("fit", "linear", "both.npz", "--out", "X-linear")
    assert code == 2
    assert "is the result for the file 'X.npy'" in err
    assert Path("X-linear-model.npz").read_bytes() == model
    assert run("fit", "linear", "other/X.npy", "--force")[0] == 0
    assert Path("X-linear-model.npz").read_bytes() != model
    Path("y-linear-codes.npz").write_bytes(b"mine")
    code, _, err = run("fit", "linear", "both.npz", "--out", "y-linear")
    assert code == 2
    assert "is not a result for" in err


def test_formulas_in_names_are_text_in_the_output(run, folder):
    text = (folder / "rows.csv").read_text()
    names = 'who,=1+1,@b,+c,-d,"\te",-2,u,v\n'
    (folder / "rows.csv").write_text(names + text.partition("\n")[2])
    assert run("fit", "dropout", "rows.csv", "--target", "u")[0] == 0
    cells = [row[0] for row in rows_of("rows-dropout-coefficients.csv")]
    assert cells == ["feature", "'=1+1", "'@b", "'+c", "'-d", "e", "-2", "v"]


@pytest.fixture
def messy(samples, folder):
    """Write a table with identifiers, dates, text, a constant and gaps; return its numbers."""
    rng = np.random.default_rng(1)
    frame = pandas.DataFrame(samples[0], columns=list(COLUMNS))
    frame["b"] = np.where(rng.random(40) < 0.2, np.nan, frame["b"])
    frame["e"] = np.where(rng.random(40) < 0.1, np.nan, frame["e"])
    columns = {
        "nr": rng.permutation(40) + 501,
        "user_id": rng.choice(10**9, 40, replace=False),
        "inhabitants": rng.choice(10**6, 40, replace=False),
        "day": pandas.date_range("2024-01-01", periods=40).strftime("%Y-%m-%d"),
        "region": ["north", "south"] * 20,
        "version": 3,
    }
    pandas.DataFrame({**columns, **frame}).to_csv("messy.csv", index=False)
    return pandas.DataFrame({"inhabitants": columns["inhabitants"] * 1.0, "version": 3.0, **frame})


def test_columns_that_only_number_the_rows_are_left_out_unless_kept(run, messy):
    code, _, err = run("fit", "linear", "messy.csv", "--missing", "drop")
    assert code == 0, err
    for name in ("nr", "user_id"):
        assert f"{name} (it only numbers the rows; --keep {name} uses it)" in err
    assert "inhabitants (" not in err  # all different by chance, in so large a range
    model = lucidae.load("messy-linear-model.npz")
    assert model.feature_names_in_.tolist() == list(messy.columns)
    code, _, err = run("fit", "linear", "messy.csv", "--missing", "drop", "--keep", "nr,user_id")
    assert "only numbers" not in err
    model = lucidae.load("messy-linear-model.npz")
    assert {"nr", "user_id"} <= set(model.feature_names_in_)
    messy[["a", "c"]].to_csv("indexed.csv")  # the reader knows the index that pandas writes
    assert run("fit", "linear", "indexed.csv", "--keep", "column 0")[0] == 0
    assert lucidae.load("indexed-linear-model.npz").n_features_in_ == 3
    run("fit", "linear", "messy.csv", "--columns", "nr,a")  # the user has named it
    assert lucidae.load("messy-linear-model.npz").n_features_in_ == 2


def test_rows_with_missing_values_are_dropped_and_results_stay_in_line(run, messy):
    _, _, err = run("fit", "linear", "messy.csv", "--missing", "drop", "--components", 2)
    kept = messy.dropna()
    assert f"{40 - len(kept)} of 40 rows with a missing value are left out" in err
    expected = lucidae.LinearAutoencoder(2).fit(kept)
    codes = pandas.read_csv("messy-linear-codes.csv", skip_blank_lines=False)
    assert len(codes) == 40
    assert codes.index[codes.notna().all(axis=1)].tolist() == kept.index.tolist()
    np.testing.assert_allclose(codes.dropna(), expected.transform(kept), atol=1e-6)


def test_what_was_done_to_the_table_is_part_of_the_saved_model(run, messy):
    code, _, err = run(
        "fit", "linear", "messy.csv", "--missing", "mean", "--standardize", "--components", 2
    )
    assert code == 0, err
    assert "replaced by the mean of their column" in err
    model = lucidae.load("messy-linear-model.npz")
    filled = messy.fillna(messy.mean())
    scaled = (filled - filled.mean()) / filled.std(ddof=0).replace(0, 1)
    expected = lucidae.LinearAutoencoder(2).fit_transform(scaled)
    np.testing.assert_allclose(model.transform(messy), expected, atol=1e-8)
    codes = pandas.read_csv("messy-linear-codes.csv")
    np.testing.assert_allclose(codes, expected, atol=1e-8)
    np.testing.assert_allclose(pandas.read_csv("messy-linear-filled.csv"), filled, atol=1e-8)


def test_observed_values_are_used_by_maximum_likelihood(run, messy):
    code, out, err = run(
        "fit", "linear", "messy.csv", "--missing", "em", "--standardize", "--components", 2
    )
    assert code == 0, err
    assert "likelihood" in out
    model = lucidae.load("messy-linear-model.npz")
    assert np.isfinite(model.transform(messy)).all()
    filled = pandas.read_csv("messy-linear-filled.csv")
    seen = messy[filled.columns].notna()
    np.testing.assert_allclose(filled[seen], messy[filled.columns][seen])
    far = (filled - messy.mean()).abs() / messy.std()
    assert np.isfinite(filled).all(axis=None)
    assert far[~seen].max(axis=None) < 4
    for family in ("sparse", "dropout"):  # gaps are filled by such a model first
        code, _, err = run("fit", family, "messy.csv", "--target", "a", "--missing", "em")
        assert code == 0, err
        pipeline = lucidae.load(f"messy-{family}-model.npz")
        assert np.isfinite(pipeline.predict(messy.drop(columns="a"))).all()


def test_rows_without_a_target_are_left_out(run, messy):
    code, _, err = run("fit", "dropout", "messy.csv", "--target", "b", "--missing", "mean")
    assert code == 0, err
    missing = messy["b"].isna()
    assert f"{missing.sum()} of 40 rows with a missing target are left out" in err
    found = pandas.read_csv("messy-dropout-predictions.csv", skip_blank_lines=False)
    assert found["b"].isna().tolist() == missing.tolist()


def test_cells_that_mean_no_value_are_named_and_read_as_missing(run, samples):
    cells = samples[0].round(3).astype(object)
    cells[3, 1], cells[7, 1], cells[5, 2] = "n/k", "a, b", -999
    pandas.DataFrame(cells, columns=list(COLUMNS)).to_csv("typo.csv", index=False)
    code, _, err = run("fit", "linear", "typo.csv")
    assert code == 2
    assert """read them as missing by --missing-values 'n/k,"a, b"', or choose""" in err
    code, _, err = run(
        "fit", "linear", "typo.csv", "--missing", "drop", "--missing-values", 'n/k,"a, b",-999'
    )
    assert code == 0, err
    assert "3 of 40 rows" in err


@pytest.mark.parametrize("cell", ["'12.5'", "1\u00a0234.5", "[kg])", "it's 5", "1,5"])
def test_the_option_that_an_error_advises_works(run, cell):
    cells = np.arange(40.0).astype(object)
    cells[7] = cell
    pandas.DataFrame({"a": cells, "b": np.sin(np.arange(40.0))}).to_csv("cell.csv", index=False)
    _, _, err = run("fit", "linear", "cell.csv")
    advised = shlex.split(err.partition(" by ")[2].partition(", or choose")[0])
    code, _, err = run("fit", "linear", "cell.csv", "--missing", "drop", *advised)
    assert code == 0, err
    assert "1 of 40 rows" in err


@pytest.mark.parametrize("family", ["linear", "dropout", "sparse"])
def test_influential_rows_have_their_numbers_in_the_file(run, samples, family):
    X = np.vstack([samples[0], samples[0]])
    X[[3, 8, 20], 0] = np.nan
    X[50] = 1e4
    table = pandas.DataFrame(X, columns=list(COLUMNS)).assign(u=np.nan_to_num(X) @ np.ones(6))
    table.to_csv("outlier.csv", index=False)
    target = () if family == "linear" else ("--target", "u")
    code, out, err = run("fit", family, "outlier.csv", "--missing", "drop", *target)
    assert code == 0, err
    assert "Influence: row 47." in out
    assert "does not count rows left out; in outlier.csv row 47 is row 50." in out


def test_the_chosen_number_of_components_and_constant_columns_are_printed(run, messy):
    arguments = ("fit", "linear", "messy.csv", "--missing", "em", "--standardize")
    code, out, err = run(*arguments, "--components", "hard_threshold")
    assert code == 0, err
    chosen = lucidae.load("messy-linear-model.npz")[-1].n_components_
    assert f"Number of components: {chosen}\n" in out
    assert "Constant, hence in no component: version.\n" in out
    out = run("fit", "linear", "X.npy", "--components", 2)[1]
    assert "Number of components" not in out
    assert "Constant" not in out


def test_all_files_are_written_although_the_reader_of_the_output_has_gone(folder):
    command = [sys.executable, "-m", "lucidae_app", "fit", "linear", "rows.csv", "--out", "out/"]
    (folder / "out").mkdir()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.close()
    names = {path.name for path in (folder / "out").iterdir()}
    assert names == {f"rows-linear-{what}" for what in ("model.npz", "codes.csv", "components.csv")}
