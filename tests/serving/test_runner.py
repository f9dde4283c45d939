"""A pass gives the tokens of the frozen model whatever its chunks and neighbours, and copies blocks in time."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.linear import LoraContext
from cohort.kernels.segments import SegmentTable
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.serving.kv_blocks import blocks_for
from cohort.serving.pass_computer import PassComputer
from cohort.serving.ranks import OneProcess
from cohort.serving.runner import PassRunner
from cohort.serving.scheduler import StepPlan
from cohort.serving.sequence import LiveSequence, SequenceRequest
from tests.models.fixtures.streams import packed_logits
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

PROMPTS = ([3, 9, 4, 17, 8] * 5, [12, 6, 1])


class NoAdapters:
    num_slots = 0

    def context(self, segments: SegmentTable) -> LoraContext | None:
        del segments
        return None


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return load_decoder(save_checkpoint(tmp_path_factory.mktemp("model"), "Llama"))


def runner_of(decoder: Decoder) -> PassRunner:
    computer = PassComputer(decoder, adapters=NoAdapters(), num_blocks=12, max_model_len=64)
    return PassRunner(computer, ranks=OneProcess())


def sequence_of(number: int, *, first_block: int, num_logprobs: int | None = None) -> LiveSequence:
    prompt = PROMPTS[number]
    request = SequenceRequest(prompt_tokens=prompt, max_new_tokens=8, num_logprobs=num_logprobs)
    sequence = LiveSequence(number=number, request=request, most=8, tokens=list(prompt))
    sequence.blocks = list(range(first_block, first_block + blocks_for(len(prompt) + 8)))
    return sequence


def expected(decoder: Decoder, tokens: list[int]) -> int:
    (logits,) = packed_logits(decoder, [torch.tensor(tokens)])
    return int(logits[-1].argmax())


def test_chunks_then_decoding_give_the_models_tokens(decoder: Decoder) -> None:
    runner = runner_of(decoder)
    long, short = sequence_of(0, first_block=1), sequence_of(1, first_block=5, num_logprobs=2)
    # the prompt's end is not in the first pass: no token of it
    (found,) = runner.run(StepPlan(prefills=[(long, 16), (short, 3)], fresh_blocks=[*long.blocks, *short.blocks]))
    assert found.sequence is short
    assert found.token == expected(decoder, short.tokens)
    assert found.logprobs is not None
    assert found.logprobs.top[0][0] == found.token
    assert found.logprobs.picked == pytest.approx(found.logprobs.top[0][1])
    long.num_computed, short.num_computed = 16, 3
    short.tokens.append(found.token)
    after = runner.run(StepPlan(prefills=[(long, 9)], decodes=[short]))
    assert {next_.sequence.number: next_.token for next_ in after} == {
        sequence.number: expected(decoder, sequence.tokens) for sequence in (long, short)
    }
    assert all(next_.logprobs is None for next_ in after if next_.sequence is long)


def test_blocks_that_leave_come_back_before_the_pass(decoder: Decoder) -> None:
    runner = runner_of(decoder)
    sequence, other = sequence_of(0, first_block=1), sequence_of(1, first_block=1)
    runner.run(StepPlan(prefills=[(sequence, 25)], fresh_blocks=sequence.blocks))
    sequence.num_computed = 25
    leaving, sequence.blocks = sequence.blocks, []
    # another sequence takes the same blocks in the same pass
    runner.run(StepPlan(prefills=[(other, 3)], stored=[(sequence, leaving)], fresh_blocks=other.blocks))
    sequence.tokens.append(expected(decoder, sequence.tokens))
    sequence.blocks = [6, 7, 8, 9]
    (found,) = runner.run(StepPlan(decodes=[sequence], restored=[sequence], fresh_blocks=sequence.blocks))
    assert found.token == expected(decoder, sequence.tokens)
