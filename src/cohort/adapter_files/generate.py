"""Tries an adapter of a run on a few prompts, which are rendered like its training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cohort.adapter_files.base_model import open_base
from cohort.adapter_files.choose import BestSoFar
from cohort.adapter_files.prompts import PromptRenderer
from cohort.adapter_files.run_model import RunModel, read_chosen
from cohort.runs.directory import RunDirectory
from cohort.serving.generate import GenerateRequest
from cohort.serving.sampler import Sampling

__all__ = ["Generated", "GenerationSettings", "generate_from_run"]


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How prompts are answered.

    Attributes:
        max_new_tokens: Most tokens generated for a prompt.
        temperature: 0 takes the likeliest token.
        top_p: Draw among the likeliest tokens that together have this probability.
        seed: Seeds the draws.
        is_raw: Take prompts as they are, without the task's prompt template or the model's chat template.
        use_base: The frozen model without the adapter, to compare with.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    is_raw: bool = False
    use_base: bool = False

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_p=self.top_p)


@dataclass(frozen=True, kw_only=True)
class Generated:
    """The answers of an adapter.

    Attributes:
        answers: One for each prompt.
        so_far: The checkpoint of an unfinished run; None where the run has finished, or a trial was named.
        note: For the user, about the base model and the device.
    """

    answers: tuple[str, ...]
    so_far: BestSoFar | None = None
    note: str | None = None


def generate_from_run(
    run_directory: Path,
    prompts: Sequence[str],
    *,
    settings: GenerationSettings,
    trial_id: int | None = None,
    model: str | None = None,
) -> Generated:
    """Answer each prompt with an adapter of a run.

    Args:
        trial_id: A trial; None: the best one, or of an unfinished run the best checkpoint so far.
        model: Where the base model is now, if not where the run has it.

    Raises:
        InputError: there is no such adapter, the base model is gone or another one, or a prompt is empty, longer than
            the model's context, or refused by its chat template.
    """
    directory = RunDirectory.open(run_directory)
    base = open_base(directory, model=model)
    # the adapter before the model: a run without one is refused before weights are loaded
    adapter, so_far = (None, None) if settings.use_base else read_chosen(directory, trial_id=trial_id, base=base)
    loaded = RunModel(base)
    loaded.hold([] if adapter is None else [adapter])
    renderer = PromptRenderer(base=base, tokenizer=loaded.tokenizer, is_raw=settings.is_raw)
    slot = loaded.slots[0] if loaded.slots else None
    requests = [
        GenerateRequest(
            prompt_tokens=renderer.encode(renderer.of_text(prompt)),
            max_new_tokens=settings.max_new_tokens,
            slot=slot,
            seed=settings.seed,
        )
        for prompt in prompts
    ]
    answers = [""] * len(requests)
    for answer in loaded.answers(requests, sampling=settings.sampling):
        answers[answer.index] = loaded.text(answer.tokens)
    return Generated(answers=tuple(answers), so_far=so_far, note=loaded.note)
