"""A run as one HTML page that works offline: plots, completions over time, configuration.

    write_report(Path("runs/my-run"))  →  runs/my-run/report.html

Standard library only: a report is written on machines that have no torch, and opened on ones without Python.
"""

from rung.report.page import render, write_report

__all__ = ["render", "write_report"]
