"""A picture of the simulated day: GPUs that are busy, jobs that wait, and what tenants got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.sweeps.study_figures import STYLE
from cohort.report.drawings.svg import Frame, linear_axis, log_axis, polyline, text

__all__ = ["draw_fleet"]

# Okabe and Ito's palette, as in the report
_TONES = ("#0072b2", "#d55e00")
_WIDTH, _HEIGHT = 460.0, 260.0


def draw_fleet(
    busy: Mapping[str, Sequence[tuple[float, float, int]]],
    ratios: Mapping[str, Sequence[float]],
    *,
    path: Path,
    hour: float,
) -> None:
    """Write the picture.

    Args:
        busy: By policy, samples of (seconds, share of GPUs that are busy, jobs that wait).
        ratios: By policy, what each tenant got over what it was entitled to, ascending, at ``hour``.
    """
    most = max(waiting for samples in busy.values() for _, _, waiting in samples)
    hours = linear_axis(0, 24)
    used = Frame(
        width=_WIDTH, height=_HEIGHT, x=hours, y=linear_axis(0, 100), x_label="hour", y_label="GPUs busy, %", top=28
    )
    queue = Frame(
        width=_WIDTH, height=_HEIGHT, x=hours, y=linear_axis(0, most), x_label="hour", y_label="jobs waiting", top=28
    )
    lines = {"used": "", "queue": ""}
    for tone, samples in zip(_TONES, busy.values(), strict=True):
        # one sample in 15: the eye sees no more on this width
        some = samples[::15]
        lines["used"] += _toned(
            polyline([used.at(at / 3600, 100 * share) for at, share, _ in some], classes="line"), tone
        )
        lines["queue"] += _toned(polyline([queue.at(at / 3600, n) for at, _, n in some], classes="line"), tone)
    values = [min(max(value, 0.05), 20.0) for own in ratios.values() for value in own]
    count = max(len(own) for own in ratios.values())
    got = Frame(
        width=_WIDTH,
        height=_HEIGHT,
        x=linear_axis(0, count),
        y=log_axis(min(values), max(values), values=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)),
        x_label="tenants, least served first",
        y_label=f"got over entitled, hour {hour:.0f}",
        top=28,
    )
    drawn = "".join(
        _toned(polyline([got.at(place, min(max(v, 0.05), 20.0)) for place, v in enumerate(own)], classes="line"), tone)
        for tone, own in zip(_TONES, ratios.values(), strict=True)
    )
    key = "".join(
        _toned(f'<path d="M{x} 18h18" class="line"/>', tone) + text(x + 24, 22, name, classes="head")
        for x, tone, name in zip((60, 180), _TONES, busy, strict=True)
    )
    panels = [used.axes() + lines["used"] + key, queue.axes() + lines["queue"], got.axes() + drawn]
    places = "".join(f'<g transform="translate({_WIDTH * n:.0f} 0)">{panel}</g>' for n, panel in enumerate(panels))
    title = "A simulated day of 1,000 tenants on 1,024 GPUs, by fair shares and first come, first served"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH * 3:.0f} {_HEIGHT:.0f}" role="img">'
        f"<title>{title}</title><style>{STYLE}</style>"
        f'<rect width="100%" height="100%" fill="#ffffff"/>{places}</svg>\n',
        encoding="utf-8",
    )


def _toned(content: str, tone: str) -> str:
    return f'<g style="stroke:{tone}">{content}</g>'
