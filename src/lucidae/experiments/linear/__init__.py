"""Experiments of the linear family (Bao et al. 2020)."""
