"""Which waiting task trains next, and which gives its seat."""

from __future__ import annotations

from collections import Counter

import pytest

from cohort.engine.resident.seats import SeatChange, SeatedTask, next_seat


def tasks(text: str, first: int = 0) -> list[SeatedTask]:
    """``"aab"``: two tasks of a, one of b; a capital letter is an urgent one."""
    return [
        SeatedTask(name=f"{letter}{first + place}", tenant=letter.lower(), priority=letter.isupper())
        for place, letter in enumerate(text)
    ]


def change(
    waiting: str, seated: str, *, num_seats: int = 4, weights: dict[str, float] | None = None
) -> SeatChange | None:
    return next_seat(
        tasks(waiting, 10),
        tasks(seated),
        num_seats=num_seats,
        weight=lambda tenant: (weights or {}).get(tenant, 1.0),
    )


@pytest.mark.parametrize(
    ("waiting", "seated", "found"),
    [
        ("", "aa", None),
        ("ab", "", SeatChange(begins="a10")),
        # the tenant with the fewest is next
        ("ab", "aa", SeatChange(begins="b11")),
        # of one tenant the most urgent, then the first
        ("aaA", "", SeatChange(begins="A12")),
        # a tenant without a seat takes one of the one with the most: the last that came
        ("b", "aaaa", SeatChange(begins="b10", parks="a3")),
        ("b", "aaca", SeatChange(begins="b10", parks="a3")),
        ("b", "aaaA", SeatChange(begins="b10", parks="a2")),
        # shares are even, or would be less so
        ("a", "aabb", None),
        ("b", "aaab", SeatChange(begins="b10", parks="a2")),
        ("b", "aabb", None),
        ("c", "aabb", SeatChange(begins="c10", parks="a1")),
        # nobody loses the only seat
        ("e", "abcd", None),
        # an urgent one takes the seat of its own tenant's
        ("A", "aabb", SeatChange(begins="A10", parks="a1")),
        ("A", "AAAA", None),
    ],
)
def test_seats_go_by_shares(waiting: str, seated: str, found: SeatChange | None) -> None:
    assert change(waiting, seated) == found


def test_a_tenant_without_a_seat_gets_one_of_those_who_have_several_whatever_the_weights() -> None:
    weights = {"a": 16.0, "b": 1.0, "c": 1.0}
    assert change("c", "aab", num_seats=3, weights=weights) == SeatChange(begins="c10", parks="a1")
    assert change("cc", "aaa", num_seats=4, weights=weights) == SeatChange(begins="c10")


def test_seats_follow_weights() -> None:
    weights = {"a": 3.0, "b": 1.0}
    seated: list[SeatedTask] = []
    waiting = tasks("a" * 20 + "b" * 20)
    for _ in range(100):
        found = next_seat(waiting, seated, num_seats=8, weight=weights.__getitem__)
        if found is None:
            break
        (begins,) = [task for task in waiting if task.name == found.begins]
        waiting.remove(begins)
        for task in [task for task in seated if task.name == found.parks]:
            seated.remove(task)
            waiting.append(task)
        seated.append(begins)
    else:
        raise AssertionError("seats change for ever")
    assert Counter(task.tenant for task in seated) == {"a": 6, "b": 2}
