"""Experiments on deep VAEs (Wipf 2023, section 5.2; extra ``torch``)."""
