"""Comparison of the formulas of the laboratory, evaluated by JavaScript, with the package.

`all_comparisons` returns calls of JavaScript functions and a check for the result of each.
"""

import math

import numpy as np
from numpy.testing import assert_allclose

from lucidae.dropout import theory
from lucidae.dropout.landscape import scalar_surface, tied_objective
from lucidae.dropout.problem import (
    DropoutObjective,
    LinearProblem,
    Weights,
    sampled_gradient,
    shared_direction,
)
from lucidae.linear.objectives import NonUniformL2, RotationAugmentedRule
from lucidae.linear.weights import TiedWeights, UntiedWeights
from lucidae.rows.covariances import EigenbasisCovariance
from lucidae.sparsity import group_lasso
from lucidae.sparsity.objectives import UPDATES, DiagonalCovariance, FullCovariance, evaluate
from lucidae.sparsity.prior import best_change, gain_of
from lucidae.sparsity.problem import Problem
from lucidae.spectrum import Spectrum
from lucidae_papers.linear.landscape import TURN, Plane
from lucidae_papers.sparsity import slices


class Comparison:
    """Calls of formulas in the browser, and for each a check of its result."""

    def __init__(self):
        self.calls, self.checks = [], []

    def check(self, judge, path, *arguments):
        """Evaluate the formula at `path` in the browser and pass its result to `judge`."""
        self.calls.append([path, *arguments])
        self.checks.append(judge)

    def equal(self, expected, path, *arguments, rtol=1e-9, atol=1e-9):
        def judge(result):
            found = np.array(result, dtype=float)
            assert_allclose(found, expected, rtol, atol, err_msg=f"{path} {arguments}")

        self.check(judge, path, *arguments)

    def judge(self, results):
        assert len(results) == len(self.checks) > 500
        for check, result in zip(self.checks, results, strict=True):
            check(result)


def jacobian(gradient, point, step=1e-5):
    """Return the derivative of a gradient by central differences, symmetrised."""
    ways = step * np.eye(2)
    rows = np.array([gradient(point + way) - gradient(point - way) for way in ways]) / (2 * step)
    return (rows + rows.T) / 2


def kind_of(eigenvalues):
    low, high = eigenvalues
    return "minimum" if low > 0 else "maximum" if high < 0 else "saddle"


def compare_landscape(
    comparison, path, parameters, points, *, loss, gradient, minimum, hessian=None
):
    """Compare loss, gradient, Hessian, critical points and minimum of one landscape.

    Without `hessian` that of the package is the difference quotient of its gradient.
    """
    second = hessian or (lambda point: jacobian(gradient, point))
    close = 1e-10 if hessian else 1e-6
    for point in points:
        given = (parameters, point.tolist())
        comparison.equal(loss(point), f"{path}.loss", *given)
        comparison.equal(gradient(point), f"{path}.gradient", *given)
        comparison.equal(second(point), f"{path}.hessian", *given, rtol=close, atol=close)
    comparison.equal(minimum, f"{path}.minimum", parameters)

    def judge(found):
        for item in found:
            point = np.array(item["point"])
            assert_allclose(gradient(point), 0.0, atol=1e-7)
            assert_allclose(item["loss"], loss(point), atol=1e-9)
            curvatures = np.linalg.eigvalsh(second(point))
            assert_allclose(item["curvatures"], curvatures, rtol=1e-6, atol=1e-5)
            if min(abs(curvatures)) > 1e-3:
                assert item["kind"] == kind_of(curvatures)
        lowest = min((item["loss"] for item in found if item["kind"] == "minimum"), default=None)
        if lowest is not None:
            assert_allclose(lowest, minimum, atol=1e-9)

    comparison.check(judge, "classified", {"landscape": path}, parameters)

    def judge_valley(found):
        for point in [] if found is None else points_of(found):
            assert_allclose(loss(np.array(point)), minimum, atol=1e-12)

    comparison.check(judge_valley, f"{path}.valley", parameters)


def points_of(valley):
    """Return three points of a curve of minima, which the page describes by its shape."""
    if valley["shape"] == "circle":
        return [(valley["radius"] * math.cos(t), valley["radius"] * math.sin(t)) for t in (0, 1, 4)]
    if valley["shape"] == "line":
        return [(x, valley["total"] - x) for x in (-1.0, 0.3, 2.0)]
    return [(x, valley["product"] / x) for x in (-1.5, 0.4, 2.0)]


def compare_linear(comparison, rng):
    for values, penalties in [
        ([1.5, 1.0], [0.1, 0.2]),
        ([2.2, 0.7], [0.0, 0.0]),
        ([1.9, 0.8], [0.3, 0.3]),
        ([2.5, 0.9], [0.35, 0.85]),
    ]:
        plane = Plane(np.array(values), np.array(penalties))
        parameters = {"values": values, "penalties": penalties}
        spectrum = Spectrum(np.array(values), np.eye(2), sum(values))
        compare_landscape(
            comparison,
            "linear.angle",
            parameters,
            rng.uniform(-1.4, 1.4, (8, 2)),
            loss=lambda point, plane=plane: float(plane.loss(point)),
            gradient=lambda point, plane=plane: plane.slope(np.asarray(point)),
            minimum=NonUniformL2(np.array(penalties)).minimum(spectrum, 2),
        )
        start = rng.uniform(-0.5, 0.5, 2)
        comparison.equal(
            plane.weights(start).encoder, "linear.angle.weights", parameters, list(start)
        )
        path = [start]
        for _ in range(60):
            path.append(path[-1] - 0.05 * plane.slope(path[-1]))

        def judge(found, path=path):  # the page ends where steps no longer change the point
            assert_allclose(found, path[: len(found)], atol=1e-9)
            assert_allclose(found[-1], path[-1], atol=1e-9)

        landscape = {"landscape": "linear.angle"}
        comparison.check(judge, "descend", landscape, parameters, start.tolist(), 0.05, 60)
    compare_rotation(comparison, rng)
    for s, penalty in [(1.5, 0.1), (2.0, 0.0), (1.0, 1.3), (0.6, 0.55), (1.8, 0.2)]:
        compare_layers(comparison, rng, s, penalty)


def compare_rotation(comparison, rng):
    """Compare the rotation augmented gradient, projected on the plane of scale and angle."""
    values = np.array([1.7, 0.6])
    parameters = {"values": values.tolist(), "penalties": [0.0, 0.0]}
    for point in rng.uniform(-1.3, 1.3, (8, 2)):
        weights = TiedWeights(point[0] * np.eye(2) + point[1] * TURN)
        way = RotationAugmentedRule().direction(weights, EigenbasisCovariance(values)).encoder
        projected = [np.sum(way * np.eye(2)) / 2, np.sum(way * TURN) / 2]
        comparison.equal(
            4 * np.array(projected), "linear.angle.augmented", parameters, point.tolist()
        )


def compare_layers(comparison, rng, s, penalty):
    """Compare the loss of one encoder and one decoder weight, and of one tied latent."""
    objective, covariance = NonUniformL2(np.array([penalty])), EigenbasisCovariance(np.array([s]))

    def weights(point):
        return UntiedWeights(np.array([[point[0]]]), np.array([[point[1]]]))

    parameters = {"values": [s], "penalties": [penalty]}
    compare_landscape(
        comparison,
        "linear.layers",
        parameters,
        rng.uniform(-2, 2, (6, 2)),
        loss=lambda point: float(objective.value(weights(point), covariance)),
        gradient=lambda point: np.ravel(objective.gradient(weights(point), covariance)),
        minimum=objective.minimum(Spectrum(np.array([s]), np.eye(1), s), 1),
    )
    if 0 < penalty < s:
        length = math.sqrt(1 - penalty / s)
        curvatures = objective.hessian_eigenvalues(np.array([s]))
        comparison.check(
            lambda found: assert_allclose(np.linalg.eigvalsh(found), curvatures, atol=1e-10),
            "linear.layers.hessian",
            parameters,
            [length, length],
        )
    values = np.array([s, (1.0 if penalty == 0.1 else 0.5) * s])  # equal variances once
    both = EigenbasisCovariance(values)

    def tied(point):
        return UntiedWeights(np.array([point]), np.array([point]))

    compare_landscape(
        comparison,
        "linear.latent",
        {"values": values.tolist(), "penalties": [penalty]},
        rng.uniform(-1.4, 1.4, (6, 2)),
        loss=lambda point: float(objective.value(tied(point), both)),
        gradient=lambda point: np.sum(objective.gradient(tied(point), both), axis=(0, 1)),
        minimum=objective.minimum(Spectrum(values, np.eye(2), values.sum()), 1),
    )


def compare_dropout(comparison, rng):
    for target, dropout in [(2.0, 0.33), (1.3, 0.8), (2.6, 0.0), (0.7, 0.5)]:
        strength = theory.strength_of(dropout)
        comparison.equal(strength, "dropout.strengthOf", dropout)
        parameters = {"target": target, "dropout": dropout, "strength": strength}
        objective = tied_objective(np.array([[target]]), strength)
        minimum = theory.optimal_value(np.array([target]), strength, 2)
        compare_landscape(
            comparison,
            "dropout.units",
            parameters,
            rng.uniform(-2, 2, (6, 2)),
            loss=lambda u, f=objective: float(f.tied_value(u[None, :])),
            gradient=lambda u, f=objective: f.tied_gradient(np.asarray(u)[None, :])[0],
            hessian=lambda u, f=objective: np.array(
                [f.tied_hessian_product(u[None, :], e[None, :])[0] for e in np.eye(2)]
            ),
            minimum=minimum,
        )
        compare_products(comparison, rng, parameters, minimum)
        compare_masks(comparison, rng, parameters)
        minima = scalar_surface(target, strength).minima
        comparison.check(
            lambda found, minima=minima: assert_allclose(
                sorted(item["point"] for item in found if item["kind"] == "minimum"),
                sorted(minima.tolist()),
                atol=1e-12,
            ),
            "classified",
            {"landscape": "dropout.units"},
            parameters,
        )
    for _ in range(30):
        singular = np.sort(rng.exponential(size=6))[::-1]
        strength, width = float(rng.exponential()), int(rng.integers(1, 9))
        compare_shrinkage(comparison, singular, strength, width)


def compare_products(comparison, rng, parameters, minimum):
    """Compare the loss of two units with incoming weights one, as a function of the outgoing."""
    problem = LinearProblem.from_matrix(np.array([[parameters["target"]]]))
    objective, ones = DropoutObjective(problem, parameters["strength"]), np.ones((1, 2))
    compare_landscape(
        comparison,
        "dropout.products",
        parameters,
        rng.uniform(-2, 2, (5, 2)),
        loss=lambda point: float(objective.value(Weights(np.asarray(point)[None, :], ones))),
        gradient=lambda p: objective.gradient(Weights(np.asarray(p)[None, :], ones)).left[0],
        minimum=minimum,
    )


def compare_masks(comparison, rng, parameters):
    """Compare the gradient of each mask of two hidden units."""
    one, goal = np.array([[1.0]]), np.array([[parameters["target"]]])
    for mask in [[1, 1], [1, 0], [0, 1], [0, 0]]:
        point = rng.uniform(-2, 2, 2)
        weights = Weights(point[None, :], point[None, :])
        expected = shared_direction(sampled_gradient)(
            weights, one, goal, np.array([mask], dtype=float), 1 - parameters["dropout"]
        )
        comparison.equal(
            expected.left[0], "dropout.units.sampled", parameters, point.tolist(), mask
        )


def compare_shrinkage(comparison, singular, strength, width):
    expected = theory.shrink(singular, strength, width)

    def judge(found):
        assert found["rank"] == expected.rank
        assert_allclose(found["threshold"], expected.threshold, rtol=1e-12)
        assert_allclose(found["values"], expected.values, atol=1e-12)

    given = singular.tolist()
    comparison.check(judge, "dropout.shrink", given, strength, width)
    value = theory.optimal_value(singular, strength, width)
    comparison.equal(value, "dropout.optimalValue", given, strength, width)
    comparison.equal(
        theory.breakpoints(singular, width), "dropout.breakpoints", given, width, rtol=1e-7
    )


def compare_sparsity(comparison, rng):
    for _ in range(6):
        angles, response = rng.uniform(-3, 3, 3), rng.normal(size=2)
        noise, third = float(rng.uniform(0.05, 0.6)), float(rng.choice([0.0, 0.4]))
        dictionary = np.array([np.cos(angles), np.sin(angles)])
        zero = np.array(0.0)
        problem = Problem(dictionary, response[:, None], np.array(noise), zero, zero)
        parameters = {
            "angles": angles.tolist(),
            "response": response.tolist(),
            "noise": noise,
            "third": third,
        }
        for posterior in ("full", "diagonal", "lasso"):
            compare_energy(comparison, rng, problem, {**parameters, "posterior": posterior})
        compare_updates(comparison, rng.uniform(0.05, 2, 3), problem, parameters)
        compare_slices(comparison, rng.uniform(0.05, 2, 3), problem, parameters)
        compare_solutions(comparison, problem, parameters)


def energy_and_slope(problem, posterior, relevance):
    """Return the energy and its derivatives in the relevances, from the package."""
    state = evaluate(problem, np.asarray(relevance, dtype=float))
    if posterior == "lasso":
        return float(state.fit + np.sum(relevance)), 1.0 - state.alignment
    energy = {"full": FullCovariance(), "diagonal": DiagonalCovariance()}[posterior]
    return float(energy.value(state)), energy.gradient(state)


def compare_energy(comparison, rng, problem, parameters):
    posterior, third = parameters["posterior"], parameters["third"]
    for relevance in rng.uniform(0.01, 2, (3, 3)):
        value, slope = energy_and_slope(problem, posterior, relevance)
        comparison.equal(value, "sparsity.energy", parameters, relevance.tolist())
        comparison.equal(slope, "sparsity.slopes", parameters, relevance.tolist(), rtol=1e-8)

    def loss(point):
        return energy_and_slope(problem, posterior, [*np.square(point), third])[0]

    def gradient(point):
        slope = energy_and_slope(problem, posterior, [*np.square(point), third])[1]
        return 2 * np.asarray(point) * slope[:2]

    points = rng.uniform(0.1, 1.5, (4, 2))
    for point in points:
        comparison.equal(loss(point), "sparsity.relevances.loss", parameters, point.tolist())
        comparison.equal(
            gradient(point), "sparsity.relevances.gradient", parameters, point.tolist()
        )
        given = (parameters, point.tolist())
        second = jacobian(gradient, point, 1e-6)
        comparison.equal(second, "sparsity.relevances.hessian", *given, rtol=1e-5, atol=1e-5)
    comparison.check(
        lambda found: judge_critical(found, loss, gradient),
        "classified",
        {"landscape": "sparsity.relevances"},
        parameters,
    )


def judge_critical(found, loss, gradient):
    """Check that the points are critical, and that none of 49 grid points is below all of them."""
    for item in found:
        assert_allclose(gradient(item["point"]), 0.0, atol=1e-6)
        assert_allclose(item["loss"], loss(item["point"]), atol=1e-9)
    lowest = min(item["loss"] for item in found)
    axis = np.linspace(0.0, 2.0, 7)
    assert lowest <= min(loss([x, y]) for x in axis for y in axis) + 1e-9


def compare_updates(comparison, relevance, problem, parameters):
    state, given = evaluate(problem, relevance), relevance.tolist()
    own = {**parameters, "posterior": "full"}
    for name, update in UPDATES.items():
        comparison.equal(update(state), "sparsity.updated", {**own, "rule": name}, given)
    moved, change = relevance.copy(), best_change(relevance, state.curvature, state.alignment)
    gains = gain_of(change, state.curvature, state.alignment)
    best = int(np.argmax(gains))
    moved[best] += change[best]
    comparison.equal(moved, "sparsity.updated", {**own, "rule": "coordinate"}, given)
    comparison.equal(
        DiagonalCovariance().update()(state),
        "sparsity.updated",
        {**parameters, "posterior": "diagonal"},
        given,
    )


def compare_slices(comparison, relevance, problem, parameters):
    state, given = evaluate(problem, relevance), relevance.tolist()
    for index in range(3):
        power, inner, outer = slices.slice_parameters(state, index)
        own = {"power": power, "inner": inner, "outer": outer}
        comparison.check(
            lambda found, own=own: assert_allclose(
                [found[key] for key in own], list(own.values()), rtol=1e-8
            ),
            "sparsity.sliceParameters",
            parameters,
            given,
            index,
        )
        weight = np.array(0.7)
        full = slices.full_slice(weight, power, inner)
        diagonal = slices.diagonal_slice(weight, power, inner, outer)
        comparison.equal(full, "sparsity.slices.full", own, 0.7)
        comparison.equal(diagonal, "sparsity.slices.diagonal", own, 0.7)
        minima = slices.full_slice_minima(power, inner)
        comparison.equal(minima, "sparsity.sliceMinima.full", own)
        minima = slices.diagonal_slice_minima(power, inner, outer)
        comparison.equal(minima, "sparsity.sliceMinima.diagonal", own)


def compare_solutions(comparison, problem, parameters):
    """The end of the page's descents is stationary; the lasso's is that of the package."""
    for energy in (FullCovariance(), DiagonalCovariance()):
        name = "full" if isinstance(energy, FullCovariance) else "diagonal"

        def judge(found, energy=energy):
            assert float(energy.violation(evaluate(problem, np.array(found)))) < 1e-6

        comparison.check(judge, "sparsity.solve", {**parameters, "posterior": name})
    noise = parameters["noise"]
    expected = group_lasso(
        np.asarray(problem.dictionary), np.asarray(problem.responses), noise_variance=noise**2
    )
    comparison.equal(np.ravel(expected), "sparsity.lassoCoefficients", parameters, atol=1e-6)
    relevance = np.abs(np.ravel(expected))
    residual = problem.responses - problem.dictionary @ expected.reshape(3, 1)
    energy = float(np.sum(residual**2)) / noise + 2 * relevance.sum()
    comparison.equal(
        energy,
        "sparsity.energy",
        {**parameters, "posterior": "lasso"},
        relevance.tolist(),
        atol=1e-6,
    )


def all_comparisons(seed=0):
    """Return the comparison of all formulas of the page, at random points."""
    made, rng = Comparison(), np.random.default_rng(seed)
    compare_linear(made, rng)
    compare_dropout(made, rng)
    compare_sparsity(made, rng)
    return made
