"""Which sizes passes are recorded in, and when a recording pays.

A graph serves every pass that it holds; a smaller one computes rows of filler. So there are few sizes, and each pass
asks: replay a graph that is too large, or record one of its own? Both have a price in rows of the stream. What a size
loses to larger graphs is added up; once that is as much as a recording costs, it is recorded. So what is lost in all is
at most twice what the best choice in hindsight would have cost (the argument of the rented skis).

Shapes:  T rows of the stream · M trained rows · S sequences · L greatest length of one
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from cohort.models.config import DecoderConfig

__all__ = ["SPARE_ROWS", "GraphKind", "PassShape", "RecordingPolicy", "rounded_up"]

# the cost of a padded attention row in rows of the stream: its share of a layer's work
PADDED_ROW_COST = 0.05
# the cost of a trained row in the loss head, likewise
TRAINED_ROW_COST = 0.15
# what the host takes to launch the kernels of a layer, forward and backward, and what the device takes for a weight
# and a row: 8 ms, and four operations at 600 TFLOP/s (an H100 with a slow host; a fast one takes 4 ms)
LAUNCH_SECONDS, SECONDS_PER_WEIGHT = 8e-3, 4 / 600e12
# a large pass of a round number of tokens, as a budget is, has one row more: it gets these, and not a whole step
SPARE_ROWS = 64
# passes of at most this share of the rows that hide their launches are recorded at first sight
AT_ONCE = 0.25


class GraphKind(IntEnum):
    """What a graph does. One kind's graphs serve no pass of another."""

    MEASURES = 0
    # losses are plain sums of their tokens, whose weights are known before the pass
    SUMS = 1
    # the weights follow from the losses: the backward pass is a graph of its own
    TERMS = 2

    @property
    def trains(self) -> bool:
        """Whether its passes add gradients; an evaluation's only measure."""
        return self is not GraphKind.MEASURES


@dataclass(frozen=True, kw_only=True, order=True)
class PassShape:
    """The sizes that the launches of a pass must know beforehand.

    Attributes:
        num_rows: T, more than the samples have: the last row is always filler.
        num_sequences: S.
        length: L.
        num_trained: M.
    """

    num_rows: int
    num_sequences: int
    length: int
    num_trained: int

    def holds(self, need: PassShape) -> bool:
        return (
            self.num_rows >= need.num_rows
            and self.num_sequences >= need.num_sequences
            and self.length >= need.length
            and self.num_trained >= need.num_trained
        )

    def cost(self, *, padded: bool) -> float:
        """Return the approximate work, in rows of the stream; ``padded``: whether attention pads its sequences."""
        padding = PADDED_ROW_COST * (self.num_sequences + 1) * self.length if padded else 0.0
        return self.num_rows + TRAINED_ROW_COST * self.num_trained + padding


def rounded_up(need: PassShape, *, padded: bool, exact: bool = False, coarse: bool = False) -> PassShape:
    """Return the shape a graph is recorded in for ``need``.

    Args:
        padded: Whether attention pads its sequences, so that their number and length cost something.
        exact: Whether weight gradients are summed by sequence, so that their number costs programs.
        coarse: Wide enough that the other steps of the same pack fit, too.
    """
    if coarse:
        # a quarter more: the rows of a step vary by about that much around their mean
        need = PassShape(
            num_rows=need.num_rows + need.num_rows // 4,
            num_sequences=need.num_sequences,
            length=need.length + need.length // 4,
            num_trained=need.num_trained + need.num_trained // 4,
        )
    step = 128 if need.num_rows <= 1024 else 256 if need.num_rows <= 2048 else 512
    num_rows = _up(need.num_rows, step)
    if step == 512 and need.num_rows <= num_rows - step + SPARE_ROWS:
        num_rows += SPARE_ROWS - step
    length_step = 64 if need.length <= 256 else 128 if need.length <= 1024 else 512
    return PassShape(
        num_rows=num_rows,
        num_sequences=(
            (_up(need.num_sequences, 8) if need.num_sequences > 4 else 4)
            if padded or exact
            # tables alone: an idle program ends at once
            else _up(max(need.num_sequences, num_rows // 64), 16)
        ),
        # without padding it only bounds the rotary table
        length=_up(need.length, length_step) if padded else max(512, 1 << (need.length - 1).bit_length()),
        num_trained=min(num_rows, _up(need.num_trained, max(num_rows // 8, 1))),
    )


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


class RecordingPolicy:
    """Chooses for each pass between a graph that holds it, a graph of its own, and launching its kernels."""

    def __init__(self, config: DecoderConfig, *, exact: bool = False) -> None:
        """Estimate the price of a recording from the sizes of the model.

        Args:
            exact: As for :func:`rounded_up`.
        """
        self._padded, self._exact = config.pads_attention, exact
        hidden = config.hidden_size
        layer = hidden * (2 * config.query_width + 2 * config.kv_width + 3 * config.intermediate_size)
        # a pass of this many rows takes the device as long as the host takes to launch it; so does one recording
        self._recording_rows = LAUNCH_SECONDS / (SECONDS_PER_WEIGHT * layer)
        self._lost: dict[tuple[GraphKind, PassShape], float] = defaultdict(float)

    def choose(
        self, need: PassShape, *, recorded: Sequence[PassShape], kind: GraphKind
    ) -> tuple[PassShape | None, PassShape | None]:
        """Return the recorded shape to use and the shape to record instead; neither to launch kernel by kernel.

        Args:
            recorded: The shapes of graphs of this kind.
            kind: What the pass does; training passes come again at once, evaluations after many steps.
        """
        holding = [shape for shape in recorded if shape.holds(need)]
        own = rounded_up(need, padded=self._padded, exact=self._exact)
        best = min(holding, key=lambda shape: shape.cost(padded=self._padded), default=None)
        if best is not None:
            lost = best.cost(padded=self._padded) - own.cost(padded=self._padded)
        else:
            # what the device waits for launches; a pass of more rows hides them
            lost = max(0.0, self._recording_rows - need.num_rows)
            if kind.trains and need.num_rows <= AT_ONCE * self._recording_rows:
                return None, rounded_up(need, padded=self._padded, exact=self._exact, coarse=True)
        self._lost[kind, own] += lost
        if lost > 0 and self._lost[kind, own] >= self._recording_rows:
            del self._lost[kind, own]
            if best is None:
                own = rounded_up(need, padded=self._padded, exact=self._exact, coarse=True)
            return best, own
        return best, None
