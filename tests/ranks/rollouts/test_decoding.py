"""Answers by the rows that train: begun again where memory runs out, and forgotten with their trial."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.models.weights import load_decoder
from cohort.ranks.rollouts.decoding import AskedAnswer, Decoding
from cohort.serving.engine import ServingEngine
from cohort.serving.sampler import Sampling
from tests.cli.tiny_task import write_tiny_model


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AdapterBank]:
    model = write_tiny_model(tmp_path_factory.mktemp("decoding") / "model")
    decoder = load_decoder(str(model), dtype="float32", device="cpu")
    bank = AdapterBank(AdapterLayout(decoder.linears), num_slots=1, num_rank_rows=16)
    weights_rD = torch.randn(4, bank.layout.width, generator=torch.Generator().manual_seed(0)) * 0.1
    bank.insert(AdapterSpec(r=4, lora_alpha=8.0), AdapterState(weights=weights_rD))
    return model, bank


def asked(count: int) -> list[AskedAnswer]:
    return [
        AskedAnswer(
            key=(trial, 0, place),
            version=0,
            prompt_tokens=tuple(range(2, 22)),
            most_tokens=20,
            sampling=Sampling(temperature=1.0),
            seed=place,
            stop_ids=frozenset([1]),
        )
        for trial in (0, 1)
        for place in range(count)
    ]


def drawn(decoding: Decoding, answers: Sequence[AskedAnswer]) -> dict[tuple[int, int, int], list[int]]:
    for answer in answers:
        decoding.ask(answer)
    found = {}
    while decoding.has_work:
        found.update({key: answer.tokens.tolist() for key, answer in decoding.step()})
    return found


def test_answers_that_begin_again_because_memory_ran_out_are_the_same(
    parts: tuple[Path, AdapterBank], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, bank = parts
    decoder = load_decoder(str(model), dtype="float32", device="cpu")
    expected = drawn(Decoding(decoder, bank, slot_of=lambda _: 0, token_budget=1024), asked(3))
    step, calls = ServingEngine.step, [0]

    def short(engine: ServingEngine) -> object:
        calls[0] += 1
        if calls[0] == 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return step(engine)

    monkeypatch.setattr(ServingEngine, "step", short)
    decoding = Decoding(decoder, bank, slot_of=lambda _: 0, token_budget=128)
    assert drawn(decoding, asked(3)) == expected
    assert decoding._token_budget == 64
    # places of a group draw apart
    assert len({tuple(tokens) for tokens in expected.values()}) == 3


def test_a_trial_that_leaves_takes_its_answers_with_it(parts: tuple[Path, AdapterBank]) -> None:
    model, bank = parts
    decoder = load_decoder(str(model), dtype="float32", device="cpu")
    decoding = Decoding(decoder, bank, slot_of=lambda _: 0, token_budget=1024)
    for answer in asked(2):
        decoding.ask(answer)
    decoding.step()
    decoding.forget(1)
    keys = []
    while decoding.has_work:
        keys += [key for key, _ in decoding.step()]
    assert sorted(keys) == [(0, 0, 0), (0, 0, 1)]
