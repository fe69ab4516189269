"""Certificates: claims about a fit, and what their verdicts are computed with.

`claims` has the classes and the function `lucidae.certify`; `bounds`, `rows` and `sketch` are the
only modules of this package that a family's verifier imports.
"""

from lucidae.certificates.claims import (
    Certificate,
    Claim,
    at_least,
    at_most,
    does_not_apply,
    reported,
    undecided,
)

__all__ = [
    "Certificate",
    "Claim",
    "at_least",
    "at_most",
    "does_not_apply",
    "reported",
    "undecided",
]
