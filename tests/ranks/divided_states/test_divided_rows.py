"""Rank rows in parts: they have a shape and a size, no content, and are let go of with their last handle."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.spec import AdapterSpec
from cohort.ranks.divided_states.divided_rows import (
    GPU,
    HOST,
    Departure,
    DividedRows,
    PartKey,
    Placement,
    divided_rows_of,
    whole_rows,
    whole_state,
)
from cohort.training.trial import TrialSpec, TrialState

SPEC = TrialSpec(
    trial_id=0, seed=0, adapter=AdapterSpec(r=4, lora_alpha=8.0), learning_rate=1e-3, batch_size=1, num_steps=1
)


class Source:
    """Ranks whose parts are numbers, and that have not left before they are waited for."""

    def __init__(self) -> None:
        self.leaving, self.left = list[PartKey](), list[PartKey]()

    def whole(self, rows: DividedRows) -> Tensor:
        return torch.full(tuple(rows.shape), float(rows.key[0]), dtype=rows.dtype)

    def begin_leaving(self, keys: Sequence[PartKey]) -> None:
        self.leaving += keys

    def have_left(self, keys: Sequence[PartKey]) -> bool:
        return set(keys) <= set(self.left)

    def wait_until_left(self, keys: Sequence[PartKey]) -> None:
        self.left += keys


def rows(source: Source, gone: list[PartKey], *, number: int = 3, name: str = "weights") -> DividedRows:
    return DividedRows.kept(
        (number, name),
        shape=(4, 10),
        dtype=torch.float32,
        spec=SPEC,
        source=source,
        placement=Placement(device=GPU, gpu_bytes=90, host_bytes=170),
        let_go=gone.append,
    )


def test_parts_are_let_go_with_the_last_handle() -> None:
    gone: list[PartKey] = []
    state = TrialState(adapter=AdapterState(weights=rows(Source(), gone)), step=2)
    best: Tensor = state.adapter.weights
    del state
    assert not gone
    del best
    assert gone == [(3, "weights")]


def test_they_have_a_shape_and_refuse_what_reads_them() -> None:
    found = rows(Source(), [])
    assert (tuple(found.shape), found.dtype, found.numel(), found.is_cuda) == ((4, 10), torch.float32, 40, False)
    # a header is written from the shape alone
    assert found.contiguous() is found
    assert "(3, 'weights')" in repr(found)
    reading: list[Any] = [
        lambda: found + 1,
        found.cpu,
        found.clone,
        lambda: found[0],
        lambda: torch.equal(found, found),
    ]
    for read in reading:
        with pytest.raises(NotImplementedError, match=r"take whole_rows\(\)"):
            read()
    with pytest.raises(TypeError, match="cannot be sent"):
        pickle.dumps(found)


def test_content_is_brought_where_it_is_asked_for() -> None:
    source, gone, own = Source(), list[PartKey](), torch.ones(2, 2)
    state = TrialState(
        adapter=AdapterState(weights=rows(source, gone), moments={"m": rows(source, gone, number=5, name="m")}), step=2
    )
    assert whole_rows(own) is own
    whole = whole_state(state)
    assert whole.step == 2
    assert {name: tensor.unique().tolist() for name, tensor in whole.adapter.tensors.items()} == {
        "weights": [3.0],
        "m": [5.0],
    }
    assert [*divided_rows_of(state)] == ["weights", "m"]
    assert [*divided_rows_of(state.adapter.weights)] == ["weights"]
    assert not divided_rows_of(whole)


def test_parts_that_leave_the_gpus_are_the_same_rows_and_count_on_the_host() -> None:
    source, gone = Source(), list[PartKey]()
    there = rows(source, gone)
    assert (there.placement.device, there.placement.num_bytes) == (GPU, 90)
    departure = Departure({"weights": there})
    assert source.leaving == [(3, "weights")]
    assert not departure.done()
    here = departure.result()["weights"]
    assert departure.done()
    assert isinstance(here, DividedRows)
    assert (here.key, here.placement.device, here.placement.num_bytes) == ((3, "weights"), HOST, 170)
    del there, departure
    assert not gone, "the other handle holds them"
    del here
    assert gone == [(3, "weights")]
