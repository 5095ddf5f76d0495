"""Report: measured records as pages for people: one HTML file, offline, no dependencies."""

from tercet.harness.report.regress import regress_markdown, write_regress
from tercet.harness.report.write import ReportSummary, write_report

__all__ = ["ReportSummary", "regress_markdown", "write_regress", "write_report"]
