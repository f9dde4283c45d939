"""The end of a run: best adapter, kept adapters, tables and report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from cohort.adapter_files.model_card import render_model_card
from cohort.adapter_files.write import AdapterContent, write_adapter_directory, write_adapter_files
from cohort.checkpoints.checkpoints import keep_last_checkpoint
from cohort.core.errors import RunStateError
from cohort.engine.train.early_weights import EarlyWeights
from cohort.engine.train.open_run import OpenRun
from cohort.engine.train.result_trials import has_adapter_directory
from cohort.models.checkpoint_layout import expert_parameters, module_names
from cohort.models.known_tokenizer import tokenizer_files
from cohort.prepare.preparation import Preparation
from cohort.ranks.divided_states.divided_rows import whole_rows
from cohort.report.writing import write_report
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunState
from cohort.runs.results.lost_results import lost_results, names_of_files
from cohort.runs.results.metrics_file import MetricsFile
from cohort.runs.results.results import read_results
from cohort.runs.results.results_table import write_results_csv
from cohort.runs.store import RunStore
from cohort.training.trial import TrialSpec
from cohort.tuning.samplers.importance import LEAST_TRIALS, import_ahead
from cohort.tuning.study import Study
from cohort.tuning.trial_status import TrialStatus

__all__ = ["finish_run", "has_importances", "is_complete", "write_tables"]

WRITERS = 4


def finish_run(
    preparation: Preparation,
    run: OpenRun,
    *,
    specs: Mapping[int, TrialSpec],
    study: Study,
    weights: EarlyWeights,
    save: Callable[[], None] = lambda: None,
) -> None:
    """Write ``best/``, the adapters of kept trials, ``results.csv``, ``metrics.jsonl`` and ``report.html``.

    What only a resume would have needed is removed; the best checkpoint of every trial stays, for export, or follows.

    Args:
        preparation: The task.
        run: Its run.
        specs: Its trials.
        study: What became of them.
        weights: Those that are written already, or about to be.
        save: Completes the last checkpoint, which is written meanwhile; called before the run counts as done.

    Raises:
        RunStateError: no trial ever had a finite evaluation, so there is no best adapter, or all of them failed; the
            tables are written, and the best adapter so far where there is one.
        StorageFullError: the disk is full; `cohort resume` writes what is missing.
    """
    best, store, directory = study.result(), run.store, run.directory
    finals = store.reader.facts().finals
    best_id = finals.winner.trial_id if finals is not None else None if best is None else best.trial_id
    # first: model cards and tables below are made from the record
    store.set_facts(best_trial_id=best_id)
    _record_default(store)
    results = read_results(store.reader)
    config = preparation.inputs.config
    tokenizer, linears = tokenizer_files(preparation.inputs.tokenizer), module_names(config)

    def write(trial_id: int, weights_rD: Tensor) -> None:
        are_written = weights.are_written(trial_id)
        if not are_written:
            weights_rD = whole_rows(weights_rD)
        if weights_rD.is_cuda and not are_written:
            # into fresh memory through pinned buffers: three times as fast as a plain copy
            weights_rD = weights.copies.start({"weights": weights_rD}).result()["weights"]
        content = AdapterContent(
            weights_rD=weights_rD,
            layout=preparation.inputs.layout,
            spec=specs[trial_id].adapter,
            base_model=preparation.task.model_name_or_path,
            linears=linears,
            are_transposed=config.bridged is not None and config.bridged.are_transposed,
            parameters=tuple(expert_parameters(config)),
            card=render_model_card(results, trial_id=trial_id),
            tokenizer_files=tokenizer,
        )
        folder = directory.trial(trial_id)
        folder.mkdir(parents=True, exist_ok=True)
        # the process waits for the disk with the best one alone, which has these weights and a copy of the rest
        write_adapter_files(folder, content, written=folder if are_written else None, is_flushed=False)
        if trial_id == best_id:
            write_adapter_directory(directory.best, content, written=folder)

    # the best one first: it is what users wait for
    others = [
        trial_id
        for trial_id in study.trial_ids
        if trial_id != best_id and has_adapter_directory(study.reason(trial_id))
    ]
    with ThreadPoolExecutor(max_workers=WRITERS, thread_name_prefix="cohort-adapters") as threads:
        # The tables wait for it; a run of few trials has no importances. Nothing else is imported meanwhile: threads
        # that import one package at once can wait for each other.
        if has_importances(study):
            threads.submit(import_ahead)
        if best_id is not None and (kept := run.state_store.best(best_id)) is not None:
            write(best_id, kept[0])
        writing = [
            threads.submit(write, trial_id, kept[0])
            for trial_id in others
            if (kept := run.state_store.best(trial_id)) is not None
        ]
        # meanwhile: it removes files of the checkpoints before, which takes as long as forgetting their pages
        save()
    for written in writing:
        written.result()
    # before the tables, which show it; what is written after a kill is decided by the last fact below
    best_files = None if best_id is None else tuple(names_of_files(directory.best))
    store.set_facts(state=RunState.DONE, run_seconds=store.seconds, best_files=best_files)
    write_tables(store, directory=directory)
    keep_last_checkpoint(store, run.state_store, directory=directory)
    store.set_facts(are_results_written=True)
    _require_success(store, directory=directory)


def has_importances(study: Study) -> bool:
    """Return whether the report can say how much each hyperparameter matters."""
    return len(study.trial_ids) >= LEAST_TRIALS


def _record_default(store: RunStore) -> None:
    """Record the metrics of the default hyperparameters, if a trial had them and completed all of its steps."""
    # the best value of a trial that stopped early is not what full training would have given
    default_id = store.reader.facts().task.default_trial_id
    for trial in store.reader.trials():
        if trial.trial_id == default_id and trial.status is TrialStatus.COMPLETED and trial.best_loss is not None:
            store.set_facts(default_metrics={"loss": trial.best_loss, **trial.best_metrics})


def is_complete(store: RunStore, *, directory: RunDirectory) -> bool:
    """Return whether the run has ended and all its results are there and whole.

    Raises:
        RunStateError: it has, and no trial ever had a finite evaluation, or all failed.
    """
    # a user may have deleted a result: a resume writes it again from what the run keeps
    facts = store.reader.facts()
    if not facts.are_results_written or lost_results(directory, facts):
        return False
    _require_success(store, directory=directory)
    return True


def _require_success(store: RunStore, *, directory: RunDirectory) -> None:
    """Raise if the run has no best adapter or all of its trials failed."""
    trials = store.reader.trials()
    has_best = store.reader.facts().best_trial_id is not None
    if trials and all(trial.status is TrialStatus.FAILED for trial in trials):
        first = min(trials, key=lambda trial: (trial.steps_done, trial.trial_id))
        beyond = f"; {directory.best} holds the best adapter from before the failures" if has_best else ""
        which = "the one trial" if len(trials) == 1 else f"all {len(trials)} trials"
        raise RunStateError(
            f"{which} failed; trial {first.trial_id} after step {first.steps_done}: {first.message}"
            f"{beyond} (see {directory.report})"
        )
    if not has_best:
        raise RunStateError(
            "no trial had a finite validation loss, so there is no best adapter; "
            f"lower the learning rates (see {directory.report})"
        )


def write_tables(store: RunStore, *, directory: RunDirectory) -> None:
    """Write tables and report from the current record, from which they can be made again: they are not flushed."""
    write_results_csv(directory.results_csv, results=read_results(store.reader), is_flushed=False)
    MetricsFile(directory.metrics_jsonl, reader=store.reader).write()
    write_report(directory.report, reader=store.reader)
