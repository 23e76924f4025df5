"""Result files to one self-contained page with plots."""

from anchorlm.report.html import write_report

__all__ = ["write_report"]
