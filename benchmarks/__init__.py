"""Ratios against peers, measured in one run; never part of the tests."""
