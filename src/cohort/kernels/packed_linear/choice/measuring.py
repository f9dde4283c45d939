"""Measures which settings of a packed linear's kernels are fastest on this GPU, among those that change no bit.

Each launch of a linear is timed by itself, as replays of a recorded graph: candidates take turns, and a candidate must
be bit-equal to the default and clearly faster to be taken. Where the LoRA term enters the frozen product is not
measured: that changes results.

Shapes:  T rows of the stream · K input width · N columns of all siblings · R rank rows
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cohort.kernels.packed_linear.choice.tile_choice import TileChoice
from cohort.kernels.packed_linear.choice.tiles import choose_tiles
from cohort.kernels.packed_linear.launch import launches
from cohort.kernels.packed_linear.launch.tables import LaunchTables
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = ["MeasuredLinear", "launch_candidates", "measure_linear"]

NUM_ROWS = 8192
# in turn, with segments that end anywhere
RANKS = (8, 16, 32, 64) * 4
# a candidate has to be this much faster than the default: repeated measurements differ by 1 %
LEAST_GAIN = 0.015
LAUNCHES, ROUNDS = 8, 7

_NAMES = {
    "shrink": ("shrink_warps", "shrink_stages"),
    "expand": ("expand_block", "expand_strip", "expand_warps", "expand_stages"),
    "ds": ("ds_warps", "ds_stages"),
    "db": ("output_block", "output_warps", "output_stages"),
    "da and dx": ("input_block", "input_warps", "input_stages"),
    "da": ("da_block", "da_warps", "da_stages"),
}
_VALUES: dict[str, tuple[tuple[int, ...], ...]] = {
    "shrink": ((4, 4), (8, 6), (4, 3)),
    "expand": ((128, 512, 4, 3), (128, 2048, 4, 3), (128, 1024, 4, 4), (256, 1024, 8, 3), (64, 1024, 4, 4)),
    "ds": ((4, 4), (8, 6), (4, 3)),
    "db": ((128, 4, 3), (64, 4, 6), (256, 8, 3), (128, 8, 3)),
    "da and dx": ((64, 4, 3), (64, 4, 2), (128, 8, 3), (64, 4, 4)),
    "da": ((64, 4, 3), (128, 8, 3), (64, 4, 4), (128, 4, 3)),
}
Work = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True)
class MeasuredLinear:
    """What was measured of one linear and its siblings; times are sums over its launches, without frozen products.

    Attributes:
        in_features, out_widths: Its shape.
        choice: The settings that differ from the defaults.
        default_us, best_us, now_us: Microseconds by the defaults, by ``choice``, and by what runs use so far.
        refused: Candidates that failed or gave other bits.
    """

    in_features: int
    out_widths: tuple[int, ...]
    choice: dict[str, int]
    default_us: float
    best_us: float
    now_us: float
    refused: tuple[str, ...] = ()

    @property
    def row(self) -> dict[str, Any]:
        """As the table of this machine has it."""
        return {
            "in_features": self.in_features,
            "out_widths": list(self.out_widths),
            "min_rows": 0,
            "choice": self.choice,
            "measured": {"default_us": self.default_us, "best_us": self.best_us, "num_rows": NUM_ROWS},
        }


@dataclass(frozen=True, kw_only=True)
class _Pack:
    """One linear's adapters, a stream and a gradient of its output, all random."""

    x_TK: Tensor
    dy_TN: Tensor
    parts: tuple[LoraPart, ...]
    tables: LaunchTables
    s_PTC: Tensor
    ds_PTC: Tensor

    def work(self, piece: str, tiles: TileChoice) -> Work:
        """Return a launch of one piece, which returns what it wrote."""
        tables, parts, x, dy, rank_pass = self.tables, self.parts, self.x_TK, self.dy_TN, self.tables.passes[0]
        if piece == "shrink":
            s = torch.empty_like(self.s_PTC)

            def shrink() -> Sequence[Tensor]:
                launches.shrink(x, parts, s, rank_pass, tables=tables, row_keys_T=None, tiles=tiles)
                return (s,)

            return shrink
        if piece == "expand":
            y = torch.empty_like(dy)

            def expand() -> Sequence[Tensor]:
                launches.expand(y, parts, self.s_PTC, rank_pass, tables=tables, tiles=tiles, add=False)
                return (y,)

            return expand
        if piece == "ds":
            return lambda: (launches.output_side_ds(dy, parts, rank_pass, tables=tables, tiles=tiles),)
        if piece == "db":

            def db() -> Sequence[Tensor]:
                launches.output_side(dy, parts, self.s_PTC, rank_pass, tables=tables, tiles=tiles, with_ds=False)
                return [part.grad_b_RN for part in parts if part.grad_b_RN is not None]

            return db
        dx = torch.empty_like(x) if piece == "da and dx" else None

        def da() -> Sequence[Tensor]:
            launches.input_side(
                x, dx, parts, self.ds_PTC, rank_pass, tables=tables, row_keys_T=None, tiles=tiles, add=False
            )
            gradients = [part.grad_a_RK for part in parts if part.grad_a_RK is not None]
            return gradients if dx is None else [*gradients, dx]

        return da


def _lengths(num_rows: int, count: int) -> list[int]:
    """Return ``count`` lengths of 0.5 to 1.5 times their mean, which end anywhere."""
    weights = [0.5 + (7 * index % count) / max(1, count - 1) for index in range(count)]
    ends = [round(num_rows * sum(weights[: index + 1]) / sum(weights)) for index in range(count)]
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _pack(in_features: int, out_widths: Sequence[int], *, device: torch.device, num_rows: int = NUM_ROWS) -> _Pack:
    starts, row = [], 0
    for rank in RANKS:
        starts.append(row)
        row += -(-rank // 16) * 16
    count = len(RANKS)
    slots = SlotTable(row_starts=tuple(starts), ranks=RANKS, scales=(2.0,) * count, dropouts=(0.0,) * count)
    lengths = _lengths(num_rows, count)
    segments = SegmentTable.from_samples(lengths, slots=range(count), num_slots=count, num_rows=num_rows)
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int, std: float = 1.0) -> Tensor:
        return torch.empty(*shape, device=device, dtype=torch.bfloat16).normal_(std=std, generator=generator)

    parts, start = [], 0
    for width in out_widths:
        parts.append(
            LoraPart(
                a_RK=drawn(row, in_features, std=in_features**-0.5),
                b_RN=drawn(row, width, std=0.05),
                grad_a_RK=torch.zeros(row, in_features, device=device),
                grad_b_RN=torch.zeros(row, width, device=device),
                column_start=start,
                module_key=12345 + start,
            )
        )
        start += width
    # gradients are written as in the first pass of a step: a launch can be repeated
    tables = LaunchTables(segments, slots, device=device, fresh_slots=range(count))
    shape = (len(parts), num_rows, tables.num_columns)
    return _Pack(
        x_TK=drawn(num_rows, in_features),
        dy_TN=drawn(num_rows, start),
        parts=tuple(parts),
        tables=tables,
        s_PTC=drawn(*shape),
        ds_PTC=drawn(*shape),
    )


def _candidates(piece: str, now: TileChoice) -> dict[str, TileChoice]:
    """Return the default, the settings in use, and what may be faster, by name."""
    default = TileChoice()
    found = {"default": default, "now": now}
    for values in _VALUES[piece]:
        settings: dict[str, Any] = dict(zip(_NAMES[piece], values, strict=True))
        found[" ".join(map(str, values))] = replace(default, **settings)
    return found


def _now(device: torch.device, in_features: int, out_widths: tuple[int, ...]) -> TileChoice:
    name = torch.cuda.get_device_name(device)
    return choose_tiles(name, in_features=in_features, out_widths=out_widths, num_rows=NUM_ROWS)


def launch_candidates(in_features: int, out_widths: tuple[int, ...], *, device: torch.device) -> None:
    """Launch every piece of a linear with each candidate once, so that all can be compiled before any is timed."""
    pack = _pack(in_features, out_widths, device=device)
    for piece in _NAMES:
        for tiles in _candidates(piece, _now(device, in_features, out_widths)).values():
            pack.work(piece, tiles)()


def measure_linear(in_features: int, out_widths: tuple[int, ...], *, device: torch.device) -> MeasuredLinear:
    """Time every piece of a linear with each candidate; return the fastest settings."""
    pack, now = _pack(in_features, out_widths, device=device), _now(device, in_features, out_widths)
    choice, refused = dict[str, int](), list[str]()
    sums = {"default": 0.0, "best": 0.0, "now": 0.0}
    for piece, names in _NAMES.items():
        candidates = _candidates(piece, now)
        wanted = [tensor.clone() for tensor in pack.work(piece, candidates["default"])()]
        graphs: dict[str, torch.cuda.CUDAGraph] = {}
        for label, tiles in candidates.items():
            try:
                found = pack.work(piece, tiles)()
                # what runs use now may have other bits: it is timed to be compared, and not chosen
                if label != "now" and not all(map(torch.equal, found, wanted)):
                    refused.append(f"{piece} {label}: other bits")
                    continue
                graphs[label] = _recorded(pack.work(piece, tiles))
            except Exception as error:
                refused.append(f"{piece} {label}: {type(error).__name__}")
        times = _times(graphs)
        default = times["default"]
        best = min((label for label in times if label != "now"), key=lambda label: times[label])
        if times[best] > (1 - LEAST_GAIN) * default:
            best = "default"
        else:
            settings = {name: getattr(candidates[best], name) for name in names}
            choice |= {name: value for name, value in settings.items() if value != getattr(TileChoice(), name)}
        for label, taken in (("default", default), ("best", times[best]), ("now", times.get("now", default))):
            sums[label] += taken
        del graphs
    return MeasuredLinear(
        in_features=in_features,
        out_widths=out_widths,
        choice=choice,
        default_us=sums["default"],
        best_us=sums["best"],
        now_us=sums["now"],
        refused=tuple(refused),
    )


def _recorded(work: Work) -> torch.cuda.CUDAGraph:
    """Return a graph of several launches: one alone would be shorter than its launch."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # a thread may be copying weights from the device meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(LAUNCHES):
            work()
    return graph


def _times(graphs: dict[str, torch.cuda.CUDAGraph]) -> dict[str, float]:
    """Return the median microseconds of a launch of each graph; they take turns, every other turn backwards."""
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {label: [] for label in graphs}
    for turn in range(ROUNDS + 1):
        for label in list(graphs)[:: -1 if turn % 2 else 1]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[label].replay()
            end.record()
            events[label].append((start, end))
    torch.cuda.synchronize()
    # the first turn warms up
    return {
        label: statistics.median(start.elapsed_time(end) for start, end in pairs[1:]) * 1e3 / LAUNCHES
        for label, pairs in events.items()
    }
