"""Experiments on row-sparse codes of a dictionary (Wipf 2023)."""
