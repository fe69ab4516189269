"""The display of the criteria for the number of components."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

import extras
from lucidae import DropoutAutoencoder, LinearAutoencoder
from lucidae.displays import ComponentCountDisplay
from lucidae.linear import count_components

CRITERIA = ("mle", "parallel_analysis", "hard_threshold")
plt = extras.require("matplotlib.pyplot")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((150, 20)) + RNG.standard_normal((150, 3)) @ RNG.standard_normal((3, 20))


@pytest.mark.parametrize("n_components", [None, 2, 0.9, *CRITERIA])
def test_all_fits_of_the_same_data_show_the_same_numbers(n_components):
    display = ComponentCountDisplay.from_estimator(LinearAutoencoder(n_components).fit(X))
    values = PCA().fit(X).explained_variance_
    np.testing.assert_allclose(display.eigenvalues, values[: len(display.eigenvalues)])
    for name in CRITERIA:
        expected = count_components(values, 150, name)
        assert display.counts[name].n_components == expected.n_components == 3
        np.testing.assert_allclose(display.counts[name].scores, expected.scores, rtol=1e-8)
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == ["Minka's evidence: 3", "parallel analysis: 3", "hard threshold: 3"]
    drawn = [line.get_xdata()[0] for line in display.ax_.lines[-3:]]
    assert len(set(drawn)) == 3
    assert all(2 < at < 3 for at in drawn)  # components 0, 1 and 2 are counted


def test_eigenvalues_exceed_their_level_exactly_if_they_count():
    values = PCA().fit(X).explained_variance_
    display = ComponentCountDisplay.from_spectrum(values, 150, max_components=8)
    for name in ("parallel_analysis", "hard_threshold"):
        above = display.eigenvalues > display.levels[name]
        assert np.flatnonzero(~above)[0] == display.counts[name].n_components == 3


def test_scikit_learn_and_few_rows():
    wide = X[:15]
    ours = ComponentCountDisplay.from_estimator(LinearAutoencoder("mle").fit(wide))
    peer = ComponentCountDisplay.from_estimator(PCA().fit(wide))
    for name in CRITERIA:
        assert ours.counts[name].n_components == peer.counts[name].n_components


def test_estimators_without_all_eigenvalues_are_refused():
    stream = LinearAutoencoder(2, solver="stochastic").partial_fit(X)
    for fitted in (PCA(2).fit(X), stream, DropoutAutoencoder(2).fit(X)):
        with pytest.raises(ValueError, match="did not compute all eigenvalues"):
            ComponentCountDisplay.from_estimator(fitted)


def test_data_without_variance_and_wrong_names():
    display = ComponentCountDisplay.from_spectrum(np.zeros(4), 10)
    assert all(count.n_components == 0 for count in display.counts.values())
    with pytest.raises(ValueError, match="the names 'kaiser'"):
        ComponentCountDisplay([1.0], {"kaiser": count_components([2.0, 1.0], 9)})
