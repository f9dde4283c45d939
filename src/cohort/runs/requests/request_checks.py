"""Whether a request about a run's trials can be carried out, checked alike by the process that asks and by the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cohort.adapters.spec import changes_base
from cohort.core.errors import InputError, Problem
from cohort.runs.facts import RunFacts, RunState
from cohort.runs.reader import RunReader
from cohort.runs.records import TrialRecord
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from cohort.runs.requests.variant_checks import variant_refusals
from cohort.scheduling.admission import Capacity, Request, find_inadmissible
from cohort.tasks.possible_values import possible_optimizers
from cohort.tasks.task_file import TaskFile
from cohort.tasks.trial_values import added_parameters, default_values
from cohort.tuning.decisions import Reason
from cohort.tuning.interventions import FROM_TRIAL, can_be_resumed
from cohort.tuning.parameters import Value
from cohort.tuning.trial_status import TrialStatus

__all__ = ["CheckedRequest", "check_request", "recorded_value"]


@dataclass(frozen=True, kw_only=True)
class CheckedRequest:
    """A request that can be carried out.

    Attributes:
        trial: The trial it is about; None for a new one that copies none.
        parameters: The hyperparameters of a new trial, as its record shows them.
    """

    trial: TrialRecord | None
    parameters: Mapping[str, Value] = field(default_factory=dict)


def check_request(request: TrialRequest, *, reader: RunReader, task: TaskFile) -> CheckedRequest:
    """Check a request against a run as it stands.

    Raises:
        InputError: it cannot be carried out; every reason.
    """
    # one moment for both: the run may end between two reads
    with reader.snapshot():
        trials, facts = {trial.trial_id: trial for trial in reader.trials()}, reader.facts()
    # the comparison of its best trials is the last thing of a run, and is not made again
    if facts.state is RunState.DONE or facts.finals is not None:
        raise InputError(
            Problem(
                where=f"cohort trials {request.kind}",
                found="a run whose trials have all ended",
                allowed="a run that trains, or one that `cohort resume` can continue",
                hint="Export the adapter of any trial with `cohort export RUN_DIR --trial N`, or start a new run.",
            )
        )
    trial = None
    if request.trial_id is not None:
        trial = trials.get(request.trial_id)
        if trial is None:
            raise InputError(_no_such_trial(request, trials))
        if (problem := _wrong_state(request, trial)) is not None:
            raise InputError(problem)
    if request.kind not in (RequestKind.CLONE, RequestKind.ADD):
        return CheckedRequest(trial=trial)
    source = None if trial is None else {name: recorded_value(value) for name, value in trial.parameters.items()}
    parameters = added_parameters(task, request.values, source=source)
    problems = [
        *_too_large(parameters, facts=facts),
        *_more_than_rows(parameters, facts=facts),
        *_without_blocks(parameters, task=task, facts=facts),
        *_without_states(parameters, task=task),
        *variant_refusals(parameters, task=task, facts=facts),
    ]
    if trial is not None and request.warm_start:
        problems += _cold(trial, parameters, shared=facts.task.training or {})
    else:
        # the same values lead elsewhere from other weights: a warm clone is no reason to refuse a cold trial
        warm = {entry.decision.trial_id for entry in reader.log.decisions() if FROM_TRIAL in entry.decision.numbers}
        cold = {number: trial for number, trial in trials.items() if number not in warm}
        problems += _twice(parameters, cold, defaults=default_values(task))
    if problems:
        raise InputError(problems)
    return CheckedRequest(trial=trial, parameters=parameters)


def _without_states(parameters: Mapping[str, Value], *, task: TaskFile) -> list[Problem]:
    """Return why a run cannot step a trial: it keeps the states of the optimizers that it began with."""
    allowed, optim = possible_optimizers(task), str(parameters.get("optim", "adamw"))
    if optim in allowed:
        return []
    return [
        Problem(
            where="--optim",
            found=optim,
            allowed=f"{', '.join(allowed)}: a run has room for the states of these",
            hint="Choose one of them, or start a run with this optim.",
        )
    ]


def recorded_value(value: object) -> Value:
    """Return a recorded hyperparameter as the plain value that it is."""
    assert isinstance(value, bool | int | float | str), "a hyperparameter is a number, a word or a switch"
    return value


def _no_such_trial(request: TrialRequest, trials: Mapping[int, TrialRecord]) -> Problem:
    numbers = sorted(trials)
    # a number below the last one is missing only where a sampler still has trials to propose
    is_gapless = numbers == list(range(len(numbers)))
    listed = f"0 to {numbers[-1]}" if is_gapless else ", ".join(map(str, numbers))
    return Problem(
        where=f"cohort trials {request.kind}",
        found=f"trial {request.trial_id}",
        allowed=f"a trial of this run: {listed}",
        hint="List them with `cohort trials RUN_DIR`.",
    )


def _wrong_state(request: TrialRequest, trial: TrialRecord) -> Problem | None:
    """Return why a trial cannot be stopped, resumed or kept as it is now."""
    where, number = f"cohort trials {request.kind}", trial.trial_id
    now = f"trial {number}, which is {_standing(trial)}"
    if request.kind is RequestKind.RESUME:
        # a trial whose loss became NaN has weights that nothing can go on from
        if trial.status is not TrialStatus.STOPPED or not can_be_resumed(Reason(trial.reason)):
            clone = f"cohort trials RUN_DIR clone {number}"
            hint = f"Train a copy of it: `{clone}`." if trial.status.is_final else "Choose a trial that was stopped."
            return Problem(
                where=where, found=now, allowed="a trial that a rule or a person stopped, with a finite loss", hint=hint
            )
    elif request.kind in (RequestKind.STOP, RequestKind.KEEP) and trial.status.is_final:
        resume = f"Resume it first: `cohort trials RUN_DIR resume {number}`; no rule stops it again."
        is_stopped = request.kind is RequestKind.KEEP and trial.status is TrialStatus.STOPPED
        return Problem(
            where=where,
            found=now,
            allowed="a trial that has not ended",
            hint=resume if is_stopped else "There is nothing left to do for it.",
        )
    elif request.kind is RequestKind.KEEP and trial.is_protected:
        return Problem(
            where=where, found=f"trial {number} again", allowed="each trial once", hint="It is kept already."
        )
    return None


def _standing(trial: TrialRecord) -> str:
    reason = f" ({trial.reason})" if trial.reason and trial.status is TrialStatus.STOPPED else ""
    return f"{trial.status.value}{reason} after {trial.steps_done} of {trial.planned_steps} steps"


def _too_large(parameters: Mapping[str, Value], *, facts: RunFacts) -> tuple[Problem, ...]:
    """Return what the plan of the run's memory has against a new trial: its bank cannot grow while trials train."""
    rank_rows, num_slots = facts.sizes.rank_rows, facts.sizes.num_slots
    if rank_rows is None or num_slots is None:
        return ()
    # only the bank can refuse a trial for good: a step of many tokens is cut into micro-batches
    room = Capacity(rank_rows=rank_rows, num_slots=num_slots, tokens_per_step=1.0)
    settings = {**(facts.task.training or {}), **parameters}
    # twice the rank rows, of which half are frozen; or one more behind the last tile of 16, for magnitudes or vectors
    r = int(parameters["r"]) * (2 if changes_base(str(settings.get("init_lora_weights"))) else 1)
    r = -(-r // 16) * 16 + 1 if settings.get("use_dora") or settings.get("use_vera") else r
    if facts.inputs.whole_modules is not None:
        # their tables begin behind the last tile of 16 rows
        r = -(-r // 16) * 16 + facts.inputs.whole_modules["rank_rows"]
    request = Request(trial_id=0, r=r, batch_size=int(parameters["batch_size"]), mean_length=1.0)
    return tuple(
        Problem(
            where="--r",
            found=problem.found,
            allowed=f"at most {rank_rows}, the rank rows that this run has memory for",
            hint="Choose a smaller r, or start a run whose task file searches this r.",
        )
        for problem in find_inadmissible([request], capacity=room)
    )


def _without_blocks(parameters: Mapping[str, Value], *, task: TaskFile, facts: RunFacts) -> list[Problem]:
    """Return why a new trial cannot have its blocks."""
    blocks = task.block_diagonal(int({**default_values(task), **parameters}["nblocks"]))
    if blocks is None:
        return []
    # a run records widths only where its task has blocks or vectors
    shapes = facts.inputs.adapted_shapes
    if shapes is None:
        found, allowed = f"{blocks.nblocks} blocks in a run of plain LoRA", "1"
        return [Problem(where="--nblocks", found=found, allowed=allowed, hint="Start a run with lora.use_bdlora.")]
    linears = {name: (shape[0], shape[1]) for name, shape in shapes.items()}
    of_rank = blocks.rank_refusal(int(parameters["r"]))
    refusals = [*blocks.width_refusals(linears), *(() if of_rank is None else (of_rank,))]
    return [Problem(where="--nblocks", found=r.found, allowed=r.allowed, hint=r.hint) for r in refusals]


def _more_than_rows(parameters: Mapping[str, Value], *, facts: RunFacts) -> list[Problem]:
    """Return the problem of a batch that the data cannot fill: a slip, since fewer would train the same."""
    num_rows, batch_size = facts.inputs.num_train_rows, parameters["batch_size"]
    if num_rows is None or int(batch_size) <= num_rows:
        return []
    return [
        Problem(
            where="--batch_size",
            found=str(batch_size),
            allowed=f"at most {num_rows}, the rows that this run trains on",
            hint=f"Write --batch_size {num_rows} or less: a larger batch takes all rows, too.",
        )
    ]


def _cold(trial: TrialRecord, parameters: Mapping[str, Value], *, shared: Mapping[str, object]) -> list[Problem]:
    """Return why a clone cannot begin with the weights of the other trial."""
    problems = []
    if trial.best_step is None:
        problems.append(
            Problem(
                where="--warm-start",
                found=f"trial {trial.trial_id}, which has no checkpoint with a finite loss yet",
                allowed="a trial that was evaluated at least once",
                hint="Wait for its first evaluation, or leave out --warm-start.",
            )
        )
    start, other = ({**shared, **own}.get("init_lora_weights", "true") for own in (parameters, trial.parameters))
    if start != other and (changes_base(str(start)) or changes_base(str(other))):
        problems.append(
            Problem(
                where="--init_lora_weights",
                found=f"{start} with the weights of a trial with {other}",
                allowed=f"{other}: what a trial takes out of the base weight stays out",
                hint="Leave out --init_lora_weights or --warm-start.",
            )
        )
    # a variant's rank rows mean something else: DoRA keeps magnitudes in one, VeRA scales what is drawn from the key
    for name, default in (("use_dora", False), ("use_vera", False), ("projection_prng_key", 0)):
        value, before = ({**shared, **own}.get(name, default) for own in (parameters, trial.parameters))
        if value != before:
            problems.append(
                Problem(
                    where=f"--{name}",
                    found=f"{str(value).lower()} with the weights of a trial with {str(before).lower()}",
                    allowed=f"{str(before).lower()}, as trial {trial.trial_id} has",
                    hint=f"Leave out --{name} or --warm-start.",
                )
            )
    # rank rows are copied as they are: rows that are missing would start as zeros, and stay there
    if parameters["r"] != trial.parameters["r"]:
        problems.append(
            Problem(
                where="--r",
                found=f"{parameters['r']} with the weights of rank {trial.parameters['r']}",
                allowed=f"{trial.parameters['r']}, as trial {trial.trial_id} has",
                hint="Leave out --r or --warm-start.",
            )
        )
    if parameters.get("nblocks") != trial.parameters.get("nblocks"):
        problems.append(
            Problem(
                where="--nblocks",
                found=f"{parameters.get('nblocks')} with the weights of nblocks {trial.parameters.get('nblocks')}",
                allowed=f"the blocks of trial {trial.trial_id}",
                hint="Leave out --nblocks or --warm-start.",
            )
        )
    return problems


def _twice(
    parameters: Mapping[str, Value], trials: Mapping[int, TrialRecord], *, defaults: Mapping[str, Value]
) -> list[Problem]:
    """Return the problem of a new trial that would train to the bits of one that is there."""
    # records leave out what the task fixes: with the defaults two trials have the same keys
    wanted = {**defaults, **parameters}
    same = next((number for number, trial in trials.items() if {**defaults, **trial.parameters} == wanted), None)
    if same is None:
        return []
    return [
        Problem(
            where="cohort trials",
            found=f"the hyperparameters of trial {same}",
            allowed="others: the same ones give the same adapter, bit for bit",
            hint=f"Change a value, such as --seed {int(wanted['seed']) + 1}.",
        )
    ]
