"""Autoencoders whose optimum is known."""

from lucidae._version import __version__

__all__ = ["__version__"]
