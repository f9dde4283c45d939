"""Which sizes passes are recorded in, and when a recording pays.

A graph serves every pass that it holds; a smaller one computes rows of filler. So there are few sizes. The order of a
trial's rows is known beforehand, and so are the passes of the next steps of the trials that are resident, as long as
they stay. A pass that no graph fits asks which size would save most over the passes just before and those to come. If
that is more than a recording costs, this size is recorded. Both have a price in rows of the stream.

Shapes:  T rows of the stream · M trained rows · S sequences · L greatest length of one
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum

from cohort.core.numerics import Numerics
from cohort.models.config import DecoderConfig
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.spare_shape import spare_shape

__all__ = [
    "GRAPH_TOKENS",
    "MEASURED_ROW_COST",
    "SPARE_ROWS",
    "GraphKind",
    "RecordingPolicy",
    "launching_rows",
    "most_recorded_tokens",
    "recorded_rows",
    "rounded_up",
]

# passes of fewer tokens may be recorded as CUDA graphs: a slow host takes longer to launch them than a GPU to run them
GRAPH_TOKENS = 8192
# Of exact passes larger ones as well, where the host is the slower of both: they are more launches, each of which takes
# longer. On an H200 the device takes 86 ms for 8,192 tokens of a 1B model, and a host has launched them after 102.
MOST_EXACT_GRAPH_TOKENS = 12288

# a row of an evaluation in rows of training passes: a third of the products, and what surrounds them
MEASURED_ROW_COST = 0.4
# what the host takes to launch the kernels of a layer, forward and backward, and what the device takes for a weight
# and a row: 8 ms, and four operations at 600 TFLOP/s (a slow host; a fast one takes 4 to 6 ms, and loses little by
# replaying what it could launch as fast)
LAUNCH_SECONDS, SECONDS_PER_WEIGHT = 8e-3, 4 / 600e12
# what a recording has to save over the passes that are known, in launches of a pass. It takes two of them; passes come
# after those that are announced
WORTH = 0.75
# the same for a recording that is made while the device computes, which hardly waits for it
WORTH_AHEAD = 0.25
# a recording takes as long as the device is at this share of the rows of a launch: 0.16 s for an 8B model
HIDING_SHARE = 0.5
# the same times for a row over weights in e4m3: the device needs 0.7 of them, the host launches 1.15 times as long
# (passes of 1,024 to 4,096 tokens of an 8B model)
CODED_GAIN = 1.15 / 0.7
# a large pass of a round number of tokens, as a budget is, has one row more: it gets these, and not a whole step
SPARE_ROWS = 64
# Trained rows are this many fewer than a multiple of twice as many: an odd multiple of 16, so never one of the 128 of
# which exact products ask the BLAS. That would make the device wait, for one layer.
BELOW_MULTIPLE = 16
# what a pass may take in a graph that is there at its first step over one of its own, which can still be recorded ahead
NEAR = 1.15
# passes before this one that a size is chosen for as well: trials may leave before the passes that they announce
REMEMBERED = 8
# evaluations come after many steps, announce nothing, and differ by how many trials they are of
REMEMBERED_EVALUATIONS = 16
# where the passes to come are unknown, these are supposed: the rows of a pack's steps vary by about a quarter
SUPPOSED = (0.75, 0.9, 1.0, 1.1, 1.25)


class GraphKind(IntEnum):
    """What a graph does. One kind's graphs serve no pass of another."""

    MEASURES = 0
    # losses are plain sums of their tokens, whose weights are known before the pass
    SUMS = 1
    # the weights follow from the losses: the backward pass is a graph of its own
    TERMS = 2
    # the same of passes that drop inputs of adapters, by keys of their rows
    DROPPED_SUMS = 3
    DROPPED_TERMS = 4

    @property
    def trains(self) -> bool:
        """Whether its passes add gradients; an evaluation's only measure."""
        return self is not GraphKind.MEASURES

    @property
    def has_terms(self) -> bool:
        """Whether the weights of its tokens follow from their losses."""
        return self in (GraphKind.TERMS, GraphKind.DROPPED_TERMS)

    @property
    def drops(self) -> bool:
        """Whether it reads dropout keys of its rows."""
        return self in (GraphKind.DROPPED_SUMS, GraphKind.DROPPED_TERMS)

    @classmethod
    def of_training(cls, *, from_terms: bool, drops: bool) -> GraphKind:
        """Return the kind of a training pass."""
        if from_terms:
            return cls.DROPPED_TERMS if drops else cls.TERMS
        return cls.DROPPED_SUMS if drops else cls.SUMS


def rounded_up(need: PassShape, *, padded: bool, exact: bool = False) -> PassShape:
    """Return the shape a graph is recorded in for ``need``.

    Args:
        padded: Whether attention pads its sequences, so that their number and length cost something.
        exact: Whether weight gradients are summed by sequence, so that their number costs programs.
    """
    num_rows = _rounded_rows(need.num_rows)
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
        num_trained=min(
            num_rows, _trained_rows(max(need.num_trained, 1), step=_up(max(num_rows // 8, 1), 2 * BELOW_MULTIPLE))
        ),
    )


def _rounded_rows(number: int) -> int:
    step = 128 if number <= 2048 else 256
    num_rows = _up(number, step)
    return num_rows + SPARE_ROWS - step if step == 256 and number <= num_rows - step + SPARE_ROWS else num_rows


def recorded_rows(most_rows: int) -> list[int]:
    """Return all numbers of rows of at most ``most_rows`` that passes are recorded with, descending."""
    # each is rounded to itself
    return [rows for rows in range(most_rows, 0, -1) if _rounded_rows(rows) == rows]


def _trained_rows(number: int, *, step: int) -> int:
    """Return how many trained rows a size has room for: at least 16, as products of fewer are no faster."""
    return _up(number + BELOW_MULTIPLE, step) - BELOW_MULTIPLE


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def launching_rows(config: DecoderConfig, *, coded: bool = False) -> float:
    """Return the rows of a pass that takes the device as long as the host takes to launch it.

    Args:
        coded: Whether frozen products multiply e4m3, in less time than the host was estimated by.
    """
    hidden = config.hidden_size
    layer = hidden * (2 * config.query_width + 2 * config.kv_width + 3 * config.mlp_width)
    return (CODED_GAIN if coded else 1.0) * LAUNCH_SECONDS / (SECONDS_PER_WEIGHT * layer)


def most_recorded_tokens(numerics: Numerics, *, launching: float) -> int:
    """Return up to how many tokens passes are recorded where memory allows it.

    Args:
        launching: As :func:`launching_rows` returns it; 0 where that is not known.
    """
    if numerics is Numerics.FAST:
        return GRAPH_TOKENS
    return max(GRAPH_TOKENS, min(MOST_EXACT_GRAPH_TOKENS, int(launching)))


class RecordingPolicy:
    """Chooses for each pass between a graph that holds it, a graph of its own, and launching its kernels."""

    def __init__(self, config: DecoderConfig, *, exact: bool = False, coded: bool = False) -> None:
        """Estimate the price of a recording from the sizes of the model.

        Args:
            exact: As for :func:`rounded_up`.
            coded: As for :func:`launching_rows`.
        """
        self._padded, self._exact = config.pads_attention, exact
        self._launching_rows = launching_rows(config, coded=coded)
        self._before = {
            kind: deque[PassShape](maxlen=REMEMBERED if kind.trains else REMEMBERED_EVALUATIONS) for kind in GraphKind
        }

    def choose(
        self,
        need: PassShape,
        *,
        recorded: Sequence[PassShape],
        kind: GraphKind,
        upcoming: Callable[[], Sequence[PassShape]] | None = None,
    ) -> tuple[PassShape | None, PassShape | None]:
        """Return the recorded shape to use and the shape to record instead; neither to launch kernel by kernel.

        Args:
            recorded: The shapes of graphs of this kind.
            kind: What the pass does.
            upcoming: Returns the training passes after this one, as long as the same trials are resident; None where
                that is not known.
        """
        before = self._before[kind]
        use = min((shape for shape in recorded if shape.holds(need)), key=self._cost, default=None)
        if use is not None and self._cost(use) > self._launched(need):
            use = None
        own, record = self._rounded([need]), None
        if use is None or self._cost(use) > self._cost(own):
            window = [*before, need, *(self._to_come(need, upcoming) if kind.trains else ())]
            # evaluations announce nothing: they have to come again
            price = (WORTH if kind.trains else 1.0) * self._launching_rows
            record = self._best_size(need, window=window, recorded=recorded, price=price)
        before.append(need)
        return use, record

    def hides_recording(self, num_rows: float) -> bool:
        """Return whether the device is at ``num_rows`` rows of training passes for as long as a recording takes."""
        return num_rows >= HIDING_SHARE * self._launching_rows

    def ahead(
        self, *, recorded: Sequence[PassShape], kind: GraphKind, upcoming: Sequence[PassShape]
    ) -> PassShape | None:
        """Return the shape that is worth recording before a pass asks for it; None where none is.

        Args:
            recorded, kind: As of :meth:`choose`.
            upcoming: The passes to come, as far as they are known.
        """
        window = [*self._before[kind], *upcoming]
        if not window:
            return None
        least = min(window, key=lambda need: need.num_rows)
        return self._best_size(least, window=window, recorded=recorded, price=WORTH_AHEAD * self._launching_rows)

    def has_time_to_spare(self, num_rows: float) -> bool:
        """Return whether the device is at ``num_rows`` rows for as long as the host takes to launch a pass.

        So it does not run dry behind a warm-up that waits for an answer.
        """
        return num_rows >= self._launching_rows

    def spare(self, *, recorded: Sequence[PassShape], kind: GraphKind, most_rows: int) -> PassShape | None:
        """Return a size of at most ``most_rows`` for passes of fewer trials; None where none is missing."""
        before = self._before[kind]
        return spare_shape(recorded, before=before, rounded_up=lambda need: self._rounded([need]), most_rows=most_rows)

    def largest(self, shape: PassShape, *, most_rows: int) -> PassShape:
        """Return a shape of the kind of ``shape`` with about ``most_rows`` rows, and no more; at least ``shape``."""
        num_rows = most_rows // 256 * 256
        if num_rows <= shape.num_rows:
            return shape
        share = num_rows / shape.num_rows
        wide = PassShape(
            num_rows=num_rows,
            num_sequences=round(share * shape.num_sequences),
            length=shape.length,
            num_trained=min(num_rows, round(share * shape.num_trained)),
        )
        return self._rounded([wide])

    def is_near(self, shape: PassShape, larger: PassShape) -> bool:
        """Return whether a pass takes hardly longer in ``larger`` than in ``shape``."""
        return self._cost(larger) <= NEAR * self._cost(shape)

    def _best_size(
        self, need: PassShape, *, window: Sequence[PassShape], recorded: Sequence[PassShape], price: float
    ) -> PassShape | None:
        """Return the shape that holds ``need`` and saves most rows over ``window``; None if that is below ``price``."""
        now = [self._now(other, recorded) for other in window]
        best: tuple[float, PassShape] | None = None
        larger = [other for other in window if other.num_rows >= need.num_rows]
        for num_rows in sorted({self._rounded([other]).num_rows for other in larger}):
            shape = self._rounded([need, *(other for other in window if other.num_rows <= num_rows)])
            cost = self._cost(shape)
            saved = sum(max(0.0, takes - cost) for takes, other in zip(now, window, strict=True) if shape.holds(other))
            if best is None or saved > best[0]:
                best = saved, shape
        return best[1] if best is not None and best[0] >= price else None

    def _now(self, need: PassShape, recorded: Sequence[PassShape]) -> float:
        """Return what a pass takes with the graphs there are, or launched kernel by kernel, in rows."""
        return min([self._launched(need), *(self._cost(shape) for shape in recorded if shape.holds(need))])

    def _launched(self, need: PassShape) -> float:
        return max(self._launching_rows, self._cost(need))

    def _to_come(self, need: PassShape, upcoming: Callable[[], Sequence[PassShape]] | None) -> Sequence[PassShape]:
        if upcoming is not None:
            return upcoming()
        return [
            PassShape(
                num_rows=max(2, round(share * need.num_rows)),
                num_sequences=need.num_sequences,
                length=max(1, round(share * need.length)),
                num_trained=round(share * need.num_trained),
            )
            for share in 3 * SUPPOSED
        ]

    def _rounded(self, needs: Sequence[PassShape]) -> PassShape:
        """Return the shape that is recorded for all of ``needs``."""
        widest = PassShape(
            num_rows=max(need.num_rows for need in needs),
            num_sequences=max(need.num_sequences for need in needs),
            length=max(need.length for need in needs),
            num_trained=max(need.num_trained for need in needs),
        )
        return rounded_up(widest, padded=self._padded, exact=self._exact)

    def _cost(self, shape: PassShape) -> float:
        return shape.cost(padded=self._padded)
