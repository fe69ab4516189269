"""A saved estimator comes back as it was; a file that was changed loads without a certificate."""

import io
import json
import pickle
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KDTree, KNeighborsRegressor
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import lucidae
from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
    models,
)

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((40, 6)) * [3, 2.5, 2, 1.5, 1, 0.5] + 1
Y = X @ RANDOM.standard_normal((6, 3)) + RANDOM.standard_normal((40, 3)) / 10
MORE, TARGETS = X[:5] + 0.5, Y[:5]
HOLES = np.where(RANDOM.random(X.shape) < 0.1, np.nan, X)
HOLES[:8] = X[:8]
GROUPS = np.array([0, 0, 1, 1, 2, 2])


def streamed(model, *data):
    for rows in range(0, 40, 10):
        model.partial_fit(*(part[rows : rows + 10] for part in data))
    return model


def changed(model, **parameters):
    return model.set_params(**parameters)


MODELS = {
    "exact": lambda: LinearAutoencoder(3).fit(X),
    "float32": lambda: LinearAutoencoder(3, whiten=True).fit(X.astype(np.float32)),
    "weighted": lambda: LinearAutoencoder(2).fit(X, sample_weight=np.arange(1.0, 41.0)),
    "penalties": lambda: LinearAutoencoder(2, method="nonuniform_l2").fit(X),
    "given penalties": lambda: LinearAutoencoder(2, method="nonuniform_l2", l2=[0.3, 0.1]).fit(X),
    "criterion": lambda: LinearAutoencoder(("hard_threshold", 1.0)).fit(X),
    "share": lambda: LinearAutoencoder(0.9).fit(X),
    "vae": lambda: LinearAutoencoder(2, method="linear_vae", solver="gradient", tol=1e-3).fit(X),
    "gha": lambda: LinearAutoencoder(2, method="gha", solver="gradient", random_state=0).fit(X),
    "brockett": lambda: LinearAutoencoder(
        2, method="brockett", solver="gradient", random_state=np.int64(3)
    ).fit(X),
    "nested": lambda: LinearAutoencoder(
        2, method="nested_dropout", solver="stochastic", max_iter=9, batch_size=8, random_state=0
    ).fit(X),
    "partial": lambda: streamed(LinearAutoencoder(2), X),
    "partial, read": lambda: (model := streamed(LinearAutoencoder(2), X), model.components_)[0],
    "stream": lambda: streamed(LinearAutoencoder(2, solver="stochastic", random_state=0), X),
    "stream, nested": lambda: streamed(
        LinearAutoencoder(2, method="nested_dropout", solver="stochastic", random_state=0), X
    ),
    "stream, adam": lambda: streamed(
        LinearAutoencoder(2, method="linear_vae", solver="stochastic", optimizer="adam"), X
    ),
    "stream, descent": lambda: streamed(
        LinearAutoencoder(
            2, method="uniform_l2", solver="stochastic", optimizer="gradient_descent"
        ),
        X,
    ),
    "missing": lambda: LinearAutoencoder(2, handle_missing="em").fit(HOLES),
    "missing, counted": lambda: LinearAutoencoder("mle", handle_missing="em").fit(HOLES),
    "changed parameters": lambda: changed(LinearAutoencoder(2).fit(X), method="gha", tol=1e-2),
    "regressor": lambda: DropoutRegressor(2).fit(X, Y),
    "regressor, one target": lambda: DropoutRegressor(alpha=0.1).fit(X, Y[:, 0]),
    "regressor, sgd": lambda: DropoutRegressor(2, solver="sgd", random_state=0).fit(X, Y),
    "regressor, cv": lambda: DropoutRegressor(dropout="cv", cv=3).fit(X, Y),
    "regressor, rank": lambda: DropoutRegressor("cv", shrink=False, cv=3).fit(X, Y),
    "regressor, partial": lambda: streamed(DropoutRegressor(2), X, Y),
    "autoencoder": lambda: DropoutAutoencoder(2).fit(X),
    "autoencoder, sgd": lambda: DropoutAutoencoder(2, solver="sgd", random_state=0).fit(X),
    "autoencoder, partial": lambda: streamed(DropoutAutoencoder(2), X),
    "factorization": lambda: DropoutFactorization(2).fit(X),
    "factorization, sgd": lambda: DropoutFactorization(2, solver="sgd", random_state=0).fit(X),
    "completion": lambda: DropoutFactorization(
        3, dropout="cv", handle_missing="complete", cv=2
    ).fit(HOLES),
    "sparse": lambda: SparseVAE(noise_variance=0.1).fit(X, Y),
    "sparse, one output": lambda: SparseVAE(noise_variance="learn").fit(X, Y[:, 0]),
    "sparse, cv": lambda: SparseVAE(cv=3, random_state=0).fit(X, Y),
    "sparse, diagonal": lambda: SparseVAE(posterior="diagonal").fit(X, Y),
    "sparse, point": lambda: SparseVAE(
        posterior="point", penalty="power", noise_variance=0.1
    ).fit(X, Y),
    "sparse, groups": lambda: SparseVAE(groups=GROUPS, noise_variance=0.1).fit(X, Y),
    "sparse, covariances": lambda: SparseVAE(
        groups=GROUPS, group_covariance="full", noise_variance=0.1
    ).fit(X, Y),
    "sparse, complex": lambda: SparseVAE(noise_variance=0.1).fit(X * 1j + 1, Y[:, 0]),
    "sparse, noise": lambda: SparseVAE(noise_variance="learn").fit(X, Y, noise_cov=np.eye(40) + 1),
    "sparse, correlated": lambda: SparseVAE(
        noise_variance=0.1, response_covariance="learn"
    ).fit(X, Y),
    "sparse, matrix": lambda: SparseVAE(noise_variance=0.1, fit_intercept=False).fit(
        scipy.sparse.csr_array(X), Y
    ),
}  # fmt: skip


WIDE = np.random.default_rng(0).standard_normal((8, 4100))
OTHERS = {
    "dense rows": lambda: DropoutRegressor(2, alpha=0.1).fit(WIDE, Y[:8]),
    "sparse rows": lambda: DropoutRegressor(2, alpha=0.1).fit(
        scipy.sparse.csr_array(np.where(abs(WIDE) > 2, WIDE, 0.0)), Y[:8]
    ),
    "factor of rows": lambda: DropoutRegressor(2, alpha=0.1).fit(WIDE[:, :1100], Y[:8]),
    "without moment": lambda: DropoutAutoencoder(2).fit(WIDE[:, :1100]),
    "unread": lambda: LinearAutoencoder(2).fit(X).partial_fit(X),
    "refined": lambda: LinearAutoencoder(3).fit(X * 10.0 ** -np.arange(0, 12, 2)),
}


@pytest.fixture
def made(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (MODELS | OTHERS)[request.param]()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.npz"


def output(model, rows=X):
    return model.transform(rows) if hasattr(model, "transform") else model.predict(rows)


def assert_same(found, wanted, name):
    assert isinstance(found, type(wanted)), name
    if isinstance(wanted, np.ndarray):
        np.testing.assert_array_equal(found, wanted, err_msg=name, strict=True)
    elif hasattr(wanted, "__dataclass_fields__") and not hasattr(wanted, "claims"):
        for field in wanted.__dataclass_fields__:
            assert_same(getattr(found, field), getattr(wanted, field), f"{name}.{field}")
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), name
        for key, value in wanted.items():
            assert_same(found[key], value, f"{name}.{key}")
    else:
        assert found == wanted, name


def assert_same_model(found, wanted):
    assert str(found) == str(wanted)
    names = [name for name in dir(wanted) if name.endswith("_") and not name.startswith("_")]
    for name in names:
        if hasattr(wanted, name):
            assert_same(getattr(found, name), getattr(wanted, name), name)


def stored(path):
    arrays = dict(np.load(path))
    return json.loads(str(arrays.pop("header"))), arrays


def rewrite(path, header, arrays):
    np.savez(path, header=np.array(json.dumps(header)), **arrays)


# What comes back.


@pytest.mark.parametrize("made", MODELS | OTHERS, indirect=True)
def test_a_saved_estimator_comes_back_bit_by_bit_and_goes_on(made, path):
    lucidae.save(made, path)
    again = lucidae.load(path)
    assert_same_model(again, made)
    rows = X if made.n_features_in_ == 6 else WIDE[:, : made.n_features_in_]
    assert np.array_equal(output(again, rows), output(made, rows))
    if hasattr(made, "partial_fit") and getattr(made, "handle_missing", "") != "em" and rows is X:
        targets = TARGETS[:, 0] if np.ndim(getattr(made, "coef_", None)) == 1 else TARGETS
        assert_same_model(again.partial_fit(MORE, targets), made.partial_fit(MORE, targets))


@pytest.mark.parametrize("method", ["gha", "linear_vae"])
def test_a_loaded_fit_is_a_warm_start(method, path):
    model = LinearAutoencoder(
        2, method=method, solver="gradient", max_iter=20, warm_start=True, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lucidae.save(model.fit(X), path)
        assert_same_model(lucidae.load(path).fit(X), model.fit(X))


def test_standard_errors_and_posteriors_come_back(path):
    for model in (DropoutRegressor(2).fit(X, Y), SparseVAE(noise_variance=0.1).fit(X, Y)):
        lucidae.save(model, path)
        again = lucidae.load(path)
        assert np.array_equal(
            again.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1]
        )
    assert np.array_equal(again.posterior_covariance([0, 2]), model.posterior_covariance([0, 2]))


def test_names_of_features_and_own_attributes_come_back(path):
    pandas = require("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    model = LinearAutoencoder(2).fit(frame)
    model.notes = {("a", 1): 2.0, np.int64(3): [1, (2,)], "plain": None}
    model.set_output(transform="pandas")
    lucidae.save(model, path)
    again = lucidae.load(path)
    assert list(again.feature_names_in_) == list("abcdef")
    assert again.notes == model.notes
    assert list(again.transform(frame)) == list(model.transform(frame))


def test_attributes_that_a_user_changed_come_back_with_their_failed_claim(path):
    model = SparseVAE(noise_variance=0.1).fit(X, Y)
    model.coef_[0, 0] += 1.0
    lucidae.save(model, path)
    again = lucidae.load(path)
    assert np.array_equal(again.predict(X), model.predict(X))
    assert again.certificate_["attributes"].holds is False


def test_the_certificate_of_wide_data_is_saved_because_the_data_are_not(path):
    rows = np.random.default_rng(0).standard_normal((20, 1100))
    for model in (LinearAutoencoder(2).fit(rows), DropoutAutoencoder(2).fit(rows)):
        lucidae.save(model, path)
        again = lucidae.load(path)
        assert again.certificate_ == model.certificate_
        assert any(claim.holds for claim in again.certificate_)
        assert pickle.loads(pickle.dumps(model)).certificate_ == model.certificate_


def test_a_file_does_not_depend_on_which_attributes_were_read(tmp_path):
    for name in ("exact", "nested", "regressor", "completion", "sparse"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = MODELS[name]()
        lucidae.save(model, tmp_path / "before.npz")
        _ = model.certificate_, [getattr(model, name, None) for name in dir(model)]
        lucidae.save(model, tmp_path / "after.npz")
        before, after = stored(tmp_path / "before.npz"), stored(tmp_path / "after.npz")
        assert before[0]["digest"] == after[0]["digest"]


def test_a_parameter_that_a_file_does_not_have_gets_its_default(path):
    lucidae.save(LinearAutoencoder(2, tol=0.1).fit(X), path)
    header, arrays = stored(path)
    del header["estimators"][0]["parameters"]["tol"]
    rewrite(path, header, arrays)
    assert lucidae.load(path).tol == LinearAutoencoder().tol


# The schemas.


def words(kind):
    return (
        [words(part) for part in kind]
        if isinstance(kind, tuple)
        else getattr(kind, "__name__", kind)
    )


def test_the_schemas_are_those_of_earlier_files():
    """Entries may be added to the stored schemas of format 3; none may be changed or removed."""
    pinned = Path(__file__).parents[1] / "data" / "schemas.json"
    found = {name: models.schema(name) for name in models.FAMILIES}
    found = {name: {key: words(kind) for key, kind in own.items()} for name, own in found.items()}
    assert found == json.loads(pinned.read_text(encoding="utf-8"))


# What is refused.


def test_an_unfitted_estimator_is_refused(path):
    with pytest.raises(ValueError, match="not fitted"):
        lucidae.save(LinearAutoencoder(2), path)
    assert not path.exists()


class Stranger:
    """A penalty that lucidae does not know."""


def own(rows):
    return rows


class Described(LinearAutoencoder):
    """A subclass, which a file cannot name."""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("notes", np.array([[1, "a"]], dtype=object), r"LinearAutoencoder\.notes is an array"),
        ("notes", np.array(["a", 2], dtype=object), r"LinearAutoencoder\.notes is an array"),
        ("notes", np.zeros(2, dtype=[("a", "O")]), r"LinearAutoencoder\.notes is an array"),
        ("notes", {"a": np.ma.array([1.0, 2.0])}, r"LinearAutoencoder\.notes\.a is a masked array"),
        ("notes", [np.random.default_rng(0), object()], r"LinearAutoencoder\.notes\.1 is of"),
        ("notes", {("a", object): 1}, r"the key \('a', <class 'object'>\) of Linear"),
        ("notes", np.random.Generator(np.random.MT19937(0)), "joblib"),
        ("random_state", np.random.RandomState(0), r"LinearAutoencoder\.random_state is of"),
        ("prior", Stranger(), r"LinearAutoencoder\.prior is of the type Stranger"),
        ("fit", 1, "'fit' of LinearAutoencoder is not an attribute"),
    ],
)
def test_what_cannot_be_written_is_named_and_nothing_is_written(tmp_path, name, value, words):
    model = LinearAutoencoder(2).fit(X)
    vars(model)[name] = value
    with pytest.raises(ValueError, match=words):
        lucidae.save(model, tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())


def test_other_estimators_that_cannot_be_written(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    circular = LinearAutoencoder(2).fit(X)
    circular.notes = []
    circular.notes.append(circular.notes)
    linear = LinearAutoencoder(2)
    cases = {
        "contains itself": circular,
        "Described, a subclass of LinearAutoencoder": Described(2).fit(X),
        "Described, a subclass": make_pipeline(StandardScaler(), Described(2)).fit(X),
        "memory=None": make_pipeline(StandardScaler(), linear, memory="cache").fit(X),
        "lambda": make_pipeline(FunctionTransformer(lambda rows: rows), linear).fit(X),
        "own, which is not safe": make_pipeline(FunctionTransformer(own), linear).fit(X),
        "KDTree, which is not safe": KNeighborsRegressor(algorithm="kd_tree").fit(X, Y),
    }
    for words, model in cases.items():
        with pytest.raises(ValueError, match=words):
            lucidae.save(model, path)
        assert not path.exists()


@pytest.mark.parametrize("order", ["path", "model", "swapped", "two models", "class", "number"])
def test_save_says_the_order_of_its_arguments(order, path):
    model = LinearAutoencoder(1).fit(np.eye(4))
    given = {
        "path": (path,),
        "model": (model,),
        "swapped": (path, model),
        "two models": (model, model),
        "class": (type(model), path),
        "number": (model, 3),
    }[order]
    with pytest.raises(ValueError, match=r"in this order: lucidae.save\(estimator, path\)\.$"):
        lucidae.save(*given)
    assert not path.exists()


# Files that save did not write.


@pytest.mark.parametrize(
    "tree",
    [
        {"record": "os:system", "fields": {"command": "true"}},
        {"record": "lucidae.models:load", "fields": {"path": "x"}},
        {"record": "lucidae.linear.fitted/99", "fields": {}},
        {"record": "lucidae.status/1", "fields": {"value": "converged"}},
        {"member": "lucidae.status/1", "name": "value"},
        {"array": "absent"},
        {"record": "lucidae.LinearAutoencoder/1", "fields": {"fit": "x"}},
        {"record": "sklearn.FunctionTransformer/1", "fields": {}},
        {"record": "sklearn.Pipeline/1", "fields": {"memory": "elsewhere", "steps": []}},
        {"random": {"bit_generator": "PCG64", "state": {"state": 2**200, "inc": 1}}},
        {"random": {"bit_generator": "MT19937"}},
        {"nonsense": 1},
        {"dtype": "object"},
        {"dtype": "float64"},
        {"tuple": [1, 2]},
    ],
)
def test_a_file_of_an_earlier_format_cannot_build_anything_else(tree, path):
    rewrite(path, {"format": 2, "version": "0", "estimator": tree}, {})
    with pytest.raises(ValueError, match="cannot be read as a saved estimator"):
        lucidae.load(path)


@pytest.mark.parametrize(
    ("where", "entry"),
    [
        ((), {"format": 99}),
        ((), {"estimators": []}),
        (("estimators", 0), {"estimator": "os.system"}),
        (("estimators", 0), {"values": None}),
        (("estimators", 0, "parameters"), {"sudo": 1}),
        (("estimators", 0, "parameters"), {"l2": {"random": {"bit_generator": "MT19937"}}}),
        (("estimators", 0, "attributes"), {"fit": "x"}),
        (("estimators", 0, "attributes"), {"_state": 1}),
        (("estimators", 0, "attributes"), {"n_features_in_": 10**9}),
        (("estimators", 0, "values"), {"status": "fine"}),
        (("estimators", 0, "values"), {"fit.method": "nobody's"}),
        (("estimators", 0, "values"), {"model.weight": "1"}),
        (("estimators", 0, "values"), {"model.unknown": 1.0}),
        (("estimators", 0, "values"), {"model.encoder": {"array": "absent"}}),
        (("estimators", 0, "values"), {"model.encoder": {"object": "os.system"}}),
    ],
)
def test_a_header_that_no_fit_produces_is_refused(where, entry, path):
    lucidae.save(LinearAutoencoder(2).fit(X), path)
    header, arrays = stored(path)
    place = header
    for key in where:
        place = place[key]
    place |= entry
    rewrite(path, header, arrays)
    with pytest.raises(ValueError, match="cannot be read as a saved estimator"):
        lucidae.load(path)


@pytest.mark.parametrize("name", ["exact", "regressor", "autoencoder", "factorization", "sparse"])
def test_arrays_of_wrong_shape_or_kind_are_refused(name, path, tmp_path):
    lucidae.save(MODELS[name](), path)
    header, arrays = stored(path)
    for key, values in arrays.items():
        for wrong in (values[..., None], values.astype("S4"), None):
            spoiled = {other: kept for other, kept in arrays.items() if other != key}
            rewrite(
                tmp_path / "wrong.npz", header, spoiled | ({} if wrong is None else {key: wrong})
            )
            if wrong is None or not (".values." in key or "evidence" in key):
                with pytest.raises(ValueError, match="cannot be read as a saved estimator"):
                    lucidae.load(tmp_path / "wrong.npz")


def test_damage_and_missing_files_are_told(path):
    with pytest.raises(FileNotFoundError):
        lucidae.load(path)
    lucidae.save(LinearAutoencoder(2).fit(X), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="damaged"):
        lucidae.load(path)


def test_only_models_of_the_command_line_name_their_data(path):
    lucidae.save(LinearAutoencoder(2).fit(X), path)
    assert models.source_of(path) is None
    path.write_bytes(b"not a model")
    assert models.source_of(path) is None


# Files that were changed.


USUAL = ("exact", "penalties", "stream", "missing", "regressor", "autoencoder", "factorization",
         "sparse", "sparse, covariances", "without moment")  # fmt: skip
EACH = [
    name if name in USUAL else pytest.param(name, marks=pytest.mark.slow)
    for name in MODELS | OTHERS
]


@pytest.mark.parametrize("made", EACH, indirect=True)
def test_no_changed_array_keeps_a_certificate_that_holds(made, path, tmp_path):
    lucidae.save(made, path)
    header, arrays = stored(path)
    changed = tmp_path / "changed.npz"
    for name, values in arrays.items():
        if not values.size:
            continue
        edits = [values * np.float32(1.05) if values.dtype.kind in "fc" else values + 1]
        single = values.copy()
        single.flat[single.size // 2] = edits[0].flat[single.size // 2]
        for edited in (*edits, single):
            rewrite(changed, header, arrays | {name: edited.astype(values.dtype)})
            try:
                again = lucidae.load(changed)
            except ValueError:
                continue  # it cannot be used at all
            if not np.array_equal(edited, values, equal_nan=True):
                assert again.certificate_.holds is not True, name
                assert any("The file was changed" in claim.advice for claim in again.certificate_)


def test_the_doubt_stays_until_the_next_fit(path):
    for name in ("exact", "regressor", "autoencoder", "stream"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lucidae.save(MODELS[name](), path)
        header, arrays = stored(path)
        header["estimators"][0]["parameters"]["tol"] = 0.5
        rewrite(path, header, arrays)
        lucidae.save(lucidae.load(path), path)
        again = pickle.loads(pickle.dumps(lucidae.load(path)))
        assert again.certificate_.holds is None
        again.partial_fit(MORE, TARGETS)
        assert "The file was changed" in again.certificate_.claims[0].advice
        assert again.certificate_.holds is None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again.fit(X, Y)
        assert "The file was changed" not in again.certificate_.claims[0].advice
        assert lucidae.certify(lucidae.load(path), X, *([Y] if name == "regressor" else [])).claims


# Objects of scikit-learn.


def columns():
    return ColumnTransformer(
        [("scale", StandardScaler(), [0, 1, 2]), ("code", LinearAutoencoder(2), [2, 3, 4, 5])]
    )


SCIKIT = {
    "pipeline": lambda: make_pipeline(SimpleImputer(), StandardScaler(), LinearAutoencoder(2)),
    "within": lambda: make_pipeline(StandardScaler(), LinearAutoencoder(2), Ridge()),
    "nested": lambda: make_pipeline(PCA(5), make_pipeline(LinearAutoencoder(3), SparseVAE())),
    "union": lambda: make_pipeline(
        FeatureUnion([("a", DropoutAutoencoder(2)), ("b", PCA(2))]), DropoutRegressor(2)
    ),
    "columns": lambda: make_pipeline(columns(), Ridge()),
    "forest": lambda: make_pipeline(LinearAutoencoder(3), RandomForestRegressor(3, random_state=0)),
    "boosting": lambda: make_pipeline(
        LinearAutoencoder(3), MultiOutputRegressor(GradientBoostingRegressor(n_estimators=3))
    ),
    "ufunc": lambda: make_pipeline(FunctionTransformer(np.abs), LinearAutoencoder(2)),
    "without ours": lambda: make_pipeline(StandardScaler(), Ridge()),
    "search": lambda: GridSearchCV(
        make_pipeline(StandardScaler(), LinearAutoencoder(), Ridge()),
        {"linearautoencoder__n_components": [2, 3], "ridge__alpha": [0.1, 1.0]},
        cv=KFold(3),
        scoring="r2",
    ),
    "search of ours": lambda: GridSearchCV(SparseVAE(), {"noise_variance": [0.1, 1.0]}, cv=2),
    "search of steps": lambda: GridSearchCV(
        make_pipeline(PCA(2), Ridge()), {"pca": [PCA(3), LinearAutoencoder(3)]}, cv=2
    ),
}


@pytest.mark.parametrize("name", SCIKIT)
def test_objects_of_scikit_learn_come_back(name, path):
    require("skops")
    model = SCIKIT[name]().fit(X, Y)
    lucidae.save(model, path)
    again = lucidae.load(path)
    assert str(again) == str(model)
    assert np.array_equal(output(again), output(model))
    last = getattr(model, "best_estimator_", model)
    if hasattr(getattr(last, "steps", [[0, last]])[-1][1], "certificate_"):
        found = getattr(again, "best_estimator_", again)
        found, last = (getattr(part, "steps", [[0, part]])[-1][1] for part in (found, last))
        assert found.certificate_ == last.certificate_ or hasattr(found, "steps")


def test_a_table_with_text_is_encoded_and_classified(path):
    require("skops")
    frame = require("pandas").DataFrame(X[:, :2], columns=["a", "b"])
    frame["c"] = ["u", "v"] * 20
    encoded = [("scale", StandardScaler(), ["a", "b"]), ("one", OneHotEncoder(), ["c"])]
    model = make_pipeline(
        ColumnTransformer(encoded, sparse_threshold=0), LinearAutoencoder(2), LogisticRegression()
    ).fit(frame, Y[:, 0] > 0)
    lucidae.save(model, path)
    assert np.array_equal(lucidae.load(path).predict_proba(frame), model.predict_proba(frame))


def test_a_changed_pipeline_loads_without_a_certificate(path):
    require("skops")
    lucidae.save(SCIKIT["pipeline"]().fit(X), path)
    assert lucidae.load(path)[-1].certificate_.holds
    header, arrays = stored(path)
    rewrite(path, header, arrays | {"0/moment.squares": arrays["0/moment.squares"] * 1.05})
    assert lucidae.load(path)[-1].certificate_.holds is None


def hostile(whole, members):
    """Return the content of a file of skops with some members changed."""
    stream = io.BytesIO()
    skops = require("skops.io")
    with (
        zipfile.ZipFile(io.BytesIO(skops.dumps(whole))) as source,
        zipfile.ZipFile(stream, "w") as target,
    ):
        for name in source.namelist():
            target.writestr(name, members(name, source.read(name)))
    return np.frombuffer(stream.getvalue(), dtype=np.uint8)


def replaced(old, new):
    return lambda _, content: content.replace(old, new)


@pytest.mark.parametrize(
    ("whole", "members", "words"),
    [
        (FunctionTransformer(np.abs), replaced(b'"absolute"', b'"load"'), "numpy.load, which is"),
        (StandardScaler(), replaced(b"StandardScaler", b"check_array"), "not safe"),
        (PCA(2), replaced(b"sklearn.decomposition._pca", b"subprocess"), "not safe"),
        (
            GridSearchCV(Ridge(), {"alpha": [1.0]}, scoring="r2"),
            replaced(b"sklearn.metrics._regression", b"sklearn.metrics._scorer"),
            "not safe",
        ),
        (KDTree(X), lambda _, content: content, "not safe"),
        (StandardScaler(), lambda *_: b"{}", "cannot be read"),
    ],
)
def test_a_file_of_scikit_learn_cannot_build_anything_else(whole, members, words, path):
    whole = whole.fit(X, Y) if hasattr(whole, "fit") else whole
    header = {"format": 3, "version": "0", "estimators": []}
    rewrite(path, header, {"scikit": hostile(whole, members)})
    with pytest.raises(ValueError, match=words):
        lucidae.load(path)


@pytest.mark.parametrize("spoiled", ["child", "negative child", "feature", "width"])
def test_a_tree_that_leads_outside_of_its_memory_is_refused(spoiled, path):
    forest = RandomForestRegressor(2, random_state=0).fit(X, Y)
    tree = forest.estimators_[1]
    state = tree.tree_.__getstate__()
    if spoiled == "width":
        forest.estimators_[0].n_features_in_ = 3
    elif spoiled == "feature":
        state["nodes"]["feature"][0] = 6
    else:
        state["nodes"]["left_child"][0] = 10**6 if spoiled == "child" else -7
    tree.tree_.__setstate__(state)
    header = {"format": 3, "version": "0", "estimators": []}
    rewrite(path, header, {"scikit": hostile(forest, lambda _, content: content)})
    with pytest.raises(ValueError, match="nodes that no fit produces"):
        lucidae.load(path)


def test_without_skops_a_sentence_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skops.io", None)
    lucidae.save(LinearAutoencoder(2).fit(X), path)
    lucidae.load(path)
    with pytest.raises(ValueError, match=r"need the package skops: pip install .*lucidae\[skops\]"):
        lucidae.save(make_pipeline(StandardScaler(), LinearAutoencoder(2)).fit(X), path)
