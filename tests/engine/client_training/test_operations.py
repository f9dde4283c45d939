"""Calls run in the order of their numbers, whatever order they arrive in, and each once."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
from cohort.engine.client_training.operations import Operation, OperationLog


def an_operation(number: int, *, body: bytes = b"body", arrived: float = 0.0) -> Operation:
    return Operation(model_id="m", number=number, fingerprint=body, work=lambda: None, arrived=arrived)


def taken(log: OperationLog, *, now: float = 0.0) -> list[int]:
    found = []
    while (head := log.head(now=now, gap_seconds=30.0)) is not None:
        log.take(head)
        found.append(head.number)
    return found


def test_numbers_decide_the_order() -> None:
    log = OperationLog("m")
    for number in (3, 2, 5):
        log.add(an_operation(number))
    assert taken(log) == []
    log.add(an_operation(1))
    assert taken(log) == [1, 2, 3]
    assert [operation.number for operation in log.waiting] == [5]
    # a number that does not come is taken for lost
    assert taken(log, now=29.0) == []
    assert taken(log, now=30.0) == [5]


def test_a_repeat_is_the_same_operation_before_and_after_it_has_run() -> None:
    log = OperationLog("m")
    first = log.add(an_operation(1))
    assert log.add(an_operation(1)) is first
    assert taken(log) == [1]
    assert log.add(an_operation(1)) is first
    assert taken(log) == []


def test_a_number_with_another_body_is_refused() -> None:
    log = OperationLog("m")
    log.add(an_operation(1))
    with pytest.raises(InputError, match="seq_id: found 1, which was used with another body; allowed: 1 or more"):
        log.add(an_operation(1, body=b"other"))
    assert taken(log) == [1]


def test_only_the_last_operations_are_kept_for_repeats() -> None:
    log = OperationLog("m", keeps=2)
    for number in range(1, 6):
        log.add(an_operation(number))
    assert taken(log) == [1, 2, 3, 4, 5]
    assert log.add(an_operation(5)).number == 5
    with pytest.raises(InputError, match="an earlier call, whose answer is no longer kept; allowed: 6 or more"):
        log.add(an_operation(2))


def test_a_number_that_was_skipped_is_not_waited_for_and_is_welcome_all_the_same() -> None:
    log = OperationLog("m")
    log.add(an_operation(1))
    log.add(an_operation(4))
    log.skip(2, 3)
    assert taken(log) == [1, 4]
    log.skip(5, 5)
    log.add(an_operation(6))
    log.add(an_operation(5))
    assert taken(log) == [5, 6]
    assert log.last_taken == 6
    # a skip that does not reach the next call changes nothing
    log.skip(8, 8)
    log.add(an_operation(9))
    assert taken(log) == []
    assert log.expects(9) == 7
