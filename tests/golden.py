"""Results and verdicts of a table of fits, through public names alone, frozen in data/golden.json.

``python tests/golden.py`` (with src and tests on the path) writes the file again. A difference is a
change that a user can see: it needs a reason, and a line in the changelog.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse
from sklearn.datasets import load_diabetes, load_digits, load_iris, load_linnerud
from sklearn.decomposition import PCA

import lucidae
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SecondMoment,
    SparseVAE,
    certify,
    datasets,
)
from lucidae.sparsity import noise_path, solve_batch, solve_joint

FILE = Path(__file__).parent / "data" / "golden.json"
CASES = {}
METHODS = (
    "rag",
    "gha",
    "brockett",
    "plain",
    "uniform_l2",
    "nonuniform_l2",
    "nested_dropout",
    "expected_nested_dropout",
    "linear_vae",
)


def case(name):
    """Register a function without arguments whose result, numbers by name, is frozen."""

    def register(function):
        assert name not in CASES, name
        CASES[name] = function
        return function

    return register


def fingerprint(values):
    """Return a few numbers that change when an array does: its size and three projections."""
    values = np.asarray(values)
    flat = values.reshape(-1)
    if np.iscomplexobj(flat):
        flat = np.concatenate([flat.real, flat.imag])
    flat = np.asarray(flat, dtype=float)
    at = np.arange(1, flat.size + 1)
    scale = np.sqrt(max(flat.size, 1))
    waves = [float(np.cos(k * at + k) @ flat / scale) for k in (0.3, 1.1, 2.3)]
    return [float(np.linalg.norm(flat)), *waves]


def verdicts(certificate):
    """Return the verdict of each claim by name."""
    return {claim.name: claim.holds for claim in certificate.claims}


def seen(model, *names, X=None, y=None):
    """Return fingerprints of fitted attributes, and the verdicts of the certificate.

    If X is given, the verdicts are those of `certify` on the data.
    """
    found = {name: fingerprint(getattr(model, name)) for name in names}
    found["verdicts"] = verdicts(model.certificate_)
    if X is not None:
        found["judged"] = verdicts(certify(model, X) if y is None else certify(model, X, y))
    return found


# Linear ----------------------------------------------------------------------------------------

LINEAR = ("mean_", "components_", "encoder_", "decoder_", "explained_variance_", "noise_variance_")


def tables():
    """Return the tables to which linear autoencoders are fitted, with a number of components."""
    rng = np.random.default_rng(0)
    return {
        "iris": (load_iris().data, 2),
        "digits": (load_digits().data[:500], 10),
        "wide": (rng.normal(size=(40, 300)) * np.linspace(3, 1, 300), 5),
        "tall": (rng.normal(size=(3000, 20)) * np.linspace(2, 1, 20), 7),
        "decades": (rng.normal(size=(300, 8)) * np.logspace(0, -7, 8), 6),
        "large-mean": (load_iris().data + 1e6, 2),
        "tied": (np.vstack([np.eye(6), -np.eye(6)]), 3),
        "constant-column": (np.c_[load_iris().data, np.ones(150)], 3),
        "float32": (load_digits().data[:400].astype(np.float32), 8),
    }


def _linear(name, X, k):
    @case(f"linear-{name}")
    def fit():
        return seen(LinearAutoencoder(k).fit(X), *LINEAR, X=X)


for _name, (_X, _k) in tables().items():
    _linear(_name, _X, _k)


def _linear_method(method):
    @case(f"linear-method-{method}")
    def fit():
        X = load_iris().data
        more = {"l2": [0.01, 0.05, 0.1]} if method == "nonuniform_l2" else {}
        return seen(LinearAutoencoder(3, method=method, solver="exact", **more).fit(X), *LINEAR)


for _method in METHODS:
    _linear_method(_method)


def _linear_descent(method, optimizer):
    @case(f"linear-descent-{method}-{optimizer}")
    def fit():
        rng = np.random.default_rng(3)
        X = rng.normal(size=(200, 5)) * [3, 2, 1.5, 1, 0.5]
        model = LinearAutoencoder(
            2, method=method, solver="gradient", optimizer=optimizer, max_iter=4000, random_state=0
        )
        found = seen(model.fit(X), "components_", "explained_variance_")
        return found | {"status": model.status_.name}


for _method in METHODS:
    if _method != "nested_dropout":
        _linear_descent(_method, "nesterov")
_linear_descent("nonuniform_l2", "adam")
_linear_descent("rag", "heavy_ball")


def _linear_count(wanted):
    @case(f"linear-count-{wanted}")
    def fit():
        with warnings.catch_warnings():  # the noise of pixels differs
            warnings.filterwarnings("ignore", "(?s).*noise of the same variance")
            model = LinearAutoencoder(wanted).fit(load_digits().data)
        return {"n": model.n_components_, "verdicts": verdicts(model.certificate_)}


for _wanted in (None, 0.5, 0.9, "mle", "parallel_analysis", "hard_threshold"):
    _linear_count(_wanted)


@case("linear-weights")
def _():
    X = load_iris().data
    weights = np.arange(150) % 4
    return seen(LinearAutoencoder(2).fit(X, sample_weight=weights), *LINEAR)


@case("linear-sparse")
def _():
    X = scipy.sparse.random(300, 60, density=0.1, random_state=0, format="csr")
    return seen(LinearAutoencoder(4).fit(X), *LINEAR, X=X)


@case("linear-stream")
def _():
    X = load_digits().data
    model = LinearAutoencoder(10)
    for start in range(0, len(X), 70):
        model.partial_fit(X[start : start + 70])
    return seen(model, *LINEAR, X=X)


@case("linear-blocks")
def _():
    X = load_digits().data
    return seen(LinearAutoencoder(10).fit(lambda: iter(np.array_split(X, 9))), *LINEAR)


@case("linear-stochastic")
def _():
    X = load_iris().data
    model = LinearAutoencoder(
        2, solver="stochastic", batch_size=25, max_iter=300, random_state=0, learning_rate=0.01
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X)
    return seen(model, "components_", "explained_variance_")


@case("linear-missing")
def _():
    X = load_iris().data.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    model = LinearAutoencoder(2, handle_missing="em", tol=1e-9).fit(X)
    return seen(model, *LINEAR) | {"codes": fingerprint(model.transform(X))}


@case("linear-outputs")
def _():
    X = load_digits().data[:200]
    model = LinearAutoencoder(5, whiten=True).fit(X)
    codes = model.transform(X)
    return {
        "codes": fingerprint(codes),
        "back": fingerprint(model.inverse_transform(codes)),
        "score": model.score(X),
        "precision": fingerprint(model.get_precision()),
        "covariance": fingerprint(model.get_covariance()),
    }


@case("moment")
def _():
    X = load_digits().data
    moment = SecondMoment.of(X[:900]).merge(SecondMoment.of(X[900:1000])).update(X[1000:])
    values, vectors = moment.spectrum(5)
    return {
        "mean": fingerprint(moment.mean),
        "covariance": fingerprint(moment.covariance),
        "values": fingerprint(values),
        "vectors": fingerprint(np.abs(vectors)),
        "weight": moment.weight,
    }


def _judged(name, X, k, what):
    @case(f"judged-{name}-{what}")
    def judge():
        rng = np.random.default_rng(7)
        decoder = LinearAutoencoder(k).fit(X).decoder_.copy()
        if what == "wrong":
            mixed = np.c_[decoder[:, :-1], rng.normal(size=(X.shape[1], 2))]
            decoder[:, -1] = np.linalg.qr(mixed)[0][:, -1]
        elif what != "right":
            noise = rng.normal(size=decoder.shape) / np.sqrt(X.shape[1])
            decoder = decoder + float(what) * noise
        weights = (np.linalg.pinv(decoder), decoder)
        return {"verdicts": verdicts(certify(weights, X, family="linear"))}


for _name, (_X, _k) in tables().items():
    if _name not in ("float32", "constant-column"):
        for _what in ("right", "wrong", "1e-4", "3e-2", "1e-1"):
            _judged(_name, _X, _k, _what)


@case("judged-pca")
def _():
    X = load_digits().data
    right = PCA(10).fit(X)
    rough = PCA(10, svd_solver="randomized", iterated_power=0, random_state=0).fit(X)
    return {"right": verdicts(certify(right, X)), "rough": verdicts(certify(rough, X))}


# Dropout ---------------------------------------------------------------------------------------

REGRESSION = ("coef_", "intercept_", "singular_values_", "threshold_", "rank_", "objective_")


def _regressor(name, data, fit=None, **settings):
    @case(f"dropout-regressor-{name}")
    def _():
        X, y = data()
        model = DropoutRegressor(**settings).fit(X, y, **(fit or {}))
        return seen(model, *REGRESSION, X=None if fit else X, y=y)


def network():
    """Return inputs and outputs of a linear network with noise."""
    data = datasets.make_linear_network(noise=0.1, random_state=0)
    return data.data, data.target


def few_rows():
    """Return a regression with fewer rows than features."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 90))
    return X, X[:, :4] @ rng.normal(size=(4, 6)) + 0.1 * rng.normal(size=(30, 6))


def linnerud():
    """Return a small real table with three targets."""
    return load_linnerud(return_X_y=True)


_regressor("network", network, n_components=20)
for _rate in (0.1, 0.5, 0.9):
    _regressor(f"rate-{_rate}", linnerud, dropout=_rate)
_regressor("reduced-rank", network, n_components=5, shrink=False)
_regressor("no-intercept", linnerud, fit_intercept=False)
_regressor("one-target", lambda: load_diabetes(return_X_y=True), dropout=0.3)
_regressor("wide", few_rows, n_components=4)
_regressor("weights", linnerud, fit={"sample_weight": np.arange(20) % 3 + 1.0})
_regressor("cv", network, n_components=10, dropout="cv")


@case("dropout-regressor-sgd")
def _():
    X, y = linnerud()
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean(0)) / y.std(0)
    model = DropoutRegressor(2, solver="sgd", max_iter=300, random_state=0, tol=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return {"coef": fingerprint(model.coef_), "status": model.status_.name}


@case("dropout-regressor-stream")
def _():
    X, y = network()
    model = DropoutRegressor(20)
    for start in range(0, len(X), 300):
        model.partial_fit(X[start : start + 300], y[start : start + 300])
    return seen(model, *REGRESSION, X=X, y=y)


def _autoencoder(name, X, k, rate):
    @case(f"dropout-autoencoder-{name}-{rate}")
    def _():
        model = DropoutAutoencoder(k, dropout=rate).fit(X)
        found = seen(model, "left_", "right_", "singular_values_", "rank_", "objective_", X=X)
        # The equalizing rotation is free, their products are not.
        found["product"] = fingerprint(model.left_ @ model.right_.T)
        del found["left_"], found["right_"]
        return found


for _rate in (0.2, 0.7):
    _autoencoder("iris", load_iris().data, 3, _rate)
    _autoencoder("digits", load_digits().data[:400], 12, _rate)
    _autoencoder("wide", tables()["wide"][0], 6, _rate)


@case("dropout-factorization")
def _():
    M = load_digits().data[:150]
    model = DropoutFactorization(8, dropout=0.3)
    codes = model.fit_transform(M)
    found = seen(model, "singular_values_", "objective_", X=M)
    found["product"] = fingerprint(model.left_ @ model.right_.T)
    found["back"] = fingerprint(model.inverse_transform(codes))
    return found


@case("dropout-completion")
def _():
    rng = np.random.default_rng(0)
    M = rng.normal(size=(60, 4)) @ rng.normal(size=(4, 30)) + 0.1 * rng.normal(size=(60, 30))
    M[rng.random(M.shape) < 0.3] = np.nan
    model = DropoutFactorization(10, dropout=0.3, handle_missing="complete").fit(M)
    found = seen(model, "singular_values_", X=M)
    found["product"] = fingerprint(model.left_ @ model.right_.T)
    return found


@case("equalize")
def _():
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(7, 5)), rng.normal(size=(6, 5))
    P, Q = lucidae.equalize_pair(U, V)
    return {
        "product": fingerprint(P @ Q.T),
        "scores": fingerprint(lucidae.metrics.importance_scores(P, Q)),
    }


# Sparsity --------------------------------------------------------------------------------------

SPARSE = ("coef_", "intercept_", "relevance_", "noise_variance_", "energy_")


def problem(d=60, kappa=120, r=6, n=15, snr_db=15.0, seed=0):
    """Return a dictionary and responses."""
    data = datasets.make_sparse_regression(
        d=d, kappa=kappa, r=r, n=n, snr_db=snr_db, random_state=seed
    )
    return data.dictionary, data.responses


def _sparse(name, fit=None, data=problem, **settings):
    @case(f"sparse-{name}")
    def _():
        X, y = data()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = SparseVAE(**settings).fit(X, y, **(fit(X) if fit else {}))
            found = seen(model, *SPARSE)
        return found | {"support": [int(j) for j in model.support_]}


for _posterior in ("full", "diagonal", "point"):
    for _noise in (0.01, "learn", "auto"):
        if (_posterior, _noise) not in (("point", "learn"), ("diagonal", "learn")):
            _sparse(f"{_posterior}-{_noise}", posterior=_posterior, noise_variance=_noise)
for _solver in ("mm", "em", "mackay", "coordinate"):
    _sparse(f"solver-{_solver}", solver=_solver, noise_variance=0.02, max_iter=3000, tol=1e-5)
_sparse("one-se", noise_variance="cv_1se")
_sparse("responses", noise_variance=0.02, response_covariance="learn")
_sparse("groups", groups=np.arange(120) // 3, noise_variance=0.02)
_sparse("groups-full", groups=3, group_covariance="full", noise_variance=0.02)
_sparse("one-response", noise_variance=0.02, data=lambda: (problem()[0], problem()[1][:, 0]))
_sparse("determined", data=lambda: problem(kappa=20))
_sparse("weights", noise_variance=0.02, fit=lambda X: {"sample_weight": np.arange(len(X)) % 3 + 1})
_sparse(
    "coloured",
    noise_variance=1.0,
    fit=lambda X: {"noise_cov": 0.02 * 0.7 ** abs(np.subtract.outer(range(len(X)), range(len(X))))},
)
_sparse("dictionary-csr", noise_variance=0.02, data=lambda: (_thin(), problem()[1]))


def _thin():
    """Return a sparse dictionary."""
    return scipy.sparse.random(60, 120, density=0.2, random_state=0, format="csr")


@case("sparse-complex")
def _():
    data = datasets.make_array_snapshots(random_state=0)
    model = SparseVAE(noise_variance=0.1).fit(data.dictionary, data.responses)
    return seen(model, *SPARSE) | {"support": [int(j) for j in model.support_]}


@case("sparse-batch")
def _():
    pairs = [problem(seed=seed) for seed in range(3)]
    X, y = (np.stack(part) for part in zip(*pairs, strict=True))
    found = {}
    for posterior in ("full", "diagonal"):
        batch = solve_batch(X, y, posterior=posterior, noise_variance=0.02, max_iter=2000)
        found[posterior] = fingerprint(batch.value.relevance)
    return found


@case("sparse-joint")
def _():
    pairs = [problem(seed=seed) for seed in range(2)]
    parts = (list(part) for part in zip(*pairs, strict=True))
    joint = solve_joint(*parts, noise_variance=0.02).value
    return {"relevance": fingerprint(joint.relevance), "verdicts": verdicts(joint.certificate)}


@case("sparse-path")
def _():
    X, y = problem()
    path = noise_path(X, y)
    return {"noise": fingerprint(path.noise_variances), "energy": fingerprint(path.energies)}


def results():
    """Return the results of all cases by name."""
    return {name: function() for name, function in CASES.items()}


def write():
    """Write the results of the present version."""
    FILE.write_text(json.dumps(results(), indent=0, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
