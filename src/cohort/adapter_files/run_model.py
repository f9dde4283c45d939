"""A run's base model with some of its adapters in one bank: what generates, chats and evaluates after a sweep."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch

from cohort.adapter_files.base_model import RunBase
from cohort.adapter_files.choose import BestSoFar, best_so_far, chosen_adapter
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank, aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import PeftAdapter, rank_rows_from_peft, read_adapter
from cohort.core.cache_directory import default_cache_directory
from cohort.data.chat import use_chat_template
from cohort.machine.machine import Machine
from cohort.memory.host_streaming import layers_for_generation
from cohort.models.checkpoint_layout import factor_shapes
from cohort.models.config_file import read_config
from cohort.models.decoder import Decoder
from cohort.models.streaming.host_source import host_streaming
from cohort.models.tokenizer import load_tokenizer
from cohort.models.weights import load_decoder
from cohort.prepare.inputs import machine_of
from cohort.ranks.answers import Answer, AnswerGenerator
from cohort.runs.directory import RunDirectory
from cohort.serving.generate import GenerateRequest, PickedToken, end_of_answer_ids, generation_tokens, stream
from cohort.serving.sampler import Sampling

__all__ = ["RunModel", "read_chosen"]


def read_chosen(
    directory: RunDirectory, *, trial_id: int | None, base: RunBase
) -> tuple[PeftAdapter, BestSoFar | None]:
    """Return the best adapter of a run, or that of a trial; of an unfinished run the best so far, which is named.

    Raises:
        InputError: there is no such adapter.
    """
    so_far = best_so_far(directory) if trial_id is None else None
    chosen_id, step = (trial_id, None) if so_far is None else (so_far.trial_id, so_far.step)
    with chosen_adapter(directory, trial_id=chosen_id, step=step, base=base) as source:
        return read_adapter(source), so_far


class RunModel:
    """The frozen model and a bank that can be filled with adapters of its run.

    Attributes:
        base: The run's base model.
        machine: Where it computes.
        decoder, tokenizer: The base model's.
        bank: None where there is no adapter: the products are then exactly those of the plain model.
        slots: The slot of each adapter, in the order given.
    """

    def __init__(self, base: RunBase) -> None:
        """Load the model, on one GPU if there is one and the task did not forbid it.

        Raises:
            InputError: files of the model are wrong.
        """
        task = base.task
        self.base = base
        # an adapter is used where it is, with however many GPUs it was trained: one is enough
        self.machine: Machine = machine_of(task, num_gpus="auto" if task.num_gpus else 0)
        self.tokenizer: Any = load_tokenizer(base.directory)
        use_chat_template(self.tokenizer, task.dataset.chat_template, task.dataset.chat_template_kwargs)
        # a model that trained through host memory must answer as well
        streamed = layers_for_generation(read_config(base.directory), self.machine)
        self.decoder: Decoder = load_decoder(
            base.directory,
            dtype=self.machine.dtype,
            device=self.machine.device,
            streaming=host_streaming(streamed.layers, self.machine.device),
            weight_format=self.machine.quantization,
            cache_directory=default_cache_directory(),
            room_bytes=task.memory.limit,
        )
        self.bank: AdapterBank | None = None
        self.slots: tuple[int, ...] = ()
        self._generator = AnswerGenerator(token_budget=generation_tokens(self.decoder), device=self.machine.device)

    @property
    def note(self) -> str | None:
        """What the user should know: about the place of the base model, and about another device than the run's."""
        recorded = (self.base.facts.machine.device or self.machine.device.type).partition(" (")[0]
        notes = [self.base.note] if self.base.note else []
        if recorded != self.machine.device.type:
            dtype = str(self.decoder.dtype).removeprefix("torch.")
            notes.append(f"computing on {self.machine.device.type} in {dtype}; the run trained on {recorded}")
        return "; ".join(notes) or None

    def hold(self, adapters: Sequence[PeftAdapter]) -> None:
        """Put ``adapters`` into the bank instead of those that are there.

        Raises:
            InputError: an adapter does not fit the model.
        """
        self.bank, self.slots = None, ()
        if not adapters:
            return
        linears = factor_shapes(self.decoder.config)
        # a linear that the model lacks is named below, with the shapes that do not fit
        modules = {module for adapter in adapters for module in adapter.modules if module in linears}
        layout = AdapterLayout({module: linears[module] for module in linears if module in modules})
        weights = [rank_rows_from_peft(layout, adapter) for adapter in adapters]
        specs = [adapter.spec_in(layout) for adapter in adapters]
        self.bank = AdapterBank(
            layout,
            num_slots=len(adapters),
            num_rank_rows=sum(aligned_rank(spec.num_rows) for spec in specs),
            device=self.machine.device,
            compute_dtype=self.decoder.dtype,
        )
        self.slots = tuple(
            self.bank.insert(spec, AdapterState(weights=weights_rD))
            for spec, weights_rD in zip(specs, weights, strict=True)
        )

    def bank_bytes(self, adapter: PeftAdapter) -> int:
        """Return what an adapter takes in the bank: masters, gradients, and the copy that products read."""
        linears = factor_shapes(self.decoder.config)
        layout = AdapterLayout({module: linears[module] for module in adapter.modules if module in linears})
        bytes_each = 8 if self.decoder.dtype == torch.float32 else 8 + self.decoder.dtype.itemsize
        return aligned_rank(adapter.spec_in(layout).num_rows) * layout.width * bytes_each

    def stream(self, requests: Sequence[GenerateRequest], *, sampling: Sampling) -> Generator[PickedToken, None, None]:
        """Yield tokens as they are generated; close it to stop early.

        Raises:
            InputError: a prompt is empty or longer than the model's context.
        """
        return self._stream(requests, sampling=sampling, token_budget=self._generator.token_budget)

    def _stream(
        self, requests: Sequence[GenerateRequest], *, sampling: Sampling, token_budget: int
    ) -> Generator[PickedToken, None, None]:
        return stream(
            self.decoder,
            requests,
            lora_for=None if self.bank is None else self.bank.context,
            num_slots=0 if self.bank is None else self.bank.num_slots,
            stop_ids=end_of_answer_ids(self.tokenizer, self.decoder.config.eos_token_ids),
            sampling=sampling,
            token_budget=token_budget,
        )

    def answers(self, requests: Sequence[GenerateRequest], *, sampling: Sampling) -> Iterator[Answer]:
        """Yield each answer once it is finished; with fewer at a time where memory runs out, which changes none.

        Raises:
            InputError: a prompt is empty or longer than the model's context.
        """

        def tokens_of(some: Sequence[GenerateRequest], token_budget: int) -> Iterator[PickedToken]:
            return self._stream(some, sampling=sampling, token_budget=token_budget)

        return self._generator.answers(requests, stream=tokens_of)

    def text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))
