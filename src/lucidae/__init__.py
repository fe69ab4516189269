"""Autoencoders whose optimum is known."""

from lucidae._version import __version__
from lucidae.moments import SecondMoment

__all__ = ["SecondMoment", "__version__"]
