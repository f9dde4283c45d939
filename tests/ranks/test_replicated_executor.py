"""Ranks in one process: what rank 0 does with their answers. Real processes are in tests/end_to_end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.spec import AdapterSpec
from cohort.core.events import StepDone
from cohort.core.numerics import Numerics
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.models.weights import load_decoder
from cohort.ranks.answers import Prompt
from cohort.ranks.calls import Call, Reply
from cohort.ranks.launch.start_ranks import start_ranks
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.rank_link import Sent
from cohort.ranks.rank_program import Served
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights
from cohort.ranks.replicated_executor import ReplicatedExecutor
from cohort.ranks.training_setup import TrainingSetup
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama

SIZES = ExecutorSettings(num_slots=2, num_rank_rows=32, token_budget=2048, evaluation_token_budget=2048)


class RankHere:
    """A rank of this process that answers like one of its own."""

    opens_gpu_memory = True

    def __init__(self, number: int, executor: LocalExecutor) -> None:
        self.rank, self.executor, self._served = number, executor, Served(executor)
        self._answers = [Reply()]
        self.closed = False

    def ask(self, call: Call) -> None:
        self._answers.append(self._served.reply(Sent(call=call, rows={}, new_rows={})))

    def answer(self) -> Reply:
        return self._answers.pop(0)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder)
    return folder


def executor_of(model: Path) -> LocalExecutor:
    decoder = load_decoder(model, dtype="float32")
    return LocalExecutor(decoder, target_linears=decoder.linears, train_rows=random_rows(8), settings=SIZES)


def replicas_of(model: Path, *, num_ranks: int = 2) -> tuple[ReplicatedExecutor, list[RankHere]]:
    local = executor_of(model)
    others = []
    for number in range(1, num_ranks):
        others.append(RankHere(number, executor_of(model)))
    processes: Any = others
    return ReplicatedExecutor(local, processes), others


def spec_of(trial_id: int, *, batch_size: int = 1) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=4, lora_alpha=8.0),
        learning_rate=1e-2,
        batch_size=batch_size,
        num_steps=6,
    )


def test_trials_have_the_bits_of_one_rank_also_when_they_move(model: Path) -> None:
    alone = executor_of(model)
    packed, _ = replicas_of(model)
    for trial_id in range(2):
        alone.load(spec_of(trial_id))
    for trial_id in range(3):
        packed.load(spec_of(trial_id))
    assert [packed.rank_of(trial_id) for trial_id in range(3)] == [0, 1, 0]
    assert packed.resident == (0, 2, 1)
    assert [packed.slot_of(trial_id) for trial_id in packed.resident] == [0, 1, 2]
    rows = random_rows(4, seed=5)
    for step in range(4):
        if step == 2:
            # each to the other rank
            states = {trial_id: packed.unload(trial_id) for trial_id in (0, 1)}
            packed.load(spec_of(0), states[0], rank=1)
            packed.load(spec_of(1), states[1], rank=0)
        expected, found = alone.step(), packed.step()
        assert {event.trial_id: event for event in found if event.trial_id < 2} == {e.trial_id: e for e in expected}
    assert [packed.steps_of(trial_id) for trial_id in range(3)] == [4, 4, 4]
    for trial_id in range(2):
        ours, theirs = packed.state(trial_id).adapter.tensors, alone.state(trial_id).adapter.tensors
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert torch.equal(packed.weights(trial_id), alone.weights(trial_id))
    assert packed.evaluate((1, 0), rows=rows, row_ids=range(4)) == alone.evaluate((1, 0), rows=rows, row_ids=range(4))
    assert packed.evaluate_base(rows=rows, row_ids=(0,)) == alone.evaluate_base(rows=rows, row_ids=(0,))
    prompts = [Prompt(trial_id=trial_id, tokens=(3, 4, 5)) for trial_id in (1, None, 0, 1)]
    asked: dict[str, Any] = {"max_new_tokens": 4, "stop_ids": frozenset[int]()}
    assert packed.generate(prompts, **asked) == alone.generate(prompts, **asked)


def test_steps_beside_one_that_failed_are_reported_and_not_repeated(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, (other,) = replicas_of(model)
    for trial_id in range(2):
        packed.load(spec_of(trial_id))
    step = other.executor.step

    def failing(**_: object) -> None:
        raise RuntimeError("a bad row")

    monkeypatch.setattr(other.executor, "step", failing)
    with pytest.raises(RuntimeError, match="a bad row"):
        packed.step()
    monkeypatch.setattr(other.executor, "step", step)
    events = packed.step((0,)) + packed.step((1,))
    assert [(event.trial_id, event.step) for event in events] == [(0, 1), (1, 1)]
    assert [event.step for event in packed.step()] == [2, 2]


def test_a_rank_without_memory_is_asked_again_once_room_was_made(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, (other,) = replicas_of(model)
    for trial_id in range(2):
        packed.load(spec_of(trial_id))
    parked = ["states of parked trials"]
    packed.reliefs.append(lambda: bool(parked) and bool(parked.pop()))
    step = other.executor.step

    def short(**named: Any) -> Any:
        if parked:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(**named)

    monkeypatch.setattr(other.executor, "step", short)
    assert [event.step for event in packed.step()] == [1, 1]
    assert not parked


def test_full_ranks_and_lowered_budgets(model: Path) -> None:
    packed, (other,) = replicas_of(model)
    for trial_id in range(4):
        packed.load(spec_of(trial_id))
    assert not packed.fits(spec_of(4))
    packed.drop(1)
    assert packed.fits(spec_of(4))
    packed.load(spec_of(4))
    assert packed.rank_of(4) == 1
    budgets = dict.fromkeys(packed.token_budgets, 100)
    packed.lower_token_budgets(budgets)
    assert packed.token_budgets == other.executor.token_budgets == budgets
    packed.close()
    assert other.closed


def test_a_rank_that_cannot_begin_ends_the_others(model: Path) -> None:
    local = executor_of(model)
    here = RankHere(1, local)
    here._answers = [Reply(error=RuntimeError("no room for the model"))]
    process: Any = here
    with pytest.raises(RuntimeError, match="no room for the model"):
        ReplicatedExecutor(local, [process])
    assert here.closed


def test_one_rank_is_an_executor_of_its_own(model: Path) -> None:
    executor = executor_of(model)
    executor.load(replace(spec_of(0)), rank=0)
    assert executor.rank_of(0) == 0
    with pytest.raises(ValueError, match="rank 1"):
        executor.load(spec_of(1), rank=1)


def _by_trial(events: tuple[StepDone, ...]) -> dict[int, StepDone]:
    return {event.trial_id: event for event in events}


def test_a_window_has_the_steps_of_single_steps(model: Path) -> None:
    single, _ = replicas_of(model)
    packed, (other,) = replicas_of(model)
    for each in (single, packed):
        for trial_id in range(3):
            each.load(spec_of(trial_id))
    expected = [single.step(), single.step(), single.step((0, 1))]
    window = packed.run({0: 3, 1: 3, 2: 2})
    assert [_by_trial(events) for events in window.rounds] == [_by_trial(events) for events in expected]
    assert [packed.steps_of(trial_id) for trial_id in range(3)] == [3, 3, 2]

    def failing(*_: object) -> None:
        raise RuntimeError("a bad row")

    executor: Any = other.executor
    executor.launch_step = failing
    window = packed.run(dict.fromkeys(range(3), 2))
    del executor.launch_step
    assert str(window.error) == "a bad row"
    assert [packed.steps_of(trial_id) for trial_id in range(3)] == [5, 3, 4]
    assert [{event.trial_id for event in events} for events in window.rounds] == [{0, 2}, {0, 2}]


@pytest.mark.gpu
def test_divided_layers_of_two_processes_are_pulled_within_recorded_passes(tmp_path: Path) -> None:
    """Both on one GPU, so that pulls are all that differs from one process with every layer resident."""
    save_llama(tmp_path, num_layers=6)
    sizes = replace(SIZES, graph_tokens=2048, numerics=Numerics.EXACT)
    rows, divided = random_rows(40, seed=3), RankWeights(layers=tuple(range(6)), num_ranks=2, are_divided=True)
    found: dict[str, Any] = {}
    for name, weights in (("resident", ALL_RESIDENT), ("divided", divided)):
        setup = TrainingSetup(
            rank=0,
            gpu=0,
            model_directory=str(tmp_path),
            device="cuda",
            dtype="float32",
            target_linears=linear_shapes(read_config(tmp_path)),
            settings=sizes,
            memory_limit_bytes=None,
            train_rows=rows,
            threads=1,
            weights=weights,
        )
        streaming = weights.streaming(torch.device("cuda"), rank=0)
        decoder = load_decoder(tmp_path, dtype="float32", device="cuda", streaming=streaming)
        executor = start_ranks(setup, num_ranks=2, decoder=decoder)
        try:
            for trial_id in range(4):
                executor.load(replace(spec_of(trial_id, batch_size=2), num_steps=20), rank=trial_id % 2)
            events = [event for _ in range(8) for event in executor.step()]
            assert isinstance(executor, ReplicatedExecutor)
            captured = executor._local.captured
            assert captured is not None
            assert captured.num_replays >= 4
            found[name] = [(event.trial_id, event.loss, event.grad_norm) for event in events]
            found[name] += [executor.weights(trial_id).tolist() for trial_id in range(4)]
        finally:
            executor.close()
    assert found["divided"] == found["resident"]
