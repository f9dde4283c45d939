"""Write the tables of docs/bd-lora-study.md from the result files of its two studies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.measure import REPOSITORY, RESULTS
from benchmarks.sweeps.study_page import markdown_table, renew_between

__all__ = ["main"]

PAGE = REPOSITORY / "docs" / "bd-lora-study.md"

Rows = Sequence[Mapping[str, Any]]


def quality(rows: Rows) -> list[str]:
    """Return the table of losses: the mean and the spread over seeds, and the mean over that of LoRA."""
    plain = {row["task"]: row["loss_mean"] for row in rows if row["structure"] == "lora"}
    return markdown_table(
        ["task", "adapter", "r", "parameters", "validation loss, mean", "spread", "over LoRA"],
        [
            (
                row["task"],
                row["structure"],
                str(row["r"]),
                f"{row['parameters']:,}",
                f"{row['loss_mean']:.4f}",
                f"{row['loss_spread']:.4f}",
                f"{row['loss_mean'] / plain[row['task']]:.3f}",
            )
            for row in rows
        ],
    )


def conversion(rows: Rows) -> list[str]:
    """Return the table of what conversion loses and training repairs."""
    shown = [row for row in rows if "loss" in row]
    return markdown_table(
        ["task", "adapter", "change lost", "validation loss"],
        [
            (row["task"], row["what"], f"{100 * row['error']:.0f} %" if "error" in row else "", f"{row['loss']:.4f}")
            for row in shown
        ],
    )


def spectra(rows: Rows) -> list[str]:
    """Return the table of singular values of trained adapters' blocks."""
    shown = [row for row in rows if "spectrum" in row]
    most = max((len(row["spectrum"]) for row in shown), default=0)
    return markdown_table(
        ["task", "blocks", *(f"value {i + 1}" for i in range(most))],
        [(row["task"], row["what"].split()[2], *(f"{value:.2f}" for value in row["spectrum"])) for row in shown],
    )


def main() -> None:
    """Renew the page."""
    names = ("bd_quality", "bd_conversion")
    found = {name: json.loads((RESULTS / f"{name}.json").read_text())["rows"] for name in names}
    renew_between(
        PAGE,
        {
            "quality": quality(found["bd_quality"]),
            "conversion": conversion(found["bd_conversion"]),
            "spectra": spectra(found["bd_conversion"]),
        },
    )


if __name__ == "__main__":
    main()
