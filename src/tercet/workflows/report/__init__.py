"""One page about compressed models: what each costs, and what it lost."""

from tercet.workflows.report.write import ModelReport, write_model_report

__all__ = ["ModelReport", "write_model_report"]
