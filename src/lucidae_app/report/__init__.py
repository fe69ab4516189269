"""The report: one self-contained HTML page on a table of data (extra `cli`)."""

from lucidae_app.report.sections import write_report

__all__ = ["write_report"]
