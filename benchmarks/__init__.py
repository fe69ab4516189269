"""Benchmarks: times and errors of lucidae and of other packages, measured in one run."""
