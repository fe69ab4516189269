"""Experiments of the dropout family (Mianjy et al. 2018)."""
