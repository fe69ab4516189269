"""An energy from outside the package, registered by name."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import lucidae
from lucidae import SparseVAE
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import Energy, register_posterior, solve_batch


@dataclass(frozen=True)
class LaplacePrior(Energy):
    """tr(XXᵀΣ⁻¹) + Σⱼ wⱼ: its minimiser over w is the group lasso, since a/w + w ≥ 2√a."""

    groups: Any = None

    def value(self, state):
        return state.energy_of_fit + state.relevance.sum(axis=-1)

    def gradient(self, state):
        slope = 1.0 - state.alignment
        return slope if self.groups is None else self.groups.share(slope)

    def violation(self, state):
        slope = -self.gradient(state)
        return np.maximum(state.relevance * np.abs(slope), slope).max(axis=-1)

    def update(self, rule="mm"):
        return lambda state: state.relevance * np.sqrt(state.alignment)


register_posterior("laplace", lambda _, groups: LaplacePrior(groups))


@pytest.fixture(scope="module")
def toy():
    return make_sparse_regression(20, 30, 3, 5, snr_db=20, random_state=0)


def fitted(p, **options):
    model = SparseVAE(
        posterior="laplace", noise_variance=p.noise_variance, max_iter=20_000, tol=1e-5, **options
    )
    return model.fit(p.dictionary, p.responses)


def test_it_is_minimised_certified_saved_and_loaded(toy, tmp_path):
    model = fitted(toy)
    assert model.status_.ok
    assert model.certificate_["stationarity"].holds
    assert "laplace posterior" in model.certificate_.title
    assert "not verified independently" in model.certificate_["stationarity"].reference
    on_data = lucidae.certify(model, toy.dictionary, toy.responses)
    assert on_data["stationarity"].value == pytest.approx(model.certificate_["stationarity"].value)
    lucidae.save(model, tmp_path / "toy.npz")
    again = lucidae.load(tmp_path / "toy.npz")
    assert_allclose(again.predict(toy.dictionary), model.predict(toy.dictionary))
    assert again.certificate_.to_dict() == model.certificate_.to_dict()


def test_its_optimum_satisfies_the_conditions_of_the_group_lasso(toy):
    model = fitted(toy, fit_intercept=False)
    # in the normalised problem a/w + w is minimal at w = √a, so coefficients are those of
    # ‖X − ΦU‖²/γ + 2 Σ ‖φⱼ‖‖uⱼ‖ s/√n for responses with root mean square s
    X, y = toy.dictionary, toy.responses
    U = model.coef_.T
    slopes = X.T @ (y - X @ U) / toy.noise_variance
    norms = np.linalg.norm(U, axis=1)
    bound = np.linalg.norm(X, axis=0) * np.sqrt(5) / np.sqrt(np.mean(y**2))
    used = norms > 1e-2 * norms.max()
    assert used.sum() >= 3
    assert_allclose(np.linalg.norm(slopes, axis=1)[used], bound[used], rtol=1e-3)
    assert (np.linalg.norm(slopes, axis=1) <= bound * (1 + 1e-3)).all()


def test_it_is_solved_in_stacks_and_by_held_out_rows(toy):
    ended = solve_batch(
        toy.dictionary[None],
        toy.responses[None],
        posterior="laplace",
        noise_variance=toy.noise_variance,
        tol=1e-5,
        max_iter=20_000,
    )
    model = fitted(toy, fit_intercept=False)
    assert_allclose(ended.value.coef[0], model.coef_, atol=1e-4)
    assert_allclose(ended.value.energy[0], model.energy_, rtol=1e-6)
    held_out = SparseVAE(posterior="laplace", noise_variance="cv", max_iter=20_000, tol=1e-4)
    assert held_out.fit(toy.dictionary, toy.responses).noise_variance_ > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "coordinate"}, "solver='coordinate' needs an exact minimiser .* LaplacePrior"),
        ({"solver": "em"}, "solver='em' needs the expectation–maximisation"),
        ({"noise_variance": "learn"}, "LaplacePrior is a point estimate"),
        ({"solver": "coordinate", "groups": np.arange(30) // 3}, "LaplacePrior with groups"),
    ],
)
def test_what_it_does_not_have_is_refused_with_a_sentence(toy, options, message):
    settings = {"noise_variance": 0.1} | options
    with pytest.raises(ValueError, match=message):
        SparseVAE(posterior="laplace", **settings).fit(toy.dictionary, toy.responses)


def test_names_are_given_once_and_unknown_ones_are_listed(toy):
    with pytest.raises(ValueError, match="name='full' was given, expected a string that is not"):
        register_posterior("full", lambda _, groups: LaplacePrior(groups))
    with pytest.raises(ValueError, match="'point', 'laplace'"):
        SparseVAE(posterior="cauchy").fit(toy.dictionary, toy.responses)


def test_exact_coordinates_need_a_marginal(toy):
    @dataclass(frozen=True)
    class Promising(LaplacePrior):
        exact_coordinates = True

    register_posterior("promising", lambda _, groups: Promising(groups))
    model = SparseVAE(posterior="promising", solver="coordinate", noise_variance=0.1)
    with pytest.raises(ValueError, match="Promising has exact_coordinates=True but its marginal"):
        model.fit(toy.dictionary, toy.responses)
