"""Recordings on a device that is not there: graphs that are only named."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cohort.training.cuda_graphs import pass_recorder
from cohort.training.cuda_graphs.captured_passes import CapturedPasses
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import GraphKind

__all__ = ["HEAD_BYTES", "FakeGraph", "fake_device"]

# of a pass whatever its layers
HEAD_BYTES = 1000


class FakeGraph:
    """A graph that is only named; launching it may fail."""

    kind = GraphKind.SUMS
    shape: PassShape

    def __init__(self, *, fails: bool = False, layer_bytes: int = 0) -> None:
        self._fails, self._layer_bytes = fails, layer_bytes

    def of(self, shape: PassShape) -> FakeGraph:
        self.shape = shape
        return self

    def warm_up(self, memory: object, *, with_few_layers: bool) -> None:
        assert memory is not None
        self.has_few_layers = with_few_layers
        if self._fails:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def peak_bytes(self, memory: object, *, num_layers: int) -> int:
        self.warm_up(memory, with_few_layers=True)
        return HEAD_BYTES + num_layers * self._layer_bytes

    def record(self, _: object, *, is_short: bool) -> None:
        self.is_short = is_short


def fake_device(
    monkeypatch: pytest.MonkeyPatch, graphs: Iterable[Any], *, most_rows: int = 4096, num_layers: int = 1
) -> CapturedPasses:
    """Passes whose graphs are ``graphs``, one after the other, on a device where each makes others wait 0.25 s."""
    made = iter(graphs)
    monkeypatch.setattr(pass_recorder, "CapturedPass", lambda shape, **_: next(made).of(shape))
    # in exact numerics each size asks a BLAS
    monkeypatch.setattr(pass_recorder, "is_settled", lambda *_, **__: False)
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda _: 250.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"max_split_size": -1})
    config = SimpleNamespace(
        hidden_size=2048,
        query_width=2048,
        kv_width=512,
        mlp_width=8192,
        pads_attention=False,
        windows=(None,) * num_layers,
        is_sparse=lambda _: False,
    )
    layer = SimpleNamespace(linears=[SimpleNamespace(frozen=None, parts=[SimpleNamespace(name="q")])], first_experts=())
    decoder = SimpleNamespace(ring=None, config=config, layers=[layer] * num_layers, part=range(num_layers))
    bank = SimpleNamespace(
        is_exact=False,
        weights_RD=torch.zeros(1),
        layout=SimpleNamespace(columns={"q": None}),
        slot_table=lambda: SimpleNamespace(ranks=(16,), dropouts=(0.0,)),
        has_magnitudes=False,
    )
    return CapturedPasses(cast(Any, decoder), cast(Any, bank), most_rows=most_rows)
