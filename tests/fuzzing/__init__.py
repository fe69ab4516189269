"""Fuzzers of lucidae, one module per area; `python3 dev.py fuzz` runs them for minutes or hours.

Each area has a function ``cases(rng)`` that yields the cases of one seed, and a function
``check(case)`` that returns the findings of one case. Both are deterministic: the seed of a finding
repeats it.
"""
