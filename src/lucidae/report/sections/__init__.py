"""The chapters of the page, in their order; a family joins by adding its section here."""

from lucidae.report.blocks import Section
from lucidae.report.sections import data, following, linear

SECTIONS: tuple[Section, ...] = (data.SECTION, linear.SECTION, following.SECTION)
