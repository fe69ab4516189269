"""From figures to a certificate: each claim with its theorem, threshold and advice."""

from __future__ import annotations

import math

from lucidae.certificate import Certificate, Claim, at_least, at_most, does_not_apply, reported
from lucidae.dropout.measurement import Measurement

_EXACT = "solver='exact' reaches the optimum in one decomposition."


def judge(figures: Measurement, tolerance: float, title: str) -> Certificate:
    """Return the certificate that the figures support.

    Parameters
    ----------
    figures : Measurement
        What was measured.
    tolerance : float
        Relative gap that counts as none; relative distances are judged by its square root, since
        the gap is quadratic in them.
    title : str
        What was certified.
    """
    claims = (
        _gap(figures, tolerance),
        _product(figures, tolerance),
        _equalized(figures, tolerance),
        _path_norm(figures, tolerance),
        _rank(figures),
        _stationary(figures, tolerance),
        _curvature(figures, tolerance),
        *_paper_condition(figures),
    )
    return Certificate(title, claims)


def _gap(figures: Measurement, tolerance: float) -> Claim:
    reference = f"Mianjy et al. 2018, Theorem {'2.4' if figures.tied else '3.6'}"
    statement = "the expected dropout loss is its global minimum"
    if figures.gap is None:
        why = "No closed form is known for tied weights with inputs that are not white."
        return does_not_apply("gap", statement, reference, why)
    advice = figures.reason or f"Train on with a falling learning rate; {_EXACT}"
    return at_most("gap", statement, reference, figures.gap, tolerance, advice)


def _product(figures: Measurement, tolerance: float) -> Claim:
    statement = "the network is the optimal one: singular values shrunk by one threshold"
    reference = "Mianjy et al. 2018, Theorem 3.6"
    if figures.product_distance is None:
        why = "The optimal product is not known, or not unique: two singular values tie at the cut."
        return does_not_apply("product", statement, reference, why)
    return at_most(
        "product",
        statement,
        reference,
        figures.product_distance,
        math.sqrt(tolerance),
        f"The network computes another function than the optimal one. {_EXACT}",
    )


def _equalized(figures: Measurement, tolerance: float) -> Claim:
    statement = "all hidden units weigh the same (variance over squared mean)"
    reference = "Mianjy et al. 2018, Theorem 3.4"
    if figures.strength == 0:
        return does_not_apply("equalized", statement, reference, "Without dropout nothing asks it.")
    advice = "lucidae.equalize_pair levels the units and keeps the product."
    variance = figures.relative_variance
    return at_most("equalized", statement, reference, variance, tolerance, advice)


def _path_norm(figures: Measurement, tolerance: float) -> Claim:
    statement = "the path norm is the least that this product allows"
    reference = "Mianjy et al. 2018, Theorems 3.3 and 3.4"
    if figures.strength == 0:
        return does_not_apply("path norm", statement, reference, "Without dropout nothing asks it.")
    advice = "lucidae.equalize_pair attains it and keeps the product."
    return at_most("path norm", statement, reference, figures.path_excess, tolerance, advice)


def _rank(figures: Measurement) -> Claim:
    statement = f"at width {figures.width} the network has the rank that dropout leaves"
    reference = "Mianjy et al. 2018, Theorem 3.6"
    if figures.optimal_rank is None:
        return does_not_apply("rank", statement, reference, "The optimal rank is not known.")
    holds = figures.rank == figures.optimal_rank
    advice = "" if holds else "Directions that dropout would remove, or keep, differ from these."
    return Claim(
        "rank",
        statement,
        reference,
        float(figures.rank),
        float(figures.optimal_rank),
        holds,
        advice,
    )


def _stationary(figures: Measurement, tolerance: float) -> Claim:
    return at_most(
        "stationary",
        "the gradient of the expected dropout loss vanishes",
        "Mianjy et al. 2018, eq. 2",
        figures.stationarity,
        math.sqrt(tolerance),
        f"Training has not ended. {_EXACT}",
    )


def _curvature(figures: Measurement, tolerance: float) -> Claim:
    statement = "no direction of negative curvature: not a saddle"
    reference = f"Mianjy et al. 2018, {'Theorem 4.3' if figures.tied else 'Definition 4.2'}"
    if figures.curvature is None or math.isnan(figures.curvature):
        return does_not_apply("curvature", statement, reference, figures.reason)
    advice = f"A strict saddle. {figures.reason}"
    level = -math.sqrt(tolerance)
    return at_least("curvature", statement, reference, figures.curvature, level, advice)


def _paper_condition(figures: Measurement) -> tuple[Claim, ...]:
    """Report the bound of Theorem 4.3; the landscape does not need it."""
    if figures.paper_bound is None:
        return ()
    inside = figures.strength < figures.paper_bound
    advice = (
        f"λ = {figures.strength:.3g} lies {'below' if inside else 'above'} it; every local minimum "
        "is global either way (proof in lucidae.dropout.theory)."
    )
    return (
        reported(
            "small dropout",
            "strength below which the optimum keeps its full rank",
            "Mianjy et al. 2018, Theorem 4.3",
            figures.paper_bound,
            advice,
        ),
    )
