"""``cohort generate``: try the best adapter on a few prompts, or answer a file of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import (
    DebugOption,
    JsonOption,
    MaxNewTokensOption,
    ModelOption,
    RunDirArgument,
    SeedOption,
    TemperatureOption,
    TopPOption,
    TrialOption,
    report_note,
    report_so_far,
)
from cohort.cli.exits import exits

if TYPE_CHECKING:
    from cohort.adapter_files.generate import GenerationSettings

__all__ = ["generate"]

# an adapter that was trained on prompts with a line break at their end answers its absence with that line break
_EMPTY = "an answer is empty: end prompts as the training prompts end, one with a line break as --prompt $'...\\n'"


def generate(
    run_dir: RunDirArgument,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", metavar="TEXT", help="A prompt to answer; can be repeated.", show_default=False),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="A file of prompts, in the form of the training rows; answers are not needed.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where the answers to --input go: JSON lines.", show_default=False
        ),
    ] = None,
    trial: TrialOption = None,
    max_new_tokens: MaxNewTokensOption = 64,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Use the prompt as it is, without a template.")] = False,
    base: Annotated[bool, typer.Option("--base", help="Use the base model without the adapter.")] = False,
    model: ModelOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Answer prompts with an adapter of a run.

    Prompts are rendered like the training rows. Unfinished runs use the best checkpoint so far and say so. With --input
    FILE --output FILE, all prompts of a file are answered together; the same command continues after an interruption.
    """
    with exits(as_json=as_json, debug=debug):
        from cohort.runs.directory import RunDirectory

        # before the import below, which loads torch: a wrong path or option is reported immediately
        _require_one_source(prompt or (), source=source, output=output)
        _refuse_trial_of_base(trial, use_base=base)
        RunDirectory.open(run_dir)
        from cohort.adapter_files.generate import GenerationSettings, generate_from_run

        settings = GenerationSettings(
            max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed, is_raw=raw, use_base=base
        )
        if source is not None and output is not None:
            _answer(run_dir, source, output, settings=settings, trial=trial, model=model, as_json=as_json)
            return
        prompts = list(prompt or ())
        generated = generate_from_run(run_dir, prompts, settings=settings, trial_id=trial, model=model)
        report_note(generated.note)
        best = report_so_far(generated.so_far)
        if any(not answer.strip() for answer in generated.answers):
            report_note(_EMPTY)
        if not as_json:
            print("\n".join(generated.answers))
            return
        pairs = zip(prompts, generated.answers, strict=True)
        found = [{"prompt": text, "answer": answer, "best_so_far": best} for text, answer in pairs]
        print(json.dumps(found, indent=2, ensure_ascii=False))


def _require_one_source(prompts: Sequence[str], *, source: Path | None, output: Path | None) -> None:
    from cohort.core.errors import InputError, Problem

    def refuse(found: str, hint: str) -> InputError:
        allowed = "--prompt TEXT, once or more; or --input FILE --output FILE"
        return InputError(Problem(where="command line", found=found, allowed=allowed, hint=hint))

    if prompts and (source is not None or output is not None):
        raise refuse(
            "--prompt together with --input or --output", "Put all prompts into the file, or print the answer."
        )
    if source is None and output is not None:
        raise refuse("--output without --input", "Add --input FILE, the prompts to answer.")
    if source is not None and output is None:
        raise refuse("--input without --output", "Add --output FILE, a new file for the answers.")
    if any(not prompt for prompt in prompts):
        raise refuse("an empty prompt", "Write some text after --prompt.")
    if source is None and not prompts:
        raise refuse("no prompt", 'Add --prompt "..." or --input FILE --output FILE.')


def _refuse_trial_of_base(trial: int | None, *, use_base: bool) -> None:
    from cohort.core.errors import InputError, Problem

    if use_base and trial is not None:
        allowed, hint = "one of the two: the base model has no adapter", "Leave out --base, or --trial."
        raise InputError(
            Problem(where="command line", found=f"--base with --trial {trial}", allowed=allowed, hint=hint)
        )


def _answer(
    run_dir: Path,
    source: Path,
    output: Path,
    *,
    settings: GenerationSettings,
    trial: int | None,
    model: str | None,
    as_json: bool,
) -> None:
    from cohort.adapter_files.answer_file import answer_file
    from cohort.cli.tables.batch_view import BATCH_VIEW
    from cohort.cli.terminal.progress import watching

    with watching(BATCH_VIEW) as watcher:
        answered = answer_file(
            run_dir,
            source=source,
            output=output,
            settings=settings,
            trial_id=trial,
            model=model,
            watcher=watcher.update,
        )
    report_note(answered.note)
    best = report_so_far(answered.so_far)
    if as_json:
        body = {
            "output": str(answered.path),
            "prompts": answered.num_rows,
            "resumed": answered.num_resumed,
            "best_so_far": best,
        }
        print(json.dumps(body, indent=2))
        return
    before = f" ({answered.num_resumed} of them before)" if answered.num_resumed else ""
    print(f"{answered.path}: answers to {answered.num_rows} prompts{before}")
