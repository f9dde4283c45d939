"""The last comparison of a run: its best trials, the default configuration and the base model on all validation rows,
and what the winner then has on the test rows.

While trials train they are compared on few rows, often 16 of a hundred: the leader of so small a sample need not be the
best. The comparison is made again from the checkpoints when a kill interrupts it, to the same result.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.core.errors import MemoryLimitError, SampleTooLargeError
from cohort.core.statistics.row_estimates import difference
from cohort.core.units import counted
from cohort.data.tokenised import TokenisedRows
from cohort.engine.train.evaluation import Measured, RunEvaluator
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun
from cohort.metrics import counts_hits
from cohort.models.counts import count_model
from cohort.prepare.evaluations import choose_rows, ranked_rows, row_tokens
from cohort.prepare.objectives import searched_of_the_loss
from cohort.prepare.preparation import Preparation
from cohort.runs.facts import Activity
from cohort.runs.results.comparison import Comparison, Contender
from cohort.runs.results.compute_saved import compute_saved
from cohort.runs.results.measured_contender import measured_contender
from cohort.training.trial import TrialSpec, TrialState
from cohort.tuning.finals_plan import FinalsPlan, free_tokens, plan_finals
from cohort.tuning.objective_metric import ObjectiveMetric, TieRule
from cohort.tuning.study import Study
from cohort.tuning.study_trial import BestCheckpoint

__all__ = ["Finals"]

# the base model's place among the contenders
BASE = None


class Finals:
    """Measures finalists of one task in its part of an executor."""

    def __init__(
        self,
        preparation: Preparation,
        run: OpenRun,
        *,
        share: ExecutorShare,
        evaluator: RunEvaluator,
        specs: Mapping[int, TrialSpec],
        make_room: Callable[[], bool],
    ) -> None:
        """Join the parts.

        Args:
            make_room: Takes a trial of another task out of the bank; returns False if there is none.
        """
        self._preparation, self._run, self._share, self._evaluator = preparation, run, share, evaluator
        self._specs, self._make_room = specs, make_room

    def test(self, study: Study, *, say: Callable[[str], None]) -> None:
        """Measure the winner on the test rows, once; nothing happens where there are none or it is on record."""
        rows, facts, leaders = self._preparation.inputs.data.test, self._run.store.reader.facts(), study.leaders()
        if rows is None or facts.test is not None or not leaders:
            return
        winner_id = leaders[0].trial_id if facts.finals is None else facts.finals.winner.trial_id
        winner = next(best for best in leaders if best.trial_id == winner_id)
        # on the same rows as the winner: only so has their difference an interval that is worth something
        default = [best for best in leaders if best.trial_id == facts.task.default_trial_id != winner_id]
        num_rows = len(rows) // self._preparation.group_size
        say(f"measuring the best adapter on {counted(num_rows, 'test row')}")
        found = self._compared([winner], default, rows=rows, row_ids=range(num_rows), metric=study.metric)
        if found is not None:
            if found.note:
                self._run.watcher.note(f"the comparison uses {found.num_rows} of {num_rows} test rows: {found.note}")
            self._run.store.set_facts(test=replace(found, num_available=num_rows, split="test"))

    def hold(self, study: Study, *, say: Callable[[str], None]) -> None:
        """Measure the leaders of ``study`` and record the comparison, unless it is on record or not asked for."""
        facts, settings = self._run.store.reader.facts(), self._preparation.task.evaluation_settings()
        leaders = study.leaders()
        if facts.finals is not None or not settings.finalists or not leaders:
            return
        # what people would have trained without a search: the gain over it is what the search was worth
        default = next((best for best in leaders if best.trial_id == facts.task.default_trial_id), None)
        plan = self._plan(num_candidates=len(leaders), num_others=1 if default is None else 2)
        finalists = leaders[: plan.num_finalists]
        which = "the trial" if len(finalists) == 1 else f"the best {len(finalists)} trials"
        say(f"comparing {which} on {counted(plan.num_rows, 'validation row')}")
        if plan.note:
            self._run.watcher.note(f"the last comparison has {plan.note}")
        others = [] if default is None or default in finalists else [default]
        rows = self._preparation.inputs.data.all_validation
        row_ids = choose_rows(self._preparation.task, rows, wanted=plan.num_rows)
        found = self._compared(finalists, others, rows=rows, row_ids=row_ids, metric=study.metric)
        if found is not None:
            if found.note:
                uses = f"the comparison uses {found.num_rows} of {plan.num_rows} validation rows"
                self._run.watcher.note(f"{uses}: {found.note}")
            notes = "; ".join(note for note in (plan.note, found.note) if note)
            available = len(rows) // self._preparation.group_size
            self._run.store.set_facts(finals=replace(found, num_available=available, note=notes))

    def _plan(self, *, num_candidates: int, num_others: int) -> FinalsPlan:
        preparation = self._preparation
        rows = preparation.inputs.data.all_validation
        tokens = row_tokens(preparation.task, rows)[ranked_rows(preparation.task, rows)]
        return plan_finals(
            num_candidates=num_candidates,
            num_others=num_others,
            row_tokens=tokens.tolist(),
            num_evaluated=len(preparation.evaluation_rows),
            # from the log, and not from the clock: a resumed run makes the same plan
            cost_tokens=compute_saved(self._run.store.reader.trials()).cost_tokens,
            settings=preparation.task.evaluation_settings(),
            free_tokens=free_tokens(
                num_weights=count_model(preparation.inputs.config).parameters,
                device_type=preparation.machine.device.type,
            ),
        )

    def _compared(
        self,
        finalists: Sequence[BestCheckpoint],
        others: Sequence[BestCheckpoint],
        *,
        rows: TokenisedRows,
        row_ids: Sequence[int],
        metric: ObjectiveMetric,
    ) -> Comparison | None:
        """Measure and compare on the rows that fit into memory; None if there are none."""
        kept, note = list(row_ids), ""
        while kept:
            try:
                with self._run.time_spent.on(Activity.COMPARE):
                    measured = self._measure([*finalists, *others], rows=rows, row_ids=kept)
                self._run.store.add_seconds(self._run.time_spent.take())
                ranked = self._settled(_ranked(finalists, measured, metric=metric), measured, metric=metric)
                found = _compare(ranked, others, measured)
                self._note_endless(measured[found.winner.trial_id])
                return replace(found, num_rows=len(kept), note=note)
            except (SampleTooLargeError, MemoryLimitError, torch.OutOfMemoryError) as error:
                # the trials have trained: an error here would come again at every resume, and their result be lost
                longest = getattr(error, "num_tokens", None)
            kept, limit = _shorter(kept, rows, longest=longest, group_size=self._preparation.group_size)
            count = len(row_ids) - len(kept)
            note = f"{count} row{'s' * (count > 1)} left out, of {limit:,} tokens or more, which do not fit into memory"
        self._run.watcher.note(f"the best trials are not compared: {note}")
        return None

    def _settled(
        self, ranked: Sequence[BestCheckpoint], measured: Mapping[int | None, Measured], *, metric: ObjectiveMetric
    ) -> Sequence[BestCheckpoint]:
        """Put the trial first that the loss prefers where the metric does not tell it from the first, and say so."""
        winner = _preferred_by_loss(ranked, measured, metric=metric)
        if winner is ranked[0] or searched_of_the_loss(self._preparation.task):
            return ranked
        self._run.watcher.note(
            f"trial {winner.trial_id} is better than trial {ranked[0].trial_id} by its loss; these rows do not tell "
            f"the two apart by {metric.label}"
        )
        return [winner, *(best for best in ranked if best is not winner)]

    def _note_endless(self, winner: Measured) -> None:
        most = self._preparation.task.evaluation.max_new_tokens
        if (endless := winner.endless_note("the best adapter", max_new_tokens=most)) is not None:
            self._run.watcher.note(
                f"warning: {endless}, so none can be exact; raise evaluation.max_new_tokens, or, if the model cannot "
                "end its answers, choose a metric that finds the answer in the text (contains, number_match)"
            )

    def _measure(
        self, contenders: Sequence[BestCheckpoint], *, rows: TokenisedRows, row_ids: Sequence[int]
    ) -> dict[int | None, Measured]:
        """Measure best checkpoints, as many at a time as the bank holds, and the base model."""
        measured: dict[int | None, Measured] = {}
        waiting = list(contenders)
        while waiting:
            with self._resident(waiting) as present:
                found = self._evaluator.measure(present, rows=rows, row_ids=row_ids)
            measured.update(zip(present, found, strict=True))
            waiting = [best for best in waiting if best.trial_id not in measured]
        # the frozen model takes no slot, so it waits for no room
        measured[BASE] = self._evaluator.measure_base(rows=rows, row_ids=row_ids)
        return measured

    @contextlib.contextmanager
    def _resident(self, contenders: Sequence[BestCheckpoint]) -> Iterator[list[int]]:
        """Load the best checkpoints of as many as the bank has room for, of at least one."""
        present: list[int] = []
        try:
            for best in contenders:
                spec = self._specs[best.trial_id]
                # another task's trials give way only to the first: they wait no longer than they have to
                while not present and not self._share.fits(spec) and self._make_room():
                    pass
                if present and not self._share.fits(spec):
                    break
                kept = self._run.state_store.best(best.trial_id)
                assert kept is not None, "a trial with a best value has its checkpoint"
                weights_rD, step = kept
                self._share.load(spec, TrialState(adapter=AdapterState(weights=weights_rD), step=step))
                present.append(best.trial_id)
            yield present
        finally:
            for trial_id in present:
                self._share.drop(trial_id)


def _shorter(
    row_ids: Sequence[int], rows: TokenisedRows, *, longest: int | None, group_size: int
) -> tuple[list[int], int]:
    """Return the rows, or groups of rows, of fewer tokens than one that did not fit, and their limit.

    ``longest`` is its length; None where it is unknown which row it was: then the longest of them are left out.
    """
    lengths = rows.lengths.reshape(-1, group_size).max(axis=1)
    most = int(lengths[list(row_ids)].max())
    # a choice can be longer than its row: something has to be left out even then
    limit = most if longest is None else min(longest, most)
    return [row_id for row_id in row_ids if lengths[row_id] < limit], limit


def _ranked(
    finalists: Sequence[BestCheckpoint], measured: Mapping[int | None, Measured], *, metric: ObjectiveMetric
) -> list[BestCheckpoint]:
    """Return the finalists in the order of their values."""

    def order(best: BestCheckpoint) -> tuple[float, ...]:
        found = measured[best.trial_id]
        value = metric.competing_value(found.validation_loss, found.metrics)
        # finite on the few rows, not on all: it comes last, and the order of the search decides among several
        if value is None:
            return (math.inf, *best.order(metric))
        return metric.order(value, validation_loss=found.validation_loss, step=best.step, trial_id=best.trial_id)

    return sorted(finalists, key=order)


def _preferred_by_loss(
    ranked: Sequence[BestCheckpoint], measured: Mapping[int | None, Measured], *, metric: ObjectiveMetric
) -> BestCheckpoint:
    """Return the trial of lowest loss among those that are better than the first by it; the first, if there are none.

    Only a metric that counts, such as an accuracy of pairs, leaves this to the loss: where its paired interval does not
    tell the two apart and that of the loss does. An answer that is generated says more of what was asked for than the
    loss does; there the loss settles equal values alone.
    """
    leader = measured[ranked[0].trial_id]
    if metric.ties is not TieRule.LOSS or not (counts_hits(metric.name) and metric.name in leader.of_groups):
        return ranked[0]

    def is_ahead(own: Measured) -> bool:
        by_loss = difference(own.rows["loss"], leader.rows["loss"])
        is_near = not difference(own.rows[metric.name], leader.rows[metric.name]).excludes_zero
        return is_near and by_loss.excludes_zero and by_loss.value < 0

    ahead = [best for best in ranked[1:] if is_ahead(measured[best.trial_id])]
    # of equal losses the first: it is better by the metric
    return min(ahead, key=lambda best: measured[best.trial_id].validation_loss, default=ranked[0])


def _compare(
    ranked: Sequence[BestCheckpoint], others: Sequence[BestCheckpoint], measured: Mapping[int | None, Measured]
) -> Comparison:
    """Return the comparison, without its rows; the first of ``ranked`` is the winner."""
    winner = measured[ranked[0].trial_id]

    def contender(best: BestCheckpoint | None) -> Contender:
        found = measured[None if best is None else best.trial_id]
        return measured_contender(
            found.rows,
            trial_id=None if best is None else best.trial_id,
            step=None if best is None else best.step,
            winner=None if found is winner else winner.rows,
        )

    return Comparison(
        num_rows=0,
        num_available=0,
        num_tokens=sum(found.num_tokens for found in measured.values()),
        ranked=tuple(map(contender, ranked)),
        others=tuple(map(contender, [*others, None])),
    )
