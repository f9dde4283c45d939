"""Packed generation gives what each prompt would get alone, and what transformers with PEFT gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from cohort.core.errors import InputError
from cohort.models.weights import load_decoder
from cohort.serving.generate import GenerateRequest, generate
from cohort.serving.sampler import Sampling
from tests.serving.served import STOP, Served, serve


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve(tmp_path_factory.mktemp("llama"), "Llama")


@pytest.fixture(scope="module", params=["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    settings = {"Mistral": {"sliding_window": 12}, "Qwen3": {"head_dim": 6}}.get(request.param, {})
    return serve(tmp_path_factory.mktemp("served"), request.param, **settings)


def requests_for(lengths: Sequence[int], *, new: int = 20, **settings: Any) -> list[GenerateRequest]:
    """Prompts of ``lengths``, over all adapters and the frozen model in turn."""
    generator = torch.Generator().manual_seed(5)
    return [
        GenerateRequest(
            prompt_tokens=torch.randint(12, 67, (length,), generator=generator).tolist(),
            max_new_tokens=new,
            slot=(0, None, 2, 1)[index % 4],
            **settings,
        )
        for index, length in enumerate(lengths)
    ]


LENGTHS = (5, 17, 1, 30, 31, 64, 8, 16, 40, 2)


def by_peft(served: Served, slot: int | None) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(served.model)
    return model if slot is None else peft.PeftModel.from_pretrained(model, served.adapters[slot])


@torch.no_grad()
def greedy_by(model: Any, request: GenerateRequest) -> list[int]:
    prompt = torch.tensor([list(request.prompt_tokens)])
    output = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
        eos_token_id=STOP,
        pad_token_id=0,
    )
    tokens: list[int] = output[0, prompt.shape[1] :].tolist()
    return tokens[: tokens.index(STOP)] if STOP in tokens else tokens


def test_greedy_tokens_are_those_of_transformers_and_peft(served: Served) -> None:
    requests = requests_for(LENGTHS)
    ours = served.generate(requests)
    models = {slot: by_peft(served, slot) for slot in {request.slot for request in requests}}
    theirs = [greedy_by(models[request.slot], request) for request in requests]
    assert ours == theirs
    assert len({tuple(tokens) for tokens in ours}) > 5, "equal continuations would hide a mix-up"


def test_neighbours_order_and_budget_change_no_token(served: Served) -> None:
    # the greedy ones are compared with those of each request alone above; what is drawn reads every logit
    sampling = Sampling(temperature=0.8, top_p=0.95)
    requests = requests_for(LENGTHS, new=12, seed=3)
    together = served.generate(requests, sampling=sampling)
    alone = [served.generate([request], sampling=sampling)[0] for request in requests]
    assert together == alone
    assert served.generate(requests[::-1], sampling=sampling, token_budget=250) == alone[::-1]


def test_a_budget_of_any_size_changes_no_token(llama: Served) -> None:
    requests = requests_for(LENGTHS, new=10)
    expected = llama.generate(requests)
    for budget in (1, 60, 100, 150):
        assert llama.generate(requests, token_budget=budget) == expected


def test_neighbours_change_no_token_with_two_threads(llama: Served) -> None:
    requests = requests_for(LENGTHS[:4], new=6)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert llama.generate(requests) == [llama.generate([request])[0] for request in requests]
    finally:
        torch.set_num_threads(before)


def test_a_stop_token_ends_a_sequence_and_is_not_returned(llama: Served) -> None:
    (request,) = requests_for([9], new=30)
    free = llama.generate([request], stop_ids=())[0]
    assert len(free) == 30
    stop = free[4]
    assert llama.generate([request], stop_ids={stop})[0] == free[: free.index(stop)]


def test_the_models_own_stop_tokens_are_the_default(llama: Served) -> None:
    (request,) = requests_for([9], new=60)
    eos = llama.decoder.config.eos_token_ids
    assert eos
    assert llama.generate([request], stop_ids=None) == llama.generate([request], stop_ids=eos)


def test_the_context_length_ends_a_sequence(llama: Served) -> None:
    results = llama.generate(requests_for([90, 95, 10], new=50), stop_ids=())
    assert [len(tokens) for tokens in results] == [6, 1, 50]


def test_nothing_asked_nothing_given(llama: Served) -> None:
    assert llama.generate([]) == []
    assert llama.generate(requests_for([4, 5], new=0)) == [[], []]


def test_a_diverged_adapter_ends_its_sequences_and_no_others(llama: Served) -> None:
    requests = requests_for(LENGTHS)
    clean = llama.generate(requests, token_budget=400)
    rows = llama.bank.rank_rows(2)
    kept = llama.bank.weights_RD[rows].clone()
    llama.bank.weights_RD[rows] = float("nan")
    try:
        # a small budget makes others reuse the blocks that the NaNs were in
        dirty = llama.generate(requests, token_budget=400)
    finally:
        llama.bank.weights_RD[rows] = kept
    assert dirty == [[] if request.slot == 2 else tokens for request, tokens in zip(requests, clean, strict=True)]


def test_the_frozen_model_needs_no_adapters(llama: Served) -> None:
    request = GenerateRequest(prompt_tokens=[20, 30], max_new_tokens=5)
    assert generate(llama.decoder, [request], stop_ids=()) == llama.generate([request], stop_ids=())
    with pytest.raises(ValueError, match="lora_for"):
        generate(llama.decoder, [GenerateRequest(prompt_tokens=[20], max_new_tokens=5, slot=1)])


def test_bad_prompts_are_listed_at_once(llama: Served) -> None:
    requests = [
        GenerateRequest(prompt_tokens=tokens, max_new_tokens=5) for tokens in ([], [1], [1] * 96, [3, 67], [-1])
    ]
    with pytest.raises(InputError) as caught:
        llama.generate(requests)
    assert [str(problem).split(";")[0] for problem in caught.value.problems] == [
        "prompt 0: found 0 tokens",
        "prompt 2: found 96 tokens",
        "prompt 3: found token 67",
        "prompt 4: found token -1",
    ]


def test_a_real_model_tells_the_same_story_as_transformers(repository: Path) -> None:
    folder = repository.parent / "shared" / "models" / "stories260K" / "hf"
    if not folder.is_dir():
        pytest.skip("the pretrained model stories260K is not on this machine")
    decoder = load_decoder(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer(text)["input_ids"] for text in ("Once upon a time", "Lily had a", "The dog")]
    ours = generate(
        decoder, [GenerateRequest(prompt_tokens=prompt, max_new_tokens=60) for prompt in prompts], stop_ids={2}
    )
    for prompt, tokens in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            output = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False, eos_token_id=2
            )
        assert tokens == [token for token in output[0, len(prompt) :].tolist() if token != 2]
