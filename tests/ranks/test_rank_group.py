"""Parts of a state and the whole of it: joining what was divided is the identity."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import shard_adapter
from cohort.adapters.spec import AdapterSpec
from cohort.ranks.rank_group import PipelineGroup, TensorGroup
from cohort.training.trial import TrialSpec, TrialState
from tests.ranks.joined_states import join_states

LAYOUT = AdapterLayout(
    {
        f"model.layers.{layer}.{name}": shape
        for layer in range(4)
        for name, shape in {"self_attn.q_proj": (8, 12), "mlp.down_proj": (16, 8)}.items()
    }
)
SPEC = TrialSpec(
    trial_id=0, seed=0, adapter=AdapterSpec(r=4, lora_alpha=8.0), learning_rate=1e-3, batch_size=1, num_steps=1
)


def whole_state() -> TrialState:
    moments = {name: torch.randn(4, LAYOUT.width) for name in ("exp_avg", "exp_avg_sq")}
    return TrialState(adapter=AdapterState(weights=torch.randn(4, LAYOUT.width), moments=moments), step=3)


@pytest.mark.parametrize("cuts", [(0, 1, 4), (0, 1, 3, 4)])
def test_columns_of_stages_make_the_whole(cuts: tuple[int, ...]) -> None:
    plan, state = PipelineGroup(cuts=cuts), whole_state()
    assert (plan.name, plan.size) == ("pipeline", len(cuts) - 1)
    assert plan.local_layout(LAYOUT, 0).width == LAYOUT.width // 4
    parts = []
    for stage in range(plan.size):
        own = plan.columns(LAYOUT, stage)
        moments = {name: moment[:, own] for name, moment in state.adapter.moments.items()}
        parts.append(
            TrialState(adapter=AdapterState(weights=state.adapter.weights[:, own], moments=moments), step=state.step)
        )
    joined = join_states(plan, LAYOUT, SPEC, parts)
    assert joined.step == 3
    assert all(torch.equal(joined.adapter.tensors[name], own) for name, own in state.adapter.tensors.items())


def test_shards_make_the_whole() -> None:
    plan, state = TensorGroup(size=2), whole_state()
    assert (plan.name, plan.local_layout(LAYOUT, 1).linears["model.layers.0.self_attn.q_proj"]) == ("tensor", (8, 6))

    def shard(rows_rD: torch.Tensor, rank: int) -> torch.Tensor:
        return shard_adapter(LAYOUT, SPEC.adapter, rows_rD, rank=rank, size=2).weights_rD

    parts = [
        TrialState(
            adapter=AdapterState(
                weights=shard(state.adapter.weights, rank),
                moments={name: shard(moment, rank) for name, moment in state.adapter.moments.items()},
            ),
            step=3,
        )
        for rank in range(2)
    ]
    joined = join_states(plan, LAYOUT, SPEC, parts)
    assert all(torch.equal(joined.adapter.tensors[name], own) for name, own in state.adapter.tensors.items())
