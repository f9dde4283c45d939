"""Windows of a pipeline: every sample once, apart as the lemma asks, in the trial's order on a CPU."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from dataclasses import replace

import pytest

from benchmarks.llama_shapes import decoder_config
from cohort.adapters.spec import AdapterSpec
from cohort.ranks.pipeline.pipeline_window import PipelineMicroBatch, is_separated
from cohort.ranks.pipeline.window_plan import PlannedWindow, flat_tokens, plan_window
from cohort.ranks.rank_group import PipelineGroup
from cohort.training.step_samples import Resident, samples_of
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows

ROWS = random_rows(40, seed=4, longest=60)


def residents() -> list[Resident]:
    found = []
    for slot, (trial_id, batch_size) in enumerate(((4, 1), (2, 5), (9, 8))):
        spec = TrialSpec(
            trial_id=trial_id,
            seed=trial_id,
            adapter=AdapterSpec(r=4, lora_alpha=8.0),
            learning_rate=1e-3,
            batch_size=batch_size,
            num_steps=20,
        )
        found.append(Resident(spec=spec, slot=slot, step=slot, order=spec.order(len(ROWS)), rows=ROWS))
    return found


def group_of(num_stages: int) -> PipelineGroup:
    return PipelineGroup(cuts=tuple(range(0, 4 * num_stages + 1, 4)))


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("num_stages", [2, 4])
def test_a_window_has_every_sample_of_every_step(device_type: str, num_stages: int) -> None:
    own, quotas, group = residents(), {4: 3, 2: 1, 9: 2, 77: 5}, group_of(num_stages)
    window, again = (
        plan_window(own, quotas, token_budget=128, group=group, device_type=device_type).micro_batches for _ in range(2)
    )
    assert [_ids(each) for each in window] == [_ids(each) for each in again]
    assert is_separated(window, num_stages=num_stages)
    assert all(sum(len(entry.sample.tokens) for entry in each.entries) <= 128 for each in window)
    passed: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, int] = defaultdict(int)
    for micro_batch in window:
        for entry in micro_batch.entries:
            passed[entry.slot].append(entry.sample.sample_id)
        for slot in micro_batch.ends:
            ends[slot] += 1
    for resident in own:
        quota = quotas[resident.spec.trial_id]
        steps = range(resident.step, resident.step + quota)
        wanted = [entry.sample.sample_id for step in steps for entry in samples_of(resident, step=step)]
        assert ends[resident.slot] == quota
        assert sorted(passed[resident.slot]) == sorted(wanted)
        if device_type == "cpu":
            assert passed[resident.slot] == wanted


def _ids(micro_batch: PipelineMicroBatch) -> list[tuple[int, int]]:
    return [(entry.slot, entry.sample.sample_id) for entry in micro_batch.entries]


def test_nothing_is_planned_for_no_steps_and_long_rows_stand_alone() -> None:
    planned = plan_window(residents(), {}, token_budget=128, group=group_of(2), device_type="cpu")
    assert planned == PlannedWindow(micro_batches=(), shares_head=False)
    (own, *_) = residents()
    one = plan_window([replace(own)], {4: 1}, token_budget=1, group=group_of(2), device_type="cpu")
    assert [len(each.entries) for each in one.micro_batches if each.entries] == [1]


def test_stages_share_a_long_head_where_the_batches_of_trials_stand_far_enough_apart() -> None:
    group = replace(group_of(2), head_layers=1.0)
    shared = plan_window(residents(), {4: 9, 2: 9, 9: 9}, token_budget=60, group=group, device_type="cpu")
    assert shared.shares_head
    assert is_separated(shared.micro_batches, num_stages=3)
    # two trials of one micro-batch a step fill two stages: with a third in flight one of them would wait
    (one, *_) = residents()
    two = [one, replace(one, slot=1, spec=replace(one.spec, trial_id=5))]
    alone = plan_window(two, {4: 9, 5: 9}, token_budget=60, group=group, device_type="cpu")
    assert not alone.shares_head
    assert is_separated(alone.micro_batches, num_stages=2)


def test_launches_hide_behind_the_products_of_more_tokens_where_layers_are_small() -> None:
    large, small = (flat_tokens(decoder_config(shape), device_type="cuda") for shape in ("70b", "1b"))
    assert 500 < large < 1500
    assert small > 4 * large
    assert flat_tokens(decoder_config("1b"), device_type="cpu") == 32


def test_a_stage_plans_without_a_solver() -> None:
    """Machines that only train have no OR-Tools and no SciPy."""
    script = (
        "import sys; import cohort.ranks.rank_program, cohort.ranks.training_setup, cohort.ranks.launch.start_ranks;"
        "import cohort.memory.model_place;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'ortools', 'scipy', 'pydantic'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "ortools" not in done.stdout
    assert "scipy" not in done.stdout
