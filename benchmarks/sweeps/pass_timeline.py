"""What a host and a GPU would do in a sweep, by the product's own choice of recorded sizes, computed on a CPU.

Passes compute nothing. The host takes a time to launch, record or replay one, and the GPU one that follows from its
rows by a line that was fitted to a measured sweep; a GPU begins what it was given when it has ended what came before.
Passes are staged as they begin, where a GPU's are staged behind the step before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.data.packing import SlotSample
from cohort.models.config import DecoderConfig
from cohort.training.cuda_graphs.captured_passes import CapturedPasses
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import GraphKind
from cohort.training.group_terms import group_slots

__all__ = ["HostTimes", "TimedPasses", "Timeline"]


@dataclass(frozen=True, kw_only=True)
class HostTimes:
    """Milliseconds that a host takes for an 8B model's passes: those of a fast one."""

    launch: float = 190.0
    record: float = 200.0
    # through two of 32 layers, as before each recording
    warm_up: float = 20.0
    replay: float = 4.0

    def times(self, factor: float) -> HostTimes:
        """Return those of a host that takes ``factor`` times as long."""
        return HostTimes(**{name: factor * milliseconds for name, milliseconds in asdict(self).items()})


# of a GPU, an H200 with an 8B decoder: a part that each pass has and one for each row, by whether it trains; an update
# (passes of sweep_price_8b_against_table.json)
FIXED, ROW = {True: 8.0, False: 12.0}, {True: 0.0565, False: 0.0222}
UPDATE = 9.0
# as of kernels/exact_product/agreed_blas.py, which only a machine with Triton imports
ROW_MULTIPLE, MOST_ROWS = 128, 4096
# of the layers: what a warm-up runs, and what the estimate of the largest recording does
WARM_UP_SHARE, RESERVING_SHARE = 2 / 32, 10 / 32
# of an evaluation's launches and recording, which have no backward pass
FORWARD_SHARE = 0.4


@dataclass(kw_only=True)
class Timeline:
    """Milliseconds since the sweep began, of the host and of the GPU.

    Attributes:
        idle: In which the GPU had nothing to do.
        filler: In which it computed rows that no pass had.
        of_own_sizes: That it would take with a graph of its own for each pass.
        recorded: Recordings, by what asked for them.
    """

    host: float = 0.0
    device: float = 0.0
    idle: float = 0.0
    filler: float = 0.0
    of_own_sizes: float = 0.0
    recorded: Counter[str] = field(default_factory=Counter)

    def launch(self, host: float, device: float) -> None:
        """Give the GPU work that it begins while the host still launches it."""
        begun = max(self.device, self.host)
        self.host += host
        self.idle += begun - self.device
        # the last launch is not behind its kernel's end
        self.idle += max(0.0, self.host - begun - device)
        self.device = max(begun + device, self.host)

    def replay(self, host: float, device: float) -> None:
        """Give the GPU work that it begins once the host has launched it."""
        self.host += host
        begun = max(self.device, self.host)
        self.idle += begun - self.device
        self.device = begun + device

    def wait(self) -> None:
        """Let the host wait for all that the GPU was given."""
        self.host = max(self.host, self.device)


class _Graph:
    """A graph that is only named."""

    def __init__(self, shape: PassShape) -> None:
        self.shape, self.filling = shape, 0

    def stage(self, *_: object, **__: object) -> _Graph:
        return self


class _Recorder:
    """Stands for what records passes, and notes what that takes."""

    agree = None
    can_reserve = True

    def __init__(self, timeline: Timeline, host: HostTimes, *, knows_all: bool) -> None:
        self._timeline, self._host, self._knows_all = timeline, host, knows_all
        self._asked = set[int]()
        self.is_ahead = False

    def reserve(self, shape: PassShape, **_: object) -> bool:
        launched = RESERVING_SHARE * self._host.launch
        self._timeline.launch(launched, RESERVING_SHARE * ROW[True] * shape.num_rows)
        return True

    def warm_up(self, shape: PassShape, **_: object) -> bool:
        self._timeline.launch(self._host.warm_up, WARM_UP_SHARE * ROW[True] * shape.num_rows)
        if not self.is_settled(shape):
            # the answer of a BLAS, and its kernel, wait for the GPU
            self._asked.add(shape.num_rows)
            self._timeline.wait()
        return True

    def is_short(self, _: PassShape) -> bool:
        return False

    def is_settled(self, shape: PassShape, **_: object) -> bool:
        is_asked_about = shape.num_rows % ROW_MULTIPLE == 0 and shape.num_rows <= MOST_ROWS
        return self._knows_all or shape.num_rows in self._asked or not is_asked_about

    def record(self, shape: PassShape, *, kind: GraphKind, **_: object) -> _Graph:
        self.warm_up(shape)
        self._timeline.host += self._host.record * (1.0 if kind.trains else FORWARD_SHARE)
        self._timeline.recorded["behind a step" if self.is_ahead else "before a pass"] += 1
        # a thread asks about all others
        self._knows_all |= kind.trains
        return _Graph(shape)


class TimedPasses:
    """Takes the place of an executor's passes."""

    context = 1 << 20

    def __init__(
        self, config: DecoderConfig, bank: AdapterBank, *, most_rows: int, host: HostTimes, knows_all: bool
    ) -> None:
        """Choose recordings for a model of ``config`` in exact numerics.

        Args:
            bank: Of the executor, which says who is in a pack.
            most_rows: As of :class:`CapturedPasses`.
            knows_all: Whether an earlier sweep has asked the BLAS all that this one would ask.
        """
        self.timeline, self._host = Timeline(), host
        self._recorder = _Recorder(self.timeline, host, knows_all=knows_all)
        layer = SimpleNamespace(linears=[SimpleNamespace(frozen=None)])
        decoder = SimpleNamespace(config=config, ring=None, layers=[layer])
        exact = SimpleNamespace(is_exact=True, has_magnitudes=False, slot_table=bank.slot_table)
        self._captured = CapturedPasses(cast(Any, decoder), cast(Any, exact), most_rows=most_rows)
        self._captured.recorder = cast(Any, self._recorder)
        self._step_ended, self._is_evaluating = 0.0, False
        self.num_passes = self.num_launched = 0

    @property
    def sizes(self) -> dict[GraphKind, list[int]]:
        """Rows of the graphs of each kind, ascending."""
        return self._captured.sizes

    def train(
        self,
        entries: Sequence[SlotSample],
        _steps: object,
        *,
        upcoming: Callable[[], Sequence[PassShape]] | None = None,
        **_: object,
    ) -> Tensor:
        """Note a training pass."""
        if self._is_evaluating:
            # who goes on follows from the losses
            self.timeline.wait()
            self._is_evaluating = False
        self._run(entries, trains=True, upcoming=upcoming)
        return torch.zeros(len(group_slots(entries)))

    def measure(self, entries: Sequence[SlotSample]) -> Tensor:
        """Note a pass of an evaluation."""
        self._run(entries, trains=False)
        self._is_evaluating = True
        return torch.zeros(sum(len(entry.sample.tokens) for entry in entries))

    def record_ahead(self, upcoming: Callable[[], Sequence[PassShape]], *, num_rows: float) -> None:
        """Note an update, and what is recorded behind it; then the step before this one is read."""
        self.timeline.replay(1.0, UPDATE)
        self._recorder.is_ahead = True
        self._captured.record_ahead(upcoming, num_rows=num_rows)
        self._recorder.is_ahead = False
        self.timeline.host = max(self.timeline.host, self._step_ended)
        self._step_ended = self.timeline.device

    def _run(
        self,
        entries: Sequence[SlotSample],
        *,
        trains: bool,
        upcoming: Callable[[], Sequence[PassShape]] | None = None,
    ) -> None:
        need, timeline = PassShape.of(entries), self.timeline
        staged = cast(
            "_Graph | None", self._captured.stage(entries, divisors={} if trains else None, upcoming=upcoming)
        )
        own = FIXED[trains] + ROW[trains] * need.num_rows
        timeline.of_own_sizes += own
        self.num_passes += 1
        if staged is None:
            self.num_launched += 1
            timeline.launch(self._host.launch * (1.0 if trains else FORWARD_SHARE), own)
        else:
            filler = ROW[trains] * (staged.shape.num_rows - need.num_rows)
            timeline.filler += filler
            timeline.replay(self._host.replay, own + filler)
