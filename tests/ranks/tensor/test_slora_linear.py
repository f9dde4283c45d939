"""What ranks hold of an adapter by S-LoRA's division gives the whole term, with one exchange between the factors."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import ShardingError
from cohort.adapters.spec import AdapterSpec
from cohort.ranks.tensor.slora_linear import SloraAdapter

SIZE = 2
LAYOUT = AdapterLayout({"model.layers.0.self_attn.q_proj": (6, 8), "model.layers.0.self_attn.o_proj": (8, 6)})
SPEC = AdapterSpec(r=4, lora_alpha=8.0)


def test_parts_of_all_ranks_are_the_whole_term() -> None:
    weights_rD = torch.randn(SPEC.r, LAYOUT.width, dtype=torch.float64)
    parts = [SloraAdapter.of(LAYOUT, SPEC, weights_rD, rank=rank, size=SIZE) for rank in range(SIZE)]
    for name, columns in LAYOUT.columns.items():
        x_TK = torch.randn(5, LAYOUT.linears[name][0], dtype=torch.float64)
        whole_TN = SPEC.scale * x_TK @ weights_rD[:, columns.a].T @ weights_rD[:, columns.b]
        held = [part.factors[name] for part in parts]
        if "q_proj" in name:
            # the input is on all ranks, the rank rows are divided, and so are the outputs
            z_Tr = torch.cat([x_TK @ a.T for a, _, _ in held], dim=1)
            found_TN = torch.cat([z_Tr @ b.T for _, b, _ in held], dim=1)
        else:
            # the input is divided: sums over it are added up, and each rank adds the term of its own outputs
            divided = zip(x_TK.chunk(SIZE, dim=1), held, strict=True)
            z_Tr = torch.stack([x @ a.T for x, (a, _, _) in divided]).sum(0)
            found_TN = torch.zeros_like(whole_TN)
            for _, b, outs in held:
                found_TN[:, outs] += z_Tr @ b.T
        torch.testing.assert_close(parts[0].scale * found_TN, whole_TN)


def test_what_is_not_a_and_b_alone_cannot_be_divided_so() -> None:
    weights_rD = torch.zeros(SPEC.r + 1, LAYOUT.width)
    with pytest.raises(ShardingError, match="without magnitudes"):
        SloraAdapter.of(LAYOUT, AdapterSpec(r=4, lora_alpha=8.0, use_dora=True), weights_rD, rank=0, size=SIZE)
    with pytest.raises(ShardingError):
        SloraAdapter.of(LAYOUT, AdapterSpec(r=3, lora_alpha=8.0), weights_rD[:3], rank=0, size=SIZE)
