"""Scalars that can be logged during training, and a figure of them, for any training loop.

A log, such as that of TensorBoard, takes a flat dictionary from names to numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lucidae.certificates.claims import Certificate
from lucidae.nn.collapse import CollapseReport, collapse_report
from lucidae.nn.prefixes import PrefixLoss
from lucidae.validation import install_command

__all__ = [
    "certificate_scalars",
    "collapse_scalars",
    "mean_scalars",
    "prefix_scalars",
    "scalars_figure",
]

Scalars = dict[str, float]

LENGTH = re.compile(r"(?P<name>.*)_(?P<length>\d+)")
"""Pattern of the names of scalars that belong to a prefix, such as ``prefix_8``."""


def collapse_scalars(report: Any, loader: Any = None, **settings: Any) -> Scalars:
    """Return the numbers of a collapse report that are worth following during training.

    Parameters
    ----------
    report : CollapseReport, or nn.Module
        Result of `collapse_report`, or the model itself.
    loader : tensor, or iterable of batches, optional
        Inputs of the model, if `report` is a model.
    **settings
        Further arguments of `collapse_report`, if `report` is a model.

    Returns
    -------
    dict of str to float
        ``active``, the number of active latents; ``total_kl`` in nats; and, where they are known,
        ``noise_variance`` and ``linear_latents``, the number of latents that a linear VAE of this
        noise would use.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import DictionaryVAE, collapse_scalars
    >>> model = DictionaryVAE(torch.eye(2), noise_variance=1.0)
    >>> scalars = collapse_scalars(model, torch.randn(50, 2))
    >>> scalars["active"], scalars["noise_variance"]
    (0.0, 1.0)
    """
    if loader is not None:
        report = collapse_report(report, loader, **settings)
    if not isinstance(report, CollapseReport):
        raise ValueError(
            f"report is of type {type(report).__name__}, expected a CollapseReport, the result of "
            "collapse_report, or a model and its inputs."
        )
    found = {
        "active": report.n_active,
        "total_kl": report.total_kl,
        "noise_variance": report.noise_variance,
        "linear_latents": report.linear_latents,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def certificate_scalars(certificate: Certificate) -> Scalars:
    """Return the measured values of a certificate, and how many of its claims hold.

    Parameters
    ----------
    certificate : Certificate
        Result of `certify`, `certify_dropout` or `certify_linear`.

    Returns
    -------
    dict of str to float
        The value of each claim that has one, by the name of the claim; ``claims_held`` and
        ``claims_failed``, the numbers of claims that hold and that fail.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import certificate_scalars, certify_dropout
    >>> _ = torch.manual_seed(0)
    >>> first, second = torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 3, bias=False)
    >>> scalars = certificate_scalars(certify_dropout(first, second, torch.randn(50, 3)))
    >>> scalars["gap"] > 0, scalars["claims_failed"] > 0
    (True, True)
    """
    if not isinstance(certificate, Certificate):
        raise ValueError(
            f"certificate is of type {type(certificate).__name__}, expected a Certificate, the "
            "result of certify."
        )
    found = {
        claim.name: float(claim.value)
        for claim in certificate.claims
        if claim.value is not None and math.isfinite(claim.value)
    }
    verdicts = [claim.holds for claim in certificate.claims]
    counted = {"claims_held": verdicts.count(True), "claims_failed": verdicts.count(False)}
    return found | {name: float(value) for name, value in counted.items()}


def prefix_scalars(module: Any) -> Scalars:
    """Return the losses of all prefixes in the last call of every `PrefixLoss` in a module.

    Parameters
    ----------
    module : nn.Module
        A `PrefixLoss`, or a network that contains some.

    Returns
    -------
    dict of str to float
        The entries of `PrefixLoss.last`. If several of these modules have the same name, the path
        of each module in the network precedes its names.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import PrefixLoss, prefix_scalars
    >>> loss = PrefixLoss(torch.sum, dims=[1, 2])
    >>> _ = loss(torch.ones(3, 2))
    >>> prefix_scalars(loss)
    {'prefix_1': 3.0, 'prefix_2': 6.0}
    """
    if not callable(getattr(module, "named_modules", None)):
        raise ValueError(f"module is of type {type(module).__name__}, expected an nn.Module.")
    inside = {path: part for path, part in module.named_modules() if isinstance(part, PrefixLoss)}
    names = [part.name for part in inside.values()]
    return {
        f"{path}.{name}" if names.count(part.name) > 1 else name: value
        for path, part in inside.items()
        for name, value in part.last.items()
    }


def mean_scalars(rows: Iterable[Mapping[str, float]]) -> Scalars:
    """Return the mean of each scalar over those dictionaries in which it occurs.

    Parameters
    ----------
    rows : iterable of mappings from str to float
        For example the losses of the prefixes in each step; random prefixes differ between steps.

    Returns
    -------
    dict of str to float
        The mean of each scalar, by its name.

    Examples
    --------
    >>> from lucidae.nn import mean_scalars
    >>> mean_scalars([{"prefix_1": 3.0}, {"prefix_1": 1.0, "prefix_2": 0.5}])
    {'prefix_1': 2.0, 'prefix_2': 0.5}
    """
    gathered: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            gathered.setdefault(name, []).append(float(value))
    return {name: sum(values) / len(values) for name, values in gathered.items()}


def scalars_figure(history: Sequence[Mapping[str, float]], title: str = "") -> Any:
    """Draw scalars against the epoch of their measurement, one panel for each.

    Scalars that end in the length of a prefix, such as ``prefix_8``, share one panel. Panels whose
    values are all positive and vary by more than a factor of 20 have a logarithmic axis.

    Parameters
    ----------
    history : sequence of mappings from str to float
        Scalars in the order in which they were measured; the entry ``"epoch"`` is the abscissa,
        by default the number of the row.
    title : str, default=""
        Title of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        Not registered with pyplot, so that it need not be closed.

    Examples
    --------
    >>> from lucidae.nn import scalars_figure
    >>> figure = scalars_figure([{"gap": 1.0}, {"gap": 0.1}], "Certificate")
    >>> len(figure.axes)
    1
    """
    if not history or not any(name != "epoch" for row in history for name in row):
        raise ValueError(
            "history contains no scalar, expected at least one measurement: call measure first."
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"scalars_figure needs matplotlib: {install_command('cli')}") from error
    panels = _panels(history)
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(max(6.4, 4.0 * columns), 3.0 * rows), layout="constrained")
    flat = list(figure.subplots(rows, columns, squeeze=False).flat)
    for place, (name, members) in zip(flat, panels.items(), strict=False):
        _draw_panel(place, name, members, history)
    for place in flat[len(panels) :]:
        place.set_axis_off()
    figure.suptitle(title)
    return figure


def _panels(history: Sequence[Mapping[str, float]]) -> dict[str, dict[str, str]]:
    """Return the scalars of each panel of a figure: a dictionary from scalar names to labels."""
    panels: dict[str, dict[str, str]] = {}
    for name in dict.fromkeys(name for row in history for name in row if name != "epoch"):
        found = LENGTH.fullmatch(name)
        group, label = (found["name"], found["length"]) if found else (name, "")
        panels.setdefault(group, {})[name] = label
    ordered = {}
    for group, members in panels.items():
        ordered[group] = dict(sorted(members.items(), key=lambda one: int(one[1] or 0)))
    return ordered


def _draw_panel(
    axes: Any, title: str, members: Mapping[str, str], history: Sequence[Mapping[str, float]]
) -> None:
    """Draw the curves of one panel; those of prefixes get darker with their length."""
    import matplotlib as mpl

    shades = mpl.colormaps["viridis_r"]
    values: list[float] = []
    for position, (name, label) in enumerate(members.items()):
        points = [
            (row.get("epoch", step), row[name]) for step, row in enumerate(history) if name in row
        ]
        colour = shades((position + 1) / len(members)) if len(members) > 1 else None
        axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=label or None)
        values += [value for _, value in points]
    if min(values) > 0 and max(values) > 20 * min(values):
        axes.set_yscale("log")
    axes.set(title=title.replace("_", " "), xlabel="epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(members) > 1:
        # Beside the curves, which would otherwise be hidden.
        beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}
        axes.legend(title="dimensions", fontsize=8, title_fontsize=8, **beside)
