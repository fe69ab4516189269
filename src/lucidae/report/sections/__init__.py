"""The chapters of the page, in their order; a family joins by adding its section here."""

from lucidae.report.blocks import Section
from lucidae.report.sections import data, dropout, following, linear, sparsity

SECTIONS: tuple[Section, ...] = (
    data.SECTION,
    linear.SECTION,
    dropout.SECTION,
    sparsity.SECTION,
    following.SECTION,
)
