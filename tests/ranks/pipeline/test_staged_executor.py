"""Stages that are commanded: windows, states, evaluations and every kind of adapter, bit by bit as in one process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.adapters.variants.vera_settings import VectorAdapter
from cohort.core.events import StepDone
from cohort.core.memory_records import PassKind
from cohort.data.packing import SlotSample
from cohort.models.weights import load_decoder
from cohort.ranks.rank_group import PipelineGroup
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives.kinds.dpo import DirectPreferenceOptimization
from cohort.training.objectives.kinds.orpo import OddsRatioPreferenceOptimization
from cohort.training.optimizers import optimizer_for
from cohort.training.reference.reference_logps import ANSWER_LOSS, answer_log_probs
from cohort.training.trial import TrialSpec, TrialState
from tests.models.fixtures.tiny_checkpoints import save_checkpoint
from tests.ranks.joined_states import join_states
from tests.ranks.pipeline.stage_threads import StageThreads, stage_threads
from tests.training.small_models import compared_rows, random_rows, save_llama

ROWS, VALIDATION = random_rows(16, seed=1, longest=20), random_rows(5, seed=2)
PAIRS = compared_rows(16, seed=3, longest=20)
SETTINGS = ExecutorSettings(num_slots=7, num_rank_rows=160, token_budget=60, evaluation_token_budget=40)
PLAN = PipelineGroup(cuts=(0, 1, 3))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder, num_layers=3)
    return folder


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose middle layer is dense and whose others have experts."""
    sizes: dict[str, Any] = {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    folder = tmp_path_factory.mktemp("mixture")
    return save_checkpoint(folder, "Qwen3Moe", **sizes, vocab_size=97, num_hidden_layers=3, mlp_only_layers=[1])


def spec_of(trial_id: int, *, adapter: AdapterSpec | None = None, optim: str = "adamw") -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=adapter or AdapterSpec(r=4, lora_alpha=8.0, lora_dropout=0.1),
        learning_rate=1e-2,
        batch_size=3,
        num_steps=8,
        max_grad_norm=0.3,
        optim=optim,
    )


SPECS = (
    spec_of(0),
    spec_of(1, adapter=AdapterSpec(r=4, lora_alpha=8.0, use_dora=True)),
    spec_of(2, adapter=AdapterSpec(r=4, lora_alpha=8.0, init_lora_weights="pissa"), optim="sgd"),
    spec_of(3, adapter=AdapterSpec(r=4, lora_alpha=8.0, use_bdlora=BlockDiagonal(nblocks=2)), optim="lion"),
    spec_of(4, adapter=AdapterSpec(r=4, lora_alpha=8.0, rank_pattern=(("layers.1.self_attn.q_proj", 2),))),
    spec_of(5, adapter=AdapterSpec(r=20, lora_alpha=1.0, use_vera=VectorAdapter(d_initial=0.5))),
    spec_of(6, optim="muon"),
)
OPTIMIZER = optimizer_for(("adamw", "lion", "muon", "sgd"))


def one_process(model: Path) -> Executor:
    decoder = load_decoder(model)
    return Executor(decoder, target_linears=decoder.linears, train_rows=ROWS, settings=SETTINGS, optimizer=OPTIMIZER)


def pipeline_of(model: Path) -> StageThreads:
    return stage_threads(model, PLAN, settings=SETTINGS, rows=ROWS, optimizer=OPTIMIZER)


def state_of(model: Path, stages: StageThreads, spec: TrialSpec) -> TrialState:
    layout = AdapterLayout(dict(load_decoder(model).linears))
    return join_states(PLAN, layout, spec, stages.all(lambda stage: stage.state(spec.trial_id)))


def in_order(events: Sequence[StepDone]) -> tuple[StepDone, ...]:
    return tuple(sorted(events, key=lambda event: event.trial_id))


def never_too_large(entry: SlotSample, words: str) -> Exception:
    return AssertionError(f"{entry}: {words}")


def events_of(stages: StageThreads, quotas: dict[int, int]) -> list[tuple[StepDone, ...]]:
    windows = stages.all(lambda stage: stage.run(quotas))
    assert not windows[0].rounds
    return [in_order(events) for events in windows[-1].rounds]


def test_windows_states_and_evaluations_are_those_of_one_process(model: Path) -> None:
    alone, stages = one_process(model), pipeline_of(model)
    for spec in SPECS:
        assert set(stages.all(lambda stage, spec=spec: stage.load(spec))) == {alone.load(spec)}  # type: ignore[misc]
    expected = [alone.step() for _ in range(2)] + [alone.step((0, 1, 4, 5))]
    assert events_of(stages, {0: 3, 1: 3, 2: 2, 3: 2, 4: 3, 5: 3, 6: 2}) == expected
    expected_losses = alone.evaluate((0, 3), rows=VALIDATION, row_ids=range(5))
    assert stages.all(lambda stage: stage.evaluate((0, 3), rows=VALIDATION, row_ids=range(5)))[-1] == expected_losses
    base = alone.evaluate_base(rows=VALIDATION, row_ids=(0, 2))
    assert stages.all(lambda stage: stage.evaluate_base(rows=VALIDATION, row_ids=(0, 2)))[-1] == base
    for spec in SPECS:
        ours, theirs = state_of(model, stages, spec), alone.state(spec.trial_id)
        assert ours.step == theirs.step
        assert ours.adapter.tensors.keys() == theirs.adapter.tensors.keys()
        assert all(torch.equal(ours.adapter.tensors[name], own) for name, own in theirs.adapter.tensors.items())
    # trials that go on from a state of one process, in other slots
    states = {spec.trial_id: alone.state(spec.trial_id) for spec in SPECS}
    for trial_id in (0, 2):
        stages.all(lambda stage, trial_id=trial_id: stage.drop(trial_id))  # type: ignore[misc]
    for trial_id in (2, 0):
        stages.all(lambda stage, k=trial_id: stage.load(SPECS[k], states[k]))  # type: ignore[misc]
    last = sorted(alone.step((0, 2)), key=lambda event: event.trial_id)
    assert list(stages.all(lambda stage: stage.step((0, 2)))[-1]) == sorted(last, key=lambda event: -event.trial_id)


def test_a_mixture_in_stages_has_the_bits_of_one_process(mixture: Path) -> None:
    alone, stages = one_process(mixture), pipeline_of(mixture)
    for spec in SPECS[:2]:
        assert set(stages.all(lambda stage, spec=spec: stage.load(spec))) == {alone.load(spec)}  # type: ignore[misc]
    assert events_of(stages, {0: 3, 1: 3}) == [alone.step() for _ in range(3)]
    for spec in SPECS[:2]:
        ours, theirs = state_of(mixture, stages, spec).adapter.tensors, alone.state(spec.trial_id).adapter.tensors
        assert all(torch.equal(ours[name], own) for name, own in theirs.items())


def test_nan_in_one_slot_harms_no_other(model: Path) -> None:
    alone, stages = one_process(model), pipeline_of(model)
    alone.load(SPECS[0])
    stages.all(lambda stage: stage.load(SPECS[0]))
    broken = replace(SPECS[4], learning_rate=math.inf)
    stages.all(lambda stage: stage.load(broken))
    rounds = events_of(stages, {0: 3, 4: 3})
    assert [events[0] for events in rounds] == [alone.step()[0] for _ in range(3)]
    assert not math.isfinite(rounds[-1][1].loss)


def test_budgets_are_lowered_and_no_stage_repeats_a_pass(model: Path) -> None:
    stage = pipeline_of(model).stages[0]
    before = stage._generator.token_budget
    stage.lower_token_budgets({PassKind.EVALUATE: 20})
    # a shortage while answers are generated ends the pipeline, and the next one generates fewer at a time
    assert stage._generator.token_budget == before // 2
    stage.lower_token_budgets({PassKind.TRAIN: 10})
    stage.lower_kept_tokens(5)
    assert stage.token_budgets == {PassKind.TRAIN: 10, PassKind.EVALUATE: 20}
    assert not stage.take_shortages()
    assert not stage.make_room()


def test_pairs_share_a_micro_batch_and_give_the_bits_of_one_process(model: Path) -> None:
    """A group is one sample of the schedule; reference log-probabilities come with the rows."""
    alone, stages = one_process(model), pipeline_of(model)
    specs = [
        replace(SPECS[0], objective=DirectPreferenceOptimization(beta=0.3)),
        replace(SPECS[3], objective=OddsRatioPreferenceOptimization(beta=0.5)),
        # rows of no pair in the same windows
        SPECS[1],
    ]
    for spec in specs:
        alone.load(spec, rows=PAIRS)
        stages.all(lambda stage, spec=spec: stage.load(spec, rows=PAIRS))  # type: ignore[misc]
    assert events_of(stages, {0: 3, 1: 3, 3: 3}) == [in_order(alone.step()) for _ in range(3)]
    expected = alone.evaluate((0, 3), rows=PAIRS, row_ids=range(5))
    assert stages.all(lambda stage: stage.evaluate((0, 3), rows=PAIRS, row_ids=range(5)))[-1] == expected
    # the reference's own numbers, as an evaluation of the base model gives them
    samples = [PAIRS.sample(row) for row in range(4)]
    log_probs = answer_log_probs(load_decoder(model), samples, token_budget=40, too_large=never_too_large)
    asked = stages.all(lambda stage: stage.evaluate_base(rows=PAIRS, row_ids=range(4), objective=ANSWER_LOSS))
    assert [-term for term in asked[-1].terms] == log_probs
