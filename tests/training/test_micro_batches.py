"""Micro-batches: cut between groups within the budget; run again, smaller or recomputed, when memory runs out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cohort.core.memory_records import GradientCheckpointing, PassKind
from cohort.data.packing import SlotSample
from cohort.data.tokenised import Sample
from cohort.training.device_memory import DeviceMemory
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.micro_batches import MicroBatches, sample_too_large


def entries_of(lengths: Sequence[int], *, group_size: int = 1) -> list[SlotSample]:
    return [
        SlotSample(
            slot=0,
            sample=Sample(
                sample_id=sample_id,
                tokens=np.zeros(length, dtype=np.int32),
                trained=np.ones(length, dtype=np.bool_),
            ),
            group_size=group_size,
        )
        for sample_id, length in enumerate(lengths)
    ]


def batches_of(token_budget: int, *, mode: GradientCheckpointing | None = None) -> MicroBatches:
    policy = None
    if mode is not None:
        policy = GradientCheckpointingPolicy(mode, keep_tokens=None, device="cpu")
    return MicroBatches(
        PassKind.TRAIN,
        token_budget=token_budget,
        memory=DeviceMemory("cpu"),
        reliefs=[],
        policy=policy,
    )


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting garbage takes longer than all else here."""
    monkeypatch.setattr("cohort.training.micro_batches.release_cached", lambda device: None)


def too_large(entry: SlotSample, words: str) -> Exception:
    return LookupError(f"{entry.sample.sample_id}: {words}")


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 80), st.integers(1, 3))
def test_groups_stay_whole_in_order_and_within_the_budget(lengths: list[int], budget: int, size: int) -> None:
    lengths = lengths * size
    entries = entries_of(lengths, group_size=size)
    parts = [entries[part] for part in batches_of(budget).split(entries)]
    assert [entry for part in parts for entry in part] == entries
    for part in parts:
        assert part[0].sample.sample_id % size == 0
        assert len(part) % size == 0
        assert len(part) == size or sum(len(entry.sample.tokens) for entry in part) <= budget


def test_a_failed_pass_is_run_again_in_halves_and_the_budget_stays_lowered() -> None:
    batches, seen, restarts = batches_of(100), [], []

    def one_pass(part: Sequence[SlotSample]) -> int:
        tokens = sum(len(entry.sample.tokens) for entry in part)
        seen.append(tokens)
        if tokens > 50:
            raise torch.OutOfMemoryError("no more")
        return tokens

    done = batches.run(entries_of([20] * 5), one_pass, too_large=too_large, restart=lambda: restarts.append(1))
    assert done == [40, 40, 20]
    assert seen == [100, 40, 40, 20]
    assert batches.token_budget == 50
    assert len(restarts) == 1
    (shortage,) = batches.take_shortages()
    assert (shortage.num_tokens, shortage.budget_before, shortage.budget_after) == (100, 100, 50)
    assert shortage.message == "no more"
    assert not batches.take_shortages()


def test_without_a_restart_what_is_done_is_kept() -> None:
    failed: list[int] = []

    def one_pass(part: Sequence[SlotSample]) -> list[int]:
        ids = [entry.sample.sample_id for entry in part]
        if 3 in ids and not failed:
            failed.append(1)
            raise torch.OutOfMemoryError
        return ids

    done = batches_of(40).run(entries_of([20] * 6), one_pass, too_large=too_large)
    assert done == [[0, 1], [2], [3], [4], [5]]


def test_a_group_that_does_not_fit_is_recomputed_then_its_longest_row_is_named() -> None:
    batches = batches_of(100, mode=GradientCheckpointing.AUTO)
    attempts: list[int] = []

    def one_pass(part: Sequence[SlotSample]) -> None:
        attempts.append(len(part))
        raise torch.OutOfMemoryError("full")

    with pytest.raises(LookupError, match="1: full"):
        batches.run(entries_of([5, 9], group_size=2), one_pass, too_large=too_large)
    assert attempts == [2, 2]
    (shortage,) = batches.take_shortages()
    assert shortage.keep_tokens == 13
    assert shortage.budget_after == shortage.budget_before == 100


def test_reliefs_are_asked_before_a_row_is_given_up() -> None:
    batches = batches_of(100)
    asked: list[str] = []

    def relief(name: str, *, has_something: bool) -> bool:
        asked.append(name)
        return has_something

    batches._reliefs = [lambda: relief("empty", has_something=False), lambda: relief("full", has_something=True)]
    failures = iter([True, False])

    def one_pass(part: Sequence[SlotSample]) -> str:
        if next(failures):
            raise torch.OutOfMemoryError
        return "done"

    assert batches.run(entries_of([5]), one_pass, too_large=too_large) == ["done"]
    assert asked == ["empty", "full"]
    assert batches.token_budget == 100


def test_other_errors_pass_through() -> None:
    def one_pass(part: Sequence[SlotSample]) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        batches_of(10).run(entries_of([5]), one_pass, too_large=too_large)


@pytest.mark.parametrize(
    ("mode", "found", "hint"),
    [
        (None, "a pass of its own", "Set dataset.max_length below 7,"),
        (GradientCheckpointing.NEVER, "a pass of its own", "Set memory.gradient_checkpointing: auto, set dataset.max"),
        (GradientCheckpointing.AUTO, "with every layer recomputed", "Set dataset.max_length below 7,"),
        (GradientCheckpointing.ALWAYS, "with every layer recomputed", "Set dataset.max_length below 7,"),
    ],
)
def test_the_error_names_row_trial_and_what_to_change(
    mode: GradientCheckpointing | None, found: str, hint: str
) -> None:
    (entry,) = entries_of([7])
    error = sample_too_large(
        entry.sample, "CUDA out of\n memory", whose="trial 3 (r = 8)", source="rows.jsonl:4", mode=mode
    )
    (problem,) = error.problems
    assert str(problem.where) == "rows.jsonl:4"
    assert problem.found.startswith("a row of 7 tokens of trial 3 (r = 8),")
    assert problem.found.endswith(found)
    assert problem.hint.startswith(hint)
    assert "(CUDA out of memory)" in problem.hint
