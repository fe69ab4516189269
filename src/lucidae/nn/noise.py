"""The variance γ of a Gaussian decoder: fixed, scheduled, or at its optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lucidae.nn.layers import Tensor, full_precision
from lucidae.validation import check_integer, check_number

__all__ = ["GeometricSchedule", "NoiseVariance"]

RATE = 0.05
"""Weight of the newest batch in the running mean of the squared error."""

FLOOR = 1e-8
"""Smallest variance: single precision cannot tell smaller squared errors from zero."""


@dataclass(frozen=True, slots=True)
class GeometricSchedule:
    """A variance that moves from `start` to `end` by a constant factor a step, and stays there.

    Parameters
    ----------
    start, end : float
        First and last variance.
    steps : int
        Number of training steps in between.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import GeometricSchedule
    >>> schedule = GeometricSchedule(1.0, 0.01, steps=100)
    >>> round(float(schedule(torch.tensor(50))), 6)
    0.1
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        check_number(self.start, "start", low=0.0, open_low=True)
        check_number(self.end, "end", low=0.0, open_low=True)
        check_integer(self.steps, "steps", low=1)

    def __call__(self, step: Tensor) -> Tensor:
        """Return the variance after `step` training steps."""
        done = torch.clamp(step / self.steps, 0.0, 1.0)
        return self.start * (self.end / self.start) ** done


class NoiseVariance(nn.Module):
    """Hold γ, and renew it once for every training batch.

    Parameters
    ----------
    setting : "learn", float, or callable, default="learn"
        ``"learn"`` keeps γ at its optimum, the mean squared error, as a running mean over
        batches: trained with the network's own learning rate it would lag behind by orders of
        magnitude. A float fixes it. A callable gives it from the number of training steps, a
        tensor, such as `GeometricSchedule`.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import NoiseVariance
    >>> noise = NoiseVariance("learn")
    >>> noise(torch.tensor(0.25)).item()
    0.25
    """

    def __init__(self, setting: str | float | Callable[[Tensor], Any] = "learn") -> None:
        super().__init__()
        first = 1.0
        if isinstance(setting, str):
            if setting != "learn":
                raise ValueError(
                    f"noise_variance={setting!r} was given, expected 'learn', a positive number, "
                    "or a function of the step."
                )
        elif not callable(setting):
            first = check_number(setting, "noise_variance", low=0.0, open_low=True)
        self.setting = setting
        self.register_buffer("value", torch.tensor(first))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, mean_square: Tensor) -> Tensor:
        """Return γ for a batch of this mean squared error; no gradient flows into it.

        At the optimum the loss does not depend on γ to first order, so the gradients of all other
        parameters are exact without it.
        """
        if self.training:
            with torch.no_grad():
                self.value.copy_(self._renewed(full_precision(mean_square.detach())))
                self.steps.add_(1)
        return self.value.clone()

    def extra_repr(self) -> str:
        """Return the settings for the printed module."""
        return f"{self.setting!r}"

    def _renewed(self, mean_square: Tensor) -> Tensor:
        if callable(self.setting):
            return torch.as_tensor(self.setting(self.steps), dtype=self.value.dtype)
        if self.setting != "learn":
            return self.value
        running = (1 - RATE) * self.value + RATE * mean_square
        return torch.where(self.steps == 0, mean_square, running).clamp_min(FLOOR)
