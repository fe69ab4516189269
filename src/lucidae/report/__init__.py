"""The report page: templates and figures, no mathematics (extra `cli`)."""

from lucidae.report.page import write_report

__all__ = ["write_report"]
