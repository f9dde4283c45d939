"""Sampling for the Tinker client: tokens in, tokens with their log-probabilities out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np

from cohort.adapters.adapter_state import AdapterState
from cohort.core.errors import CohortError, InputError, Problem
from cohort.core.seeds import derive_seed
from cohort.engine.client_training.client_trainer import ClientTrainer
from cohort.service.engine_thread import EngineThread
from cohort.service.tinker.client_sessions import Sampler, measured_name
from cohort.service.tinker.futures import Answer
from cohort.service.tinker.protobuf_messages import sample_answer
from cohort.service.tinker.schema import Sample
from cohort.serving.adapter_registry import AdapterHandle
from cohort.serving.engine import request_problems
from cohort.serving.sampler import Sampling
from cohort.serving.sequence import SequenceRequest
from cohort.serving.step_output import FinishReason
from cohort.training.client_losses import TOKEN_OBJECTIVES
from cohort.training.client_training.client_models import ModelState
from cohort.training.client_training.datum import TARGETS, checked_datum, checked_loss
from cohort.training.client_training.request_executor import PassRequest

__all__ = ["SamplingCalls"]

_UNSERVED = (
    "topk_prompt_logprobs",
    "topk_sample_logprobs",
    "target_prompt_logprobs",
    "prompt_alt_tokens_k",
    "prompt_logprobs_last_n",
    "record_stability_info",
)


class SamplingFailedError(CohortError):
    """A sequence could not be finished."""


class SamplingCalls:
    """Answers sampling calls with the engine that serves, and prompts' log-probabilities with passes that measure."""

    def __init__(
        self,
        thread: EngineThread,
        trainer: ClientTrainer,
        *,
        vocab_size: int,
        eos_ids: frozenset[int],
        most_tokens: int,
        most_samples: int,
    ) -> None:
        self._thread, self._trainer = thread, trainer
        self._vocab_size, self._eos_ids = vocab_size, eos_ids
        self._most_tokens, self._most_samples = most_tokens, most_samples

    def check(self, asked: Sample) -> list[int]:
        """Return the prompt's tokens.

        Raises:
            InputError: the prompt cannot be continued, or something is asked for that is not served.
        """
        problems = [
            Problem(
                where=name,
                found=repr(getattr(asked, name))[:40],
                allowed="calls without it: this server does not serve it",
                hint=f"Leave {name} out.",
            )
            for name in _UNSERVED
            if getattr(asked, name)
        ]
        if asked.num_samples > self._most_samples:
            problems.append(
                Problem(
                    where="num_samples",
                    found=str(asked.num_samples),
                    allowed=f"1 to {self._most_samples}",
                    hint="Split the call.",
                )
            )
        if any(chunk.type != "encoded_text" for chunk in asked.prompt.chunks):
            problems.append(
                Problem(where="prompt", found="a chunk of another type", allowed="encoded_text", hint="Send tokens.")
            )
        tokens = [token for chunk in asked.prompt.chunks for token in chunk.tokens]
        problems += request_problems(tokens, where="prompt", vocab_size=self._vocab_size, limit=self._most_tokens)
        if problems:
            raise InputError(problems)
        return tokens

    async def sample(
        self, asked: Sample, tokens: list[int], *, sampler: Sampler, request_id: str, tenant: str
    ) -> Answer:
        """Return the samples of a checked call, in the share of ``tenant``.

        Raises:
            UnknownAdapterError: its version is no longer kept.
            QueueFullError, ServerClosingError: see :meth:`EngineThread.submit`.
            SamplingFailedError: a sequence could not be finished.
        """
        handle = None if sampler.adapter is None else self._thread.pool.handle(sampler.adapter)
        requests = self._requests(asked, tokens, handle=handle, request_id=request_id)
        subscription = self._thread.submit(requests, loop=asyncio.get_running_loop(), tenant=tenant)
        try:
            prompt = await self._prompt_logprobs(tokens, sampler) if asked.prompt_logprobs else None
            found: list[tuple[list[int], list[float]]] = [([], []) for _ in requests]
            stopped = [False] * len(requests)
            num_left = len(requests)
            while num_left:
                for place, output in await subscription.arrived():
                    if output.finish in (FinishReason.NOT_FINITE, FinishReason.FAILED):
                        raise SamplingFailedError(output.error or "the model's logits are not finite: it has diverged")
                    if output.token is not None:
                        found[place][0].append(output.token)
                        found[place][1].append(math.nan if output.logprobs is None else output.logprobs.picked)
                    if output.finish is not None:
                        stopped[place] = output.finish is FinishReason.STOP
                        num_left -= 1
        finally:
            self._thread.cancel(subscription)
        sequences = [(tokens, logprobs, stop) for (tokens, logprobs), stop in zip(found, stopped, strict=True)]
        return Answer(message=sample_answer(sequences, prompt_logprobs=prompt))

    def _requests(
        self, asked: Sample, tokens: Sequence[int], *, handle: AdapterHandle | None, request_id: str
    ) -> list[SequenceRequest]:
        params = asked.sampling_params
        stop = params.stop
        several = stop if isinstance(stop, list) else []
        strings = (stop,) if isinstance(stop, str) else tuple(each for each in several if isinstance(each, str))
        numbers = frozenset(each for each in several if isinstance(each, int))
        # an empty list switches all stops off, the end of the sequence too
        ends = frozenset[int]() if isinstance(stop, list) and not stop else self._eos_ids | numbers
        seed = derive_seed("tinker", request_id) if params.seed is None else params.seed
        return [
            SequenceRequest(
                prompt_tokens=tokens,
                max_new_tokens=params.max_tokens or self._most_tokens - len(tokens),
                adapter=handle,
                sampling=Sampling(temperature=params.temperature, top_p=params.top_p, top_k=max(0, params.top_k)),
                seed=derive_seed("tinker sample", seed, place),
                stop_ids=ends,
                keeps_stop=True,
                stop_strings=strings,
                needs_text=False,
                num_logprobs=0,
            )
            for place in range(asked.num_samples)
        ]

    async def _prompt_logprobs(self, tokens: Sequence[int], sampler: Sampler) -> list[float]:
        """Return the log-probability of each token of a prompt; NaN for the first, which nothing precedes."""
        if len(tokens) < 2:
            return [math.nan] * len(tokens)
        loss = checked_loss("cross_entropy", {}, known=TOKEN_OBJECTIVES)
        inputs = {TARGETS: np.array(tokens[1:]), "weights": np.zeros(len(tokens) - 1)}
        datum = checked_datum(
            np.array(tokens[:-1], dtype=np.int64),
            inputs,
            loss=loss,
            place=0,
            vocab_size=self._vocab_size,
            context=self._most_tokens,
        )
        name = None if sampler.adapter is None else measured_name(sampler.sampler_id)
        request = PassRequest(model_id=name, data=(datum,), loss=loss, trains=False)
        found = await asyncio.wrap_future(self._trainer.measure(request, before=lambda: self._enter(name, sampler)))
        return [math.nan, *found[0].logps[:, 0].tolist()]

    def _enter(self, name: str | None, sampler: Sampler) -> None:
        """Let passes that measure know a version; runs in the trainer's thread."""
        models = self._trainer.executor.models
        if name is None or name in models or sampler.spec is None or sampler.weights_rD is None:
            return
        state = ModelState(adapter=AdapterState(weights=sampler.weights_rD))
        models.create(name, sampler.spec, seed=0, state=state)
