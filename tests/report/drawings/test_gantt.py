"""The drawing of tasks over time: every bar where it belongs."""

from __future__ import annotations

import re

from cohort.report.drawings.gantt import TaskBar, gantt_drawing


def bar(task: str, gpus: tuple[int, ...], start: float, end: float) -> TaskBar:
    return TaskBar(task=task, gpu_ids=gpus, start_seconds=start, end_seconds=end)


def boxes(drawing: str) -> list[tuple[float, ...]]:
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', drawing)
    return [tuple(map(float, box)) for box in found]


def test_bars_stand_in_their_rows_and_follow_time() -> None:
    drawing = gantt_drawing([bar("a", (0,), 0, 50), bar("b", (0,), 50, 100), bar("c", (1,), 0, 100)], gpu_ids=(0, 1))
    first, second, below = boxes(drawing)
    assert first[0] < second[0]
    assert abs(first[0] + first[2] - second[0]) < 2
    assert first[1] == second[1] < below[1]
    assert abs(below[2] - first[2] - second[2]) < 3


def test_a_task_on_neighbouring_gpus_is_one_bar() -> None:
    assert len(boxes(gantt_drawing([bar("wide", (1, 2, 3), 0, 9)], gpu_ids=(0, 1, 2, 3)))) == 1
    assert len(boxes(gantt_drawing([bar("split", (0, 2), 0, 9)], gpu_ids=(0, 1, 2, 3)))) == 2


def test_nothing_to_draw_is_no_drawing() -> None:
    assert gantt_drawing([], gpu_ids=(0,)) == ""
