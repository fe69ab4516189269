"""How evenly a linear network spreads its function over the hidden units."""

from __future__ import annotations

from typing import Any

from lucidae.arrays import Array, namespace
from lucidae.metrics._inputs import norms, pair, require, single_or_stack


def importance_scores(U: Any, V: Any) -> Array:
    """Return ‖uᵢ‖‖vᵢ‖ for every hidden unit i. Mianjy et al. 2018, section 6.

    Parameters
    ----------
    U : array of shape (..., d1, r)
        Outgoing weights, one column a hidden unit.
    V : array of shape (..., d2, r)
        Incoming weights, one column a hidden unit (for inputs that are not white: LᵀV with
        E[xxᵀ] = LLᵀ). Tied weights: give U twice.

    Returns
    -------
    array of shape (..., r)

    Examples
    --------
    >>> from lucidae.metrics import importance_scores
    >>> importance_scores([[3.0, 0.0], [4.0, 2.0]], [[1.0, 5.0]])
    array([ 5., 10.])
    """
    outgoing, incoming = pair(U, V, ("U", "V"))
    same = outgoing.shape[-1] == incoming.shape[-1]
    require(same, outgoing, incoming, "U (..., d1, r) and V (..., d2, r) with as many columns")
    return norms(outgoing, axis=-2) * norms(incoming, axis=-2)


def equalization_variance(U: Any, V: Any) -> Any:
    """Return the variance of the importance scores over the hidden units (divisor r).

    Zero exactly when the pair is jointly equalized, as every global optimum under dropout is:
    Mianjy et al. 2018, Theorem 3.4 and the right panels of Figure 3.

    Parameters
    ----------
    U : array of shape (..., d1, r)
    V : array of shape (..., d2, r)

    Returns
    -------
    float, or array of shape (...)

    Examples
    --------
    >>> from lucidae.metrics import equalization_variance
    >>> equalization_variance([[3.0, 0.0], [4.0, 2.0]], [[1.0, 5.0]])
    6.25
    """
    scores = importance_scores(U, V)
    return single_or_stack(namespace(scores).var(scores, axis=-1))


def path_norm(U: Any, V: Any) -> Any:
    """Return the path norm ψ₂ = (Σᵢ ‖uᵢ‖²‖vᵢ‖²)^½ of a linear network.

    Dropout with λ = (1 − θ)/θ adds λψ₂² to the expected squared loss: Mianjy et al. 2018,
    section 1.

    Parameters
    ----------
    U : array of shape (..., d1, r)
    V : array of shape (..., d2, r)

    Returns
    -------
    float, or array of shape (...)

    Examples
    --------
    >>> from lucidae.metrics import path_norm
    >>> path_norm([[3.0, 0.0]], [[1.0, 5.0]])
    3.0
    """
    return single_or_stack(norms(importance_scores(U, V), axis=-1))
