"""Few recorded sizes serve all passes, and a recording is made once it pays."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cohort.core.numerics import Numerics
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import (
    SPARE_ROWS,
    GraphKind,
    RecordingPolicy,
    launching_rows,
    most_recorded_tokens,
    recorded_rows,
    rounded_up,
)

# Llama-3.2-1B's widths
CONFIG: Any = SimpleNamespace(hidden_size=2048, query_width=2048, kv_width=512, mlp_width=8192, pads_attention=False)


def shapes(count: int = 400) -> list[PassShape]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        rows = int(rng.integers(2, 9000))
        found.append(
            PassShape(
                num_rows=rows,
                num_sequences=int(rng.integers(1, 40)),
                length=int(rng.integers(1, rows + 1)),
                num_trained=int(rng.integers(1, rows + 1)),
            )
        )
    return found


def of_lengths(lengths: np.ndarray[Any, Any], *, trained: float = 0.61) -> PassShape:
    return PassShape(
        num_rows=int(lengths.sum()) + 1,
        num_sequences=len(lengths),
        length=int(lengths.max()),
        num_trained=int(lengths.sum() * trained),
    )


@pytest.mark.parametrize("padded", [False, True])
def test_a_rounded_shape_holds_what_it_is_for_and_is_its_own_rounding(padded: bool) -> None:
    for need in shapes():
        own = rounded_up(need, padded=padded)
        assert own.holds(need)
        assert rounded_up(own, padded=padded) == own
        # of which the last layer's products take 16 at a time
        assert 0 < own.num_trained <= own.num_rows
        assert own.num_trained % 16 == 0
        # and of which exact products ask no BLAS
        assert own.num_trained == own.num_rows or own.num_trained % 128


def test_all_numbers_of_rows_are_those_that_shapes_are_rounded_to() -> None:
    found = {rounded_up(need, padded=False).num_rows for need in shapes()}
    assert found <= {*recorded_rows(max(found))}
    assert recorded_rows(2400) == [2368, 2304, 2112, *range(2048, 0, -128)]


@pytest.mark.parametrize("num_trials", [1, 2, 4, 9, 15])
def test_the_steps_of_a_pack_are_replayed_from_the_second_on_with_few_graphs(num_trials: int) -> None:
    """Trials at batch 1 on rows of GSM8K's spread: what is launched, recorded and computed for nothing stays small."""
    rng = np.random.default_rng(num_trials)
    policy, recorded = RecordingPolicy(CONFIG), list[PassShape]()
    launched, computed, needed = 0, 0, 0
    for _ in range(300):
        need = of_lengths(np.clip(rng.lognormal(5.0, 0.35, size=num_trials).astype(int), 60, 440))
        use, record = policy.choose(need, recorded=recorded, kind=GraphKind.SUMS)
        if record is not None:
            recorded.append(record)
            use = record
        launched += use is None
        needed += need.num_rows
        computed += need.num_rows if use is None else use.num_rows
    assert launched == 0
    assert len(recorded) <= 8
    # small passes are rounded up to a multiple of 128 rows: they take as long as their launches anyway
    assert computed <= 1.25 * needed + 300 * 128


def test_large_passes_hide_their_launches_and_are_never_recorded() -> None:
    policy = RecordingPolicy(CONFIG)
    need = PassShape(num_rows=40_000, num_sequences=200, length=400, num_trained=30_000)
    for _ in range(50):
        assert policy.choose(need, recorded=[], kind=GraphKind.SUMS) == (None, None)


def test_passes_over_codes_wait_longer_for_launches_so_larger_ones_are_recorded() -> None:
    # these hide the launches over plain weights, 6 ms a layer of 61 M weights, but not those over codes
    need = PassShape(num_rows=24_000, num_sequences=200, length=400, num_trained=0)
    for coded in (False, True):
        policy = RecordingPolicy(CONFIG, coded=coded)
        found = [policy.choose(need, recorded=[], kind=GraphKind.SUMS)[1] for _ in range(20)]
        assert any(record is not None for record in found) == coded


def test_evaluations_are_recorded_only_after_they_have_come_again() -> None:
    policy = RecordingPolicy(CONFIG)
    need = PassShape(num_rows=700, num_sequences=9, length=300, num_trained=500)
    found = [policy.choose(need, recorded=[], kind=GraphKind.MEASURES)[1] for _ in range(3)]
    assert found[0] is None
    assert any(record is not None for record in found)


def test_what_one_kind_of_graph_loses_pays_for_no_recording_of_another() -> None:
    policy, need = RecordingPolicy(CONFIG), PassShape(num_rows=9000, num_sequences=20, length=600, num_trained=6000)
    # nothing is known to come: not recorded at first sight, and recorded once it has come again
    alone = [policy.choose(need, recorded=[], kind=GraphKind.TERMS, upcoming=list)[1] is not None for _ in range(4)]
    both = RecordingPolicy(CONFIG)
    for kind in (GraphKind.SUMS, GraphKind.MEASURES):
        both.choose(need, recorded=[], kind=kind, upcoming=list)
    assert [
        both.choose(need, recorded=[], kind=GraphKind.TERMS, upcoming=list)[1] is not None for _ in range(4)
    ] == alone
    assert not alone[0]
    assert any(alone)


def test_what_no_graph_holds_is_not_replayed() -> None:
    policy = RecordingPolicy(CONFIG)
    need = PassShape(num_rows=700, num_sequences=9, length=300, num_trained=500)
    held = rounded_up(need, padded=False)
    assert policy.choose(need, recorded=[held], kind=GraphKind.SUMS)[0] == held
    for larger in (
        replace(need, num_rows=held.num_rows + 1),
        replace(need, num_sequences=held.num_sequences + 1),
        replace(need, length=held.length + 1),
        replace(need, num_trained=held.num_trained + 1),
    ):
        use, record = policy.choose(larger, recorded=[held], kind=GraphKind.SUMS)
        assert use is None
        assert record is not None
        assert record.holds(larger)


def test_one_size_is_recorded_for_the_passes_to_come_where_it_saves_more_than_it_costs() -> None:
    """A pass of 1,000 rows before others of 1,100: a graph of its own size would serve it alone."""
    need = PassShape(num_rows=1000, num_sequences=9, length=200, num_trained=600)
    others = [replace(need, num_rows=rows) for rows in (1090, 1120, 1060, 1150, 1100) * 4]
    use, record = RecordingPolicy(CONFIG).choose(need, recorded=[], kind=GraphKind.SUMS, upcoming=lambda: others)
    assert use is None
    assert record is not None
    assert record.num_rows == 1152
    assert all(record.holds(other) for other in others)
    # with it, none of them is worth another recording
    policy = RecordingPolicy(CONFIG)
    assert all(
        policy.choose(p, recorded=[record], kind=GraphKind.SUMS, upcoming=lambda: others)[1] is None for p in others
    )


def test_what_is_recorded_while_the_device_computes_has_to_save_less() -> None:
    need = PassShape(num_rows=1000, num_sequences=9, length=200, num_trained=600)
    held = rounded_up(replace(need, num_rows=1300), padded=False)
    policy = RecordingPolicy(CONFIG)
    # of a launch's rows, seven such passes save more than a third and less than three quarters
    count = round(0.5 * policy._launching_rows / 300)
    upcoming = [need] * count
    use, record = policy.choose(need, recorded=[held], kind=GraphKind.SUMS, upcoming=lambda: upcoming)
    assert (use, record) == (held, None)
    ahead = policy.ahead(recorded=[held], kind=GraphKind.SUMS, upcoming=upcoming)
    assert ahead == rounded_up(need, padded=False)
    assert policy.ahead(recorded=[held, ahead], kind=GraphKind.SUMS, upcoming=upcoming) is None
    assert policy.ahead(recorded=[held], kind=GraphKind.TERMS, upcoming=[]) is None
    assert policy.hides_recording(policy._launching_rows)
    assert not policy.hides_recording(policy._launching_rows / 4)


def test_nothing_is_recorded_for_a_pass_that_does_not_come_again() -> None:
    policy = RecordingPolicy(CONFIG)
    need = PassShape(num_rows=5000, num_sequences=30, length=200, num_trained=3000)
    held = rounded_up(replace(need, num_rows=6000), padded=False)
    assert policy.choose(need, recorded=[held], kind=GraphKind.SUMS, upcoming=list) == (held, None)
    # nor for one that hides most of its launches
    large = replace(need, num_rows=13_000)
    assert policy.choose(large, recorded=[], kind=GraphKind.SUMS, upcoming=list) == (None, None)


def test_a_budget_of_a_round_number_of_tokens_gets_few_rows_of_filler() -> None:
    for tokens in (4096, 8192):
        need = PassShape(num_rows=tokens + 1, num_sequences=8, length=1024, num_trained=tokens - 8)
        assert rounded_up(need, padded=False).num_rows == tokens + SPARE_ROWS
        assert rounded_up(replace(need, num_rows=tokens - 70), padded=False).num_rows == tokens


def test_an_exact_pass_of_8192_tokens_of_a_1b_model_is_recorded_from_its_second_on() -> None:
    launching = launching_rows(CONFIG)
    # codes take the device less time, and the host more
    assert launching_rows(CONFIG, coded=True) > launching
    assert most_recorded_tokens(Numerics.EXACT, launching=launching) > 8192 + SPARE_ROWS
    need = PassShape(num_rows=8193, num_sequences=16, length=512, num_trained=8176)
    policy, recorded = RecordingPolicy(CONFIG, exact=True), list[PassShape]()
    for step in range(3):
        use, record = policy.choose(need, recorded=recorded, kind=GraphKind.SUMS, upcoming=lambda: [need] * 4)
        assert use == (recorded[0] if recorded else None), step
        recorded += [] if record is None else [record]
    assert [shape.num_rows for shape in recorded] == [8192 + SPARE_ROWS]
