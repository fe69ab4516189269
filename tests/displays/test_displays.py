import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import MultiTaskLasso

import extras
import lucidae

extras.require("matplotlib")

from matplotlib import pyplot as plt

from lucidae.displays import ComponentsDisplay, HistoryDisplay, RecoveryDisplay, SpectrumDisplay
from lucidae.iteration import History


@pytest.fixture(scope="module")
def digits():
    return lucidae.datasets.load_digits().data


@pytest.fixture(scope="module")
def linear(digits):
    return lucidae.LinearAutoencoder(6, solver="gradient", max_iter=500).fit(digits)


@pytest.fixture(scope="module")
def dropout(digits):
    return lucidae.DropoutAutoencoder(6).fit(digits)


def test_the_spectrum_of_a_linear_autoencoder_is_its_variances(linear):
    display = SpectrumDisplay.from_estimator(linear, color="red")
    assert np.array_equal(display.line_.get_ydata(), linear.explained_variance_)
    assert display.level == pytest.approx(linear.noise_variance_)
    assert display.line_.get_color() == "red"
    assert display.figure_ is display.ax_.figure


def test_the_spectrum_of_dropout_shows_its_threshold(dropout):
    display = SpectrumDisplay.from_estimator(dropout)
    assert np.array_equal(display.values, dropout.singular_values_)
    assert display.level == pytest.approx(dropout.threshold_)
    assert display.quantity == "singular value"


def test_a_display_draws_where_it_is_told(linear):
    _, ax = plt.subplots()
    assert SpectrumDisplay.from_estimator(linear, ax=ax).ax_ is ax
    assert len(plt.get_fignums()) == 1


def test_the_history_is_drawn_by_quantity(linear):
    display = HistoryDisplay.from_estimator(linear)
    assert display.quantity == "loss"
    assert np.array_equal(display.lines_[0].get_ydata(), linear.history_["loss"])
    assert HistoryDisplay.from_estimator(linear, quantity="distance").quantity == "distance"
    with pytest.raises(ValueError, match="quantity='colour'"):
        HistoryDisplay.from_estimator(linear, quantity="colour")


@pytest.mark.parametrize("method", ["rag", "nonuniform_l2"])
def test_the_history_shows_the_known_optimum(digits, method):
    fitted = lucidae.LinearAutoencoder(3, method=method, solver="gradient").fit(digits)
    exact = lucidae.LinearAutoencoder(3, method=method, solver="exact").fit(digits)
    optimum = HistoryDisplay.from_estimator(fitted).optimum
    assert optimum == pytest.approx(exact.certificate_.evidence["loss"], rel=1e-9)
    assert HistoryDisplay.from_estimator(fitted, quantity="distance").optimum is None


def test_the_history_of_dropout_training_shows_the_known_optimum(digits):
    trained = lucidae.DropoutAutoencoder(3, solver="sgd", max_iter=20, random_state=0)
    with pytest.warns(ConvergenceWarning):
        trained.fit(digits)
    exact = lucidae.DropoutAutoencoder(3).fit(digits)
    display = HistoryDisplay.from_estimator(trained)
    assert display.optimum == pytest.approx(exact.objective_, rel=1e-6)
    assert display.ax_.get_legend().get_texts()[0].get_text() == "optimum"


def test_the_optimum_is_shown_although_the_last_steps_were_not_recorded():
    matrix = np.random.default_rng(0).standard_normal((30, 20))
    trained = lucidae.DropoutFactorization(5, dropout=0.3, solver="sgd", random_state=0).fit(matrix)
    display = HistoryDisplay.from_estimator(trained)
    assert display.history["objective"][-1] != trained.objective_
    exact = lucidae.DropoutFactorization(5, dropout=0.3).fit(matrix)
    assert display.optimum == pytest.approx(exact.objective_, rel=1e-6)


def test_a_value_of_zero_does_not_undo_the_logarithmic_axis():
    display = History(np.arange(3), {"distance": np.array([1.0, 1e-3, 0.0])}).plot()
    assert display.ax_.get_yscale() == "log"
    assert np.isnan(display.lines_[0].get_ydata()[-1])
    spectrum = SpectrumDisplay([3.0, 1e-3, 0.0]).plot()
    assert spectrum.ax_.get_yscale() == "log"
    mixed = History(np.arange(2), {"loss": np.array([-1.0, 2.0])}).plot()
    assert mixed.ax_.get_yscale() == "linear"


def test_a_closed_form_has_no_history_and_says_so(digits):
    fitted = lucidae.LinearAutoencoder(2, solver="exact").fit(digits)
    with pytest.raises(ValueError, match="computed in closed form, without"):
        HistoryDisplay.from_estimator(fitted)
    with pytest.raises(ValueError, match="empty"):
        HistoryDisplay(fitted.history_)


def test_components_as_images_keep_every_pixel(linear):
    display = ComponentsDisplay.from_estimator(linear, image_shape=(8, 8), max_components=3)
    picture = display.image_.get_array()
    assert picture.shape == (8, 3 * 9 - 1)
    first = linear.components_[0].reshape(8, 8)
    np.testing.assert_allclose(picture[:, :8], first / abs(first).max())
    with pytest.raises(ValueError, match=r"image_shape=\(7, 8\)"):
        ComponentsDisplay.from_estimator(linear, image_shape=(7, 8))


def test_components_without_a_shape_are_a_matrix(dropout):
    display = ComponentsDisplay.from_estimator(dropout)
    np.testing.assert_allclose(display.image_.get_array(), dropout.right_.T)
    assert display.ax_.get_ylabel() == "component"


def test_names_of_features_are_shown():
    pandas = extras.require("pandas")
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(30, 3)), columns=list("abc"))
    display = ComponentsDisplay.from_estimator(lucidae.LinearAutoencoder(2).fit(frame))
    assert [label.get_text() for label in display.ax_.get_xticklabels()] == ["a", "b", "c"]


def test_recovery_compares_with_the_truth():
    data = lucidae.datasets.make_sparse_regression(d=20, kappa=30, r=3, random_state=0)
    fitted = lucidae.SparseVAE(noise_variance=1e-6).fit(data.dictionary, data.responses)
    display = RecoveryDisplay.from_estimator(fitted, data.coef)
    assert display.recovered == 1.0
    assert set(display.support) == set(data.support)
    np.testing.assert_allclose(display.strengths, np.linalg.norm(fitted.coef_, axis=0))
    lasso = MultiTaskLasso(alpha=1e-3).fit(data.dictionary, data.responses)
    assert RecoveryDisplay.from_estimator(lasso).recovered is None
    with pytest.raises(ValueError, match="one norm per column"):
        RecoveryDisplay.from_estimator(fitted, data.coef[:, :5])


@pytest.fixture(scope="module")
def sparse():
    data = lucidae.datasets.make_sparse_regression(d=10, kappa=12, r=1, random_state=0)
    return lucidae.SparseVAE(noise_variance=1e-3).fit(data.dictionary, data.responses)


@pytest.mark.parametrize(
    ("display", "unsuited"),
    [(SpectrumDisplay, "sparse"), (ComponentsDisplay, "sparse"), (RecoveryDisplay, "linear")],
)
def test_what_cannot_be_drawn_is_refused_with_a_reason(display, unsuited, request):
    with pytest.raises(ValueError, match="which has none of"):
        display.from_estimator(request.getfixturevalue(unsuited))


@pytest.mark.parametrize(
    "display", [SpectrumDisplay, HistoryDisplay, ComponentsDisplay, RecoveryDisplay]
)
def test_what_is_not_fitted_is_refused(display):
    with pytest.raises(NotFittedError):
        display.from_estimator(lucidae.LinearAutoencoder(2))


def test_components_have_the_indices_of_the_estimator(linear):
    display = SpectrumDisplay.from_estimator(linear)
    expected = np.arange(len(linear.components_))
    np.testing.assert_array_equal(display.line_.get_xdata(), expected)


def test_dollars_in_names_are_text():
    names = ["price in $", "tax in $", r"$\alpha$"]
    display = ComponentsDisplay(np.eye(3)[:2], feature_names=names).plot()
    display.figure_.canvas.draw()
    labels = display.ax_.get_xticklabels()
    for label, name in zip(labels, names, strict=True):
        text, is_formula = label._preprocess_math(label.get_text())
        assert (text, is_formula) == (name, False)


def test_zeros_are_drawn_on_a_linear_axis():
    with_zero = SpectrumDisplay(np.array([3.0, 0.0]), level=0.0).plot()
    assert with_zero.ax_.get_yscale() == "linear"
    assert len(with_zero.ax_.lines) == 1  # a level of zero is not drawn
    above = SpectrumDisplay(np.array([3.0, 1.0]), level=0.5).plot()
    assert above.ax_.get_yscale() == "log"
    assert len(above.ax_.lines) == 2
