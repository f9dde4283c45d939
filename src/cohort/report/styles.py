"""The style sheets of pages: the palette, which the dashboard shares, and what the report's parts look like."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["PALETTE", "report_style"]

PALETTE = "palette.css"
"""The file with the colours of light and dark paper."""


def report_style() -> str:
    """Return the style of a page that opens without a network."""
    folder = files("cohort.report")
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in (PALETTE, "report.css"))
