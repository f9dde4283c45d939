"""``cohort check``: validates everything and trains nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import DebugOption, JsonOption, TaskArgument
from cohort.cli.exits import exits
from cohort.core.process.gc_off import collections_off

if TYPE_CHECKING:
    from cohort.planning.check import CheckReport, Outlook

__all__ = ["check"]


def _print_schema(value: bool) -> None:  # noqa: FBT001 - typer calls it so
    if value:
        from cohort.tasks.loading import task_json_schema

        # an installed package's rule may be broken: an error like any other, not a traceback
        with exits(as_json=False, debug=False):
            print(json.dumps(task_json_schema(), indent=2))
        raise typer.Exit


def check(
    context: typer.Context,
    task: TaskArgument,
    resolved: Annotated[bool, typer.Option("--resolved", help="Print the task with every default and stop.")] = False,
    schema: Annotated[  # noqa: ARG001 - its callback does the work
        bool,
        typer.Option("--schema", callback=_print_schema, is_eager=True, help="Print the JSON schema of task files."),
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check a task, its model and every row. Nothing is trained.

    Three rows are shown with the trained part marked. Any key of the task file can be set on the command line, as
    for `cohort tune`.
    """
    with exits(as_json=as_json, debug=debug), collections_off():
        if resolved:
            from cohort.tasks.loading import load_task

            complete = load_task(task, context.obj or ())
            if as_json:
                print(json.dumps(complete.model_dump(mode="json"), indent=2))
            else:
                print(complete.resolved_yaml(), end="")
            return
        from cohort.prepare.fitting_task import load_fitting_task

        loaded = load_fitting_task(task, context.obj or ())
        from cohort.cli.tables.trial_table import print_facts
        from cohort.core.units import counted, format_count
        from cohort.data.inspection import format_example
        from cohort.planning.check import check_task

        report = check_task(loaded)
        if as_json:
            print(json.dumps({"ok": True, **asdict(report), "data": report.data.to_json()}, indent=2))
            return
        from rich.console import Console

        # where colours are not wanted, the trained part is in brackets as in a pipe
        in_color = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        for example in report.examples:
            print(format_example(example, color=in_color))
            print()
        print(report.data.summary())
        print()
        suffixes = sorted({path.rsplit(".", 1)[-1] for path in report.target_modules})
        facts = {
            "model": f"{report.architecture}, {format_count(report.num_parameters)} parameters",
            "weights": report.weights,
            "adapters on": f"{len(report.target_modules)} linears ({', '.join(suffixes)})",
            "trials": str(report.num_trials),
            **_trial_facts(report),
            "evaluations": _evaluation_text(report.outlook),
            "time": report.outlook.time_text,
            "device": report.device,
        }
        print_facts(Console(highlight=False, soft_wrap=True), facts)
        for note in report.notes:
            print(f"note: {note}")
        for warning in report.warnings:
            print(f"warning: {warning}")
        with_warnings = f", with {counted(len(report.warnings), 'warning')}" if report.warnings else ""
        print(f"the task is valid{with_warnings}")


def _trial_facts(report: CheckReport) -> dict[str, str]:
    from cohort.core.units import format_count

    outlook = report.outlook
    steps, tokens = (_span_text(span, format_count) for span in (outlook.steps_per_trial, outlook.tokens_per_trial))
    # how long answers get is not known before
    most = "at most " if report.rewards else ""
    facts = {"each trial": f"{steps} step{'' if steps == '1' else 's'}, {most}{tokens} tokens"}
    return {**facts, "rewards": ", ".join(report.rewards)} if report.rewards else facts


def _evaluation_text(outlook: Outlook) -> str:
    from cohort.core.units import counted

    return (
        f"{_span_text(outlook.evaluations_per_trial, str)} for each trial, on "
        f"{counted(outlook.evaluation_rows, 'validation row')}: "
        f"{100 * outlook.evaluation_share:.3g} % of the training compute"
    )


def _span_text(span: tuple[int, int], write: Callable[[int], str]) -> str:
    least, most = map(write, span)
    return least if least == most else f"{least} to {most}"
