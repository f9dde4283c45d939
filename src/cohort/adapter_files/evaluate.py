"""Measures adapters of a run on rows that it has not seen, and the base model: loss, metrics, and 95 % intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.adapter_files.base_model import RunBase, open_base
from cohort.adapter_files.choose import BestSoFar, best_so_far, trials_with_adapters
from cohort.adapter_files.held_out_rows import HeldOutRows, read_held_out
from cohort.adapter_files.held_out_scores import HeldOutScores
from cohort.adapter_files.input_rows import find_source
from cohort.adapter_files.pace import BatchProgress
from cohort.adapter_files.run_model import RunModel, read_chosen
from cohort.adapters.peft_files.peft_format import PeftAdapter
from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.core.statistics.estimates import RowValues
from cohort.data.loading import load_dataset
from cohort.data.tokenised import TokenisedRows
from cohort.machine.machine import free_memory_bytes
from cohort.metrics import LOSS, REWARD_METRICS, build_metrics, metric_name
from cohort.runs.directory import RunDirectory
from cohort.runs.results.comparison import Contender
from cohort.runs.results.measured_contender import measured_contender
from cohort.runs.results.reference_baseline import chance_of
from cohort.tasks.functions import locate_functions
from cohort.tasks.yaml_lines import TaskOrigin
from cohort.training.objectives.declaration import compared_by

__all__ = ["BEST", "HeldOutEvaluation", "evaluate_run", "seen_note"]

BEST = "best"
"""The name of the run's best adapter among trials."""
# what the bank may take of the memory that the base model leaves; passes get the rest
_BANK_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class HeldOutEvaluation:
    """Adapters, and the base model, on the rows of one file.

    Attributes:
        data: The file.
        data_hash: SHA-256 of it.
        num_rows, num_read: Rows that were measured, and rows of the file.
        metrics: What was measured, in order; ``loss`` is the last unless it alone was asked for.
        contenders: In the order asked for; ``winner_minus`` of each is the first one's value less its own. The base
            model, last, has no trial; only a checkpoint of an unfinished run has a step.
        chance: Where the base model is the reference of the rewards, its own are 0 by definition: what chance gives
            instead, by metric.
        so_far: The checkpoint of an unfinished run.
        notes: For the user: about rows that were left out, the base model and the device.
    """

    data: Path
    data_hash: str
    num_rows: int
    num_read: int
    metrics: tuple[str, ...]
    contenders: tuple[Contender, ...]
    chance: Mapping[str, float]
    so_far: BestSoFar | None
    notes: tuple[str, ...]


def evaluate_run(
    run_directory: Path,
    *,
    data: Path,
    metrics: Sequence[str] = (),
    trials: Sequence[str] = (BEST,),
    with_base: bool = True,
    max_new_tokens: int | None = None,
    model: str | None = None,
    watcher: Callable[[BatchProgress], None] = lambda _: None,
    clock: Clock | None = None,
) -> HeldOutEvaluation:
    """Measure adapters of a run on the rows of ``data``, packed: all of them share the passes of the base model.

    Args:
        data: A file in the form of the run's rows, answers included.
        metrics: Names as in ``evaluation.metric``; those of the task when empty. The loss is always measured.
        trials: Numbers of trials, ``best``, or ``all``.
        max_new_tokens: Most tokens of an answer; the task's when None.
        model: Where the base model is now, if not where the run has it.
        watcher: Receives progress.

    Raises:
        InputError: no such trial, metric or file; a row that cannot be used; or the base model is another one.
        MetricFailedError: a metric function failed; names function, row and message.
    """
    directory = RunDirectory.open(run_directory)
    # a slip in the name is no reason to wait for the model
    find_source(data, option="--data")
    so_far = best_so_far(directory)
    wanted = _wanted(trials, directory=directory)
    base = open_base(directory, model=model)
    best_id = base.facts.best_trial_id
    if best_id is not None and None in wanted and best_id in wanted:
        # the best has a number as well: measured once
        wanted.remove(best_id)
    spelled = _spelled(metrics, base=base)
    place = Place(option="command line --metric") if metrics else base.task.where("evaluation.metric")
    _require_compared(spelled, base=base)
    scoring = build_metrics(spelled, options=base.task.evaluation.options, where=place)
    watcher(BatchProgress(phase="loading", num_done=0, num_rows=0, elapsed_seconds=0.0))
    # the first adapter before the model: a run without one is refused before weights are loaded
    first, _ = read_chosen(directory, trial_id=wanted[0], base=base)
    so_far = so_far if None in wanted else None
    loaded = RunModel(base)
    context = loaded.decoder.config.max_position_embeddings
    held = read_held_out(data, base=base, tokenizer=loaded.tokenizer, context=context)
    scores = HeldOutScores(
        loaded,
        held,
        metrics=scoring,
        spelled=spelled,
        max_new_tokens=max_new_tokens or base.task.evaluation.max_new_tokens,
        watcher=watcher,
        clock=clock or SystemClock(),
    )
    measured: list[Mapping[str, RowValues]] = []
    for adapters in _packs(wanted, first=first, directory=directory, loaded=loaded):
        loaded.hold(adapters)
        # the base model shares the passes of the last adapters
        adds_base = with_base and len(measured) + len(adapters) == len(wanted)
        measured += scores.of([*loaded.slots, *([None] if adds_base else [])])
    names = _measured_names(spelled, measured[0])
    return HeldOutEvaluation(
        data=data,
        data_hash=held.file_hash,
        num_rows=held.num_groups,
        num_read=held.num_read,
        metrics=names,
        contenders=_contenders(wanted, measured, base=base, so_far=so_far),
        chance=_chances(names, base=base),
        so_far=so_far,
        notes=_notes(loaded, held),
    )


def _measured_names(spelled: Sequence[str], first: Mapping[str, RowValues]) -> tuple[str, ...]:
    """Return what was measured, in order, the loss last."""
    return (*dict.fromkeys(metric_name(name) for name in (*spelled, *first) if name != LOSS), LOSS)


def _chances(names: Sequence[str], *, base: RunBase) -> dict[str, float]:
    return {name: chance for name in names if (chance := chance_of(base.facts, metric=name)) is not None}


def _wanted(trials: Sequence[str], *, directory: RunDirectory) -> list[int | None]:
    """Return the trials to measure, None for the best.

    Raises:
        InputError: one of them has no adapter, or is no number.
    """
    there = trials_with_adapters(directory)
    wanted: list[int | None] = []
    unknown = []
    for name in trials:
        if name == "all":
            wanted += there
        elif name == BEST:
            wanted.append(None)
        elif name.isdecimal() and int(name) in there:
            wanted.append(int(name))
        else:
            unknown.append(name)
    if unknown or not wanted:
        listed = ", ".join(map(str, there))
        raise InputError(
            Problem(
                where=Place(option="command line --trials"),
                found=", ".join(map(repr, unknown)) or "no trial",
                allowed=f"best, all, or some of {listed}" if there else "no trial of this run has an adapter yet",
                hint="Write them with commas: --trials best,0,3." if there else "Wait for its next checkpoint.",
            )
        )
    return list(dict.fromkeys(wanted))


def _spelled(metrics: Sequence[str], *, base: RunBase) -> list[str]:
    """Return the metrics to measure, functions by the files they are in.

    Raises:
        InputError: the file of a function is not there.
    """
    if not metrics:
        return list(base.task.evaluation.measured)
    section = {"evaluation": {"metrics": list(metrics)}}
    origin = TaskOrigin(name="", overrides={("evaluation", "metrics"): "--metric"})
    if problems := locate_functions(section, Path.cwd(), origin):
        raise InputError(problems)
    return section["evaluation"]["metrics"]


def _require_compared(spelled: Sequence[str], *, base: RunBase) -> None:
    """Refuse metrics of compared answers where the run's objective compares none.

    Raises:
        InputError: it compares none.
    """
    rewards = [name for name in spelled if name in REWARD_METRICS]
    objective = base.task.objective.declared
    missing = [name for name in rewards if name not in objective.measures]
    if missing:
        raise InputError(
            Problem(
                where=Place(option="command line --metric"),
                found=f"{', '.join(missing)} of a run with objective {objective.name}, which compares no answers",
                allowed=f"{' and '.join(REWARD_METRICS)} of runs with {compared_by(missing[0])}",
                hint="Write --metric loss.",
            )
        )


def _packs(
    wanted: Sequence[int | None], *, first: PeftAdapter, directory: RunDirectory, loaded: RunModel
) -> Iterator[list[PeftAdapter]]:
    """Yield the adapters in as few groups as the memory that the base model leaves allows."""
    room = _BANK_SHARE * free_memory_bytes(loaded.machine.device)
    pack, taken = [first], loaded.bank_bytes(first)
    for trial_id in wanted[1:]:
        adapter, _ = read_chosen(directory, trial_id=trial_id, base=loaded.base)
        size = loaded.bank_bytes(adapter)
        if taken + size > room:
            yield pack
            pack, taken = [], 0
        pack.append(adapter)
        taken += size
    yield pack


def _contenders(
    wanted: Sequence[int | None],
    measured: Sequence[Mapping[str, RowValues]],
    *,
    base: RunBase,
    so_far: BestSoFar | None,
) -> tuple[Contender, ...]:
    best_id = base.facts.best_trial_id if so_far is None else so_far.trial_id
    # after the adapters comes the base model, where it was measured
    trials = [*(best_id if trial_id is None else trial_id for trial_id in wanted), None]
    return tuple(
        measured_contender(
            own,
            trial_id=trial_id,
            step=None if so_far is None or place >= len(wanted) or wanted[place] is not None else so_far.step,
            winner=measured[0] if place else None,
        )
        for place, (trial_id, own) in enumerate(zip(trials, measured, strict=False))
    )


def _notes(loaded: RunModel, held: HeldOutRows) -> tuple[str, ...]:
    left_out = None if held.note is None else f"{held.num_groups} of {held.num_read} rows are measured; {held.note}"
    seen = seen_note(held.rows, group_size=held.group_size, base=loaded.base, tokenizer=loaded.tokenizer)
    return tuple(note for note in (loaded.note, left_out, seen) if note is not None)


def seen_note(held: TokenisedRows, *, group_size: int, base: RunBase, tokenizer: Any) -> str | None:
    """Return how many of ``held`` the run trained on or chose its best trial by; None where it is none.

    None also where that cannot be known: the run's files are gone from this machine, or have changed since.

    Args:
        group_size: Rows of one question: 2 for pairs of answers.
    """
    data = base.task.dataset
    files = [*data.train, *(data.validation if isinstance(data.validation, tuple) else ())]
    # nothing is fetched for a note
    if not all(Path(file).exists() for file in files):
        return None
    try:
        # from the cache of tokenised rows, where the run has put them
        loaded = load_dataset(
            base.task.dataset_settings(),
            tokenizer=tokenizer,
            evaluation_max_examples=base.task.evaluation.max_examples,
        )
    except (InputError, OSError):
        return None
    if loaded.report.data_hash != base.facts.inputs.data_hash:
        return None
    own = _groups(held, size=group_size)
    trained, validated = (set(_groups(rows, size=group_size)) for rows in (loaded.train, loaded.all_validation))
    num_trained = sum(group in trained for group in own)
    num_validated = sum(group in validated and group not in trained for group in own)
    parts = [f"{num_trained} of {len(own)} rows were trained on"] if num_trained else []
    parts += [f"{num_validated} of {len(own)} rows chose the best trial"] if num_validated else []
    if not parts:
        return None
    return f"{' and '.join(parts)}, so what is measured here is too good; measure on rows that the run has not read"


def _groups(rows: TokenisedRows, *, size: int) -> list[bytes]:
    """Return what makes each row, or pair, the same as another: its tokens, and which of them are trained."""
    samples = [rows.sample(index) for index in range(len(rows))]
    contents = [sample.tokens.tobytes() + sample.trained.tobytes() for sample in samples]
    return [b"".join(contents[index : index + size]) for index in range(0, len(contents), size)]
