"""The serving engine: requests in at any time, tokens out step by step; continuous batching over one frozen model.

One thread owns an engine: all calls come from it. Adapters that load meanwhile hide how from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from cohort.core.errors import InputError, Problem
from cohort.models.bridge.backbone import BridgedDecoder
from cohort.serving.block_manager import BlockManager
from cohort.serving.bridged_passes import BridgedPassComputer
from cohort.serving.decode_graphs import DecodeGraphs
from cohort.serving.kv_blocks import BLOCK_ROWS, blocks_for
from cohort.serving.pass_computer import PassComputer, PassModel, ScoresOf, SlotContext
from cohort.serving.ranks import OneProcess, ServingRanks
from cohort.serving.runner import NextToken, PassRunner
from cohort.serving.scheduler import AdapterSlots, Scheduler, SchedulerSettings
from cohort.serving.sequence import LiveSequence, SequenceRequest
from cohort.serving.step_output import FinishReason, StepOutput
from cohort.serving.text.text_stream import TextStream

__all__ = ["EngineAdapters", "ServingEngine", "TextDecoder", "request_problems"]

TextDecoder = Callable[[Sequence[int]], str]


class EngineAdapters(AdapterSlots, SlotContext, Protocol):
    """What an engine asks of the adapters that it serves."""

    def take_failures(self) -> list[tuple[object, str]]:
        """Return adapters that could not be loaded since the last call, with the reason."""
        ...


class ServingEngine:
    """Serves requests for one decoder and its adapters.

    A sequence's tokens do not depend on its neighbours, their order, the sizes of pool and passes, or what was found in
    the prefix cache (on a CPU at a fixed thread count, bit for bit).
    """

    def __init__(
        self,
        decoder: PassModel,
        *,
        adapters: EngineAdapters,
        num_blocks: int,
        settings: SchedulerSettings | None = None,
        decode_text: TextDecoder | None = None,
        max_model_len: int | None = None,
        records_graphs: bool = False,
        ranks: ServingRanks | None = None,
        scores_of: ScoresOf | None = None,
        as_trained: bool = False,
    ) -> None:
        """Allocate ``num_blocks`` blocks of 16 positions of keys and values.

        Args:
            decoder: The model, or rank 0's shard of it.
            decode_text: Turns tokens into text; needed for stop strings and :attr:`StepOutput.text`.
            max_model_len: Most tokens of a sequence; by default the model's context.
            records_graphs: Run passes that only decode as CUDA graphs, where the model has the kernels.
            ranks: The other ranks of a divided model; None where it is not divided.
            scores_of: Gives the scores of final hidden states; None: the model's logits.
            as_trained: Take the products and tiles of training passes on a CPU, so that a token's logarithm there has
                the bits of :class:`~cohort.models.tiled_attention.TiledAttention`'s passes, where the BLAS allows it.
        """
        context = decoder.config.max_position_embeddings
        self.max_model_len = context if max_model_len is None else min(max_model_len, context)
        self.device, self._vocab_size = decoder.device, decoder.config.vocab_size
        self._adapters, self._decode_text = adapters, decode_text
        self.blocks = BlockManager(num_blocks)
        settings = settings or SchedulerSettings()
        if isinstance(decoder, BridgedDecoder):
            # the model's own caches are of one sequence each
            settings = replace(settings, finds_prefixes=False)
        self.scheduler = Scheduler(settings, blocks=self.blocks, adapters=adapters)
        ranks = ranks or OneProcess()
        sizes = {"num_blocks": num_blocks, "max_model_len": self.max_model_len}
        ranks.open_cache(**sizes, records_graphs=records_graphs)
        self._computer: PassComputer | BridgedPassComputer
        if isinstance(decoder, BridgedDecoder):
            self._computer = BridgedPassComputer(decoder, adapters=adapters, scores_of=scores_of)
        else:
            self._computer = PassComputer(
                decoder,
                adapters=adapters,
                **sizes,
                records_graphs=records_graphs,
                scores_of=scores_of,
                as_trained=as_trained,
            )
        self.num_cache_bytes = self._computer.num_cache_bytes
        self._runner = PassRunner(self._computer, ranks=ranks, as_trained=as_trained)
        self._live: dict[int, LiveSequence] = {}
        self._texts: dict[int, TextStream] = {}
        # outputs of the last pass without their text, and what they add to
        self._without_text: list[tuple[StepOutput, TextStream]] = []
        self._next_number = 0

    @property
    def graphs(self) -> DecodeGraphs | None:
        """Where passes that only decode run, if they can be recorded."""
        return self._computer.graphs

    @property
    def most_tokens(self) -> int:
        """Most tokens of a sequence: the model's context, or what the whole pool holds."""
        return min(self.max_model_len, self.blocks.num_blocks * BLOCK_ROWS)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def num_live(self) -> int:
        """Requests that are not finished."""
        return len(self._live)

    def ready_tokens(self) -> dict[str, int]:
        """Return the tokens that wait for the next pass, by tenant: newest ones, and prompts that are not begun."""
        found: dict[str, int] = {}
        for sequence in self._live.values():
            tenant = sequence.request.tenant
            tokens = 1 if sequence.num_generated else len(sequence.request.prompt_tokens)
            found[tenant] = found.get(tenant, 0) + tokens
        return found

    def submit(self, request: SequenceRequest) -> int:
        """Queue a request and return its number.

        Raises:
            InputError: the prompt is empty, too long, or has tokens that the model does not have.
            ValueError: stop strings without a decoder of text.
        """
        problems = request_problems(
            request.prompt_tokens,
            where="prompt",
            vocab_size=self._vocab_size,
            limit=self.most_tokens,
        )
        if problems:
            raise InputError(problems)
        if request.stop_strings and self._decode_text is None:
            raise ValueError("stop strings need decode_text")
        room = self.most_tokens - len(request.prompt_tokens)
        number, self._next_number = self._next_number, self._next_number + 1
        most = min(request.max_new_tokens, room)
        sequence = LiveSequence(number=number, request=request, most=most, tokens=list(request.prompt_tokens))
        assert blocks_for(sequence.num_prompt + most) <= self.blocks.num_blocks
        self._live[number] = sequence
        if self._decode_text is not None and (request.needs_text or request.stop_strings):
            self._texts[number] = TextStream(self._decode_text, stop_strings=request.stop_strings)
        self.scheduler.add(sequence)
        return number

    def abort(self, number: int) -> bool:
        """Forget a request, and free what it holds; return False if it is finished or unknown."""
        sequence = self._live.pop(number, None)
        if sequence is None:
            return False
        self._texts.pop(number, None)
        self.scheduler.remove(sequence)
        return True

    def abort_all(self) -> list[int]:
        """Forget all requests and return their numbers."""
        numbers = list(self._live)
        for number in numbers:
            self.abort(number)
        return numbers

    def step(self, *, meanwhile: Callable[[], None] | None = None, adds_texts: bool = True) -> list[StepOutput]:
        """Run one pass and return what it gave; nothing where all that waits waits for adapters.

        Args:
            meanwhile: Called while a GPU computes a pass that only decodes; otherwise before the pass, whose launches
                keep the host busy.
            adds_texts: False leaves texts that can stop no answer to :meth:`add_texts`, which the caller calls before
                the next pass ends: a GPU need not wait for them.
        """
        outputs = self._failed()
        plan = self.scheduler.plan()
        if meanwhile is not None and (plan.prefills or plan.is_empty):
            meanwhile()
            meanwhile = None
        if plan.is_empty:
            return outputs
        picked = self._runner.run(plan, meanwhile=meanwhile)
        self.scheduler.computed(plan)
        outputs += [self._advance(each) for each in picked]
        if adds_texts:
            self.add_texts()
        return outputs

    def add_texts(self) -> None:
        """Give the outputs of the last pass the texts that they lack."""
        for output, text in self._without_text:
            if output.token is not None:
                output.text = text.push(output.token)
            if output.finish is not None:
                output.text += text.end()
        self._without_text.clear()

    def _failed(self) -> list[StepOutput]:
        outputs = []
        for adapter, reason in self._adapters.take_failures():
            for sequence in [each for each in self.scheduler.waiting if each.request.adapter == adapter]:
                self.abort(sequence.number)
                outputs.append(StepOutput(number=sequence.number, token=None, finish=FinishReason.FAILED, error=reason))
        return outputs

    def _advance(self, picked: NextToken) -> StepOutput:
        sequence, token = picked.sequence, picked.token
        request, number = sequence.request, sequence.number
        text = self._texts.get(number) if self._texts else None
        if token is None:
            finish: FinishReason | None = FinishReason.NOT_FINITE
        elif token in request.stop_ids:
            finish, token = FinishReason.STOP, token if request.keeps_stop else None
        else:
            sequence.tokens.append(token)
            finish = FinishReason.LENGTH if sequence.num_generated >= sequence.most else None
        shown = ""
        if text is not None and text.may_stop:
            shown = text.push(token) if token is not None else ""
            if finish is not None and not text.is_stopped:
                shown += text.end()
            if text.is_stopped:
                finish = FinishReason.STOP
        if finish is not None:
            del self._live[number]
            self._texts.pop(number, None)
            self.scheduler.remove(sequence)
        logprobs = picked.logprobs if token is not None else None
        output = StepOutput(number=number, token=token, text=shown, logprobs=logprobs, finish=finish)
        if text is not None and not text.may_stop:
            self._without_text.append((output, text))
        return output


def request_problems(tokens: Sequence[int], *, where: str, vocab_size: int, limit: int) -> list[Problem]:
    """Return what is wrong with a prompt; ``limit`` is the model's context."""
    problems = []
    unknown = [token for token in tokens if not 0 <= token < vocab_size]
    if not 0 < len(tokens) < limit:
        problems.append(
            Problem(
                where=where,
                found=f"{len(tokens)} tokens",
                allowed=f"1 to {limit - 1} tokens (the model's context is {limit})",
                hint="Shorten it."
                if len(tokens)
                else "Give it at least one token, such as the beginning-of-text token.",
            )
        )
    if unknown:
        problems.append(
            Problem(
                where=where,
                found=f"token {unknown[0]}",
                allowed=f"0 to {vocab_size - 1}, the model's vocabulary",
                hint="Use the tokenizer that belongs to the model.",
            )
        )
    return problems
