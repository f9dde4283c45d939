"""The drawing and the pages: every bar where it belongs, names escaped, planned bars above actual ones."""

from __future__ import annotations

import itertools
import re

from cohort.report.drawings.gantt import Pause, TaskBar, gantt_drawing, gantt_legend
from cohort.report.gantt_page import planned_against_actual_page


def bar(task: str, gpus: tuple[int, ...], start: float, end: float) -> TaskBar:
    return TaskBar(task=task, gpu_ids=gpus, start_seconds=start, end_seconds=end)


def boxes(drawing: str) -> list[tuple[float, ...]]:
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', drawing)
    return [tuple(map(float, box)) for box in found]


def test_planned_and_actual_stand_one_below_the_other() -> None:
    planned = [bar("a<b", (0,), 0, 100), bar("late", (0,), 100, 150)]
    actual = [bar("a<b", (0,), 0, 30), bar("a<b", (0,), 40, 60)]
    states = {"a<b": "done", "late": "held: its file changed", "never": "queued"}
    page = planned_against_actual_page(
        planned,
        actual,
        gpu_ids=(0,),
        states=states,
        results={"a<b": "loss 1.5"},
        links={"a<b": "a<b/report.html"},
        title="Queue <1>",
    )
    assert "a&lt;b" in page
    assert "a<b" not in page
    assert "Queue &lt;1&gt;" in page
    upper, _, lower, _ = boxes(page)
    assert lower[1] > upper[1]
    assert page.count('class="bar planned') == page.count('class="bar actual') == 2
    assert "2m 30s" in page, "both ends are told"
    assert "1m 00s" in page
    assert "<td>-</td>" in page, "one that never ran has no actual times"
    assert "1 of 3<" in page
    assert "<td>held: its file changed</td>" in page
    assert "<td>never</td><td>queued</td><td>-</td><td>-</td>" in page
    assert '<td><a href="a%3Cb/report.html">a&lt;b</a></td><td>done</td><td>loss 1.5</td>' in page
    # the legend: pale and solid bars, and the colour of every task
    legend = page.partition('<ul class="key">')[2].partition("</ul>")[0]
    assert re.findall(r"</svg>([^<]*)</li>", legend) == [
        "planned when first placed, without early exit",
        "what happened",
        "a&lt;b",
        "late",
        "never",
    ]


def test_planned_bars_that_want_the_same_slot_stand_apart() -> None:
    planned = [bar("a", (0,), 0, 100), bar("b", (0,), 60, 90), bar("c", (0,), 80, 120), bar("d", (0,), 100, 130)]
    drawing = gantt_drawing(planned, gpu_ids=(0, 1), actual=[bar("a", (0,), 0, 70), bar("b", (1,), 0, 130)])
    found = boxes(drawing)
    assert len(found) == 6
    for one, other in itertools.combinations(found, 2):
        apart_in_time = one[0] + one[2] <= other[0] + 0.1 or other[0] + other[2] <= one[0] + 0.1
        apart_in_height = one[1] + one[3] <= other[1] + 0.1 or other[1] + other[3] <= one[1] + 0.1
        assert apart_in_time or apart_in_height
    a, b, c, d, actual, _ = found
    assert a[1] == d[1] < b[1] < c[1] < actual[1], "the first lane that is free"


def test_pauses_and_ends_are_marked_and_named() -> None:
    ended = TaskBar(task="a", gpu_ids=(0,), start_seconds=0, end_seconds=100, ending="plus")
    pause = Pause(at_seconds=50, seconds=7200)
    drawing = gantt_drawing([], gpu_ids=(0,), actual=[ended], pauses=[pause])
    assert drawing.count('class="mark line on-bar"') == 1
    assert "pause of 2h 00m" in drawing
    assert "pauses left out" in drawing
    legend = gantt_legend([f"task {n}" for n in range(30)], endings=[("plus", "failed")], pauses=True)
    assert "failed</li>" in legend
    assert "no process ran the queue: left out" in legend
    assert "and 6 more" in legend
