"""Junk and extreme legal values of every constructor argument, and of the generators of data."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import lucidae
from fuzzing.oracle import Case, Finding, judged
from fuzzing.recipes import matrix, pick

PLAIN = ((30, 5),)
JUNK = (
    "'False'",
    "'auto '",
    "''",
    "b'rag'",
    "nan",
    "inf",
    "-inf",
    "-1",
    "-0.5",
    "1 + 2j",
    "np.complex64(1)",
    "[]",
    "{}",
    "()",
    "object()",
    "np.array([])",
    "np.array([[1.0]])",
    "np.array('a')",
    "np.datetime64('2020-01-01')",
    "np.timedelta64(3, 's')",
    "(lambda: 1)",
    "int",
    "[1, 'a']",
    "range(0)",
)
"""Values that no argument takes, as far as `TAKES` does not say otherwise."""

EDGES = (
    "0",
    "1",
    "2",
    "5",
    "6",
    "10**6",
    "10**30",
    "True",
    "False",
    "None",
    "0.0",
    "1.0",
    "0.5",
    "1e-300",
    "1e300",
    "5e-324",
    "np.int64(2)",
    "np.uint8(3)",
    "np.float32(0.5)",
    "np.bool_(True)",
    "np.array(2)",
    "np.array(0.5)",
    "'auto'",
    "np.str_('auto')",
    "[0.1, 0.2]",
    "[0.1] * 5",
    "np.ones(5)",
    "np.arange(5)",
    "(0.5, 0.5)",
)
"""Values at the edges of what arguments take: the call may succeed or refuse."""

HARMLESS = ("random_state", "warm_start")
"""Arguments that scikit-learn's own checks judge, or whose truth value alone counts."""

BASES = {
    "LinearAutoencoder": (
        "n_components=2",
        "n_components=2, solver='gradient', max_iter=30",
        "n_components=2, solver='stochastic', max_iter=30",
        "n_components=2, method='uniform_l2'",
        "n_components=2, method='nonuniform_l2', solver='gradient', max_iter=30",
        "n_components=2, method='nested_dropout', solver='stochastic', max_iter=30",
        "n_components=2, method='expected_nested_dropout'",
        "n_components=2, method='linear_vae', solver='gradient', max_iter=30",
        "n_components=2, method='brockett', solver='gradient', max_iter=30",
    ),
    "DropoutRegressor": (
        "n_components=2",
        "n_components=2, dropout='cv'",
        "n_components=2, shrink=False, alpha=0.1",
        "n_components='cv_1se', shrink=False",
        "n_components=2, solver='sgd', max_iter=50",
    ),
    "DropoutAutoencoder": ("n_components=2", "n_components=2, solver='sgd', max_iter=50"),
    "DropoutFactorization": ("n_components=2",),
    "SparseVAE": (
        "noise_variance=0.1, max_iter=30",
        "noise_variance='cv', max_iter=30",
        "noise_variance='learn', max_iter=30",
        "posterior='diagonal', noise_variance=0.1, max_iter=30",
        "posterior='point', noise_variance=0.1, max_iter=30",
        "groups=[0, 0, 1, 1, 2], noise_variance=0.1, max_iter=30",
        "groups=[0, 0, 1, 1, 2], group_covariance='full', noise_variance=0.1, max_iter=30",
    ),
}
CHOICES = {
    "method": ("'rag'", "'gha'", "'brockett'", "'plain'", "'linear_vae'", "'RAG'", "'rag '"),
    "solver": ("'exact'", "'gradient'", "'stochastic'", "'sgd'", "'mm'", "'em'", "'mackay'"),
    "optimizer": ("'adam'", "'heavy_ball'", "'gradient_descent'", "'sgd'"),
    "posterior": ("'full'", "'diagonal'", "'point'"),
    "group_covariance": ("'spherical'", "'full'", "'Full'", "'diagonal'"),
    "penalty": ("'log'", "'power'", "'arctan'", "'l1'"),
    "noise_variance": ("'learn'", "'cv'", "1e-12", "1e12"),
    "dropout": ("'cv'", "'cv_1se'", "0.999999", "1e-12", "1", "1.5"),
    "shrink": ("True", "False", "'no'"),
    "alpha": ("0.0", "1e-12", "1e12", "-1.0"),
    "cv": ("2", "30", "31", "3.0", "[([0, 1, 2], [3, 4])]", "[([0], [99])]", "'loo'", "[([], [])]"),
    "groups": ("[0] * 5", "[0, 1]", "['a'] * 5", "[0.5] * 5", "np.zeros((5, 1), int)", "[-1] * 5"),
    "prior": ("'uniform'", "[1.0, 0.0]", "[0.0, 1.0]", "[0.5, 0.6]", "[-0.5, 1.5]", "[nan, 1.0]"),
    "l2": ("0.0", "[0.1, 0.1]", "[0.2, 0.1]", "[nan, 0.1]", "1e9", "[1j, 1]"),
    "tied": ("True", "False", "'yes'"),
    "schedule": ("'linear'", "'constant'", "'cosine'"),
}
"""Values near to the named options of an argument."""

EXPENSIVE = {
    "max_iter": ("10**6", "10**30"),
    "n_components": ("10**6",),
    "batch_size": ("10**30",),
    "tol": ("0", "0.0"),
    "snr_db": ("-1", "-0.5"),
}
"""Values of the tables above that are legal for an argument, or legal and slow."""

ALSO_CALLED = {
    "random_state": ("seed", "Seed", "RandomState"),
    "cv": ("split", "fold"),
    "sensors": ("sensor",),
    "sources": ("source",),
}
"""Other words for an argument in scikit-learn's own refusals."""

GENERATORS = {
    "make_spectrum": "n_samples=6, n_features=4",
    "make_linear_network": "n_samples=6, n_features=4, n_targets=3",
    "make_sparse_regression": "d=6, kappa=8, r=2, n=3, tau=2",
    "make_meg_leadfield": "n_sensors=6, n_sources=4",
    "load_digits": "return_X_y=True",
}
FUNCTIONS = {
    "lucidae.dropout.solve": (
        "lucidae.dropout.LinearProblem.from_matrix(A)",
        {"strength": "1.0", "width": "2"},
    ),
    "lucidae.dropout.solve_tied": ("A.T @ A", {"strength": "1.0", "width": "2"}),
    "lucidae.sparsity.solve_batch": (
        "A[None], A[None, :, :2]",
        {"noise_variance": "0.1", "posterior": "'full'", "solver": "'auto'", "tol": "1e-6"},
    ),
    "lucidae.sparsity.group_lasso": ("A, A[:, :2]", {"noise_variance": "0.1", "tol": "1e-8"}),
    "lucidae.linear.geometric_prior": ("", {"k": "3", "ratio": "0.9"}),
    "metrics.subspace_distance": ("A, np.linalg.qr(A)[0]", {"rtol": "1e-6"}),
    "metrics.exact_recovery": ("A, A", {"rtol": "1e-3", "criterion": "'rows'"}),
    "metrics.active_dimensions": (
        "A, np.ones((n, d))",
        {"max_variance": "0.9", "min_spread": "0.01", "return_mask": "False"},
    ),
    "SecondMoment.of(A).spectrum": ("", {"k": "2"}),
    "equalize": ("A", {"method": "'givens'"}),
    "certify": (
        "(np.eye(2, d), np.eye(d, 2)), A",
        {"family": "'linear'", "method": "'rag'", "l2": "'auto'", "tied": "'auto'"},
    ),
}


def cases(rng: Any) -> Iterator[Case]:
    """Yield one case of each kind."""
    yield constructor_case(rng)
    yield constructor_case(rng)
    yield generator_case(rng)
    yield function_case(rng)


def check(case: Case) -> list[Finding]:
    """Return what the oracle forbids."""
    return judged(case)


def drawn(rng: Any, name: str) -> tuple[str, str]:
    """Return a value for an argument, and what is expected of a call with it."""
    table = (JUNK, EDGES, CHOICES.get(name, EDGES))[int(rng.integers(3))]
    value = pick(rng, tuple(item for item in table if item not in EXPENSIVE.get(name, ())))
    harmless = name in HARMLESS or name in ("cv", "penalty")
    return value, "refusal" if table is JUNK and not harmless else "any"


def with_argument(settings: str, name: str, value: str) -> str:
    """Return keyword arguments with one of them replaced or added."""
    kept = [item for item in split(settings) if not item.startswith(f"{name}=")]
    return ", ".join([*kept, f"{name}={value}"])


def split(settings: str) -> list[str]:
    """Return keyword arguments one by one; commas inside brackets do not separate."""
    parts, depth = [""], 0
    for letter in settings:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def constructor_case(rng: Any) -> Case:
    """Construct an estimator with one odd argument and fit it to good data."""
    name = str(rng.choice(list(BASES)))
    base = pick(rng, BASES[name])
    known = [
        key for key in inspect.signature(getattr(lucidae, name)).parameters if key != "verbose"
    ]
    argument = str(rng.choice(known))
    value, fate = drawn(rng, argument)
    if argument == "solver" and "gradient" in base:
        base += ", max_iter=30" if "max_iter" not in base else ""
    settings = with_argument(base, argument, value)
    data = "A, A[:, :2] + A[:, 1:3]" if name in ("DropoutRegressor", "SparseVAE") else "A"
    follow = "predict" if "y" in data or "," in data else "transform"
    used = argument_is_used(name, argument, base)
    return Case(
        f"{name}({argument}=)",
        matrix(rng, PLAIN),
        f"model = {name}({settings}); result = model.fit({data})",
        fate if used else "any",
        names=(argument, argument.replace("_", " "), *ALSO_CALLED.get(argument, ())),
        after=(f"result = model.{follow}(A)", "result = certify(model)"),
    )


def argument_is_used(name: str, argument: str, base: str) -> bool:
    """Return whether a fit with these settings looks at an argument at all."""
    if name == "LinearAutoencoder":
        return argument in ("n_components", "method", "solver", "whiten") or (
            argument in ("max_iter", "tol", "init_scale") and "solver" in base
        )
    return argument in ("n_components", "dropout", "solver", "noise_variance", "posterior")


def generator_case(rng: Any) -> Case:
    """Make data with one odd argument."""
    name = str(rng.choice(list(GENERATORS)))
    known = list(inspect.signature(getattr(lucidae.datasets, name)).parameters)
    argument = str(rng.choice(known))
    value, fate = drawn(rng, argument)
    if value in ("10**6", "10**30"):
        value = "7"
    settings = with_argument(GENERATORS[name], argument, value)
    if argument in ("dtype", "return_X_y", "normalize", "return_geometry", "dictionary"):
        fate = "any"
    call = f"result = datasets.{name}({settings})"
    names = (argument, *ALSO_CALLED.get(argument, ()))
    return Case(f"{name}({argument}=)", (), call, fate, names)


def function_case(rng: Any) -> Case:
    """Call a function with one odd argument."""
    name = str(rng.choice(list(FUNCTIONS)))
    given, keywords = FUNCTIONS[name]
    argument = str(rng.choice(list(keywords)))
    value, fate = drawn(rng, argument)
    if value in ("10**6", "10**30") and argument in ("k", "width"):
        value = "7"
    changed = keywords | {argument: value}
    words = ", ".join([given] * bool(given) + [f"{key}={item}" for key, item in changed.items()])
    fate = "any" if argument in ("l2", "tied", "return_mask", "method") else fate
    # A method of weights may need another argument, which the refusal then names.
    names = (argument,) if argument != "method" else ()
    return Case(
        f"{name}({argument}=)", matrix(rng, PLAIN), f"result = {name}({words})", fate, names
    )
