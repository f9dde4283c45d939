"""``cohort generate``: try the best adapter."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cohort.cli.exits import exits
from cohort.cli.options import (
    DebugOption,
    JsonOption,
    ModelOption,
    RunDirArgument,
    TrialOption,
    report_note,
    report_so_far,
)

__all__ = ["generate"]


def generate(
    run_dir: RunDirArgument,
    prompt: Annotated[list[str], typer.Option("--prompt", help="A prompt to answer; can be repeated.")],
    trial: TrialOption = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Most tokens of an answer.")] = 64,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0: always the likeliest token.")] = 0.0,
    top_p: Annotated[
        float,
        typer.Option("--top-p", min=1e-6, max=1.0, help="Sample from the likeliest tokens up to this probability."),
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the sampling.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Use the prompt as it is, without a template.")] = False,
    base: Annotated[bool, typer.Option("--base", help="Use the base model without the adapter.")] = False,
    model: ModelOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Answer prompts with an adapter of a run.

    Prompts are rendered like the training rows. Unfinished runs use the best checkpoint so far and say so.
    """
    with exits(as_json=as_json, debug=debug):
        from cohort.runs.directory import RunDirectory

        # before the import below, which loads torch: a wrong path is reported immediately
        RunDirectory.open(run_dir)
        from cohort.engine.adapter_files.generate import GenerationSettings, generate_from_run

        settings = GenerationSettings(
            max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed, is_raw=raw, use_base=base
        )
        generated = generate_from_run(run_dir, prompt, settings=settings, trial_id=trial, model=model)
        report_note(generated.note)
        best = report_so_far(generated.so_far)
        if not as_json:
            print("\n".join(generated.answers))
            return
        pairs = zip(prompt, generated.answers, strict=True)
        found = [{"prompt": text, "answer": answer, "best_so_far": best} for text, answer in pairs]
        print(json.dumps(found, indent=2, ensure_ascii=False))
