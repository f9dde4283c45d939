"""States of a group stay on its ranks: what the process that commands them gets of them, and what it writes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.models.weights import load_decoder
from cohort.ranks.divided_states.divided_rows import (
    GPU,
    HOST,
    Departure,
    DividedRows,
    divided_rows_of,
    whole_rows,
    whole_state,
)
from cohort.ranks.divided_states.group_states import GroupStates
from cohort.ranks.divided_states.part_shelf import KeptParts
from cohort.ranks.launch.start_ranks import start_ranks
from cohort.ranks.rank_group import PipelineGroup, RankGroupPlan, TensorGroup
from cohort.ranks.training_executor import TrainingExecutor
from cohort.ranks.training_setup import TrainingSetup
from cohort.ranks.transport import Channel
from cohort.runs.directory import RunDirectory
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec, TrialState
from tests.ranks.tensor.divided_models import save_divided_qwen2
from tests.training.small_models import random_rows, save_llama

SETTINGS = ExecutorSettings(num_slots=4, num_rank_rows=256, token_budget=400, evaluation_token_budget=400)


def spec_of(trial_id: int, *, r: int = 64) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=32.0),
        learning_rate=5e-3,
        batch_size=2,
        num_steps=8,
    )


SPECS = [spec_of(trial_id) for trial_id in range(4)]
PLANS: tuple[RankGroupPlan, ...] = (TensorGroup(size=2), PipelineGroup(cuts=(0, 1, 2)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_divided_qwen2(folder)
    return folder


def started(folder: Path, group: RankGroupPlan, *, device: str = "cpu") -> TrainingExecutor:
    setup = TrainingSetup(
        rank=0,
        model_directory=str(folder),
        device=device,
        dtype="bfloat16" if device == "cuda" else "float32",
        target_linears=load_decoder(folder).linears,
        settings=SETTINGS,
        memory_limit_bytes=None,
        train_rows=random_rows(24, seed=3, longest=20),
        threads=1,
        group=group,
    )
    return start_ranks(setup, num_ranks=2, decoder=None)


@pytest.fixture(scope="module", params=PLANS, ids=[plan.name for plan in PLANS])
def group(folder: Path, request: pytest.FixtureRequest) -> Iterator[TrainingExecutor]:
    """The ranks of one plan, started once: that takes ten times as long as a test of them."""
    made = started(folder, request.param)
    yield made
    made.close()


@pytest.fixture
def executor(group: TrainingExecutor) -> Iterator[TrainingExecutor]:
    """Ranks that hold no trial."""
    yield group
    for trial_id in list(group.resident):
        group.drop(trial_id)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Messages and bytes between this process and the ranks, both ways."""
    found = Counter[str]()
    write, read, send, receive = Channel._write, Channel._read, Connection.send_bytes, Connection.recv_bytes

    def written(self: Channel, part: memoryview) -> None:
        found["bytes"] += part.nbytes
        write(self, part)

    def into(self: Channel, part: bytearray) -> None:
        found["bytes"] += len(part)
        read(self, part)

    def sending(self: Any, content: Any, *args: Any) -> None:
        found["bytes"] += len(content)
        send(self, content, *args)

    def received(self: Any, *args: Any) -> bytes:
        content = receive(self, *args)
        found["bytes"] += len(content)
        # a message begins with the sizes of what follows it
        found["messages"] += 1
        return content

    monkeypatch.setattr(Channel, "_write", written)
    monkeypatch.setattr(Channel, "_read", into)
    monkeypatch.setattr(Connection, "send_bytes", sending)
    monkeypatch.setattr(Connection, "recv_bytes", received)
    return found


def num_bytes(state: TrialState) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.adapter.tensors.values())


def test_parking_and_loading_moves_no_state_through_this_process(
    executor: TrainingExecutor, sent: Counter[str]
) -> None:
    for spec in SPECS:
        executor.load(spec)
    executor.step()
    # never parked: what it is to be
    expected = {spec.trial_id: whole_state(executor.state(spec.trial_id)) for spec in SPECS}
    sent.clear()
    states = {spec.trial_id: executor.unload(spec.trial_id) for spec in SPECS}
    bests = {key: state.adapter.weights for key, state in states.items()}
    for spec in SPECS:
        executor.load(spec, states[spec.trial_id])
    bests |= {spec.trial_id: executor.weights(spec.trial_id) for spec in SPECS}
    moved, per_trial = sum(num_bytes(state) for state in states.values()), sent["messages"] / len(SPECS)
    # keys and specs alone: an empty message would already be more than a thousandth of these small states
    assert sent["bytes"] < moved / 20
    # of each rank for each trial an answer of two parts to: keep, drop, load, keep
    assert per_trial == 2 * 2 * 4
    for key, state in expected.items():
        found = whole_state(executor.state(key)).adapter.tensors
        assert all(torch.equal(found[name], tensor) for name, tensor in state.adapter.tensors.items())
        assert torch.equal(whole_rows(bests[key]), state.adapter.weights)


def test_a_trial_that_was_parked_has_the_bits_of_one_that_was_not(executor: TrainingExecutor) -> None:
    def losses(*, parks: bool) -> list[float]:
        for spec in SPECS:
            executor.load(spec)
        found = [event.loss for event in executor.step()]
        if parks:
            states = {spec.trial_id: executor.unload(spec.trial_id) for spec in SPECS}
            for spec in SPECS:
                executor.load(spec, states.pop(spec.trial_id))
        found += [event.loss for _ in range(3) for event in executor.step()]
        for spec in SPECS:
            executor.drop(spec.trial_id)
        return found

    assert losses(parks=True) == losses(parks=False)


def test_a_store_writes_whole_states_and_ranks_forget_what_it_forgets(
    executor: TrainingExecutor, tmp_path: Path
) -> None:
    states = TrialStateStore(RunDirectory.create(tmp_path / "run"), memory_budget_bytes=1 << 30)
    for spec in SPECS[:2]:
        executor.load(spec)
    executor.step()
    expected = {spec.trial_id: whole_state(executor.state(spec.trial_id)) for spec in SPECS[:2]}
    for spec in SPECS[:2]:
        states.put_best(spec.trial_id, executor.weights(spec.trial_id), step=1)
        states.put_state(spec.trial_id, executor.unload(spec.trial_id))
    parked = states.state(0)
    assert parked is not None
    rows = divided_rows_of(parked)
    assert len(rows) == 3
    best = states.best(0)
    # of the same step: the ranks keep these weights once
    assert best is not None
    assert best[0] is parked.adapter.weights
    # threads of the writer ask the ranks while this one does
    names = states.start_files()
    executor.load(SPECS[2])
    executor.step()
    files = states.files_of(names)
    assert len(files) == 4
    keys = [each.key for each in rows.values()]
    del parked, rows, best
    for trial_id in range(2):
        states.forget_state(trial_id)
        states.forget_best(trial_id)
    again = TrialStateStore(RunDirectory(tmp_path / "run"), memory_budget_bytes=1 << 30)
    again.restore(files)
    for trial_id, state in expected.items():
        read = again.state(trial_id)
        assert read is not None
        assert read.step == state.step
        assert all(torch.equal(read.adapter.tensors[name], own) for name, own in state.adapter.tensors.items())
    # from a file: whole rows are divided again
    executor.load(SPECS[0], again.state(0))
    found = whole_state(executor.state(0)).adapter.tensors
    assert all(torch.equal(found[name], own) for name, own in expected[0].adapter.tensors.items())
    for key in keys:
        with pytest.raises(KeyError):
            executor._states.whole(key_rows(executor, key))  # type: ignore[attr-defined]
    states.close()
    again.close()


def key_rows(executor: Any, key: tuple[int, str]) -> Any:
    """Return what asks the ranks for a part that they may not have any more."""
    return dataclasses.make_dataclass("Rows", ["key", "spec"])(key, SPECS[0])


def test_weights_of_another_adapter_are_divided_again(executor: TrainingExecutor) -> None:
    executor.load(SPECS[0])
    weights = executor.weights(0)
    executor.drop(0)
    # a clone with another rate goes on from the parts that are there
    clone = dataclasses.replace(SPECS[0], trial_id=9, learning_rate=1e-3)
    executor.load(clone, TrialState(adapter=AdapterState(weights=weights)))
    assert torch.equal(whole_rows(executor.weights(9)), whole_rows(weights))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("plan", PLANS, ids=[plan.name for plan in PLANS])
def test_parts_stay_on_their_gpus_and_leave_them_with_their_bits(tmp_path: Path, plan: RankGroupPlan) -> None:
    save_llama(tmp_path)
    executor = started(tmp_path, plan, device="cuda")
    try:
        for spec in SPECS:
            executor.load(spec)
        executor.step()
        on_gpus, on_host = executor.state(0, on_device=True), executor.unload(0)
        places = [{rows.placement.device for rows in divided_rows_of(each).values()} for each in (on_gpus, on_host)]
        assert places == [{GPU}, {HOST}]
        expected = whole_state(on_host).adapter.tensors
        assert all(torch.equal(whole_rows(on_gpus.adapter.tensors[name]), own) for name, own in expected.items())
        for parked in (on_gpus, on_host):
            executor.load(SPECS[0], parked)
            found = whole_state(executor.unload(0, on_device=True)).adapter.tensors
            assert all(torch.equal(found[name], own) for name, own in expected.items())
        departure = Departure(divided_rows_of(on_gpus))
        # the ranks train on meanwhile
        executor.step()
        left = departure.result()
        assert departure.done()
        assert all(torch.equal(whole_rows(left[name]), own) for name, own in expected.items())
    finally:
        executor.close()


def answers_of(layout: AdapterLayout, **replies: Any) -> tuple[GroupStates, list[str]]:
    """Return the states of two ranks that answer by the verb, and what they were asked."""
    asked: list[str] = []

    def ask(call: Any) -> list[Any]:
        asked.append(call.verb)
        return [replies.get(call.verb)] * 2 if not isinstance(replies.get(call.verb), list) else replies[call.verb]

    return GroupStates(TensorGroup(size=2), layout, ask=ask, ask_later=lambda call: asked.append(call.verb)), asked


def test_parts_are_at_one_place_on_all_ranks() -> None:
    layout = AdapterLayout({"model.layers.0.self_attn.q_proj": (8, 8)})

    def kept(*, are_on_gpu: bool, size: int) -> KeptParts:
        return KeptParts(num_bytes={"weights": size}, dtypes={"weights": torch.float32}, are_on_gpu=are_on_gpu, step=4)

    one_short = [kept(are_on_gpu=True, size=60), kept(are_on_gpu=False, size=50)]
    states, asked = answers_of(layout, keep_weights=one_short)
    found = states.weights(SPECS[0], on_gpu=True)
    assert isinstance(found, DividedRows)
    assert (found.placement.device, found.placement.num_bytes) == (HOST, 110)
    assert asked == ["keep_weights", "begin_leaving", "wait_until_left"]
    states, asked = answers_of(layout, keep_weights=[kept(are_on_gpu=True, size=60), kept(are_on_gpu=True, size=50)])
    found = states.weights(SPECS[0], on_gpu=True)
    assert isinstance(found, DividedRows)
    assert (found.placement.device, found.placement.num_bytes) == (GPU, 60)
    del found
    assert asked == ["keep_weights", "forget_parts"]
