"""A plan in a terminal keeps its proportions and fits its width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from cohort.cli.tables.gantt_text import print_gantt
from cohort.scheduling.placement.records import Placement


def drawn(*placements: Placement, gpu_ids: tuple[int, ...], width: int = 60) -> list[str]:
    stream = io.StringIO()
    names = sorted({placement.task_id for placement in placements})
    print_gantt(Console(file=stream, width=width), placements, gpu_ids=gpu_ids, names=names, device="GPU")
    return stream.getvalue().splitlines()


def placement(task: str, gpu_ids: tuple[int, ...], start: float, end: float) -> Placement:
    return Placement(task_id=task, gpu_ids=gpu_ids, start_seconds=start, end_seconds=end)


def test_blocks_are_as_long_as_their_times() -> None:
    first, second, *axis = drawn(
        placement("long", (0,), 0.0, 100.0),
        placement("half", (1,), 0.0, 50.0),
        placement("rest", (1,), 50.0, 100.0),
        gpu_ids=(0, 1),
    )
    assert first.startswith("GPU 0 │[long·")
    bar = second.removeprefix("GPU 1 │")
    assert abs(bar.index("[rest") - len(bar) / 2) <= 1
    assert axis[-1].split() == ["0s", "1m", "40s"]


def test_a_task_on_two_devices_is_drawn_on_both_and_nothing_exceeds_the_width() -> None:
    lines = drawn(placement("wide", (0, 1), 0.0, 10.0), placement("later", (1,), 10.0, 11.0), gpu_ids=(0, 1), width=40)
    assert sum("[wide" in line for line in lines) == 2
    assert max(map(len, lines)) <= 40


def test_a_block_of_one_column_shows_a_mark() -> None:
    lines = drawn(placement("long", (0,), 0.0, 999.0), placement("short", (0,), 999.0, 1010.0), gpu_ids=(0,))
    assert lines[0].endswith("]b")


def test_devices_beyond_a_screen_are_counted() -> None:
    lines = drawn(placement("a", (0,), 0.0, 1.0), gpu_ids=tuple(range(40)))
    assert "8 more GPUs are not drawn; -o PAGE.html draws all" in lines


def test_an_empty_plan_draws_nothing() -> None:
    assert drawn(gpu_ids=(0,)) == []


@pytest.mark.parametrize("colours", [True, False])
def test_a_block_without_room_for_its_name_has_a_letter_that_is_explained(colours: bool) -> None:
    stream = io.StringIO()
    names = ["a long task", "another long task"]
    placements = [placement(names[0], (0,), 0.0, 2.0), placement(names[1], (0,), 2.0, 100.0)]
    console = Console(file=stream, width=60, force_terminal=True, no_color=not colours)
    print_gantt(console, placements, gpu_ids=(0,), names=names, device="GPU")
    first, *_, last = Text.from_ansi(stream.getvalue()).plain.splitlines()
    assert first.startswith("GPU 0 │a")
    assert last == "tasks: a a long task"
    # colours alone would part them nowhere else
    assert ("[" in first) == (not colours)
