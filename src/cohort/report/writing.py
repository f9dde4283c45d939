"""The report: one HTML file that opens without a network; it can be written at any moment of a run."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from cohort.core.durable_files import write_text
from cohort.core.units import counted
from cohort.report.curve_settings import ema_weight, loss_unit, objective_of
from cohort.report.drawings.hyperparameter_effects import hyperparameter_effects, varied_parameters
from cohort.report.drawings.loss_curves import loss_curves
from cohort.report.drawings.parallel_coordinates import parallel_coordinates
from cohort.report.drawings.rank_timeline import rank_work_drawing, rank_work_note
from cohort.report.drawings.slot_timeline import slot_timeline
from cohort.report.final_comparison import final_comparisons
from cohort.report.followed_parameters import followed_parameters
from cohort.report.headline_cards import headline_bars
from cohort.report.importance import importance_bars
from cohort.report.labels import model_label, value_label
from cohort.report.outcomes import outcome_key, outcome_styles
from cohort.report.page_tables import compute_rows, data_notes, decision_rows, trial_table
from cohort.report.planned_packs import planned_packs
from cohort.report.rollout_section import RolloutSection, rollout_section
from cohort.report.styles import report_style
from cohort.runs.facts import RunState
from cohort.runs.reader import RunReader
from cohort.runs.results.results import RunResults, read_results
from cohort.runs.searched_parameters import searched_ranges
from cohort.version import __version__

__all__ = ["render_report", "write_report"]


def _resource(name: str) -> str:
    return files("cohort.report").joinpath(name).read_text(encoding="utf-8")


def _subtitle(results: RunResults) -> str:
    facts = results.facts
    parts = [counted(len(results.ranked), "LoRA adapter")]
    base_model = facts.places.base_model
    if base_model is not None:
        parts[0] += f" on {model_label(base_model)}"
    kept = (facts.task.document or {}).get("quantization", "none")
    if kept != "none":
        parts.append(f"trained with the base model's linear layers in {kept}")
    if facts.state not in (None, RunState.DONE):
        parts.append(f"state when this was written: {facts.state}")
    return ", ".join(parts)


def _device(results: RunResults) -> str:
    """Return what one of several ranks is."""
    return "GPU" if (results.facts.machine.device or "").startswith("cuda") else "process"


def _samples_answers(results: RunResults) -> bool:
    declared = objective_of(results.facts)
    return declared is not None and declared.samples_answers


def _drawings(reader: RunReader, results: RunResults) -> dict[str, str]:
    trials = sorted((entry.trial for entry in results.ranked), key=lambda trial: trial.trial_id)
    best_id = results.best.trial_id if results.best else None
    train, validation = loss_curves(
        trials,
        train=reader.log.train_losses(),
        evaluations=reader.log.evaluations(),
        best_id=best_id,
        ema_weight=ema_weight(results.facts),
        unit=loss_unit(results.facts),
    )
    return {
        "train": train,
        "validation": validation,
        "slots": slot_timeline(
            reader.log.residencies(), trials=trials, run_seconds=results.run_seconds, best_id=best_id
        ),
        "rank_work": rank_work_drawing(reader.log.rank_work(), device=_device(results)),
        "parallel": parallel_coordinates(
            trials,
            best_id=best_id,
            value_label=results.metric_label,
            maximize=results.metric.maximize,
            followed=followed_parameters(results.facts),
        ),
    }


def _packs(reader: RunReader, results: RunResults) -> dict[str, Any]:
    sizes = results.facts.sizes
    return planned_packs(
        results.facts.packing_chosen or (),
        stays=reader.log.residencies(),
        slots_per_rank=sizes.num_slots or 1,
        num_ranks=sizes.num_ranks or 1,
        run_seconds=results.run_seconds,
        device=_device(results),
    )


def _rollouts(reader: RunReader, results: RunResults) -> RolloutSection | None:
    return rollout_section(
        sorted((entry.trial for entry in results.ranked), key=lambda trial: trial.trial_id),
        steps=reader.log.steps() if _samples_answers(results) else (),
        evaluations=reader.log.evaluations(),
        best_id=results.best.trial_id if results.best else None,
    )


def _effects(results: RunResults) -> dict[str, Any]:
    trials = [entry.trial for entry in results.ranked]
    followed = followed_parameters(results.facts)
    effects = hyperparameter_effects(
        trials,
        best=results.best,
        value_label=results.metric_label,
        maximize=results.metric.maximize,
        followed=followed,
        ranges=searched_ranges(results.facts),
    )
    varied = varied_parameters(trials, followed=followed)
    none = "No trial has been evaluated yet." if varied else "All trials have the same hyperparameters."
    return {"effects": effects, "no_effects": none}


def _slots_note(reader: RunReader) -> str:
    stays = reader.log.residencies()
    # every stay that ended is followed by another one of its trial, except for the last
    ended = [stay.trial_id for stay in stays if stay.stop_seconds is not None]
    parked = len(ended) - len(set(ended))
    slots = len({stay.slot for stay in stays})
    note = (
        f"{'One trial trained' if slots == 1 else f'Up to {slots} trials trained'} at a time, in a row each. A bar has "
        "the trial's number; a mark at its end is the trial's end, no mark means that it was paused or still trains. "
    )
    if parked > 0:
        note += f"Paused trials came back {counted(parked, 'time')}. "
    return note + "White gaps are room for another trial."


def render_report(reader: RunReader, *, reload_seconds: float | None = None) -> str:
    """Return the report of a run as it stands, as one HTML page.

    Args:
        reload_seconds: After this time an open page loads itself again, for a file that is written again and again.

    Raises:
        RunStateError: the run's database cannot be read.
    """
    # one moment for all sections: the process that trains may write between two of them
    with reader.snapshot():
        return _render(reader, reload_seconds=reload_seconds)


@cache
def _template() -> jinja2.Template:
    # escaping is on, because names, messages and paths are the users' own text; an undefined name is our bug and must
    # not become an empty place on the page
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_resource("report.html.j2"))


def _render(reader: RunReader, *, reload_seconds: float | None) -> str:
    results = read_results(reader)
    decisions, decisions_note = decision_rows(reader.log.decisions())
    return _template().render(
        title=results.facts.task_name or "LoRA sweep",
        subtitle=_subtitle(results),
        metric_label=results.metric_label,
        maximize=results.metric.maximize,
        legend=outcome_key([entry.trial for entry in results.ranked], best=results.best),
        importance=importance_bars(results),
        drawings=_drawings(reader, results),
        rollouts=_rollouts(reader, results),
        slots_note=_slots_note(reader),
        packs=_packs(reader, results),
        device=_device(results),
        rank_work_note=rank_work_note(reader.log.rank_work(), device=_device(results)),
        trial_table=trial_table(results),
        decisions=decisions,
        decisions_note=decisions_note,
        compute_rows=compute_rows(results),
        data=data_notes(results.facts),
        facts=[(name.replace("_", " "), value_label(value)) for name, value in results.facts.listed().items()],
        css=report_style() + outcome_styles(entry.trial for entry in results.ranked),
        js=_resource("report.js"),
        version=__version__,
        reload_seconds=reload_seconds,
        final_tables=final_comparisons(results),
        **headline_bars(results),
        **_effects(results),
    )


def write_report(path: Path, *, reader: RunReader, reload_seconds: float | None = None) -> None:
    """Write the report to ``path``, whole or not at all; ``reload_seconds`` as of :func:`render_report`.

    Raises:
        RunStateError: the run's database cannot be read.
        StorageFullError: the disk is full; the file is as it was.
    """
    # it can be made again from the record, so a run does not wait for the disk
    write_text(path, render_report(reader, reload_seconds=reload_seconds), is_flushed=False)
