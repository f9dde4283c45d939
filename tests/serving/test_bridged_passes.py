"""Generation on a model that transformers computes: its own greedy answers, alone, with neighbours and preempted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.models.bridge.backbone import BridgedDecoder
from cohort.models.bridge.loading import wrap_model
from cohort.models.config_file import read_config
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import PLAIN
from cohort.models.weights import load_decoder
from cohort.serving.bridged_passes import BridgedPassComputer
from cohort.serving.engine import ServingEngine
from cohort.serving.generate import GenerateRequest, generate
from cohort.serving.pass_record import PassRecord, SequencePart
from cohort.serving.scheduler import Admission, SchedulerSettings
from cohort.serving.sequence import SequenceRequest
from tests.models.bridge.architectures import save_tiny

PROMPTS = ((5, 6, 7), tuple(range(10, 31)), (40,), tuple(range(50, 62)))
NEW_TOKENS = 9


def greedy(folder: Path, prompt: tuple[int, ...]) -> list[int]:
    """The likeliest tokens, each from a whole pass over what is there so far."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            tokens.append(int(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def requests(slots: tuple[int | None, ...] = (None,) * 4) -> list[GenerateRequest]:
    return [
        GenerateRequest(prompt_tokens=prompt, max_new_tokens=NEW_TOKENS, slot=slot)
        for prompt, slot in zip(PROMPTS, slots, strict=True)
    ]


@pytest.mark.parametrize("name", ["gpt_oss", "cohere2", "qwen3_5_text", "bloom"])
def test_answers_are_those_of_whole_passes(tmp_path: Path, name: str) -> None:
    """Windows and sinks, recurrent states, distances in the scores: whatever the model keeps between tokens."""
    folder = save_tiny(name, tmp_path)
    found = generate(load_decoder(folder), requests(), stop_ids=())
    assert found == [greedy(folder, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("name", ["gpt_oss", "cohere2", "deepseek_v3"])
def test_a_packed_model_answers_with_our_attention(tmp_path: Path, name: str) -> None:
    folder = save_tiny(name, tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    decoder = wrap_model(model, read_config(folder), device=torch.device("cpu"), weight_format=PLAIN, is_packed=True)
    assert generate(decoder, requests(), stop_ids=()) == [greedy(folder, prompt) for prompt in PROMPTS]


def bank_of(decoder: Decoder) -> AdapterBank:
    layout, spec = AdapterLayout(dict(decoder.linears)), AdapterSpec(r=4, lora_alpha=64)
    bank = AdapterBank(layout, num_slots=2, num_rank_rows=32, trains=False)
    for seed in (1, 2):
        weights_rD = torch.randn(
            initial_weights(layout, spec, seed=seed).shape, generator=torch.Generator().manual_seed(seed)
        )
        bank.insert(spec, AdapterState(weights=0.1 * weights_rD))
    return bank


def test_each_answer_is_its_own_adapters_with_any_neighbours(tmp_path: Path) -> None:
    decoder = load_decoder(save_tiny("seed_oss", tmp_path))
    bank = bank_of(decoder)
    options: dict[str, Any] = {"lora_for": bank.context, "num_slots": 2, "stop_ids": ()}
    together = generate(decoder, requests((None, 0, 1, 0)), **options)
    alone = [generate(decoder, [request], **options)[0] for request in requests((None, 0, 1, 0))]
    assert together == alone
    assert together != generate(decoder, requests(), stop_ids=())


class _NoAdapters:
    num_slots = 0

    def acquire(self, adapter: object) -> Admission:
        return Admission(slot=None, version=adapter)

    def waits_for_slot(self, adapter: object) -> bool:
        return False

    def release(self, adapter: object, version: object) -> None:
        pass

    def take_failures(self) -> list[tuple[object, str]]:
        return []

    def context(self, segments: object) -> None:
        return None


def test_preempted_sequences_and_prompts_in_parts_change_nothing(tmp_path: Path) -> None:
    """Prompts come in 16 tokens and the rest, the pool holds two sequences, and states of ended ones are let go."""
    folder = save_tiny("qwen3_5_text", tmp_path)
    decoder = load_decoder(folder)
    assert isinstance(decoder, BridgedDecoder)
    engine = ServingEngine(
        decoder,
        adapters=_NoAdapters(),
        num_blocks=4,
        settings=SchedulerSettings(max_num_seqs=4, max_num_batched_tokens=20),
    )
    prompts = [tuple(range(10, 40)), tuple(range(20, 48)), tuple(range(10, 40))]
    numbers = [
        engine.submit(SequenceRequest(prompt_tokens=prompt, max_new_tokens=NEW_TOKENS, stop_ids=frozenset()))
        for prompt in prompts
    ]
    found: dict[int, list[int]] = {number: [] for number in numbers}
    while engine.has_work:
        for output in engine.step():
            if output.token is not None:
                found[output.number].append(output.token)
    assert [found[number] for number in numbers] == [greedy(folder, prompt) for prompt in prompts]
    assert engine.scheduler.num_preemptions > 0
    assert isinstance(engine._computer, BridgedPassComputer)
    assert len(engine._computer._live) <= 2


class _Recorder:
    """Stands in for a bridged decoder: notes the tokens of each call."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def continued(self, tokens_L: torch.Tensor, _cache: object, *, lora_for: object) -> torch.Tensor:
        del lora_for
        self.calls.append(tokens_L.tolist())
        return torch.zeros(len(tokens_L), 4)


def test_a_sequence_that_came_back_is_not_let_go_with_the_blocks_that_it_had_before() -> None:
    """Its prompt waits for room, and meanwhile another sequence takes a block that was its own once."""
    recorder: Any = _Recorder()
    adapters: Any = _NoAdapters()
    computer = BridgedPassComputer(recorder, adapters=adapters, scores_of=lambda _hidden: None)  # type: ignore[arg-type, return-value]

    def part(number: int, tokens: list[int], blocks: list[int], *, is_sampled: bool) -> SequencePart:
        return SequencePart(
            number=number, slot=None, start=0, tokens=tokens, blocks=blocks, is_prompt=True, is_sampled=is_sampled
        )

    for record in (
        PassRecord(parts=[part(1, [5], [0], is_sampled=False)], fresh_blocks=[0]),
        PassRecord(parts=[], stored=[(1, [0])]),
        PassRecord(parts=[], restored=[(1, [2])]),
        PassRecord(parts=[part(2, [7], [0], is_sampled=True)], fresh_blocks=[0]),
        PassRecord(parts=[part(1, [6], [2], is_sampled=True)]),
    ):
        computer.compute(record)
    assert recorder.calls == [[7], [5, 6]]
