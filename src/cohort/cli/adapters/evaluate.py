"""``cohort evaluate``: adapters of a run on rows that it has not seen."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import (
    DebugOption,
    JsonOption,
    ModelOption,
    RunDirArgument,
    report_note,
    report_so_far,
)
from cohort.cli.exits import exits

if TYPE_CHECKING:
    from cohort.adapter_files.evaluate import HeldOutEvaluation
    from cohort.runs.results.comparison import Contender

__all__ = ["evaluate"]


def evaluate(
    run_dir: RunDirArgument,
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Rows in the form of the training rows, answers included.",
            show_default=False,
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="As in evaluation.metric; can be repeated. The loss is always measured.  [default: those of the task]",
            show_default=False,
        ),
    ] = None,
    trials: Annotated[
        str, typer.Option("--trials", metavar="LIST", help="Trials with commas, such as best,0,3; or all.")
    ] = "best",
    with_base: Annotated[bool, typer.Option("--with-base/--without-base", help="Measure the base model, too.")] = True,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            min=1,
            metavar="N",
            help="Most tokens of an answer.  [default: the task's]",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure adapters of a run on rows that it has not seen.

    The best adapter and the base model, or several trials at once, with 95 % intervals. Rows are rendered like the
    training rows. Differences are those of the first adapter to each of the others, on the same rows.
    """
    with exits(as_json=as_json, debug=debug):
        from cohort.runs.directory import RunDirectory

        # before the import below, which loads torch: a wrong path is reported immediately
        RunDirectory.open(run_dir)
        from cohort.adapter_files.evaluate import evaluate_run
        from cohort.cli.tables.batch_view import BATCH_VIEW
        from cohort.cli.terminal.progress import watching

        with watching(BATCH_VIEW) as watcher:
            found = evaluate_run(
                run_dir,
                data=data,
                metrics=metric or (),
                trials=[name.strip() for name in trials.split(",") if name.strip()],
                with_base=with_base,
                max_new_tokens=max_new_tokens,
                model=model,
                watcher=watcher.update,
            )
        _print(found, run_dir=run_dir, as_json=as_json)


def _as_json(found: HeldOutEvaluation, *, run_dir: Path, best: dict[str, int] | None) -> dict[str, object]:
    return {
        "run_directory": str(run_dir),
        "data": str(found.data),
        "data_hash": found.data_hash,
        "rows": found.num_rows,
        "rows_read": found.num_read,
        "best_so_far": best,
        "chance": dict(found.chance),
        "results": [
            {
                "trial": entry.trial_id,
                "values": {name: asdict(value) for name, value in entry.values.items()},
                "first_minus_this": {name: asdict(value) for name, value in entry.winner_minus.items()},
            }
            for entry in found.contenders
        ],
    }


def _name(entry: Contender) -> str:
    return "base" if entry.trial_id is None else f"trial {entry.trial_id}"


def _print(found: HeldOutEvaluation, *, run_dir: Path, as_json: bool) -> None:
    for note in found.notes:
        report_note(note)
    best = report_so_far(found.so_far)
    if as_json:
        print(json.dumps(_as_json(found, run_dir=run_dir, best=best), indent=2))
    else:
        _print_facts(found)


def _print_facts(found: HeldOutEvaluation) -> None:
    from cohort.cli.tables.trial_table import print_facts, wide_console
    from cohort.metrics import LOSS, own_metrics
    from cohort.runs.results.verdicts import estimate_text

    first, *others = found.contenders
    facts = {"rows": f"{found.num_rows} of {found.data}"}
    facts[_name(first)] = "\n".join(f"{name} {estimate_text(first.values[name])}" for name in found.metrics)
    for entry in others:
        lines = []
        for name in found.metrics:
            if entry.trial_id is None and name in found.chance:
                lines.append(f"{name} 0 by definition: it is the reference; chance is {found.chance[name]:g}")
                continue
            gap = entry.winner_minus[name]
            within = "" if gap.low is None else f" (95 %: {gap.low:+.4g} to {gap.high:+.4g})"
            said = "" if gap.low is None else ", within noise"
            if gap.excludes_zero:
                # of a loss less is better, of every other metric of ours more; of a user's function its author knows
                is_better = (gap.value < 0) == (name == LOSS)
                is_ours = name in own_metrics()
                said = f", {'better' if is_better else 'worse'}" if is_ours else ""
            lines.append(f"{name} {estimate_text(entry.values[name])}")
            lines.append(f"  {_name(first)} minus {_name(entry)} {gap.value:+.4g}{within}{said}")
        facts[_name(entry)] = "\n".join(lines)
    print_facts(wide_console(120), facts)
