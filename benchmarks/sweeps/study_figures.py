"""Figures of the early-exit study as plain SVG files, drawn with the report's own pieces."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sweeps.curve_files import Grid
from cohort.report.drawings.svg import Frame, band_axis, linear_axis, mark, polyline, text

__all__ = ["draw_figures"]

# Okabe and Ito's palette, as in the report; each set also has a mark of its own
TONES = ("#0072b2", "#d55e00", "#00815c", "#b0568c", "#b87a00", "#56606e")
SHAPES = ("circle", "square", "diamond", "up", "down")
REASONS = {"underperforming": "#8b929c", "overfitting": "#e69f00", "diverging": "#d55e00", "non-finite": "#b0568c"}
STYLE = """
svg { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; background: #ffffff; }
text { fill: #16191d; } .tick, .label { fill: #5a6270; } .label { font-size: 12px; } .head { font-weight: 600; }
.grid { stroke: #dfe3e8; fill: none; } .axis { stroke: #5a6270; fill: none; }
.mark { stroke: #ffffff; stroke-width: 0.8; paint-order: stroke; fill-opacity: 0.8; }
.line { fill: none; stroke-width: 2; }
.rule { stroke: #16191d; stroke-dasharray: 4 3; fill: none; }
"""


def draw_figures(
    grids: Sequence[Grid], *, rules: Sequence[Mapping[str, Any]], ranks: Sequence[Mapping[str, Any]], folder: Path
) -> None:
    """Write all figures into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted({grid.name for grid in grids})
    for name, drawing in {
        "early-exit-ranks": ranks_after_warmup(grids, names),
        "early-exit-saved": samples_saved(rules, names),
        "early-exit-warmup": warmup_lengths(ranks, names),
        "early-exit-rules": saved_against_lost(rules, names),
    }.items():
        (folder / f"{name}.svg").write_text(drawing + "\n", encoding="utf-8")


def _toned(content: str, tone: str) -> str:
    return f'<g style="fill:{tone};stroke:{tone}">{content}</g>'


def _svg(panels: Sequence[str], *, width: float, height: float, title: str, columns: int = 3) -> str:
    columns = min(columns, len(panels))
    places = "".join(
        f'<g transform="translate({width * (i % columns):.0f} {height * (i // columns):.0f})">{panel}</g>'
        for i, panel in enumerate(panels)
    )
    whole = f"{width * columns:.0f} {height * -(-len(panels) // columns):.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole}" role="img">'
        f"<title>{title}</title><style>{STYLE}</style>"
        f'<rect width="100%" height="100%" fill="#ffffff"/>{places}</svg>'
    )


def _key(names: Sequence[str], *, x: float, y: float) -> str:
    return "".join(
        _toned(mark(SHAPES[i % 5], x, y + 15 * i, classes=""), TONES[i % 6]) + text(x + 10, y + 4 + 15 * i, name)
        for i, name in enumerate(names)
    )


def ranks_after_warmup(grids: Sequence[Grid], names: Sequence[str]) -> str:
    """Validation loss at 5 % against the best checkpoint's, by rank (ALTO Figure 7); one panel a set."""
    panels = []
    for i, name in enumerate(names):
        marks = []
        count = max(len(grid.trials) for grid in grids if grid.name == name)
        axis = linear_axis(1, count)
        frame = Frame(
            width=300,
            height=290,
            x=axis,
            y=axis,
            x_label="rank after 5 %",
            y_label="rank of the best checkpoint",
            top=28,
        )
        for grid in (grid for grid in grids if grid.name == name):
            early = _places([trial.loss_at(0.05) for trial in grid.trials])
            final = _places([trial.best for trial in grid.trials])
            for trial, x, y in zip(grid.trials, early, final, strict=True):
                title = f"seed {grid.seed}, rate {trial.learning_rate:g}, r {trial.r}, batch {trial.batch_size}"
                marks.append(mark(SHAPES[i % 5], *frame.at(x, y), classes="", title=title))
        quarter = frame.at(math.ceil(count / 4) + 0.5, 1)[0]
        line = f'<path d="M{quarter:.1f} 28V{frame.height - frame.bottom:.1f}" class="rule"/>'
        panels.append(frame.axes() + line + _toned("".join(marks), TONES[i % 6]) + text(52, 18, name, classes="head"))
    return _svg(
        panels, width=300, height=290, title="Ranks after 5 % of training against ranks of the best checkpoints"
    )


def _places(values: Sequence[float]) -> list[int]:
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    places = [0] * len(values)
    for place, i in enumerate(order, start=1):
        places[i] = place
    return places


def samples_saved(rules: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Samples saved by reason under the default rule, mean of a set's seeds, ratios above (ALTO Figure 15)."""
    default = [row for row in rules if row["rule"] == "patterns (default)"]
    labels = [name.replace("llama16M, ", "").replace(" (llama16M)", "") for name in names]
    width = max(420.0, 150.0 * len(labels) + 80)
    frame = Frame(
        width=width,
        height=300,
        x=band_axis(labels),
        y=linear_axis(0, 100),
        x_label="set",
        y_label="samples saved, %",
        top=46,
    )
    parts = [frame.axes()]
    for i, name in enumerate(names):
        own = [row for row in default if row["set"] == name]
        below = 0.0
        for reason, tone in REASONS.items():
            share = statistics.fmean(row["saved_by"].get(reason, 0.0) for row in own)
            (x, high), (_, low) = frame.at(i, below + share), frame.at(i, below)
            if share:
                rectangle = (
                    f'<rect x="{x - 24:.1f}" y="{high:.1f}" width="48" height="{low - high:.1f}" fill="{tone}"/>'
                )
                parts.append(rectangle)
            below += share
        x, y = frame.at(i, below)
        ratios = ", ".join(f"{row['best_loss_ratio']:.3f}" for row in own)
        parts.append(text(x, y - 5, ratios, anchor="middle", classes="head"))
    for i, (reason, tone) in enumerate(REASONS.items()):
        parts.append(f'<rect x="{56 + 120 * i}" y="8" width="11" height="11" fill="{tone}"/>')
        parts.append(text(71 + 120 * i, 18, reason))
    parts.append(
        text(56, 36, "above: best validation loss with early exit over the full grid's, each seed", classes="tick")
    )
    return _svg(["".join(parts)], width=width, height=300, title="Samples saved by each reason")


def warmup_lengths(ranks: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Rank correlation, coverage of the best quarter, and whether the best is in it, by warm-up (ALTO Figure 16)."""
    panels = []
    columns = {
        "spearman": "rank correlation with the final loss",
        "coverage": "part of the true best quarter kept",
        "best_kept": "share of grids whose best is kept",
    }
    shares = sorted({row["share_percent"] for row in ranks})
    labels = [f"{share:g}" for share in shares]
    lowest = min([0.0, *(float(row["spearman"]) for row in ranks)])
    for place, (column, label) in enumerate(columns.items()):
        y_axis = linear_axis(math.floor(lowest * 5) / 5 if column == "spearman" else 0.0, 1.0)
        frame = Frame(
            width=300,
            height=340,
            x=band_axis(labels),
            y=y_axis,
            x_label="share of training, %",
            y_label=label,
            top=20 + 15 * len(names),
        )
        parts = [frame.axes()]
        for i, name in enumerate(names):
            found = [
                (shares.index(share), statistics.fmean(values))
                for share, values in _by_share(row for row in ranks if row["set"] == name).items()
                for values in [[float(row[column]) for row in values]]
            ]
            points = [frame.at(x, y) for x, y in found]
            line = polyline(points, classes="line")
            parts.append(f'<g style="stroke:{TONES[i % 6]}">{line}</g>')
            parts.append(_toned("".join(mark(SHAPES[i % 5], x, y, classes="") for x, y in points), TONES[i % 6]))
        if place == 0:
            parts.append(_key(names, x=60, y=10))
        panels.append("".join(parts))
    return _svg(panels, width=300, height=340, title="How early losses foretell the end")


def _by_share(rows: Iterable[Mapping[str, Any]]) -> dict[float, list[Mapping[str, Any]]]:
    ordered = sorted(rows, key=lambda row: float(row["share_percent"]))
    return {
        share: list(found) for share, found in itertools.groupby(ordered, key=lambda row: float(row["share_percent"]))
    }


def saved_against_lost(rules: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Every rule on every grid: what it saves, and by how much its best loss is above the full grid's."""
    rows = list(reversed(list(dict.fromkeys(row["rule"] for row in rules))))
    lost = {id(row): 100 * (row["best_loss_ratio"] - 1) for row in rules}
    top = max(2.0, min(10.0, max(lost.values())))
    head = 14.0 + 15 * len(names)
    height = head + 66 + 26 * len(rows)
    panels = []
    for column, axis, label in (
        ("saved", linear_axis(0, 100), "samples saved, %"),
        ("lost", linear_axis(0, top), f"best loss above the full grid's, % (clipped at {top:.3g})"),
    ):
        frame = Frame(
            width=460, height=height, x=axis, y=band_axis(rows), x_label=label, y_label="", left=170, top=head
        )
        parts = [frame.axes()]
        limit = frame.at(72 if column == "saved" else 1, 0)[0]
        parts.append(f'<path d="M{limit:.1f} {head:.1f}V{frame.height - 40:.1f}" class="rule"/>')
        for row in rules:
            i = names.index(row["set"])
            value = row["samples_saved_percent"] if column == "saved" else lost[id(row)]
            x, y = frame.at(value, rows.index(row["rule"]))
            title = f"{row['set']} seed {row['seed']}: {value:.4g}"
            offset = (i - (len(names) - 1) / 2) * min(4, 22 / len(names))
            parts.append(_toned(mark(SHAPES[i % 5], x, y + offset, classes="", title=title), TONES[i % 6]))
        if column == "saved":
            parts.append(_key(names, x=180, y=10))
        panels.append("".join(parts))
    return _svg(panels, width=460, height=height, title="What each rule saves and loses")
