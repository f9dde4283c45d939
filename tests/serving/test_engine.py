"""Tokens do not depend on neighbours, arrival, chunks, cache or preemption, bit for bit; and nothing leaks."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from cohort.adapters.linear import LoraContext
from cohort.core.errors import InputError
from cohort.kernels.segments import SegmentTable
from cohort.serving.engine import ServingEngine
from cohort.serving.sampler import Sampling
from cohort.serving.scheduler import Admission, SchedulerSettings
from cohort.serving.sequence import SequenceRequest
from cohort.serving.step_output import FinishReason, StepOutput
from tests.serving.served import STOP, Served, serve


class FixedAdapters:
    """The bank's slots as adapters; counts who uses them."""

    def __init__(self, served: Served) -> None:
        self._served, self.num_slots, self.in_use = served, served.bank.num_slots, 0

    def acquire(self, adapter: Hashable) -> Admission:
        self.in_use += 1
        assert adapter is None or isinstance(adapter, int)
        return Admission(slot=adapter, version=adapter)

    def waits_for_slot(self, adapter: Hashable) -> bool:
        return False

    def release(self, adapter: Hashable, version: Hashable) -> None:
        self.in_use -= 1

    def take_failures(self) -> list[tuple[Hashable, str]]:
        return []

    def context(self, segments: SegmentTable) -> LoraContext:
        return self._served.bank.context(segments)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve(tmp_path_factory.mktemp("llama"), "Llama")


def engine_of(served: Served, *, num_blocks: int = 60, **settings: Any) -> ServingEngine:
    return ServingEngine(
        served.decoder,
        adapters=FixedAdapters(served),
        num_blocks=num_blocks,
        settings=SchedulerSettings(**settings),
        decode_text=lambda tokens: "".join(chr(40 + token) for token in tokens),
    )


def make_requests(count: int, *, seed: int = 0) -> list[SequenceRequest]:
    chance = random.Random(seed)
    heads = [[chance.randrange(12, 67) for _ in range(40)] for _ in range(2)]
    requests = []
    for index in range(count):
        # half of them begin with one of two texts, cut at any place
        head = chance.choice(heads)[: chance.randrange(41)] if index % 2 else []
        tail = [chance.randrange(12, 67) for _ in range(chance.randrange(1, 30))]
        requests.append(
            SequenceRequest(
                prompt_tokens=head + tail,
                max_new_tokens=chance.randrange(1, 25),
                adapter=chance.choice([None, 0, 1, 2]),
                sampling=chance.choice([Sampling(), Sampling(temperature=0.9, top_p=0.9, top_k=20)]),
                seed=index,
                stop_ids={STOP},
                num_logprobs=chance.choice([None, 0, 3]),
            )
        )
    return requests


def drain(engine: ServingEngine, outputs: dict[int, list[StepOutput]]) -> None:
    for output in engine.step():
        outputs.setdefault(output.number, []).append(output)


def alone(served: Served, request: SequenceRequest) -> list[StepOutput]:
    engine = engine_of(served, finds_prefixes=False)
    outputs: dict[int, list[StepOutput]] = {}
    engine.submit(request)
    while engine.has_work:
        drain(engine, outputs)
    return outputs[0]


@pytest.fixture(scope="module")
def expected(llama: Served) -> list[list[StepOutput]]:
    """What each request gives alone."""
    return [alone(llama, request) for request in make_requests(24)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 5},
        {"num_blocks": 9, "max_num_batched_tokens": 64, "max_num_seqs": 8},
        {"num_blocks": 12, "reserves_growth": True},
    ],
    ids=["roomy", "small passes", "few blocks", "reserved"],
)
def test_random_arrivals_change_no_bit(
    llama: Served, expected: list[list[StepOutput]], settings: dict[str, Any]
) -> None:
    requests = make_requests(24)
    engine = engine_of(llama, **settings)
    outputs: dict[int, list[StepOutput]] = {}
    chance = random.Random(1)
    left = list(enumerate(requests))
    place = {}
    chance.shuffle(left)
    while left or engine.has_work:
        for _ in range(chance.randrange(4)):
            if left:
                index, request = left.pop()
                place[engine.submit(request)] = index
        drain(engine, outputs)
    for number, found in outputs.items():
        theirs = expected[place[number]]
        assert [replace(output, number=0) for output in found] == [replace(output, number=0) for output in theirs]
    assert len(outputs) == len(requests)
    # the smallest pool has to preempt, and nobody has to where growth is reserved
    assert (engine.scheduler.num_preemptions > 0) == (settings.get("num_blocks") == 9)
    assert_nothing_is_held(engine)


def assert_nothing_is_held(engine: ServingEngine) -> None:
    assert engine.num_live == 0
    assert engine.blocks.num_used == 0
    adapters = engine.scheduler._adapters
    assert isinstance(adapters, FixedAdapters)
    assert adapters.in_use == 0


def test_the_prefix_cache_is_not_shared_between_adapters(llama: Served) -> None:
    engine = engine_of(llama)
    outputs: dict[int, list[StepOutput]] = {}
    for adapter in (0, 1, None, 0):
        engine.submit(SequenceRequest(prompt_tokens=[20] * 50, max_new_tokens=3, adapter=adapter))
        hits = engine.blocks.num_hits
        while engine.has_work:
            drain(engine, outputs)
    assert engine.blocks.num_hits == hits + 3 == 3
    assert [o.token for o in outputs[3]] == [o.token for o in outputs[0]]


def test_requests_that_leave_free_what_they_hold(llama: Served) -> None:
    engine = engine_of(llama, num_blocks=9, max_num_seqs=4)
    numbers = [engine.submit(request) for request in make_requests(16)]
    outputs: dict[int, list[StepOutput]] = {}
    chance = random.Random(2)
    gone = set()
    while engine.has_work:
        drain(engine, outputs)
        number = chance.choice(numbers)
        if engine.abort(number):
            gone.add(number)
            seen = len(outputs.get(number, []))
            drain(engine, outputs)
            assert len(outputs.get(number, [])) == seen
    assert gone
    assert not engine.abort(numbers[0])
    assert_nothing_is_held(engine)
    for request in make_requests(5):
        engine.submit(request)
    engine.step()
    assert len(engine.abort_all()) == 4  # one asked for a single token
    assert_nothing_is_held(engine)


def test_stop_strings_end_the_text_and_the_sequence(llama: Served) -> None:
    request = SequenceRequest(prompt_tokens=[20, 30, 40], max_new_tokens=20, adapter=1)
    free = alone(llama, request)
    text = "".join(output.text for output in free)
    assert len(text) == 20
    stop = text[6:8]
    found = alone(llama, replace(request, stop_strings=(stop,)))
    assert "".join(output.text for output in found) == text[: text.index(stop)]
    assert found[-1].finish is FinishReason.STOP
    assert free[-1].finish is FinishReason.LENGTH


def test_texts_that_are_made_later_are_those_that_are_made_at_once(llama: Served) -> None:
    requests = [
        SequenceRequest(prompt_tokens=[3, 9, 4 + index], max_new_tokens=3 + index, stop_strings=stops)
        for index, stops in enumerate([(), ("zz",), ()])
    ]

    def texts(*, adds_texts: bool) -> dict[int, str]:
        engine, found = engine_of(llama), dict[int, str]()
        for request in requests:
            engine.submit(request)
        while engine.has_work:
            outputs = engine.step(adds_texts=adds_texts)
            if not adds_texts:
                # those of a text that can stop its answer are there at once
                assert all(each.text for each in outputs if each.number == 1)
                assert not any(each.text for each in outputs if each.number != 1)
                engine.add_texts()
            for each in outputs:
                found[each.number] = found.get(each.number, "") + each.text
        return found

    assert texts(adds_texts=False) == texts(adds_texts=True)


def test_a_request_whose_texts_are_made_elsewhere_has_the_same_tokens_and_none(llama: Served) -> None:
    request = SequenceRequest(prompt_tokens=[20, 30, 40], max_new_tokens=20, adapter=1)
    whole, bare = alone(llama, request), alone(llama, replace(request, needs_text=False))
    assert [each.token for each in bare] == [each.token for each in whole]
    assert not any(each.text for each in bare)
    # what stops it is looked for in its text
    stop = "".join(each.text for each in whole)[6:8]
    stopped = replace(request, stop_strings=(stop,))
    assert alone(llama, replace(stopped, needs_text=False)) == alone(llama, stopped)


def test_a_diverged_adapter_ends_its_own_requests_alone(llama: Served) -> None:
    requests = [
        replace(request, adapter=adapter) for request, adapter in zip(make_requests(8), [0, 2] * 4, strict=True)
    ]
    clean = [alone(llama, request) for request in requests]
    rows = llama.bank.rank_rows(2)
    kept = llama.bank.weights_RD[rows].clone()
    llama.bank.weights_RD[rows] = float("nan")
    try:
        engine = engine_of(llama, num_blocks=12)
        numbers = [engine.submit(request) for request in requests]
        outputs: dict[int, list[StepOutput]] = {}
        while engine.has_work:
            drain(engine, outputs)
    finally:
        llama.bank.weights_RD[rows] = kept
    for number, request, theirs in zip(numbers, requests, clean, strict=True):
        if request.adapter == 2:
            assert [output.finish for output in outputs[number]] == [FinishReason.NOT_FINITE]
        else:
            assert [output.token for output in outputs[number]] == [output.token for output in theirs]


@pytest.mark.parametrize(
    ("tokens", "found"), [([], "0 tokens"), ([20] * 96, "96 tokens"), ([20, 67], "token 67"), ([-1], "token -1")]
)
def test_wrong_prompts_are_refused(llama: Served, tokens: Sequence[int], found: str) -> None:
    engine = engine_of(llama)
    with pytest.raises(InputError) as caught:
        engine.submit(SequenceRequest(prompt_tokens=tokens, max_new_tokens=1))
    assert caught.value.problems[0].found == found
    assert not engine.has_work


def test_stop_strings_without_a_decoder_of_text_leave_nothing_behind(llama: Served) -> None:
    engine = engine_of(llama)
    engine._decode_text = None
    request = replace(make_requests(1)[0], stop_strings=("x",))
    with pytest.raises(ValueError, match="decode_text"):
        engine.submit(request)
    assert engine.num_live == 0
    assert not engine.has_work


def test_a_prompt_larger_than_the_pool_is_refused(llama: Served) -> None:
    engine = engine_of(llama, num_blocks=2)
    with pytest.raises(InputError, match="1 to 31 tokens"):
        engine.submit(SequenceRequest(prompt_tokens=[20] * 32, max_new_tokens=1))
    engine.submit(SequenceRequest(prompt_tokens=[20] * 31, max_new_tokens=9))
    outputs: dict[int, list[StepOutput]] = {}
    while engine.has_work:
        drain(engine, outputs)
    assert [output.finish for output in outputs[0]] == [FinishReason.LENGTH]


def test_two_threads_change_no_bit(llama: Served) -> None:
    before = torch.get_num_threads()
    requests = make_requests(4, seed=3)
    torch.set_num_threads(2)
    try:
        expected = [alone(llama, request) for request in requests]
        engine = engine_of(llama)
        for request in requests:
            engine.submit(request)
        outputs: dict[int, list[StepOutput]] = {}
        while engine.has_work:
            drain(engine, outputs)
    finally:
        torch.set_num_threads(before)
    for number, theirs in enumerate(expected):
        assert [replace(output, number=0) for output in outputs[number]] == theirs
