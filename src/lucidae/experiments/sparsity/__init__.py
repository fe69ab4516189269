"""Experiments of the sparsity family (Wipf 2023)."""
