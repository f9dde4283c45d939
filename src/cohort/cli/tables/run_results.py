"""Prints a run: its results after ``tune`` and ``resume``, its state for ``status``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from cohort.cli.tables.trial_table import (
    constant_text,
    left_out_text,
    parameter_text,
    print_facts,
    trial_table,
    varied_names,
    wide_console,
)
from cohort.core.units import counted, format_count, format_duration
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.results.results import RankedTrial, RunResults, read_results
from cohort.runs.results.results_table import results_json
from cohort.runs.results.verdicts import (
    chance_text,
    comparison_lines,
    is_worse,
    no_gain,
    training_value_text,
    verdicts,
)
from cohort.runs.searched_parameters import chosen_names, searched_names
from cohort.runs.status import RankStatus, RunStatus
from cohort.tuning.trial_status import TrialStatus

__all__ = ["print_results", "print_status", "print_trials"]


def _names_to_show(results: RunResults) -> list[str]:
    """Return the hyperparameters to show for the best trial: all searched ones, also those equal in every trial."""
    rows = [entry.trial.parameters for entry in results.ranked]
    shown = {*searched_names(results.facts), *varied_names(rows)}
    return [name for name in rows[0] if name in shown] if rows else []


def _print_trials(console: Console, ranked: Sequence[RankedTrial], results: RunResults) -> dict[str, str]:
    """Print the table of trials; return what it does not show."""
    chosen = chosen_names(results.facts)
    table, left_out = trial_table(ranked, metric_label=results.metric_label, width=console.width, chosen=chosen)
    console.print(table)
    constant = constant_text([entry.trial.parameters for entry in ranked])
    found = {} if constant is None else {"same": constant}
    return found | ({"hidden": left_out_text(left_out, elsewhere="--json has all")} if left_out else {})


def _outcome(results: RunResults) -> dict[str, str]:
    facts: dict[str, str] = {}
    if results.best is not None:
        where = f"trial {results.best.trial_id}, step {results.best.best_step}"
        facts["best"] = f"{training_value_text(results, results.best.best_value)}; {where}"
        if names := _names_to_show(results):
            facts["with"] = parameter_text(results.best.parameters, names)
    if results.default_value is not None:
        facts["default"] = training_value_text(results, results.default_value)
    if results.chance is not None:
        facts["base"] = chance_text(results.chance, results.metric)
    elif results.base_value is not None:
        facts["base"] = training_value_text(results, results.base_value)
    # what was measured on all rows replaces what was measured on few
    facts |= comparison_lines(results)
    if sentences := verdicts(results):
        facts["verdict"] = "; ".join(sentences)
    compute = results.compute
    if compute.share_of_full_grid is not None and compute.num_full_runs is not None:
        grid = "the one trial" if compute.num_trials == 1 else f"all {compute.num_trials}"
        share = f"{100 * compute.share_of_full_grid:.1f} % of training {grid} in full"
        # a full grid is counted without any, so that the whole may be above 100 %
        if compute.evaluated_share:
            share += f", evaluations included ({100 * compute.evaluated_share:.1f} %)"
        facts["cost"] = f"{share}, as much as {compute.num_full_runs:.1f} full runs"
    if results.facts.search_ended is not None:
        facts["search"] = results.facts.search_ended
    facts["time"] = format_duration(results.run_seconds)
    # first, where nothing was gained: numbers above it would look like a success
    return {"verdict": facts["verdict"], **facts} if no_gain(results) is not None else facts


def print_results(run_directory: Path, *, as_json: bool) -> bool:
    """Print the best adapter, what it cost, and where everything is; return whether it is worse than the base model."""
    directory = RunDirectory.open(run_directory)
    with RunReader.open(directory.database) as reader:
        results = read_results(reader)
    if as_json:
        print(json.dumps({"run_directory": str(run_directory), **results_json(results)}, indent=2))
        return is_worse(results)
    console = wide_console(160)
    left_out = _print_trials(console, results.ranked, results)
    facts = left_out | _outcome(results)
    if results.best is not None:
        facts["adapter"] = str(directory.best)
    if (run_directory / "report.html").exists():
        facts["report"] = str(run_directory / "report.html")
    print_facts(console, facts)
    return is_worse(results)


def print_status(status: RunStatus, *, run_directory: Path, as_json: bool) -> None:
    """Print the state of a run and its trials."""
    if as_json:
        body = {name: value for name, value in vars(status).items() if name not in ("results", "device", "ranks")}
        body["ranks"] = [{"device": f"{status.device} {rank.rank}", **asdict(rank)} for rank in status.ranks]
        print(json.dumps(body | results_json(status.results), indent=2))
        return
    console = wide_console(160)
    ranked, counts = _as_they_are(status), Counter(status.counts)
    if status.state != "running":
        counts[TrialStatus.PARKED] += counts.pop(TrialStatus.RUNNING, 0)
    left_out = _print_trials(console, ranked, status.results)
    # `stopped` is what --json says, and what a trial is that a rule ended
    state = "interrupted" if status.state == "stopped" else status.state
    facts = {"state": state + (f" ({status.holder})" if status.holder else "")}
    facts["trials"] = ", ".join(f"{counts[name]} {name.label}" for name in TrialStatus if counts[name])
    if status.stopped_reasons:
        facts["stopped"] = ", ".join(f"{count} {reason}" for reason, count in status.stopped_reasons.items())
    if status.tokens_per_second is not None:
        facts["speed"] = f"{format_count(status.tokens_per_second)} tokens/s"
    facts |= {
        f"{status.device} {rank.rank}": _rank_text(rank, is_running=status.state == "running") for rank in status.ranks
    }
    if status.state == "running" and status.seconds_left is not None:
        facts["left"] = f"about {format_duration(status.seconds_left)}"
    print_facts(console, left_out | facts | _outcome(status.results))
    if status.missing:
        lost = ", ".join(status.missing)
        gone = f"\nmissing or damaged: {lost}; to write them again from the run's record: cohort resume"
        console.print(f"{gone} {run_directory}", soft_wrap=True, markup=False)
    if status.state == "stopped":
        # what the table shows is as of that checkpoint; one of nothing but the plan is written before the first step
        has_trained = any(entry.trial.steps_done for entry in status.trials)
        repeated = counted(status.steps_to_repeat, "later step" if has_trained else "step")
        again = f" ({repeated} {'is' if status.steps_to_repeat == 1 else 'are'} trained again)"
        after = again if status.steps_to_repeat else ""
        where = "the last checkpoint" if has_trained else "the start, as no step is in a checkpoint yet"
        line = f"\nto continue from {where}{after}: cohort resume {run_directory}"
        console.print(line, soft_wrap=True, markup=False)


def _as_they_are(status: RunStatus) -> tuple[RankedTrial, ...]:
    """Return the trials; those that a killed process left as running have a state in the run, and wait for a slot."""
    return status.trials if status.state == "running" else tuple(_parked(entry) for entry in status.trials)


def _parked(entry: RankedTrial) -> RankedTrial:
    if entry.trial.status is not TrialStatus.RUNNING:
        return entry
    return replace(entry, trial=replace(entry.trial, status=TrialStatus.PARKED))


def _rank_text(rank: RankStatus, *, is_running: bool) -> str:
    """Return what one of several GPUs did lately."""
    speed = f", {format_count(rank.tokens_per_second)} tokens/s" if rank.tokens_per_second else ""
    trials = "" if rank.trials is None or not is_running else f"; trials {', '.join(map(str, rank.trials)) or 'none'}"
    return f"{100 * rank.busy_share:.0f} % busy{speed}{trials}"


def print_trials(status: RunStatus, *, as_json: bool) -> None:
    """Print a run's trials by their numbers, and what can be done with them."""
    if as_json:
        print(json.dumps({"state": status.state, "trials": results_json(status.results)["trials"]}, indent=2))
        return
    console = wide_console(160)
    by_number = sorted(_as_they_are(status), key=lambda entry: entry.trial.trial_id)
    print_facts(console, _print_trials(console, by_number, status.results))
