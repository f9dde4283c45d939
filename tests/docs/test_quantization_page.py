"""The table of formats says where each runs in the words that `cohort doctor` prints."""

from __future__ import annotations

from pathlib import Path

from cohort.models.weight_formats import WEIGHT_FORMATS

PAGE = Path(__file__).parents[2] / "docs/how-to/quantization.md"


def test_the_table_says_where_each_format_runs_as_the_code_has_it() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    start = next(index for index, cells in enumerate(rows) if cells[-1] == "runs on")
    table = {cells[0].strip("`"): cells[-1] for cells in rows[start + 2 : start + 2 + len(WEIGHT_FORMATS)]}
    assert table == {name: kept.runs_on for name, kept in WEIGHT_FORMATS.items()}
