"""Experiments on dropout in linear networks (Mianjy et al. 2018)."""
