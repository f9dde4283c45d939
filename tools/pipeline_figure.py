"""Draw the timeline of a pipeline, by its simulator: docs/figures/pipeline-timeline.svg.

python tools/pipeline_figure.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cohort.scheduling.pipelines.microbatch.choose_micro_batches import MicroBatchSettings, schedule_micro_batches
from cohort.scheduling.pipelines.microbatch.records import AdapterBatches, MicroBatch
from cohort.scheduling.pipelines.pipeline_schedule import Direction
from cohort.scheduling.pipelines.simulation import PassTime, simulate_pipeline

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "pipeline-timeline.svg"
NUM_STAGES, CAPACITY = 4, 100
# tokens of the samples of each optimizer step, three steps of three adapters
LENGTHS = ((60, 50, 40, 50), (90, 80, 100), (50, 50, 45, 45, 60, 50))
COLOURS = ("#4477aa", "#cc6677", "#228833")
WIDTH, LEFT, ROW, GAP, TOP = 920, 74, 34, 10, 34


def drawn() -> str:
    """Return the figure."""
    adapters = [AdapterBatches(adapter=number, lengths=(own,) * 3) for number, own in enumerate(LENGTHS)]
    settings = MicroBatchSettings(capacity=CAPACITY, stages=NUM_STAGES, is_level=True)
    schedule = schedule_micro_batches(adapters, settings=settings, groups=[(0,), (1,), (2,)])
    seconds = [[micro_batch.tokens(1) / CAPACITY for micro_batch in schedule]] * NUM_STAGES
    times = simulate_pipeline(seconds, seconds, transfer_seconds=0.02)
    scale = (WIDTH - LEFT - 10) / times.seconds
    height = TOP + NUM_STAGES * (ROW + GAP) + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12" role="img">',
        "<title>The timeline of a pipeline of 4 stages with three adapters</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_legend(),
    ]
    for stage, own in enumerate(times.passes):
        y = TOP + stage * (ROW + GAP)
        parts.append(f'<text x="6" y="{y + 21}" fill="#333333">GPU {stage}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 10}" height="{ROW}" fill="#eeeeee"/>')
        parts += [_box(each, schedule, y=y, scale=scale) for each in own if each.end > each.begin]
    parts.append(
        f'<text x="{LEFT}" y="{height - 10}" fill="#333333">time; grey is idle: {times.bubble_ratio:.0%} of this short '
        f"window of {len(schedule)} micro-batches, 3 steps of each adapter</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    found, x = [], LEFT
    for number, colour in enumerate(COLOURS):
        found.append(f'<rect x="{x}" y="10" width="12" height="12" fill="{colour}"/>')
        found.append(f'<text x="{x + 17}" y="20" fill="#333333">adapter {number + 1}</text>')
        x += 90
    found.append(f'<text x="{x + 10}" y="20" fill="#333333">pale: forward, full: backward</text>')
    return found


def _box(each: PassTime, schedule: Sequence[MicroBatch], *, y: float, scale: float) -> str:
    adapter = schedule[each.what.micro_batch].samples[0].adapter
    x, width = LEFT + each.begin * scale, (each.end - each.begin) * scale
    opacity = 0.45 if each.what.direction is Direction.FORWARD else 1.0
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{max(width - 0.8, 0.5):.1f}" height="{ROW}" fill="{COLOURS[adapter]}" '
        f'fill-opacity="{opacity}"/>'
    )


def main() -> None:
    """Write the figure."""
    FIGURE.write_text(drawn(), encoding="utf-8")
    print(FIGURE)


if __name__ == "__main__":
    main()
