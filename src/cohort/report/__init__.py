"""The HTML report of a run."""

from cohort.report.writing import render_report, write_report

__all__ = ["render_report", "write_report"]
