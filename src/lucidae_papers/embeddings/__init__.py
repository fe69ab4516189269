"""Experiments on embeddings of classifiers (extra ``torch``)."""
