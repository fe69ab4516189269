"""The learning curves of Bao et al. 2020, Figure 2: full size on MNIST, a quick one on digits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae import LinearAutoencoder, SecondMoment
from lucidae.datasets import load_digits, load_mnist
from lucidae.linear.simulation import Plan, Run, simulate
from lucidae.linear.theory import zero_latents
from lucidae.rows.spectrum import Spectrum

PENALTIES = np.linspace(0.1, 0.9, 20) ** 2

RATES = {  # Table 2, Nesterov
    "uniform_l2": 1e-3,
    "nonuniform_l2": 3e-4,
    "rag": 3e-3,
    "expected_nested_dropout": 3e-2,
    "linear_vae": 1e-3,
}


def alignment(moment, name, rate, n_epochs, grid, k, penalties):
    """Train as the paper does (untied, Nesterov 0.9, start 1e-4) and return the curve."""
    settings = {"penalties": penalties, "init_scale": 1e-4, "record_at": grid}
    plan = Plan(Spectrum(*moment.spectrum(), moment.trace), k, n_epochs, **settings)
    (trajectory,) = simulate([Run(name, "nesterov", rate, seed=0, tied=False)], plan)
    return dict(zip(trajectory.epochs.tolist(), trajectory.values["alignment"], strict=True))


@pytest.fixture(scope="module")
def mnist():
    try:
        return SecondMoment.of(load_mnist().data)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_mnist_curves_are_those_of_the_paper(mnist):
    grid = (5000, 10_000, 20_000, 30_000)
    uniform = np.full(20, 0.25)
    curves = {
        name: alignment(
            mnist, name, rate, 30_000, grid, 20, uniform if name == "uniform_l2" else PENALTIES
        )
        for name, rate in RATES.items()
    }
    assert curves["rag"][5000] < 0.1
    assert curves["rag"][30_000] < 0.01
    assert all(0.65 < value < 0.8 for value in curves["uniform_l2"].values())
    assert curves["nonuniform_l2"][30_000] > 0.3
    assert curves["expected_nested_dropout"][5000] < 0.2


@pytest.mark.slow
def test_the_certificate_of_mnist_names_latents_19_and_20(mnist):
    values = mnist.spectrum(20)[0]
    assert_allclose(values[18:], [0.626, 0.608], atol=5e-4)
    assert_allclose(zero_latents(values, PENALTIES), [19, 20])
    fitted = LinearAutoencoder(20, method="nonuniform_l2", l2=PENALTIES).fit(load_mnist().data)
    assert "latents 19–20 are zero at the optimum" in fitted.certificate_["nonzero_latents"].advice
    assert_allclose(fitted.certificate_["subspace"].value, 0.1, atol=1e-6)


def test_digits_show_the_same_order_of_methods():
    """Scaled to the top eigenvalue of MNIST, k = 8: RAG aligns first, uniform ℓ₂ never."""
    rows = load_digits(return_X_y=True)[0]
    top = SecondMoment.of(rows).spectrum(1)[0][0]
    moment = SecondMoment.of(rows * np.sqrt(5.1168 / top))
    smallest = moment.spectrum(8)[0][-1]
    spaced = np.linspace(0.1, 0.9, 8) ** 2 * smallest
    curves = {
        name: alignment(
            moment,
            name,
            RATES[name],
            4000,
            (1000, 4000),
            8,
            np.full(8, smallest / 2) if name == "uniform_l2" else spaced,
        )
        for name in ("rag", "uniform_l2", "nonuniform_l2", "expected_nested_dropout")
    }
    assert curves["rag"][4000] < 0.02
    assert curves["expected_nested_dropout"][4000] < 0.1
    assert curves["uniform_l2"][4000] > 0.3
    assert curves["nonuniform_l2"][4000] > curves["expected_nested_dropout"][4000]
    assert curves["rag"][4000] < curves["rag"][1000]
