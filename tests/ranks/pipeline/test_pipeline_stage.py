"""A model in stages trains as in one piece: losses, norms, weights and moments bit by bit."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.models.weights import load_decoder
from cohort.ranks.pipeline.pipeline_stage import PipelineStage
from cohort.ranks.pipeline.pipeline_window import PipelineMicroBatch, batches_of, is_separated, pipeline_window
from cohort.scheduling.pipelines.microbatch.records import MicroBatch, with_no_ops
from cohort.scheduling.pipelines.pipeline_schedule import Direction
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives.kinds.kto import KahnemanTverskyOptimization
from cohort.training.optimizers import DEFAULT_OPTIMIZER
from cohort.training.step_samples import Resident
from cohort.training.trial import TrialSpec
from tests.ranks.pipeline.stage_threads import QueueLinks
from tests.training.small_models import random_rows, save_llama, save_qwen2

NUM_LAYERS, NUM_TRIALS, NUM_STEPS = 5, 3, 4


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    {"llama": save_llama, "qwen2": save_qwen2}[request.param](folder, num_layers=NUM_LAYERS)
    return folder


def spec_of(trial_id: int) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=4, lora_alpha=8.0, lora_dropout=0.1 * (trial_id == 1)),
        learning_rate=1e-2,
        batch_size=2 + trial_id,
        num_steps=NUM_STEPS,
        # one clips hard, one not at all
        max_grad_norm=(0.05, 0.0, 1.0)[trial_id],
    )


def residents_of(rows: Any) -> dict[int, Resident]:
    return {
        trial_id: Resident(
            spec=spec_of(trial_id), slot=trial_id, step=0, order=spec_of(trial_id).order(len(rows)), rows=rows
        )
        for trial_id in range(NUM_TRIALS)
    }


def window_of(residents: dict[int, Resident], *, num_stages: int) -> tuple[PipelineMicroBatch, ...]:
    """Two micro-batches a step of each trial, in the trial's own order, apart as the lemma asks."""
    schedule = []
    for step in range(NUM_STEPS):
        for resident in residents.values():
            samples = batches_of(resident, num_steps=NUM_STEPS).samples(step)
            schedule += [MicroBatch(samples[:1]), MicroBatch(samples[1:])]
    return pipeline_window(with_no_ops(schedule, stages=num_stages), residents)


def trained_in_stages(
    model: Path, num_stages: int, *, recomputes: bool, shares: tuple[float, ...]
) -> tuple[list[PipelineStage], list[AdapterBank], list[QueueLinks]]:
    rows = random_rows(12)
    full = load_decoder(model)
    cuts = [NUM_LAYERS * stage // num_stages for stage in range(num_stages + 1)]
    mail: dict[tuple[Any, ...], queue.Queue[Tensor]] = {}
    lock = threading.Lock()
    stages, banks, all_links, windows = [], [], [], []
    for stage in range(num_stages):
        decoder = load_decoder(model, part=range(cuts[stage], cuts[stage + 1]), has_head=bool(shares))
        assert decoder.num_bytes < full.num_bytes
        whole = AdapterLayout(full.linears)
        bank = AdapterBank(
            AdapterLayout(decoder.linears), num_slots=NUM_TRIALS, num_rank_rows=64, moments=DEFAULT_OPTIMIZER.moments
        )
        residents = residents_of(rows)
        for resident in residents.values():
            weights_rD = initial_weights(whole, resident.spec.adapter, seed=resident.spec.seed)
            state = AdapterState(weights=weights_rD[:, columns_of(whole, decoder.linears)])
            assert bank.insert(resident.spec.adapter, state) == resident.slot
        links = QueueLinks(stage, mail, lock)
        own = PipelineStage(
            decoder,
            bank,
            stage=stage,
            num_stages=num_stages,
            links=links,
            optimizer=DEFAULT_OPTIMIZER,
            head_shares=shares,
            is_recomputed=lambda tokens: recomputes and tokens > 0,
        )
        for resident in residents.values():
            own.load(resident)
        stages.append(own)
        banks.append(bank)
        all_links.append(links)
        windows.append(window_of(residents, num_stages=num_stages + bool(shares)))
    errors: list[BaseException] = []

    def run(stage: int) -> None:
        try:
            stages[stage].run_window(windows[stage], shares_head=bool(shares))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(stage,)) for stage in range(num_stages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return stages, banks, all_links


def columns_of(whole: AdapterLayout, linears: dict[str, tuple[int, int]]) -> slice:
    """The columns of a stage stand side by side."""
    names = list(linears)
    return slice(whole.columns[names[0]].a.start, whole.columns[names[-1]].b.stop)


# the models differ in their biases: each number of stages on one of them
@pytest.mark.parametrize(
    ("model", "num_stages", "recomputes", "shares"),
    [("llama", 2, False, ()), ("qwen2", 3, True, ()), ("llama", 3, False, (0.3, 0.0, 0.7))],
    indirect=["model"],
)
def test_stages_train_as_one_piece(model: Path, num_stages: int, recomputes: bool, shares: tuple[float, ...]) -> None:
    decoder = load_decoder(model)
    alone = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=random_rows(12),
        settings=ExecutorSettings(
            num_slots=NUM_TRIALS, num_rank_rows=64, token_budget=4096, evaluation_token_budget=4096
        ),
    )
    for trial_id in range(NUM_TRIALS):
        alone.load(spec_of(trial_id))
    events = [alone.step() for _ in range(NUM_STEPS)]
    stages, banks, all_links = trained_in_stages(model, num_stages, recomputes=recomputes, shares=shares)
    whole = AdapterLayout(decoder.linears)
    for slot in range(NUM_TRIALS):
        norms = [event.grad_norm for step in events for event in step if event.trial_id == slot]
        for stage in stages:
            assert stage.norms[slot] == norms
        state = alone.state(slot).adapter
        for name, expected in state.tensors.items():
            parts = [bank.read(slot).tensors[name] for bank in banks]
            assert torch.equal(torch.cat(parts, dim=1), expected), name
    # the terms of a step's samples are those of its loss
    terms = torch.cat(stages[-1].terms)
    assert len(terms) == NUM_STEPS * sum(spec_of(trial_id).batch_size for trial_id in range(NUM_TRIALS))
    assert whole.width == sum(bank.layout.width for bank in banks)
    # one message a micro-batch, boundary and direction; norms and squares besides where a batch ends
    for place, links in enumerate(all_links):
        forward = [number for number, direction in links.sent if direction is Direction.FORWARD and number >= 0]
        backward = [number for number, direction in links.sent if direction is Direction.BACKWARD and number >= 0]
        count = NUM_STEPS * NUM_TRIALS * 2
        assert len(forward) == (count if place < num_stages - 1 else 0)
        assert len(backward) == (count if place > 0 else 0)


def test_batches_that_stand_too_near_are_refused(model: Path) -> None:
    residents = residents_of(random_rows(12))
    samples = batches_of(residents[0], num_steps=2)
    near = pipeline_window([MicroBatch(samples.samples(0)), MicroBatch(samples.samples(1))], residents)
    assert [each.ends for each in near] == [(0,), (0,)]
    assert is_separated(near, num_stages=1)
    assert not is_separated(near, num_stages=2)
    stage: Any = object.__new__(PipelineStage)
    stage._num_stages = 2
    with pytest.raises(ValueError, match="less than 2 micro-batches apart"):
        stage.run_window(near)


def test_an_objective_that_measures_a_step_before_it_is_refused() -> None:
    resident = residents_of(random_rows(4))[0]
    resident.spec = replace(resident.spec, objective=KahnemanTverskyOptimization())
    with pytest.raises(ValueError, match="KL term"):
        batches_of(resident, num_steps=1)
