"""Where a run stands, as data: what ``cohort status`` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunFacts, RunState
from cohort.runs.followed_steps import FollowedSteps
from cohort.runs.reader import RunReader
from cohort.runs.records import RankWorkRecord
from cohort.runs.results.lost_results import lost_results
from cohort.runs.results.results import RankedTrial, RunResults, read_results
from cohort.runs.time_left import StepsAhead, TokenRate, seconds_left
from cohort.tuning.evaluation_times import EVALUATION_TOKEN_COST, warmup_steps
from cohort.tuning.trial_status import TrialStatus

__all__ = ["RankStatus", "RunStatus", "read_status"]

# long enough to hold several evaluations of an ordinary run, short enough to follow a change of pack
_RATE_WINDOW_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """One of several GPUs, or processes of a CPU, over the last minute of run time, or the last recorded stretch.

    Attributes:
        trials: Those it trains, by number; None where all GPUs hold every trial together.
        busy_share: Share of the time in which it trained or evaluated.
        tokens_per_second: Trained.
    """

    rank: int
    trials: tuple[int, ...] | None
    busy_share: float
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run at one moment.

    Attributes:
        state: ``running`` (a process holds the directory), ``done``, or ``stopped`` (it can be resumed).
        holder: The process that runs it; empty unless running.
        counts: Trials by status; every status is there.
        stopped_reasons: Stopped trials by reason.
        resident: (slot, trial id) of the trials being trained, by slot.
        tokens_per_second: Trained and evaluated, over the last minute of run time, which in a run that is not going on
            ends with the last step or evaluation that is shown; None before the first token.
        device: What ``ranks`` are: ``GPU`` or ``process``.
        ranks: Each GPU, where there are several.
        missing: Results of a finished run that are gone or torn.
        cost_tokens_left: As ``seconds_left``, in tokens of training, of which one that is evaluated costs a part; known
            also while nothing runs, None where no plan tells the tokens.
        num_devices: GPUs, or processes of a CPU, that train it.
        steps_to_repeat: Steps that a killed process had recorded after its last checkpoint. A resume trains them again;
            trials, decisions and results are shown as of the checkpoint, and run time as it was spent.
        seconds_left: An estimate that expects no early exit but the selection; None before there is a rate, 0 when
            done.
    """

    state: str
    holder: str
    results: RunResults
    counts: Mapping[TrialStatus, int]
    stopped_reasons: Mapping[str, int]
    resident: tuple[tuple[int, int], ...]
    tokens_per_second: float | None
    seconds_left: float | None
    device: str = "GPU"
    ranks: tuple[RankStatus, ...] = ()
    missing: tuple[str, ...] = ()
    cost_tokens_left: float | None = None
    num_devices: int = 1
    steps_to_repeat: int = 0

    @property
    def trials(self) -> tuple[RankedTrial, ...]:
        """The rows of the table, best first."""
        return self.results.ranked


def _ranks(
    work: Sequence[RankWorkRecord], resident: Sequence[tuple[int, int]], *, facts: RunFacts, since: float
) -> tuple[RankStatus, ...]:
    # a stretch of a long run lasts longer than the window: then the last one, of all ranks
    last = work[-1].end_seconds if work else 0.0
    lately = [record for record in work if record.end_seconds > since or record.end_seconds == last]
    found = []
    for rank in sorted({record.rank for record in lately}):
        own = [record for record in lately if record.rank == rank]
        seconds = sum(record.end_seconds - record.start_seconds for record in own)
        # slots are numbered through: those of rank 1 follow those of rank 0
        num_slots = facts.sizes.num_slots or 1
        trials = tuple(trial_id for slot, trial_id in resident if slot // num_slots == rank)
        found.append(
            RankStatus(
                rank=rank,
                trials=None if facts.sizes.rank_group else trials,
                busy_share=min(1.0, sum(record.busy_seconds for record in own) / seconds),
                tokens_per_second=sum(record.num_tokens for record in own) / seconds,
            )
        )
    return tuple(found)


def _left(results: RunResults, *, pace: TokenRate) -> float | None:
    """Return what ``pace`` takes for all that is ahead: seconds, or tokens at a pace of one a second."""
    compute, task = results.compute, results.facts.task
    if not compute.planned_steps:
        return None
    # a plan may not tell how many tokens a trial takes
    mean = compute.planned_tokens / compute.planned_steps
    ahead = (entry.trial for entry in results.ranked if not entry.trial.status.is_final)
    return seconds_left(
        [
            StepsAhead(
                steps_done=trial.steps_done,
                planned_steps=trial.planned_steps,
                warmup_steps=warmup_steps(
                    trial.planned_steps, fraction=1.0 if task.warmup_fraction is None else task.warmup_fraction
                ),
                tokens_per_step=mean if trial.planned_tokens is None else trial.planned_tokens / trial.planned_steps,
            )
            for trial in ahead
        ],
        pace=pace,
        kept_share=1.0 if task.kept_share is None else task.kept_share,
    )


def read_status(directory: RunDirectory, *, followed: FollowedSteps | None = None) -> RunStatus:
    """Read where the run in ``directory`` stands; the process that trains it is not disturbed.

    Args:
        followed: The steps of this run as far as they were read before; it reads on. Without it all are read. It
            includes the steps after a killed run's last checkpoint; nothing is hidden then.

    Raises:
        RunStateError: the run's database cannot be read.
    """
    # the lock before the database: a run that ends between the two shows as running, never as stopped
    holder = directory.lock().holder() or ""
    with RunReader.open(directory.database) as reader, reader.snapshot():
        repeated = 0
        if followed is not None:
            followed.read(reader)
        elif not holder and reader.facts().state is not RunState.DONE:
            repeated = reader.go_back_to_checkpoint()
        results = read_results(reader, steps_taken=None if followed is None else followed.taken)
        done = results.facts.state is RunState.DONE
        # the last moment that is shown: a killed process went on after its checkpoint, and what it did there is hidden
        end = results.run_seconds if holder or done else reader.log.last_seconds()
        window = min(_RATE_WINDOW_SECONDS, end)
        tokens = (followed or reader.log).tokens_since(end - window)
        resident = tuple(
            sorted((stay.slot, stay.trial_id) for stay in reader.log.residencies() if stay.stop_position is None)
        )
        work = [record for record in reader.log.rank_work() if record.start_seconds < end]
        ranks = _ranks(work, resident, facts=results.facts, since=end - window)
    # a process that writes them again is not to be blamed for what it has not written yet
    is_done_now = done and results.facts.are_results_written is True and not holder
    rate = tokens / window if window > 0 and tokens else None
    compute = results.compute
    pace = TokenRate.of(rate, trained=compute.trained_tokens, evaluated=compute.evaluation_tokens)
    in_tokens = TokenRate(1.0, EVALUATION_TOKEN_COST * pace.evaluated_per_trained)
    counts = Counter(entry.trial.status for entry in results.ranked)
    return RunStatus(
        # a killed process leaves the state `running` behind: the lock tells whether one is alive
        state="running" if holder else "done" if done else "stopped",
        holder=holder,
        results=results,
        counts={status: counts[status] for status in TrialStatus},
        stopped_reasons=Counter(
            entry.trial.reason for entry in results.ranked if entry.trial.status is TrialStatus.STOPPED
        ),
        resident=resident,
        tokens_per_second=rate,
        device="GPU" if (results.facts.machine.device or "").startswith("cuda") else "process",
        ranks=ranks,
        missing=lost_results(directory, results.facts) if is_done_now else (),
        seconds_left=0.0 if done else _left(results, pace=pace),
        cost_tokens_left=0.0 if done else _left(results, pace=in_tokens) if compute.planned_tokens else None,
        steps_to_repeat=repeated,
        num_devices=len(ranks) or results.facts.sizes.num_ranks or 1,
    )
