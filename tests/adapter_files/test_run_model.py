"""A base model with adapters of its run in one bank: what it holds, answers and notes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cohort.adapter_files.run_model import RunModel
from cohort.adapters.bank import aligned_rank
from cohort.core.errors import InputError
from cohort.ranks.answers import Answer
from cohort.runs.fact_groups import MachineFacts
from cohort.serving.generate import GenerateRequest
from cohort.serving.sampler import Sampling
from tests.adapter_files.runs import adapter_of, base_of
from tests.end_to_end.tiny_tasks import write_inputs

PROMPT = (7, 8, 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("loaded"))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> RunModel:
    return RunModel(base_of(folder))


def answers(loaded: RunModel, *slots: int | None) -> list[tuple[int, ...]]:
    requests = [GenerateRequest(prompt_tokens=PROMPT, max_new_tokens=6, slot=slot) for slot in slots]
    found: dict[int, Answer] = {answer.index: answer for answer in loaded.answers(requests, sampling=Sampling())}
    return [found[place].tokens for place in range(len(slots))]


def test_adapters_answer_together_as_each_alone(loaded: RunModel) -> None:
    adapters = [adapter_of(loaded.decoder, r=r, seed=seed) for seed, r in enumerate((2, 3))]
    alone = []
    for adapter in adapters:
        loaded.hold([adapter])
        alone += answers(loaded, *loaded.slots)
    loaded.hold(adapters)
    assert len(set(loaded.slots)) == 2
    # the frozen model beside them is the one that holds no adapter
    together = answers(loaded, *loaded.slots, None)
    loaded.hold([])
    assert loaded.bank is None
    assert together == [*alone, *answers(loaded, None)]
    assert len(set(together)) > 1, "weights of this size change what the model says"


def test_an_adapter_of_another_model_is_refused_with_its_linears(loaded: RunModel) -> None:
    adapter = adapter_of(loaded.decoder)
    renamed = {name.replace("layers.0", "layers.9"): tensor for name, tensor in adapter.tensors.items()}
    with pytest.raises(InputError, match=r"layers\.9\.self_attn\.q_proj: .*no such linear in this model"):
        loaded.hold([replace(adapter, tensors=renamed)])
    # not half of it
    assert (loaded.bank, loaded.slots) == (None, ())


def test_the_bank_takes_what_is_said_of_it(loaded: RunModel) -> None:
    adapter = adapter_of(loaded.decoder, r=3)
    loaded.hold([adapter])
    bank = loaded.bank
    assert bank is not None
    # float32: a master and a gradient of four bytes each
    assert loaded.bank_bytes(adapter) == aligned_rank(3) * bank.layout.width * 8
    loaded.hold([])


@pytest.mark.parametrize(
    ("device", "note"),
    [
        (None, None),
        ("cpu (Elder One)", None),
        ("cuda (NVIDIA H100)", "computing on cpu in float32; the run trained on cuda"),
    ],
)
def test_another_device_than_the_runs_is_noted(loaded: RunModel, device: str | None, note: str | None) -> None:
    base = loaded.base
    try:
        loaded.base = replace(base, facts=replace(base.facts, machine=MachineFacts(device=device)))
        assert loaded.note == note
        loaded.base = replace(loaded.base, note="not recorded")
        assert str(loaded.note).startswith("not recorded")
    finally:
        loaded.base = base


def test_text_leaves_out_special_tokens(loaded: RunModel) -> None:
    tokens = loaded.tokenizer.encode("1+1=")
    assert loaded.text([*tokens, loaded.tokenizer.eos_token_id]) == "1+1="
    assert loaded.text([]) == ""
