"""Whose error it is: tried together, then one by one, and again; what no single trial caused ends the run."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
import torch

from cohort.core.errors import StorageFullError
from cohort.core.events import TrialFailed
from cohort.engine.train.isolation import MOST_ERRORS, TrialErrors, is_run_wide, one_line, run_isolated
from cohort.training.optimizers.optimizer import UnfinishedUpdateError


class Acting:
    """Squares keys; raises the errors it is given for a key, one at each attempt."""

    def __init__(self, **errors: list[Exception]) -> None:
        self.errors = {int(key.removeprefix("k")): list(found) for key, found in errors.items()}
        self.together: list[Exception] = []
        self.calls: list[tuple[int, ...]] = []
        self.reloaded: list[int] = []
        self.split_by: list[Exception] = []
        self.notes: list[str] = []
        self._counts = TrialErrors(steps_done=lambda key: 10 * key, note=self.notes.append)

    def __call__(self, keys: Sequence[int]) -> list[int]:
        self.calls.append(tuple(keys))
        if len(keys) > 1 and self.together:
            raise self.together.pop(0)
        for key in keys:
            if self.errors.get(key):
                raise self.errors[key].pop(0)
        return [key * key for key in keys]

    def run(self, keys: Sequence[int]) -> tuple[list[int], dict[int, TrialFailed]]:
        return run_isolated(
            self, keys, count=self._counts.count, reload=self.reloaded.append, on_split=self.split_by.append
        )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StorageFullError("full"), True),
        (OSError(errno.ENOSPC, "no space"), True),
        (OSError(errno.ENOENT, "no file"), False),
        (torch.AcceleratorError("the GPU fell off the bus"), True),
        (torch.OutOfMemoryError("out of memory"), False),
        (ValueError("a row"), False),
    ],
)
def test_a_full_disk_and_a_lost_gpu_are_the_whole_runs(error: Exception, *, expected: bool) -> None:
    assert is_run_wide(error) is expected


def test_without_an_error_all_act_together_once() -> None:
    act = Acting()
    assert act.run([1, 2, 3]) == ([1, 4, 9], {})
    assert act.calls == [(1, 2, 3)]


def test_the_others_go_on_one_by_one_and_one_that_recovers_is_tried_again() -> None:
    act = Acting(k2=[ValueError("together"), ValueError("alone")])
    done, failed = act.run([1, 2, 3])
    assert (sorted(done), failed) == ([1, 4, 9], {})
    assert act.calls == [(1, 2, 3), (1,), (2,), (3,), (2,)]
    assert act.notes == ["warning: trial 2 after step 20: ValueError: alone; trying again (1 of 2)"]
    assert act.split_by == []


def test_a_trial_that_raises_each_time_fails_with_its_last_error() -> None:
    act = Acting(k2=[ValueError(str(number)) for number in range(9)])
    done, failed = act.run([1, 2])
    assert done == [1]
    assert failed == {2: TrialFailed(trial_id=2, step=20, message="ValueError: 3 (tried 3 times)")}
    assert act.calls.count((2,)) == MOST_ERRORS


def test_a_trial_alone_has_had_its_first_try() -> None:
    act = Acting(k2=[ValueError("once")])
    assert act.run([2]) == ([4], {})
    assert act.calls == [(2,), (2,)]
    assert len(act.notes) == 1


def test_what_none_has_alone_is_no_trials_error_and_is_reported_once() -> None:
    act = Acting()
    act.together = [RuntimeError("too large together")]
    assert act.run([1, 2]) == ([1, 4], {})
    assert (act.notes, [str(error) for error in act.split_by]) == ([], ["too large together"])


def test_what_all_have_alone_as_well_is_raised() -> None:
    act = Acting(k1=[ValueError("a"), ValueError("b")], k2=[ValueError("c")])
    with pytest.raises(ValueError, match="a"):
        act.run([1, 2])
    assert act.notes == []


@pytest.mark.parametrize("alone", [False, True])
def test_a_run_wide_error_is_raised_at_once(*, alone: bool) -> None:
    errors: list[Exception] = [StorageFullError("full")]
    act = Acting(k2=[ValueError("first"), *errors] if alone else errors)
    with pytest.raises(StorageFullError):
        act.run([1, 2])
    assert len(act.calls) == (3 if alone else 1)


def test_only_an_update_that_was_begun_is_undone() -> None:
    begun = UnfinishedUpdateError()
    begun.__cause__ = ValueError("in the update")
    act = Acting(k1=[begun])
    act.run([1, 2])
    assert act.reloaded == [1, 2]
    assert one_line(begun) == "ValueError: in the update"


def test_a_message_is_one_line_of_limited_length() -> None:
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert len(one_line(ValueError("x" * 1000))) == 400
