"""The plane of the loss surface."""

import numpy as np

from lucidae_papers.linear.landscape import Plane


def test_the_plane_of_the_valley_has_the_right_slope():
    plane = Plane(np.array([1.5, 1.0]), np.array([0.1, 0.2]))
    point, step = np.array([0.4, -0.7]), 1e-6
    differences = [
        (plane.loss(point + step * axis) - plane.loss(point - step * axis)) / (2 * step)
        for axis in np.eye(2)
    ]
    np.testing.assert_allclose(plane.slope(point), differences, rtol=1e-7)
    angles = np.linspace(0, 2 * np.pi, 721)
    ring = plane.loss(np.stack([np.cos(angles), np.sin(angles)], axis=-1))
    np.testing.assert_allclose(plane.slope(np.array([1.0, 0.0])), 0, atol=1e-12)
    assert np.argmin(ring) in (0, 360, 720)
