"""Formulas that the parts of the benchmark share."""
