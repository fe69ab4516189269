"""Experiment: loss surface of the non-uniform ℓ₂ penalty over scale and angle, and a descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.iteration import Below, iterate
from lucidae.linear.objectives import NonUniformL2
from lucidae.linear.weights import UntiedWeights
from lucidae.rows.covariances import EigenbasisCovariance
from lucidae_papers.cells import Arrays, Cell, Settings, on_processor, settings_of, work
from lucidae_papers.declaration import Experiment, Scale, listed
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.verdicts import AtLeast, AtMost, Sooner

Vector = np.ndarray[Any, Any]

OTHERS = (0.11, 0.2, 0.4, 0.8)
"""Second penalties at which the curvatures are compared; those of Bao et al. 2020 are not known."""

STEEPNESS = "curvature across the valley divided by that along it, at the minimum"

TURN = np.array([[0.0, -1.0], [1.0, 0.0]])


@dataclass(frozen=True, slots=True)
class Plane:
    """Loss of two latents whose weights are a scaled and rotated optimum.

    This is the plane of Bao et al. 2020, Figure 1.

    With the eigenvalues σᵢ², the penalties λᵢ, the diagonal matrix D of √(1 − λᵢ/σᵢ²) and the
    rotation O(θ) by an angle θ, the encoder is W₁ = αO(θ)D, with a scale α, and the decoder is its
    transpose. A point of the plane is (x, y) = (α cos θ, α sin θ). W₁ = x D + y J D is linear in
    the point, with the quarter turn J, so that the gradient with respect to the point consists of
    the inner products of the gradient with respect to W₁ with D and J D.
    """

    values: Vector  # (2,): eigenvalues σᵢ² of the covariance, and ℓ₂ penalties λᵢ
    penalties: Vector

    @property
    def frame(self) -> Vector:
        """The matrices D and J D, of which all weights are linear combinations, shape (2, 2, 2).

        D is the diagonal matrix of √(1 − λᵢ/σᵢ²), with the penalties λᵢ and the eigenvalues σᵢ²; J
        is the rotation by a quarter turn.
        """
        scale = np.diag(np.sqrt(1 - self.penalties / self.values))
        return np.stack([scale, TURN @ scale])

    def weights(self, points: Vector) -> UntiedWeights:
        """Return encoder and decoder at points (α cos θ, α sin θ), an array of shape (…, 2).

        α is the scale of the weights relative to the optimum, and θ the angle of their rotation.
        """
        layer = np.einsum("...p,pij->...ij", points, self.frame)
        return UntiedWeights(layer, layer)

    def loss(self, points: Vector) -> Vector:
        """Return the loss at points (α cos θ, α sin θ), an array of shape (…, 2).

        α is the scale of the weights relative to the optimum, and θ the angle of their rotation.
        """
        objective, covariance = NonUniformL2(self.penalties), EigenbasisCovariance(self.values)
        return np.asarray(objective.value(self.weights(points), covariance))

    def slope(self, point: Vector) -> Vector:
        """Return the gradient of the loss with respect to the point (α cos θ, α sin θ), shape (2,).

        α is the scale of the weights relative to the optimum, and θ the angle of their rotation.
        """
        objective, covariance = NonUniformL2(self.penalties), EigenbasisCovariance(self.values)
        gradient = objective.gradient(self.weights(point), covariance)
        return np.asarray(np.einsum("ij,pij->p", gradient.encoder + gradient.atoms, self.frame))


@dataclass(frozen=True, slots=True)
class Landscape:
    """Settings of a loss surface with two latents, and of one gradient descent on it."""

    points: int  # grid points of the surface along each axis
    n_steps: int  # steps of gradient descent
    # eigenvalues of the covariance, and ℓ₂ penalties of the two latents
    eigenvalues: tuple[float, float] = (1.5, 1.0)
    penalties: tuple[float, float] = (0.1, 0.2)
    rate: float = 0.05  # learning rate
    others: tuple[float, ...] = OTHERS
    # first point of the descent, (α cos θ, α sin θ), with the scale α and the angle θ of the
    # weights relative to the optimum
    start: tuple[float, float] = (0.05, 0.1)

    def cells(self) -> Sequence[Cell]:
        """Return a list with the only run of this experiment."""
        names = ("points", "n_steps", "eigenvalues", "penalties", "rate", "others", "start")
        return [Cell(measure, settings_of(self, *names), 0.3)]

    def curves(self, results: Results) -> Curves:
        """Return errors of radius and angle along the descent, loss on the ring, and steepness.

        Radius and angle are the scale and the rotation of the weights relative to the optimum. The
        ring has radius 1 and contains the minima. Its loss minus the minimum is divided by the loss
        at the origin minus the minimum. The steepness is the curvature across the ring divided by
        that along it, over the second penalties.
        """
        (cell,) = results
        path, ring = cell.arrays["path"], cell.arrays["ring"]
        steps = np.arange(len(path))
        lowest, centre = float(ring.min()), float(cell.arrays["centre"])
        return {
            "radius error": Curve(steps, abs(np.hypot(*path.T) - 1.0), "step"),
            "angle error": Curve(steps, abs(np.arctan2(path[:, 1], path[:, 0])), "step"),
            "ring": Curve(cell.arrays["angles"], (ring - lowest) / (centre - lowest)),
            "steepness": Curve(self.others, cell.arrays["steepness"], "second penalty"),
        }

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "eigenvalues": f"{self.eigenvalues[0]:g} and {self.eigenvalues[1]:g}",
            "penalties": f"{self.penalties[0]:g} and {self.penalties[1]:g}, for the curvatures "
            f"also {listed(self.others)} as the second; those of Bao et al. 2020 are not known",
            "path": f"gradient descent, {self.n_steps} steps of rate {self.rate:g}",
        }


@work("linear.landscape/2")
@on_processor
def measure(settings: Settings) -> Arrays:
    """Return the loss on a grid and on the ring of radius 1, and the path of one descent.

    Radius and angle are the scale and the rotation of the weights relative to the optimum.
    """
    plane = Plane(np.array(settings["eigenvalues"]), np.array(settings["penalties"]))
    axis = np.linspace(-1.35, 1.35, settings["points"])
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)
    angles = np.linspace(-np.pi, np.pi, 181)
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    path = _path(plane, settings)
    return {
        "axis": axis,
        "surface": plane.loss(grid),
        "angles": angles,
        "ring": plane.loss(ring),
        "centre": plane.loss(np.zeros(2)),
        "path": path,
        "path loss": plane.loss(path),
        "steepness": np.array(
            [
                _steepness(Plane(plane.values, np.array([plane.penalties[0], other])))
                for other in settings["others"]
            ]
        ),
    }


def _path(plane: Plane, settings: Settings) -> Vector:
    """Return the points of a gradient descent on the plane, as `settings` say."""
    solution = iterate(
        lambda point: point - settings["rate"] * plane.slope(point),
        np.array(settings["start"]),
        stop=Below(lambda _: 1.0, 0.0),
        limit=settings["n_steps"],
        record={"point": lambda point: point},
        record_at=1,
        size=2,
    )
    return solution.history["point"]


def _steepness(plane: Plane, step: float = 1e-5) -> float:
    """Return the curvature of the loss at its minimum along scale, divided by that along angle.

    Scale and angle are those of the weights relative to the optimum; the minimum has scale 1 and
    angle 0. The derivatives are central differences of the gradient with the given step.
    """
    minimum = np.array([1.0, 0.0])
    radial, angular = (
        (plane.slope(minimum + step * axis) - plane.slope(minimum - step * axis)) @ axis
        for axis in np.eye(2)
    )
    return float(radial / angular)


EXPECT = {
    "valley": (
        *(AtLeast("steepness", 50.0, other, STEEPNESS) for other in OTHERS),
        AtMost("ring", 0.05, "everywhere", "loss in the valley relative to that at the origin"),
    ),
    "stages": (
        Sooner("radius error", "angle error", 0.05, 20.0, "error of scale (first) and angle"),
        AtMost("angle error", 1e-3, says="error of the angle in radians"),
    ),
}

EXPERIMENT = Experiment(
    name="lae-landscape",
    title="Loss surface of the non-uniform ℓ₂ penalty",
    reference="Bao et al. 2020, Figure 1",
    about="The loss of a linear autoencoder with two latents and non-uniform ℓ₂ penalties, over "
    "the scale α and the angle θ of the latents, and one path of gradient descent on it.",
    claims={
        "valley": "Different ℓ₂ penalties break the rotational symmetry only weakly: the loss is "
        "steep across a ring-shaped valley and nearly constant along it.",
        "stages": "Gradient descent converges quickly to a ring-shaped valley, and then very "
        "slowly along the valley to the optimal angle.",
    },
    smoke=Scale(Landscape(points=61, n_steps=4000), EXPECT),
    paper=Scale(Landscape(points=121, n_steps=10_000), EXPECT),
    draw="landscapes.valley",
)
