"""One process has no other ranks: everything is its own."""

from __future__ import annotations

import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.serving.ranks import OneProcess


def test_adapters_and_layout_stay_whole() -> None:
    ranks, layout = OneProcess(), AdapterLayout({"l.q_proj": (8, 12)})
    assert ranks.local_layout(layout) is layout
    spec, rows = AdapterSpec(r=2, lora_alpha=4.0), torch.zeros(2, 20)
    first, second = ranks.keep(spec, rows), ranks.keep(spec, rows)
    assert first.rows_rD is rows
    assert first.spec is spec
    assert first.token.number != second.token.number
