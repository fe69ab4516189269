"""Version number of the package, which the build reads from this file."""

__version__ = "0.4.0"
