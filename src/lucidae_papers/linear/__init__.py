"""Experiments on linear autoencoders (Bao et al. 2020)."""
