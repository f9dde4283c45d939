"""Finds the adapter of a run: the best one, or a trial's, also of a trial that the selection ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cohort.adapter_files.base_model import RunBase, open_base
from cohort.adapter_files.model_card import render_model_card
from cohort.adapter_files.write import AdapterContent, write_adapter_files
from cohort.adapters.peft_files.peft_format import CONFIG_FILE, WEIGHTS_FILE
from cohort.checkpoints.stored_state import StoredState, StoredStateKind
from cohort.core.errors import InputError, Problem
from cohort.data.chat import use_chat_template
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import adapter_layout, expert_parameters, module_names
from cohort.models.known_tokenizer import tokenizer_files
from cohort.models.tokenizer import load_tokenizer
from cohort.prepare.adapters.adapter_specs import adapter_spec
from cohort.prepare.adapters.saved_checks import saved_modules
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunState
from cohort.runs.reader import RunReader
from cohort.runs.records import EvaluationRecord, TrialRecord
from cohort.runs.results.lost_results import is_whole_file
from cohort.runs.results.results import RunResults, read_results
from cohort.training.checkpoint import DamagedStateError, read_weights

__all__ = ["BestSoFar", "best_so_far", "chosen_adapter", "trials_with_adapters"]


@dataclass(frozen=True, kw_only=True)
class BestSoFar:
    """The best checkpoint on disk of a run that has not finished.

    Attributes:
        trial_id: Its trial.
        step: Steps it had done.
        note: For the user.
    """

    trial_id: int
    step: int
    note: str


@contextmanager
def chosen_adapter(
    directory: RunDirectory, *, trial_id: int | None, step: int | None = None, base: RunBase | None = None
) -> Iterator[Path]:
    """Yield the directory of the best adapter, or of trial ``trial_id``.

    The adapter of a trial that the selection ended is made from its best checkpoint and lasts as long as the block.

    Args:
        trial_id: A trial; the run's best when None.
        step: The step of its checkpoint, where that is not its best (:func:`best_so_far`).
        base: The run's base model, if it was found already; only an adapter that has to be made needs it.

    Raises:
        InputError: there is no adapter yet, or none of that trial; the error lists those there are. Or the base model
            is gone or another one.
        DamagedStateError: the trial's checkpoint is damaged.
    """
    if trial_id is None:
        if not _is_adapter(directory.best):
            raise InputError(_no_best(directory))
        yield directory.best
    elif step is None and trial_id >= 0 and _is_adapter(directory.trial(trial_id)):
        yield directory.trial(trial_id)
    else:
        with RunReader.open(directory.database) as reader:
            results = read_results(reader)
            if step is not None:
                results = _as_it_was(results, reader.log.evaluations(trial_id), trial_id=trial_id, step=step)
        trial, checkpoint = _with_checkpoint(directory, results, trial_id=trial_id)
        # only trials that the selection keeps have a directory; for the others one is made and thrown away
        with TemporaryDirectory(prefix="cohort-adapter-") as folder:
            base = open_base(directory) if base is None else base
            try:
                content = _content(base, results, trial, checkpoint=checkpoint)
            except DamagedStateError as error:
                if step is not None or not results.facts.are_results_written:
                    raise
                again = f"`cohort resume {directory.root} --trial {trial_id}` trains it again, to the same adapter"
                raise DamagedStateError(f"{checkpoint} is damaged; {again}") from error
            write_adapter_files(Path(folder), content)
            yield Path(folder)


def _no_best(directory: RunDirectory) -> Problem:
    with RunReader.open(directory.database) as reader:
        was_evaluated = bool(reader.log.evaluations())
    missing = "no trial's evaluated state has been written yet" if was_evaluated else "no trial has been evaluated yet"
    holder = directory.lock().holder()
    finish = f"Finish it with `cohort resume {directory.root}`."
    return Problem(
        where=str(directory.root),
        found=f"a run with neither a best adapter nor a checkpoint on disk yet: {missing}",
        allowed="a run that has finished, or has written a checkpoint of an evaluated trial",
        hint=f"Wait for its next checkpoint: it is being trained ({holder})." if holder else finish,
    )


def best_so_far(directory: RunDirectory) -> BestSoFar | None:
    """Return the best checkpoint on disk of an unfinished run; None when it has finished, or there is no checkpoint."""
    # the best state so far may still be in memory until the next checkpoint: the note says so
    if _is_adapter(directory.best):
        return None
    # one snapshot: the run may be training and write evaluations between two queries
    with RunReader.open(directory.database) as reader, reader.snapshot():
        facts, trials, evaluations = reader.facts(), reader.trials(), reader.log.evaluations()
    metric, steps = (
        facts.objective_metric,
        {trial.trial_id: (trial.steps_done, trial.planned_steps) for trial in trials},
    )
    if facts.state is RunState.DONE and facts.best_trial_id is not None:
        return _deleted_best(directory, next(trial for trial in trials if trial.trial_id == facts.best_trial_id))
    found, seen = [], []
    for evaluation in evaluations:
        value = metric.competing_value(evaluation.validation_loss, evaluation.metrics)
        if value is None:
            continue
        trial_id, step = evaluation.trial_id, evaluation.step
        order = metric.order(value, validation_loss=evaluation.validation_loss, step=step, trial_id=trial_id)
        seen.append((order, trial_id, step, value))
        if _path(directory, trial_id, step).is_file():
            found.append(seen[-1])
    if not found:
        return None
    _, trial_id, step, value = min(found)
    done, planned = steps[trial_id]
    _, best_trial, best_step, best_value = min(seen)
    better = ""
    if (best_trial, best_step) != (trial_id, step):
        better = f"; the run also reached {best_value:.4g} (trial {best_trial}, step {best_step}), which is not on disk"
    return BestSoFar(
        trial_id=trial_id,
        step=step,
        note=f"this run has not finished: the best checkpoint so far is of trial {trial_id} after step {step} "
        f"({metric.label} {value:.4g}; it has done {done} of {planned} steps){better}. "
        f"`cohort resume {directory.root}` continues the run",
    )


def _deleted_best(directory: RunDirectory, winner: TrialRecord) -> BestSoFar | None:
    """Return the winner of a finished run whose ``best/`` is gone or torn; None where its checkpoint is gone, too."""
    if winner.best_step is None or not _path(directory, winner.trial_id, winner.best_step).is_file():
        return None
    return BestSoFar(
        trial_id=winner.trial_id,
        step=winner.best_step,
        note=f"{directory.best} is gone or torn: this is trial {winner.trial_id}, the best of the finished run, from "
        f"its checkpoint. `cohort resume {directory.root}` writes it again",
    )


def _as_it_was(results: RunResults, evaluations: Sequence[EvaluationRecord], *, trial_id: int, step: int) -> RunResults:
    """Return the results with an earlier evaluation as a trial's best, for the model card of that checkpoint."""
    then = next(evaluation for evaluation in evaluations if evaluation.step == step)
    value = results.metric.read_record(then.validation_loss, then.metrics)
    ranked = tuple(
        entry
        if entry.trial.trial_id != trial_id
        else replace(
            entry,
            trial=replace(
                entry.trial,
                best_step=step,
                best_value=value,
                best_loss=then.validation_loss,
                best_metrics=then.metrics,
            ),
        )
        for entry in results.ranked
    )
    return replace(results, ranked=ranked)


def _is_adapter(folder: Path) -> bool:
    # somebody may have moved the weights away, and a machine that stops soon after the end may leave a part of them
    return is_whole_file(folder / CONFIG_FILE) and is_whole_file(folder / WEIGHTS_FILE)


def _checkpoint(directory: RunDirectory, trial: TrialRecord) -> Path | None:
    """Return the file of a trial's best checkpoint; None where the trial has none on disk."""
    if trial.best_step is None:
        return None
    path = _path(directory, trial.trial_id, trial.best_step)
    return path if path.is_file() else None


def _path(directory: RunDirectory, trial_id: int, step: int) -> Path:
    return directory.root / StoredState(trial_id, StoredStateKind.BEST, step).relative_path


def _with_checkpoint(directory: RunDirectory, results: RunResults, *, trial_id: int) -> tuple[TrialRecord, Path]:
    trials = {entry.trial.trial_id: entry.trial for entry in results.ranked}
    trial = trials.get(trial_id)
    if trial is not None and (checkpoint := _checkpoint(directory, trial)) is not None:
        return trial, checkpoint
    there = _there(directory, results)
    hint = "Choose one of these, or leave --trial out for the best."
    if trial is not None and trial.best_step is not None and results.facts.are_results_written:
        # the run ended before it was written, or the task keeps none of trials that lost
        hint = f"Train it again, to the same adapter: `cohort resume {directory.root} --trial {trial_id}`."
    raise InputError(
        Problem(
            where="--trial",
            found=f"{trial_id}, which {'is not a trial of this run' if trial is None else 'has no checkpoint on disk'}",
            allowed=f"one of {', '.join(map(str, there))}" if there else "no trial of this run has an adapter yet",
            hint=hint,
        )
    )


def trials_with_adapters(directory: RunDirectory) -> list[int]:
    """Return the trials that :func:`chosen_adapter` finds an adapter of, in their order."""
    with RunReader.open(directory.database) as reader:
        return _there(directory, read_results(reader))


def _there(directory: RunDirectory, results: RunResults) -> list[int]:
    trials = {entry.trial.trial_id: entry.trial for entry in results.ranked}
    return [n for n in sorted(trials) if _is_adapter(directory.trial(n)) or _checkpoint(directory, trials[n])]


def _content(base: RunBase, results: RunResults, trial: TrialRecord, *, checkpoint: Path) -> AdapterContent:
    facts = results.facts
    modules, shared = facts.inputs.target_modules, facts.task.training
    assert modules is not None, "a run that trained recorded its linears"
    assert shared is not None, "a run that trained recorded what its trials share"
    # what is searched overrides what all trials share
    settings: dict[str, Any] = {**shared, **trial.parameters}
    # shapes are read from the base model's files; none of its weights is loaded
    config = check_checkpoint(base.directory)
    weights_rD = read_weights(checkpoint)[0]
    layout = adapter_layout(config, modules)
    # runs of early versions recorded no hash of their model, so that only the shapes can tell
    if set(modules) - set(layout.targets) or layout.width != weights_rD.shape[1]:
        raise InputError(
            Problem(
                where=f"model_name_or_path: {base.name}",
                found="a model whose linear layers have other names or shapes than those the run adapted",
                allowed="the base model that the run began with",
                hint="Give its path with --model_name_or_path PATH.",
            )
        )
    tokenizer = load_tokenizer(base.directory)
    dataset = base.task.dataset
    use_chat_template(tokenizer, dataset.chat_template, dataset.chat_template_kwargs)
    return AdapterContent(
        weights_rD=weights_rD,
        layout=layout,
        spec=adapter_spec(base.task, settings, saved=saved_modules(base.task, config=config, layout=layout)),
        base_model=base.name,
        linears=module_names(config),
        are_transposed=config.bridged is not None and config.bridged.are_transposed,
        parameters=tuple(expert_parameters(config)),
        card=render_model_card(results, trial_id=trial.trial_id),
        tokenizer_files=tokenizer_files(tokenizer),
    )
