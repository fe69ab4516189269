"""Linear autoencoders that recover the principal components (Bao et al. 2020)."""
