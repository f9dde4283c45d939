"""The picture of each GPU's work: rows, columns, joined stretches, gaps, and words."""

from __future__ import annotations

import re

from cohort.core.units import format_duration
from cohort.report.drawings.rank_timeline import rank_work_drawing, rank_work_note
from cohort.runs.records import RankWorkRecord


def record(rank: int, start: float, end: float, *, trains: float, evaluates: float = 0.0) -> RankWorkRecord:
    seconds = end - start
    return RankWorkRecord(
        rank=rank,
        start_seconds=start,
        end_seconds=end,
        train_seconds=trains * seconds,
        evaluate_seconds=evaluates * seconds,
        num_tokens=0,
    )


WORK = [
    record(0, 0, 50, trains=0.9, evaluates=0.1),
    record(1, 0, 50, trains=0.5),
    # a second process of the run, after a pause
    record(0, 60, 100, trains=1.0),
    record(1, 60, 100, trains=0.25, evaluates=0.25),
]


def rectangles(drawing: str) -> list[tuple[str, float, float]]:
    """Class, width and height of each."""
    pattern = r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)" height="([\d.]+)" class="(work-\w+)"'
    return [(name, float(width), float(height)) for width, height, name in re.findall(pattern, drawing)]


def test_columns_are_as_high_as_the_work() -> None:
    found = rectangles(rank_work_drawing(WORK, device="GPU"))
    assert [name for name, _, _ in found] == [
        "work-train", "work-evaluate", "work-train", "work-train", "work-train", "work-evaluate"
    ]  # fmt: skip
    full = found[2][2]
    assert [round(height / full, 2) for _, _, height in found] == [0.9, 0.1, 1.0, 0.5, 0.25, 0.25]
    assert {round(width / found[0][1], 1) for _, width, _ in found} == {1.0, 0.8}


def test_tooltips_and_the_description_say_it_in_words() -> None:
    drawing = rank_work_drawing(WORK, device="GPU")
    assert f"GPU 1, {format_duration(60)} to {format_duration(100)}: trained 25 %, evaluated 25 %" in drawing
    assert "GPU 0 worked 100 %, GPU 1 worked 50 % of the time." in drawing
    assert rank_work_note(WORK, device="GPU") == "GPU 0 worked 100 %, GPU 1 worked 50 % of the time."


def test_short_stretches_are_joined_to_what_can_be_seen() -> None:
    short = [record(rank, second, second + 1, trains=second % 2) for second in range(4000) for rank in (0, 1)]
    found = rectangles(rank_work_drawing(short, device="process"))
    assert 2 * 200 < len(found) <= 2 * 341
    half = [height for _, _, height in found[4:]]
    assert max(half) - min(half) < 0.2 * max(half)


def test_without_a_record_there_is_no_picture() -> None:
    assert rank_work_drawing([], device="GPU") == ""
    assert rank_work_note([], device="GPU") == ""
