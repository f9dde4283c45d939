"""What a run's steps took, gathered while it runs and kept for the next plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cohort.adapters.bank import aligned_rank
from cohort.core.events import Evaluated, StepDone, TrialEvent, TrialFailed
from cohort.engine.train.open_run import OpenRun
from cohort.machine.devices import hardware_of
from cohort.machine.measurements import RunCosts, write_costs
from cohort.prepare.preparation import Preparation
from cohort.runs.facts import Activity
from cohort.scheduling.cost.model import AdapterWork, StepSample
from cohort.training.trial import TrialSpec

__all__ = ["StepRecorder"]

# the first steps of a pack compile, allocate and record graphs
SKIPPED_STEPS = 2
# steps of one pack that its mean is taken of, and packs that are kept: those with the most steps
MOST_STEPS = 64
MOST_PACKS = 48
# a step that takes this many times the usual one was disturbed, and no plan should expect it
DISTURBED = 4.0

Composition = tuple[tuple[int, int], ...]


@dataclass(kw_only=True)
class _Pack:
    """Steps of one composition: tokens of each member, and seconds."""

    num_steps: int = 0
    steps: list[tuple[tuple[int, ...], float]] = field(default_factory=list)


class StepRecorder:
    """Relates a run's events to the seconds that it spends."""

    def __init__(self, preparation: Preparation, run: OpenRun, *, specs: Mapping[int, TrialSpec]) -> None:
        """Start when the task has been read and loaded; ``specs`` grows with the run's proposals."""
        self._preparation, self._specs, self._time_spent, self._clock = preparation, specs, run.time_spent, run.clock
        lengths = preparation.inputs.data.train.lengths.astype(float)
        self._square = float((lengths**2).mean() / lengths.mean())
        self._began = run.clock.monotonic() - sum(preparation.facts.seconds.values())
        self._packs: dict[Composition, _Pack] = {}
        self._trained = self._evaluated = self._trained_at_first = 0.0
        self._first_step: float | None = None
        self._last_step = self._began
        self._steps = self._evaluated_tokens = 0

    def took(self, events: Sequence[TrialEvent]) -> None:
        """Take in what one tick of the run did."""
        steps = [event for event in events if isinstance(event, StepDone)]
        trained = self._time_spent.total(Activity.TRAIN)
        seconds, self._trained = trained - self._trained, trained
        self._evaluated_tokens += sum(event.num_tokens for event in events if isinstance(event, Evaluated))
        if not steps:
            return
        self._last_step = self._clock.monotonic()
        if self._first_step is None:
            # the first step compiles kernels and fills caches: its time belongs to the start
            self._first_step, self._evaluated = self._last_step, self._evaluation_seconds
            self._trained_at_first = trained
        self._steps += 1
        if seconds > 0 and not any(isinstance(event, TrialFailed) for event in events):
            self._add(steps, seconds)

    def _add(self, steps: Sequence[StepDone], seconds: float) -> None:
        # by composition: trials of equal rank and batch size cost the same, whichever they are
        members = sorted(
            (
                aligned_rank(self._specs[step.trial_id].adapter.num_rows),
                self._specs[step.trial_id].batch_size,
                step.num_tokens,
            )
            for step in steps
        )
        pack = self._packs.setdefault(tuple((r, batch_size) for r, batch_size, _ in members), _Pack())
        pack.num_steps += 1
        if SKIPPED_STEPS < pack.num_steps <= SKIPPED_STEPS + MOST_STEPS:
            pack.steps.append((tuple(tokens for _, _, tokens in members), seconds))

    @property
    def _evaluation_seconds(self) -> float:
        return self._time_spent.total(Activity.EVALUATE) + self._time_spent.total(Activity.GENERATE)

    def costs(self) -> RunCosts:
        """Return what was measured up to now; the end of the run is now."""
        now = self._clock.monotonic()
        if self._first_step is None:
            return RunCosts()
        evaluated = self._evaluation_seconds - self._evaluated
        trained = self._trained - self._trained_at_first
        between = self._last_step - self._first_step
        longest = sorted(self._packs.items(), key=lambda item: -len(item[1].steps))[:MOST_PACKS]
        return RunCosts(
            samples=tuple(_mean(kind, pack, self._square) for kind, pack in longest if pack.steps),
            evaluated_tokens=self._evaluated_tokens,
            evaluation_seconds=evaluated,
            steps=self._steps,
            start_seconds=self._first_step - self._began,
            # the comparison depends on the task's rows, and is predicted by itself
            finish_seconds=now - self._last_step - self._time_spent.total(Activity.COMPARE),
            other_seconds=max(0.0, between - trained - evaluated),
        )

    def keep(self) -> None:
        """Put what was measured into the cache, for the next plan of such a task."""
        costs, preparation = self.costs(), self._preparation
        # where layers are streamed, steps may wait for copies: the plan of a resident model must not learn from them
        if not costs.samples or preparation.decoder is None or preparation.decoder.ring is not None:
            return
        machine = preparation.machine
        key = preparation.inputs.cost_key(hardware=hardware_of(machine).name, precision=machine.precision)
        write_costs(key, costs)


def _mean(composition: Composition, pack: _Pack, square_per_token: float) -> StepSample:
    """Return the mean of a pack's undisturbed steps."""
    usual = sorted(seconds for _, seconds in pack.steps)[len(pack.steps) // 2]
    kept = [(tokens, seconds) for tokens, seconds in pack.steps if seconds <= DISTURBED * usual]
    means = [sum(column) / len(kept) for column in zip(*(tokens for tokens, _ in kept), strict=True)]
    return StepSample(
        pack=tuple(
            AdapterWork(r=r, num_tokens=tokens, sum_squares=square_per_token * tokens, num_sequences=batch_size)
            for (r, batch_size), tokens in zip(composition, means, strict=True)
        ),
        seconds=sum(seconds for _, seconds in kept) / len(kept),
    )
