"""The HTML page of tasks over time: planned bars, actual bars, and tables below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote

from cohort.core.units import format_duration
from cohort.report.drawings.gantt import Pause, TaskBar, gantt_drawing, gantt_legend
from cohort.report.styles import report_style

__all__ = ["gantt_page", "planned_against_actual_page", "span_of", "table_of"]


def planned_against_actual_page(
    planned: Sequence[TaskBar],
    actual: Sequence[TaskBar],
    *,
    gpu_ids: Sequence[int],
    states: Mapping[str, str],
    results: Mapping[str, str],
    links: Mapping[str, str],
    title: str,
    device: str = "GPU",
    endings: Sequence[tuple[str, str]] = (),
    pauses: Sequence[Pause] = (),
    reload_seconds: float | None = None,
) -> str:
    """Return a page that draws what happened below what was planned, with the state and both ends of every task.

    Args:
        planned: The first plan of each task.
        actual: Stretches in which tasks ran; a task that went on after a failure has several.
        gpu_ids: All devices.
        states: The state of every task by name, in the order of the table: a word, then details after a colon.
        results: The best of the task's metric so far, in words, by name.
        links: Addresses of the tasks' own pages, by name.
        title: The page's title.
        device: The word for a row: GPU or worker.
        endings: (shape, in words) of the marks at the ends of ``actual``.
        pauses: Times that are left out of all seconds.
        reload_seconds: After this time an open page loads itself again.
    """
    # both ends, because early exits let a queue end long before its plan
    ends = [max((bar.end_seconds for bar in bars), default=0.0) for bars in (planned, actual)]
    counts = Counter(state.partition(":")[0] for state in states.values())
    cards = [
        (
            f"{counts['done']} of {len(states)}",
            ", ".join(["tasks done", *(f"{count} {state}" for state, count in counts.items() if state != "done")]),
        ),
        (format_duration(ends[0]), "planned until the last end, without early exit"),
        (format_duration(ends[1]), "until the last end"),
    ]
    if pauses:
        stopped = sum(pause.seconds for pause in pauses)
        cards.append((format_duration(stopped), "no process ran the queue: left out of all other times"))
    rows = []
    for name, state in states.items():
        mine = [[bar for bar in bars if bar.task == name] for bars in (planned, actual)]
        rows.append([name, state, results.get(name, "-"), *map(span_of, mine), str(len(mine[1]))])
    drawing = gantt_drawing(planned, gpu_ids=gpu_ids, actual=actual, tasks=list(states), device=device, pauses=pauses)
    kinds = [("planned", "planned when first placed, without early exit"), ("actual", "what happened")]
    legend = gantt_legend(list(states), kinds=kinds, endings=endings, pauses=bool(pauses))
    table = table_of("Tasks", ("task", "state", "best", "planned", "actual", "stretches"), rows, links=links)
    return gantt_page(
        title=title, cards=cards, legend=legend, drawing=drawing, tables=[table], reload_seconds=reload_seconds
    )


def span_of(bars: Sequence[TaskBar]) -> str:
    """Return from when to when ``bars`` last."""
    if not bars:
        return "-"
    start, end = min(bar.start_seconds for bar in bars), max(bar.end_seconds for bar in bars)
    return f"{format_duration(start)} to {format_duration(end)}"


def table_of(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, links: Mapping[str, str] | None = None
) -> str:
    """Return a table with a heading, as HTML; every text is escaped.

    ``links`` has addresses by the text of a row's first cell.
    """
    columns = "".join(f"<th>{escape(name)}</th>" for name in head)

    def cell(text: str, *, link: str | None) -> str:
        return escape(text) if link is None else f'<a href="{escape(quote(link))}">{escape(text)}</a>'

    body = "".join(
        "<tr>"
        + "".join(
            f"<td>{cell(text, link=(links or {}).get(text) if place == 0 else None)}</td>"
            for place, text in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<h2>{escape(title)}</h2><div class="wide"><table><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def gantt_page(
    *,
    title: str,
    cards: Sequence[tuple[str, str]],
    legend: str,
    drawing: str,
    tables: Sequence[str],
    reload_seconds: float | None = None,
) -> str:
    """Return the whole page: cards, the drawing with its legend, and tables."""
    again = "" if reload_seconds is None else f'<meta http-equiv="refresh" content="{reload_seconds:.0f}">'
    shown = "".join(
        f'<div class="card"><div class="big">{escape(big)}</div><p>{escape(p)}</p></div>' for big, p in cards
    )
    # the style is part of the page, which then opens without a network
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{again}<style>{report_style()}</style></head><body><h1>{escape(title)}</h1>"
        f'<div class="cards">{shown}</div><h2>Tasks over time</h2>{legend if drawing else ""}'
        f'<figure class="wide">{drawing}</figure>'
        f"{''.join(tables)}</body></html>\n"
    )
