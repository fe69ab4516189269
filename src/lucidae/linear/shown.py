"""The fitted attributes of `LinearAutoencoder`, read from the model that is solved on demand."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted

from lucidae._arrays import Array, namespace
from lucidae.linear.kept import LinearKept
from lucidae.linear.model import Model
from lucidae.solution import History, Status


class ShownMixin:
    """Properties over `_kept`: the first one to be read after `partial_fit` solves the model."""

    _kept: LinearKept

    @property
    def _model(self) -> Model:
        check_is_fitted(self)
        return self._kept.model

    @property
    def mean_(self) -> Array:
        """Mean of the data, shape (m,)."""
        return self._kept.shown(self._model.mean)

    @property
    def encoder_(self) -> Array:
        """Encoder W₁, shape (k, m)."""
        return self._kept.shown(self._model.encoder)

    @property
    def decoder_(self) -> Array:
        """Decoder W₂, shape (m, k)."""
        return self._kept.shown(self._model.atoms.mT)

    @property
    def components_(self) -> Array:
        """Principal directions as unit rows, shape (k, m)."""
        return self._kept.shown(self._model.components)

    @property
    def explained_variance_(self) -> Array:
        """Variance along each component, divisor Σw − 1."""
        return self._kept.shown(self._model.variances)

    @property
    def explained_variance_ratio_(self) -> Array:
        """Share of the total variance along each component."""
        model = self._model
        total = model.total_variance
        return self._kept.shown(model.variances / total if total > 0 else 0.0 * model.variances)

    @property
    def singular_values_(self) -> Array:
        """Singular values of the centred data along each component."""
        model = self._model
        return self._kept.shown(namespace(model.variances).sqrt(model.variances * model.degrees))

    @property
    def noise_variance_(self) -> float:
        """Mean variance outside the components."""
        return self._model.noise_variance

    @property
    def n_components_(self) -> int:
        """Number of latents."""
        return int(self._model.components.shape[0])

    @property
    def n_samples_seen_(self) -> int | float:
        """Total weight of the samples, an integer where it is whole."""
        check_is_fitted(self)
        weight = self._kept.weight
        return int(weight) if weight == int(weight) else weight

    @property
    def n_iter_(self) -> int:
        """Number of steps."""
        return self._model.outcome.n_iter

    @property
    def status_(self) -> Status:
        """How the solver ended."""
        return self._model.outcome.status

    @property
    def history_(self) -> History:
        """What descent recorded."""
        return self._model.outcome.history

    @property
    def _n_features_out(self) -> Any:
        return self.n_components_
