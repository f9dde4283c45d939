"""Tries an adapter of a run on prompts that are rendered like its training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.adapters.bank import AdapterBank, AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_format import PeftAdapter, rank_rows_from_peft, read_adapter
from cohort.data.chat import RENDERING_DATE
from cohort.data.formats import DataFormat
from cohort.data.parsing import alpaca_prompt
from cohort.data.settings import template_fields
from cohort.data.tokenise import encode_prompt
from cohort.engine.adapter_files.base_model import RunBase, open_base
from cohort.engine.adapter_files.choose import BestSoFar, best_so_far, chosen_adapter
from cohort.machine.machine import choose_machine
from cohort.models.weights import load_decoder, load_tokenizer
from cohort.runs.directory import RunDirectory
from cohort.serving.generate import GenerateRequest, end_of_answer_ids, generate
from cohort.serving.sampler import Sampling
from cohort.tasks.loading import TaskFile

__all__ = ["Generated", "GenerationSettings", "generate_from_run", "render_prompt"]


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


@dataclass(frozen=True, kw_only=True)
class Generated:
    """The answers of an adapter.

    Attributes:
        answers: One for each prompt.
        so_far: The checkpoint of an unfinished run; None where the run has finished, or a trial was named.
        note: For the user, about the base model.
    """

    answers: tuple[str, ...]
    so_far: BestSoFar | None = None
    note: str | None = None


def render_prompt(prompt: str, *, task: TaskFile, tokenizer: Any, is_chat: bool, is_alpaca: bool = False) -> str:
    """Return the text a model trained on the task's rows expects before its answer.

    A chat model gets the prompt as a user's message, one trained on alpaca rows as an instruction without input; a
    prompt template of one field has the field filled.
    """
    if is_chat:
        # training rendered dates the same way (RENDERING_DATE), so that templates with a date agree
        messages = [{"role": "user", "content": prompt}]
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, strftime_now=RENDERING_DATE.strftime
            )
        )
    template = task.dataset.prompt_template
    if template is None and is_alpaca:
        return alpaca_prompt(prompt)
    # a prompt is one text: with several fields nothing says which one it fills
    if template is None or len(set(template_fields(template))) != 1:
        return prompt
    return template.format_map({template_fields(template)[0]: prompt})


def _read_chosen(
    directory: RunDirectory, *, trial_id: int | None, base: RunBase
) -> tuple[PeftAdapter, BestSoFar | None]:
    so_far = best_so_far(directory) if trial_id is None else None
    chosen_id, step = (trial_id, None) if so_far is None else (so_far.trial_id, so_far.step)
    with chosen_adapter(directory, trial_id=chosen_id, step=step, base=base) as source:
        return read_adapter(source), so_far


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
        InputError: there is no such adapter, the base model is gone or another one, or a prompt is empty or longer than
            the model's context.
    """
    directory = RunDirectory.open(run_directory)
    base = open_base(directory, model=model)
    task, facts = base.task, base.facts
    adapter, so_far = (None, None) if settings.use_base else _read_chosen(directory, trial_id=trial_id, base=base)
    # the adapter before the model: a run without one is refused before weights are loaded
    machine = choose_machine(task.num_gpus, where=task.where("num_gpus"))
    tokenizer = load_tokenizer(base.directory)
    decoder = load_decoder(base.directory, dtype=machine.dtype, device=machine.device)
    # prompts must look like the training rows, so the recorded format decides and not the model
    is_chat = facts.inputs.is_chat is True and not settings.is_raw
    is_alpaca = facts.inputs.data_format == DataFormat.ALPACA
    texts = [
        prompt
        if settings.is_raw
        else render_prompt(prompt, task=task, tokenizer=tokenizer, is_chat=is_chat, is_alpaca=is_alpaca)
        for prompt in prompts
    ]
    # the base model alone runs without a bank: its products are exactly those of the plain model
    bank, slot = None, None
    if adapter is not None:
        linears = decoder.linears
        # a linear that the model lacks is named below, with the shapes that do not fit
        layout = AdapterLayout({module: linears[module] for module in adapter.modules if module in linears})
        weights_rD = rank_rows_from_peft(layout, adapter)
        bank = AdapterBank(
            layout,
            num_slots=1,
            num_rank_rows=adapter.spec.r,
            device=machine.device,
            compute_dtype=decoder.dtype,
        )
        slot = bank.insert(adapter.spec, AdapterState(weights=weights_rD))
    requests = [
        GenerateRequest(
            prompt_tokens=encode_prompt(text, tokenizer=tokenizer, is_chat=is_chat),
            max_new_tokens=settings.max_new_tokens,
            slot=slot,
            seed=settings.seed,
        )
        for text in texts
    ]
    answers = generate(
        decoder,
        requests,
        lora_for=None if bank is None else bank.context,
        num_slots=0 if bank is None else 1,
        stop_ids=end_of_answer_ids(tokenizer, decoder.config.eos_token_ids),
        sampling=Sampling(temperature=settings.temperature, top_p=settings.top_p),
    )
    decoded = tuple(str(tokenizer.decode(answer, skip_special_tokens=True)) for answer in answers)
    return Generated(answers=decoded, so_far=so_far, note=base.note)
