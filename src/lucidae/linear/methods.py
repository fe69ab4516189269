"""Training methods of `LinearAutoencoder` by name, their registration and arguments, and the model.

The fitted `Model` has ordered latents, their variances, and the Gaussian model of probabilistic
PCA, from which likelihoods are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from sklearn.utils import check_random_state

from lucidae.arrays import Array, eigh_descending, machine_epsilon, namespace, where_set
from lucidae.counting import CRITERIA, ComponentCount, check_criterion
from lucidae.iteration import History, Status
from lucidae.linear.objectives import (
    BrockettRule,
    ExpectedNestedDropout,
    GeneralizedHebbianRule,
    LinearVAE,
    NestedDropoutRule,
    NonUniformL2,
    Objective,
    Reconstruction,
    RotationAugmentedRule,
    Rule,
    brockett_ranks,
)
from lucidae.linear.theory import nonuniform_penalties, uniform_penalties
from lucidae.linear.weights import ADAM_RATE, OPTIMIZERS, Optimizer
from lucidae.rows.covariances import TINY
from lucidae.spectrum import Spectrum
from lucidae.validation import (
    check_argument,
    check_choice,
    check_flag,
    check_integer,
    check_number,
    check_vector,
)

Vector = np.ndarray[Any, Any]

_RNG = np.random.default_rng(0)

SOLVERS = ("auto", "exact", "gradient", "stochastic")
"""Names of the solvers of `LinearAutoencoder`."""

LARGEST_START = 1e10
"""Largest standard deviation of the random initial weights: the losses are of the fourth degree in
the weights, and their squares and products must not overflow."""


@dataclass(frozen=True, slots=True)
class Method:
    """A training method of a linear autoencoder: an update rule, and the objective it minimises.

    Parameters
    ----------
    name : str
        The name by which users choose the method.
    rule : Rule
        Gives the direction of each update. For gradient descent this is the objective itself: an
        `Objective` is a `Rule` whose direction is its gradient.
    objective : Objective
        The loss whose global minimum is the method's optimum. For rules that are not the gradient
        of any loss it is the reconstruction loss, which their fixed points minimise.
    tied : bool
        Whether encoder and decoder share one array, so that the decoder is the encoder's transpose.
    settings : MethodSettings, optional
        What rule and objective were made from; estimators save it.
    """

    name: str
    rule: Rule
    objective: Objective
    tied: bool = False
    settings: MethodSettings | None = field(default=None, compare=False, repr=False)

    def expected(self) -> Rule:
        """Return the rule whose direction is the expectation of the direction of `rule`.

        It is `rule` itself unless `rule` draws random masks.
        """
        return self.rule.expected(self.objective)

    def start(self, encoder: Array, atoms: Array) -> Any:
        """Return the weights from which training starts, of the type that this method trains.

        They are made from both layers: `encoder` and `atoms` have shape (k, m) for k latents and m
        features, and the rows of `atoms` are the decoder's columns.
        """
        return self.rule.start(encoder, atoms, self.tied)

    def adopt(self, previous: Any) -> Any:
        """Return weights that another method trained, converted to the type that this one trains.

        If encoder and decoder share one array in this method (tied layers), it becomes the mean of
        the encoder and the transposed decoder. Before, the encoder row and the decoder column of
        each latent are scaled to equal length, which does not change their product.
        """
        encoder, atoms = previous.encoder, previous.atoms
        if self.tied:
            squares = [
                namespace(rows).sum(rows * rows, axis=-1, keepdims=True)
                for rows in (encoder, atoms)
            ]
            zero = (squares[0] <= 0.0) | (squares[1] <= 0.0)
            first, second = (where_set(square, zero, 1.0) for square in squares)
            root = (second / first) ** 0.25
            encoder = atoms = (root * encoder + atoms / root) / 2
        converted = self.start(encoder, atoms)
        return previous if type(previous) is type(converted) else converted


@dataclass(frozen=True, slots=True)
class MethodSettings:
    """Settings from which the objective and the rule of a method are made, for k latents.

    Parameters
    ----------
    penalties : array of shape (k,)
        One ℓ₂ penalty per latent; zeros for methods without penalties.
    prior : array of shape (k,)
        Probabilities of the prefix lengths 1 … k of nested dropout. The prefix length is the number
        of latents that are kept.
    rng : numpy.random.Generator
        Generator for rules that draw random masks.
    tied : bool or "auto"
        Whether encoder and decoder share one array; ``"auto"`` leaves it to the rule.
    """

    penalties: Array
    prior: Array
    rng: np.random.Generator
    tied: bool | str = "auto"

    @property
    def k(self) -> int:
        """Number of latents k."""
        return len(self.prior)


MakeObjective = Callable[[MethodSettings], Objective]
MakeRule = Callable[[MethodSettings], Rule]
ReadPenalties = Callable[[Any, Vector | None, int], Vector]


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A registered method, as the functions that make its objective, rule and penalties.

    The fields are the arguments of `register_method`; None stands for the default.
    """

    objective: MakeObjective
    rule: MakeRule | None = None
    penalties: ReadPenalties | None = None


METHODS: dict[str, MethodEntry] = {}
"""The registered training methods of `LinearAutoencoder`, by name."""


def register_method(
    name: str,
    *,
    objective: MakeObjective | None = None,
    rule: MakeRule | None = None,
    penalties: ReadPenalties | None = None,
) -> None:
    """Register a training method, so that ``LinearAutoencoder(method=name)`` can be fitted.

    At least one of `objective` and `rule` must be given.

    Parameters
    ----------
    name : str
        The name of the method; it must not be in use.
    objective : callable, optional
        Takes `MethodSettings` and returns the `Objective`; the reconstruction loss by default.
    rule : callable, optional
        Takes `MethodSettings` and returns the `Rule`; gradient descent on the objective by default.
    penalties : callable, optional
        Takes the estimator's argument `l2`, the eigenvalues of the second moment (None if they
        were not computed) and the number of latents, and returns one penalty per latent. An
        example is `lucidae.linear.theory.nonuniform_penalties`. By default `l2` is ignored and
        the penalties are 0.

    See Also
    --------
    unregister_method : Remove a registered method.

    Examples
    --------
    >>> from lucidae.linear import LinearAutoencoder, NonUniformL2
    >>> from lucidae.linear import register_method, unregister_method
    >>> register_method("fixed_l2", objective=lambda settings: NonUniformL2(0.1 + settings.prior))
    >>> LinearAutoencoder(2, method="fixed_l2").fit(np.eye(4)).n_components_
    2
    >>> unregister_method("fixed_l2")
    """
    if not isinstance(name, str) or not name:  # type: ignore[redundant-expr]
        raise ValueError(f"name={name!r} was given, expected a string that is not empty.")
    if name in METHODS:
        raise ValueError(
            f"a method named {name!r} is registered already. Choose another name, or call "
            f"unregister_method({name!r}) first."
        )
    if objective is None and rule is None:
        raise ValueError("register_method expects an objective, a rule or both; neither was given.")
    METHODS[name] = MethodEntry(objective or (lambda _: Reconstruction()), rule, penalties)


def unregister_method(name: str) -> None:
    """Remove a registered method.

    Parameters
    ----------
    name : str
        The name that was given to `register_method`.
    """
    method_entry(name)
    del METHODS[name]


def method_entry(name: Any) -> MethodEntry:
    """Return the `MethodEntry` registered under `name`; raise a ValueError if there is none."""
    if not isinstance(name, str) or name not in METHODS:
        known = ", ".join(repr(other) for other in METHODS)
        raise ValueError(
            f"method={name!r} was given, expected one of {known}. Other methods must be registered "
            "first, by lucidae.linear.register_method."
        )
    return METHODS[name]


register_method("rag", rule=lambda _: RotationAugmentedRule())
register_method("gha", rule=lambda _: GeneralizedHebbianRule())
register_method("brockett", rule=lambda s: BrockettRule(brockett_ranks(s.k)))
register_method("plain", objective=lambda _: Reconstruction())
register_method(
    "uniform_l2", objective=lambda s: NonUniformL2(s.penalties), penalties=uniform_penalties
)
register_method(
    "nonuniform_l2", objective=lambda s: NonUniformL2(s.penalties), penalties=nonuniform_penalties
)
register_method(
    "nested_dropout",
    objective=lambda s: ExpectedNestedDropout(s.prior),
    rule=lambda s: NestedDropoutRule(s.prior, s.rng),
)
register_method("expected_nested_dropout", objective=lambda s: ExpectedNestedDropout(s.prior))
register_method("linear_vae", objective=lambda _: LinearVAE())


def make_method(name: str, settings: MethodSettings) -> Method:
    """Return the training method registered under `name`, made with the given settings.

    Parameters
    ----------
    name : str
        Name of the method, a key of `METHODS`.
    settings : MethodSettings
        Penalties, prefix probabilities, random generator, and whether the layers are tied. A value
        of ``settings.tied`` that contradicts the rule raises a ValueError.

    Returns
    -------
    Method
        The rule, the objective and whether the layers are tied.

    Examples
    --------
    >>> settings = MethodSettings(np.zeros(2), geometric_prior(2), np.random.default_rng(0))
    >>> make_method("rag", settings).tied
    True
    """
    entry = method_entry(name)
    objective = entry.objective(settings)
    rule = objective if entry.rule is None else entry.rule(settings)
    tying, given = rule.tying, settings.tied
    if given != "auto" and tying in _CONTRADICTED and given == _CONTRADICTED[tying][0]:
        raise ValueError(
            f"tied={given} was given with method={name!r}, {_CONTRADICTED[tying][1]}. Use "
            f"tied='auto' or tied={not given}."
        )
    tied = tying in ("default", "required") if given == "auto" else bool(given)
    return Method(name, rule, objective, tied, settings)


_CONTRADICTED = {
    "required": (False, "which has one set of weights for encoder and decoder"),
    "refused": (True, "whose encoder and decoder differ at the optimum"),
}
"""The value of `tied` that each kind of `Rule.tying` refuses, and why."""


def check_optimizer(name: str, rule: Rule, optimizer: str) -> None:
    """Raise a ValueError, with the reason, if a method's rule does not work with `optimizer`."""
    refused = rule.refused_optimizers
    if optimizer in refused:
        others = ", ".join(repr(name) for name in OPTIMIZERS if name not in refused)
        raise ValueError(
            f"optimizer={optimizer!r} was given with method={name!r}. {refused[optimizer]} Use one "
            f"of {others}."
        )


def geometric_prior(k: int, ratio: float = 0.9) -> Vector:
    """Return the probability of each number 1, …, k of latents that nested dropout keeps.

    Number b < k has the probability ratio^(b−1) · (1 − ratio), and k has the remaining one.

    Parameters
    ----------
    k : int
        Number of latents.
    ratio : float, default=0.9
        Ratio of each probability to the previous one, between 0 and 1.

    Returns
    -------
    ndarray of shape (k,)
        The probabilities; their sum is 1.

    Examples
    --------
    >>> geometric_prior(3, ratio=0.5)
    array([0.5 , 0.25, 0.25])
    """
    k = check_integer(k, "k", low=1)
    ratio = check_number(ratio, "ratio", low=0.0, high=1.0, open_low=True, open_high=True)
    prior = (1 - ratio) * ratio ** np.arange(k, dtype=float)
    prior[-1] = ratio ** (k - 1)
    return prior


def uniform_prior(k: int) -> Vector:
    """Return the probability 1/k for each number 1, …, k of latents that nested dropout keeps."""
    k = check_integer(k, "k", low=1)
    return np.full(k, 1.0 / k)


PRIORS = {"geometric": geometric_prior, "uniform": uniform_prior}


@dataclass(slots=True)
class Options:
    """Checked arguments of a `LinearAutoencoder`, named as they are.

    `solver` is never ``"auto"`` for an objective without a closed form.
    """

    n_components: Any = None
    method: str = "rag"
    solver: str = "auto"
    optimizer: str = "nesterov"
    learning_rate: float | str = "auto"
    momentum: float = 0.9
    l2: Any = "auto"
    prior: Any = "geometric"
    whiten: bool = False
    batch_size: int | None = None
    tied: bool | str = "auto"
    init_scale: float = 1e-2
    max_iter: int = 10_000
    tol: float = 1e-6
    random_state: Any = None
    warm_start: bool = False
    verbose: bool | str = "auto"
    handle_missing: str = "error"
    # whether the solver computes the optimum from leading eigenpairs
    closed_form: bool = field(init=False)
    # whether the method's rule draws random masks for rows
    samples: bool = field(init=False)
    # whether the solver needs rows instead of their second moment
    draws_rows: bool = field(init=False)
    # whether penalties are chosen from eigenvalues (``l2="auto"``)
    needs_spectrum: bool = field(init=False)

    def __post_init__(self) -> None:
        """Check all arguments; a wrong one raises a ValueError."""
        # 1) The method says which solvers and optimizers it works with.
        check_choice(self.optimizer, "optimizer", OPTIMIZERS)
        if not isinstance(self.tied, bool | np.bool_):
            check_choice(self.tied, "tied", ("auto",), others=", True or False")
        # That for one latent has what those of the method have in common.
        made = make_method(self.method, MethodSettings(np.ones(1), np.ones(1), _RNG, self.tied))
        check_optimizer(self.method, made.rule, self.optimizer)
        check_choice(self.solver, "solver", SOLVERS)
        solved, self.samples = made.objective.has_minimizer, made.rule.needs_rows
        if self.solver == "exact" and not solved:
            raise ValueError(
                f"solver='exact' was given with method={self.method!r}, for whose objective no "
                "closed form of the minimum is known. Use solver='gradient' or "
                "solver='stochastic'."
            )
        if self.solver == "auto" and not solved:
            self.solver = "gradient"
        self.closed_form = self.solver in ("auto", "exact")
        self.draws_rows = self.solver == "stochastic" or (self.samples and not self.closed_form)
        check_choice(self.handle_missing, "handle_missing", ("error", "em"))
        if self.handle_missing == "em" and not self.closed_form:
            raise ValueError(
                f"handle_missing='em' was given with solver={self.solver!r} and "
                f"method={self.method!r}, expected solver='exact' or 'auto' and a method with a "
                "closed form, because descent needs complete rows."
            )
        # 2) Arguments of descent.
        if not isinstance(self.learning_rate, str) or self.learning_rate != "auto":
            self.learning_rate = check_number(
                self.learning_rate, "learning_rate", low=0.0, open_low=True, others=" or 'auto'"
            )
        self.momentum = check_number(self.momentum, "momentum", low=0.0, high=1.0, open_high=True)
        self.max_iter = check_integer(self.max_iter, "max_iter", low=1)
        self.tol = check_number(self.tol, "tol", low=0.0)
        self.init_scale = check_number(
            self.init_scale, "init_scale", low=0.0, high=LARGEST_START, open_low=True
        )
        if self.batch_size is not None:
            self.batch_size = check_integer(self.batch_size, "batch_size", low=1, others=" or None")
        check_argument(self.random_state, "random_state")
        check_argument(self.verbose, "verbose")
        self.verbose = self.verbose if isinstance(self.verbose, str) else bool(self.verbose)
        check_flag(self.whiten, "whiten")
        check_flag(self.warm_start, "warm_start")
        # 3) A number of components may also be a share of the variance or a criterion.
        wanted = self.n_components
        share = isinstance(wanted, float | np.floating) and 0.0 < wanted < 1.0
        named = isinstance(wanted, str | tuple | list) and check_criterion(wanted)
        if named:
            self.n_components = named
        elif wanted is not None and not share:
            self.n_components = check_integer(wanted, "n_components", low=1, others=_OTHERS)
        if not isinstance(self.l2, str) or self.l2 != "auto":
            self.l2 = check_vector(self.l2, "l2", expected=_PENALTIES)
        self.needs_spectrum = (
            isinstance(self.l2, str) and METHODS[self.method].penalties is not None
        )
        if not isinstance(self.prior, str) or self.prior not in PRIORS:
            given, self.prior = (
                self.prior,
                check_vector(self.prior, "prior", expected=_PROBABILITIES),
            )
            if self.prior.ndim != 1 or self.prior.sum() <= 0.0:
                raise ValueError(
                    f"prior={given!r} was given, expected {_PROBABILITIES}, not all of them 0."
                )

    @property
    def effective_momentum(self) -> float:
        """The momentum that the optimizer uses; 0 for optimizers without momentum."""
        return self.momentum if OPTIMIZERS[self.optimizer].has_momentum else 0.0

    @property
    def preconditions(self) -> bool:
        """Whether directions are preconditioned: divided by the curvature of groups of weights.

        This is done if the step size is ``"auto"``, except for Adam, which rescales each coordinate
        anyway. `Rule.preconditioned_direction` defines the division.
        """
        return self.learning_rate == "auto" and self.optimizer != "adam"

    def rate(self, curvature: float) -> float:
        """Return the step size: `learning_rate`, or for ``"auto"`` one that suits the curvature.

        Half of the largest stable step size of Nesterov's method with momentum μ on a quadratic
        loss is (1 + μ)/(1 + 2μ)/curvature, and that of gradient descent the same with μ = 0. The
        heavy ball has larger stable steps, but they would overshoot on a quartic loss. Adam's steps
        do not depend on the scale of the loss.
        """
        if self.learning_rate != "auto":
            return float(self.learning_rate)
        momentum = self.effective_momentum
        if self.optimizer == "adam":
            return ADAM_RATE
        return (1 + momentum) / (1 + 2 * momentum) / curvature

    def build(self, curvature: float) -> Optimizer:
        """Return the optimizer with its step size and momentum."""
        return OPTIMIZERS[self.optimizer](self.rate(curvature), self.momentum)

    def rng(self) -> np.random.Generator:
        """Return a random generator for one fit, seeded by `random_state`."""
        return np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))

    def make(
        self, k: int, spectrum: Spectrum | None, rng: np.random.Generator | None = None
    ) -> Method:
        """Return the training method for `k` latents.

        `spectrum`, the eigenpairs of the second moment, is needed only for ``l2="auto"``, and `rng`
        if weights are drawn as well.
        """
        if rng is None:  # a new one would take a twentieth of the time of a small fit
            rng = self.rng() if self.samples else _RNG
        read, penalties = METHODS[self.method].penalties, np.zeros(k)
        if read is not None:
            values = None if spectrum is None else spectrum.resolved(k + 1)
            penalties = read(self.l2, values, k)
        prior = PRIORS[self.prior](k) if isinstance(self.prior, str) else self.prior
        if prior.shape != (k,):
            raise ValueError(
                f"prior has {prior.size} probabilities, expected {k}: one for each number of "
                "latents that nested dropout may keep."
            )
        settings = MethodSettings(penalties, prior / prior.sum(), rng, self.tied)
        return make_method(self.method, settings)

    def check_before_solving(self, m: int) -> None:
        """Raise a ValueError if the arguments contradict each other or the `m` features.

        The numbers of latents, of penalties and of probabilities of nested dropout are checked.
        `partial_fit` calls this method, because it computes its model only later, when the model is
        first read.
        """
        k = self.n_components
        if isinstance(k, int):
            check_features(k, m)
            if not self.needs_spectrum:
                self.make(k, None, _RNG)
            return
        for name in ("l2", "prior"):
            if np.ndim(value := getattr(self, name)) == 1:
                raise ValueError(
                    f"{name} has {len(value)} entries, one per latent, but n_components={k!r} does "
                    "not fix the number of latents. For partial_fit, give "
                    f"n_components={len(value)}."
                )


def check_features(k: int, m: int) -> None:
    """Raise a ValueError if the number of latents k exceeds the number of features m."""
    if k > m:
        raise ValueError(
            f"n_components={k} was given, but X has {m} features: expected at most {m}."
        )


def reaching(share: float, values: Vector, trace: float) -> int:
    """Return how many of the largest eigenvalues have this share of the trace."""
    shares = np.cumsum(np.maximum(values, 0.0)) / max(trace, TINY)
    return int(np.searchsorted(shares, share * (1 - 1e-12))) + 1


_PENALTIES = "'auto', or one finite penalty of at least 0, or one per latent"


_OTHERS = (
    f", a share of the variance in (0, 1), {', '.join(map(repr, CRITERIA))}, ('hard_threshold', "
    "noise variance), or None for the rank"
)
_PROBABILITIES = (
    "'geometric', 'uniform', or one probability of at least 0 for each number of latents that "
    "nested dropout may keep"
)


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """The weights that a solver returned, and how the solver found them."""

    weights: Any  # encoder and decoder, latents in the order of training
    method: Method  # the training method
    status: Status = Status.CONVERGED  # how the solver ended
    n_iter: int = 1  # number of steps; 1 for a closed form
    # the recorded loss; empty for a closed form
    history: History = field(default_factory=lambda: History(np.empty(0, dtype=int)))
    learning_rate: float | None = None  # the step size; None for a closed form


@dataclass(frozen=True, slots=True)
class Model:
    """The fitted linear autoencoder as float64 arrays, for m features and k latents.

    The latents are in descending order of variance, and the entry of largest magnitude of each
    component is positive.
    """

    mean: Annotated[Array, "m"]  # mean of the training rows
    encoder: Annotated[Array, "km"]  # rows of the encoder
    atoms: Annotated[Array, "km"]  # columns of the decoder, as rows
    # columns of the decoder scaled to unit length, as rows; 0 for zero latents
    components: Annotated[Array, "km"]
    # variance of the data along each component; the divisor is the total weight minus 1
    variances: Annotated[Array, "k"]
    # standard deviation of each code; 1 for a code without variance
    code_deviations: Annotated[Array, "k"]
    total_variance: float  # trace of the covariance; the divisor is the total weight minus 1
    # orthonormal basis of the span of the decoder's columns
    basis: Annotated[Array, "mr"]
    inside: Annotated[Array, "rr"]  # covariance of the data in that basis
    # mean variance of the data per dimension orthogonal to the basis; 0 if r equals m
    noise_variance: float
    weight: float  # sum of the weights of the training rows
    outcome: TrainedWeights  # the weights as trained, before ordering, and how they were found
    spectrum: Spectrum | None = None  # the eigenpairs from which the model was computed
    count: ComponentCount | None = None  # the result of a criterion for the number of latents

    @property
    def degrees(self) -> float:
        """Divisor of the variances: the total weight minus 1, but at least the machine epsilon."""
        return max(self.weight - 1.0, np.finfo(float).eps)

    def precision(self) -> Array:
        """Return the inverse of the covariance of the Gaussian model, (m, m) for m features.

        Variances of zero are first replaced by the machine epsilon times the largest variance.
        """
        axes, variances, noise = self._eigenpairs()
        return _with_level(axes, 1 / variances, 1 / noise)

    def covariance(self) -> Array:
        """Return the covariance of the Gaussian model, (m, m) for m features.

        It is that of the data in the span of the components, and the noise variance outside.
        """
        return _with_level(*self._eigenpairs())

    def log_likelihood(self, centred: Array) -> Array:
        """Return the log-likelihood of each row under probabilistic PCA, shape (n,)."""
        xp, (axes, variances, noise) = namespace(centred), self._eigenpairs()
        codes, outside = centred @ axes, centred.shape[1] - axes.shape[1]
        misfit = xp.sum(codes * codes / variances, axis=1)
        log_determinant = float(xp.sum(xp.log(variances)))
        if outside:
            rest = centred - codes @ axes.mT
            misfit = misfit + xp.sum(rest * rest, axis=1) / noise
            log_determinant += outside * math.log(noise)
        return -(misfit + log_determinant + centred.shape[1] * math.log(2 * math.pi)) / 2

    def _eigenpairs(self) -> tuple[Array, Array, float]:
        """Return axes (m, r) of the components' span, the variances along them, and outside.

        Variances smaller than the machine epsilon times the largest variance are raised to this
        number; otherwise data of deficient rank would have an infinite likelihood.
        """
        values, vectors = eigh_descending(self.inside)
        noise = self.noise_variance if self.basis.shape[1] < self.basis.shape[0] else 0.0
        floor = machine_epsilon(values) * max(float(values[0]), noise, TINY)
        variances = where_set(values, values < floor, floor)
        return self.basis @ vectors, variances, max(noise, floor)


def _with_level(axes: Array, values: Array, level: float) -> Array:
    """Return the matrix with these eigenvectors and eigenvalues, and the eigenvalue `level` else.

    With as many axes as features, the level has no part in it.
    """
    xp, (m, r) = namespace(axes), axes.shape
    level = level if r < m else 0.0
    inner = (axes * (values - level)) @ axes.mT
    return inner + level * xp.eye(m, dtype=axes.dtype, device=axes.device)
