"""Experiments on deep VAEs (Wipf 2023, Section 5.2; extra ``torch``)."""
