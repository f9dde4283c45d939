"""The drawn timeline of a pipeline is the simulator's."""

from __future__ import annotations

from tools.pipeline_figure import FIGURE, drawn


def test_the_figure_is_up_to_date() -> None:
    assert FIGURE.read_text(encoding="utf-8") == drawn(), "run python tools/pipeline_figure.py"
