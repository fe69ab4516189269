"""A saved estimator comes back as it was, and a file can build nothing but our own records."""

import json
import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import lucidae
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
)
from lucidae.io.contents import check_estimator
from lucidae.io.models import saved_as, source_of
from lucidae.iteration import Status

OLD = Path(__file__).parents[1] / "data" / "0.1.0"

ESTIMATORS = [
    LinearAutoencoder(3),
    LinearAutoencoder(3, method="nonuniform_l2", l2=[0.3, 0.1, 0.2], whiten=True),
    LinearAutoencoder(2, solver="gradient", max_iter=30, random_state=0),
    LinearAutoencoder(2, method="linear_vae", solver="gradient", max_iter=30, random_state=0),
    LinearAutoencoder(
        2, method="nested_dropout", solver="stochastic", max_iter=9, random_state=np.int64(3)
    ),
    DropoutRegressor(2),
    DropoutRegressor("cv", shrink=False, alpha=0.1),
    DropoutAutoencoder(2),
    DropoutFactorization(2),
    SparseVAE(noise_variance=0.1),
    SparseVAE(posterior="diagonal"),
]


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    X = random.standard_normal((40, 6))
    return X, X @ random.standard_normal((6, 3)) + random.standard_normal((40, 3)) / 10


def fitted(estimator, data):
    X, Y = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X) if hasattr(estimator, "transform") else estimator.fit(X, Y)


def output(estimator, X):
    return estimator.transform(X) if hasattr(estimator, "transform") else estimator.predict(X)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_saved_estimator_comes_back_bit_by_bit(estimator, data, tmp_path):
    model = fitted(estimator, data)
    lucidae.save(model, tmp_path / "model.npz")
    again = lucidae.load(tmp_path / "model.npz")
    assert str(again) == str(model)
    assert np.array_equal(output(again, data[0]), output(model, data[0]))
    assert again.certificate_ == model.certificate_
    assert again.n_features_in_ == model.n_features_in_
    for name in [name for name in dir(model) if name.endswith("_") and not name.startswith("_")]:
        kept, loaded = getattr(model, name, None), getattr(again, name, None)
        assert isinstance(loaded, type(kept)), name


def test_a_loaded_stream_goes_on(data, tmp_path):
    X, _ = data
    model = LinearAutoencoder(2).partial_fit(X[:15])
    lucidae.save(model, tmp_path / "model.npz")
    again = lucidae.load(tmp_path / "model.npz").partial_fit(X[15:])
    np.testing.assert_allclose(
        again.components_, LinearAutoencoder(2).fit(X).components_, atol=1e-12
    )


def test_feature_names_survive(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.eye(4) + np.arange(4), columns=list("abcd"))
    lucidae.save(LinearAutoencoder(2).fit(frame), tmp_path / "model.npz")
    assert list(lucidae.load(tmp_path / "model.npz").feature_names_in_) == list("abcd")


def test_an_unfitted_estimator_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        lucidae.save(LinearAutoencoder(2), tmp_path / "model.npz")
    assert not (tmp_path / "model.npz").exists()


OLD_MODELS = [*sorted(path.stem for path in OLD.glob("*-*.npz")), "sparse"]


@pytest.mark.parametrize("name", OLD_MODELS)
def test_a_model_saved_by_the_first_version_loads_and_works(name, tmp_path):
    known = np.load(OLD / "expected.npz")
    model = lucidae.load(OLD / f"{name}.npz")
    checked = 0
    for key in known.files:
        owner, _, attribute = key.partition(":")
        if owner == name:
            np.testing.assert_array_equal(getattr(model, attribute), known[key])
            checked += 1
    assert checked
    assert model.certificate_.holds is not False
    assert isinstance(getattr(model, "status_", Status.CONVERGED), Status)
    rows = known["Phi"] if name.startswith("sparse") else known["X"]
    assert np.isfinite(output(model, rows)).all()
    lucidae.save(model, tmp_path / "again.npz")
    again = lucidae.load(tmp_path / "again.npz")
    assert np.array_equal(output(again, rows), output(model, rows))


def test_an_old_model_can_be_fitted_on(tmp_path):
    known = np.load(OLD / "expected.npz")
    stream = lucidae.load(OLD / "linear-stream.npz").partial_fit(known["X"])
    assert stream.n_samples_seen_ == 60
    model = lucidae.load(OLD / "linear-exact.npz").partial_fit(known["X"])
    twice = LinearAutoencoder(2).fit(np.repeat(known["X"], 2, axis=0))
    np.testing.assert_allclose(model.components_, twice.components_, atol=1e-12)


@pytest.mark.parametrize("path", sorted(OLD.glob("*.pickle")), ids=lambda path: path.stem)
def test_a_pickle_of_the_first_version_says_what_to_do(path):
    with pytest.raises(ModuleNotFoundError, match=r"Fit the estimator again, or .* lucidae\.save"):
        pickle.loads(path.read_bytes())


def test_no_file_names_a_module(data, tmp_path):
    for number, estimator in enumerate(ESTIMATORS):
        path = tmp_path / f"{number}.npz"
        lucidae.save(fitted(estimator, data), path)
        header = str(np.load(path)["header"])
        tags = [part.split('"')[0] for part in header.split('"record": "')[1:]]
        assert tags
        assert all(tag.rpartition("/")[2].isdigit() and ":" not in tag for tag in tags)


def test_a_type_that_nobody_registered_is_refused(data, tmp_path):
    @dataclass
    class Stranger:
        value: float

    model = SparseVAE(noise_variance=0.1).fit(*data)
    model.penalty = Stranger(1.0)
    with pytest.raises(ValueError, match=r"SparseVAE\.penalty is of the type Stranger, .*saved_as"):
        lucidae.save(model, tmp_path / "model.npz")
    saved_as("tests.stranger/1")(Stranger)
    lucidae.save(model, tmp_path / "model.npz")
    assert lucidae.load(tmp_path / "model.npz").penalty == Stranger(1.0)


def test_a_file_does_not_depend_on_which_attributes_were_read(data, tmp_path):
    for number, estimator in enumerate(ESTIMATORS):
        model = fitted(estimator, data)
        lucidae.save(model, tmp_path / "before.npz")
        _ = model.certificate_, [getattr(model, name, None) for name in dir(model)]
        lucidae.save(model, tmp_path / f"after{number}.npz")
        before, after = np.load(tmp_path / "before.npz"), np.load(tmp_path / f"after{number}.npz")
        assert str(before["header"]) == str(after["header"])
        certified = "lucidae.certificate" in str(after["header"])
        assert certified is model._state.keeps_certificate


def test_the_certificate_of_wide_data_is_saved_because_the_data_are_not(tmp_path):
    X = np.random.default_rng(0).standard_normal((20, 1100))
    model = LinearAutoencoder(2).fit(X)
    lucidae.save(model, tmp_path / "wide.npz")
    again = lucidae.load(tmp_path / "wide.npz")
    assert again.certificate_ == model.certificate_
    assert again.certificate_["subspace"].holds
    assert pickle.loads(pickle.dumps(model)).certificate_ == model.certificate_


def test_dictionaries_keep_their_keys(data, tmp_path):
    model = fitted(LinearAutoencoder(2), data)
    model.notes = {("a", 1): 2.0, np.int64(3): [1, (2,)], "plain": None}
    lucidae.save(model, tmp_path / "model.npz")
    assert lucidae.load(tmp_path / "model.npz").notes == model.notes


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("notes", np.array([[1, "a"]], dtype=object), r"LinearAutoencoder\.notes is an array"),
        ("notes", np.array(["a", 2], dtype=object), r"LinearAutoencoder\.notes is an array"),
        ("random_state", np.random.RandomState(0), r"LinearAutoencoder\.random_state is of"),
        ("notes", [np.random.default_rng(0), object()], r"LinearAutoencoder\.notes\[1\] is of"),
        ("notes", np.random.Generator(np.random.MT19937(0)), "joblib"),
    ],
)
def test_what_cannot_be_written_is_named_and_nothing_is_written(data, tmp_path, name, value, words):
    model = fitted(LinearAutoencoder(2), data)
    setattr(model, name, value)
    with pytest.raises(ValueError, match=words):
        lucidae.save(model, tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())


def test_a_tag_belongs_to_one_class():
    def declare():
        @saved_as("tests.owner/1")
        class Owner:
            pass

        return Owner

    declare()
    declare()  # the same class, defined again as in a notebook
    with pytest.raises(ValueError, match=r"belongs to .*Owner"):
        saved_as("tests.owner/1")(type("Thief", (), {}))
    with pytest.raises(ValueError, match="LinearAutoencoder"):
        saved_as("lucidae.LinearAutoencoder/2")(type("Thief", (), {}))


def test_a_parameter_that_a_file_does_not_have_gets_its_default(data, tmp_path):
    lucidae.save(fitted(LinearAutoencoder(2), data), tmp_path / "model.npz")
    stored = dict(np.load(tmp_path / "model.npz"))
    header = json.loads(str(stored.pop("header")))
    del header["estimator"]["fields"]["tol"]
    np.savez(tmp_path / "older.npz", header=np.array(json.dumps(header)), **stored)
    assert lucidae.load(tmp_path / "older.npz").tol == LinearAutoencoder().tol


def test_a_new_fit_replaces_attributes_that_a_user_assigned(data):
    X, _ = data
    model = LinearAutoencoder(2).fit(X)
    model.components_ = np.zeros((2, 6))
    assert not model.components_.any()
    assert model.fit(X[:20]).components_.any()


def write_header(path, tree, **arrays):
    header = {"format": 1, "version": "0", "estimator": tree}
    np.savez(path, header=np.array(json.dumps(header)), **arrays)


@pytest.mark.parametrize(
    "tree",
    [
        {"record": "os:system", "fields": {"command": "true"}},
        {"record": "subprocess:Popen", "fields": {"args": ["true"]}},
        {"record": "lucidae.io.atomic:Path", "fields": {}},
        {"record": "lucidae.io.models:importlib.import_module", "fields": {}},
        {"record": "lucidae.io.models:load", "fields": {"path": "x"}},
        {"record": "lucidae.linear.fitted/99", "fields": {}},
        {"record": "lucidae.status/1", "fields": {"value": "converged"}},
        {"member": "lucidae.linear.fitted/1", "name": "moment"},
        {"record": "lucidae.iteration.status:State", "fields": {}},
        {"member": "lucidae.iteration.status:Solution", "name": "value"},
        {"record": "lucidae.linear.estimator:BaseEstimator", "fields": {}},
        {"array": "absent"},
        {"record": "lucidae.LinearAutoencoder/1", "fields": {"fit": "x"}},
        {"random": {"bit_generator": "PCG64", "state": {"state": 2**200, "inc": 1}}},
        {"nonsense": 1},
        {"random": {"bit_generator": "MT19937"}},
        {"dtype": "object"},
        {"dtype": "float64"},
        {"tuple": [1, 2]},
    ],
)
def test_a_file_cannot_build_anything_else(tree, tmp_path):
    write_header(tmp_path / "evil.npz", tree)
    with pytest.raises(ValueError, match="cannot be read as a saved estimator"):
        lucidae.load(tmp_path / "evil.npz")


def test_a_newer_format_and_damage_are_refused(data, tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, header=np.array(json.dumps({"format": 99, "estimator": None})))
    with pytest.raises(ValueError, match="update lucidae"):
        lucidae.load(path)
    lucidae.save(fitted(LinearAutoencoder(2), data), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="damaged"):
        lucidae.load(path)
    with pytest.raises(FileNotFoundError):
        lucidae.load(tmp_path / "absent.npz")


class Described(LinearAutoencoder):
    """A subclass that was not registered."""


def pipelines():
    from sklearn.decomposition import PCA
    from sklearn.feature_selection import VarianceThreshold
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import FeatureUnion, make_pipeline
    from sklearn.preprocessing import (
        MaxAbsScaler,
        MinMaxScaler,
        Normalizer,
        RobustScaler,
        StandardScaler,
    )

    before = (
        MaxAbsScaler(),
        MinMaxScaler(feature_range=(-1, 1)),
        Normalizer(),
        RobustScaler(),
        StandardScaler().set_output(transform="default"),
        SimpleImputer(),
        PCA(4),
        VarianceThreshold(),
        FeatureUnion([("a", StandardScaler()), ("b", PCA(2))]),
    )
    return [make_pipeline(step, LinearAutoencoder(2)) for step in before] + [
        make_pipeline(StandardScaler(), make_pipeline(PCA(5), SparseVAE(noise_variance=0.1)))
    ]


@pytest.mark.parametrize("pipeline", pipelines(), ids=lambda pipeline: str(pipeline.steps[0][1]))
def test_pipelines_of_plain_parts_come_back(pipeline, data, tmp_path):
    X, Y = data
    pipeline.fit(X, Y)
    lucidae.save(pipeline, tmp_path / "model.npz")
    again = lucidae.load(tmp_path / "model.npz")
    assert type(again) is type(pipeline)
    use = "transform" if hasattr(pipeline, "transform") else "predict"
    assert np.array_equal(getattr(again, use)(X), getattr(pipeline, use)(X))
    assert again.n_features_in_ == 6


def unsavable(data):
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    X, Y = data
    linear = LinearAutoencoder(2)
    circular = LinearAutoencoder(2).fit(X)
    circular.notes = [circular]
    masked = LinearAutoencoder(2).fit(X)
    masked.notes = {"a": np.ma.array([1.0, 2.0], mask=[True, False])}
    structured = LinearAutoencoder(2).fit(X)
    structured.notes = np.zeros(2, dtype=[("a", "O")])
    keyed = LinearAutoencoder(2).fit(X)
    keyed.notes = {("a", object): 1}
    scale = ColumnTransformer([("scale", StandardScaler(), [0, 1])])
    return {
        r"Pipeline\.steps\[0\]\[1\] is of scikit-learn's type ColumnTransformer": make_pipeline(
            scale, linear
        ).fit(X),
        r"Pipeline\.steps\[0\]\[1\] is of scikit-learn's type FunctionTransformer": make_pipeline(
            FunctionTransformer(np.abs), linear
        ).fit(X),
        r"Ridge, which lucidae\.save does not write": Ridge().fit(X, Y),
        "GridSearchCV is of scikit-learn's type": GridSearchCV(
            SparseVAE(), {"noise_variance": [0.1, 1.0]}, cv=2
        ).fit(X, Y),
        "Described is of the type Described, a subclass of LinearAutoencoder": Described(2).fit(X),
        "memory=None": make_pipeline(StandardScaler(), linear, memory="cache").fit(X),
        "LinearAutoencoder contains itself": circular,
        r"LinearAutoencoder\.notes\['a'\] is a masked array": masked,
        r"LinearAutoencoder\.notes contains Python objects": structured,
        r"the key \('a', <class 'object'>\) of LinearAutoencoder\.notes\[1\]": keyed,
    }


def test_what_load_could_not_read_is_refused_by_save(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, estimator in unsavable(data).items():
        with pytest.raises(ValueError, match=words):
            lucidae.save(estimator, tmp_path / "model.npz")
        assert not (tmp_path / "model.npz").exists()


def test_a_pipeline_in_a_file_has_no_cache_and_no_function(data, tmp_path):
    pipeline = pipelines()[0].fit(data[0])
    lucidae.save(pipeline, tmp_path / "model.npz")
    stored = dict(np.load(tmp_path / "model.npz"))
    header = json.loads(str(stored.pop("header")))
    header["estimator"]["fields"]["memory"] = "elsewhere"
    np.savez(tmp_path / "evil.npz", header=np.array(json.dumps(header)), **stored)
    with pytest.raises(ValueError, match="a pipeline with a cache"):
        lucidae.load(tmp_path / "evil.npz")
    header["estimator"]["record"] = "sklearn.FunctionTransformer/1"
    np.savez(tmp_path / "evil.npz", header=np.array(json.dumps(header)), **stored)
    with pytest.raises(ValueError, match="which this version of lucidae does not know"):
        lucidae.load(tmp_path / "evil.npz")


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_an_intact_file_with_wrong_shapes_or_missing_fields_is_refused(estimator, data, tmp_path):
    path, changed = tmp_path / "model.npz", tmp_path / "changed.npz"
    lucidae.save(fitted(estimator, data), path)
    stored = dict(np.load(path))
    header = json.loads(str(stored["header"]))
    for spoil in ("_state", "n_features_in_"):
        tree = json.loads(json.dumps(header))
        del tree["estimator"]["fields"][spoil]
        np.savez(changed, **stored | {"header": np.array(json.dumps(tree))})
        with pytest.raises(ValueError, match="cannot be read as a saved estimator"):
            lucidae.load(changed)
    arrays = {name: values for name, values in stored.items() if name != "header"}
    for name, values in arrays.items():
        for wrong in (
            values[..., None],
            np.append(values, [0, 0, 0]),
            values.astype("float16"),
            None,
        ):
            spoiled = {key: kept for key, kept in stored.items() if key != name}
            np.savez(changed, **spoiled | ({} if wrong is None else {name: wrong}))
            with pytest.raises(ValueError, match="cannot be read as a saved estimator"):
                lucidae.load(changed)


@pytest.mark.parametrize("field", ["encoder", "left", "coef_", "right", "mean", "squares"])
def test_shapes_that_do_not_agree_are_refused_also_where_the_header_states_them(
    field, data, tmp_path
):
    for estimator in (LinearAutoencoder(3), DropoutRegressor(2), SparseVAE(noise_variance=0.1)):
        lucidae.save(fitted(estimator, data), tmp_path / "model.npz")
        stored = dict(np.load(tmp_path / "model.npz"))
        text = str(stored["header"])
        for name, values in stored.items():
            place = (
                text.partition(f'{{"array": "{name}",')[0]
                .rstrip(' "')
                .endswith((f'"{field}":', f'"{field}",'))
            )
            if place and values.ndim:
                wrong = values[..., :-1]
                former = f'"{name}", "shape": {list(values.shape)}'
                header = text.replace(former, f'"{name}", "shape": {list(wrong.shape)}')
                changed = stored | {name: wrong, "header": np.array(header)}
                np.savez(tmp_path / "changed.npz", **changed)
                with pytest.raises(ValueError, match="cannot be read as a saved estimator"):
                    lucidae.load(tmp_path / "changed.npz")


def test_a_file_that_states_too_many_features_is_refused(data, tmp_path):
    path = tmp_path / "model.npz"
    lucidae.save(fitted(LinearAutoencoder(2), data), path)
    stored = dict(np.load(path))
    header = json.loads(str(stored["header"]))
    header["estimator"]["fields"]["n_features_in_"] = 10**9
    np.savez(path, **stored | {"header": np.array(json.dumps(header))})
    with pytest.raises(ValueError, match="n_features_in_ is 1000000000, but no array of the file"):
        lucidae.load(path)


def test_an_estimator_that_loses_rows_is_not_consistent():
    class Doubling:
        n_features_in_ = 2

        def predict(self, rows):
            return np.vstack([rows, rows])

    with pytest.raises(ValueError, match=r"Doubling is not consistent: for one row .* returns 2"):
        check_estimator(Doubling(), 10)


def test_only_models_of_the_command_line_name_their_data(data, tmp_path):
    path = tmp_path / "model.npz"
    lucidae.save(fitted(LinearAutoencoder(2), data), path)
    assert source_of(path) is None
    path.write_bytes(b"not a model")
    assert source_of(path) is None


@pytest.mark.parametrize("order", ["path", "model", "swapped", "two models", "class", "number"])
def test_save_says_the_order_of_its_arguments(order, tmp_path):
    model, path = lucidae.LinearAutoencoder(1).fit(np.eye(4)), tmp_path / "model.npz"
    given = {
        "path": (path,),
        "model": (model,),
        "swapped": (path, model),
        "two models": (model, model),
        "class": (type(model), path),
        "number": (model, 3),
    }[order]
    with pytest.raises(
        ValueError, match=r"in this order: lucidae.save\(estimator, path\)"
    ) as caught:
        lucidae.save(*given)
    assert "\n" not in str(caught.value)
    assert not path.exists()
