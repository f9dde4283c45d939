"""``cohort generate``: try the best adapter."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cohort.cli.exits import exits
from cohort.cli.options import DebugOption, JsonOption, RunDirArgument

__all__ = ["generate"]


def generate(
    run_dir: RunDirArgument,
    prompt: Annotated[list[str], typer.Option("--prompt", help="What to answer; may be given several times.")],
    trial: Annotated[int | None, typer.Option("--trial", metavar="N", help="A trial.  [default: the best]")] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 64,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 takes the likeliest token.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", min=1e-6, max=1.0)] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the draws, with a temperature.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Take the prompt as it is, without a template.")] = False,
    base: Annotated[bool, typer.Option("--base", help="The model without the adapter.")] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Answer prompts with an adapter of a run, rendered as its training rows were.

    Of a run that has not finished it is the best checkpoint so far, which is said.
    """
    with exits(as_json=as_json, debug=debug):
        from cohort.runs.directory import RunDirectory

        RunDirectory.open(run_dir)
        from cohort.engine.adapter_files.generate import GenerationSettings, generate_from_run

        settings = GenerationSettings(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            is_raw=raw,
            use_base=base,
        )
        generated = generate_from_run(run_dir, prompt, settings=settings, trial_id=trial)
        so_far = generated.so_far
        if so_far is not None:
            print(f"note: {so_far.note}", file=sys.stderr)
        if as_json:
            best = None if so_far is None else {"trial_id": so_far.trial_id, "step": so_far.step}
            pairs = [
                {"prompt": text, "answer": answer, "best_so_far": best}
                for text, answer in zip(prompt, generated.answers, strict=True)
            ]
            print(json.dumps(pairs, indent=2, ensure_ascii=False))
            return
        for answer in generated.answers:
            print(answer)
