"""A call is a verb of a contract with all of its arguments; nothing else of an object can be asked for."""

from __future__ import annotations

import pickle

import pytest

from cohort.ranks.calls import Call, is_verb, portable, verb


class Contract:
    """Adds, here or elsewhere."""

    @verb
    def add(self, number: int, *, times: int = 1) -> int:
        raise NotImplementedError

    def forget(self) -> None:
        """Nothing that others may ask for."""


class Adder(Contract):
    """Has a body of its own, without a mark of its own."""

    def add(self, number: int, *, times: int = 1) -> int:
        return 40 + number * times


def test_a_call_has_every_argument_by_its_name_and_travels() -> None:
    call = Call.of(Contract.add, 2)
    assert (call.verb, call.arguments, call.is_answered) == ("add", {"number": 2, "times": 1}, True)
    sent = pickle.loads(pickle.dumps(Call.of(Contract.add, number=3, times=4)))
    assert sent.carried_out_by(Adder()) == 52


def test_arguments_are_bound_before_anything_is_sent() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'time'"):
        Call.of(Contract.add, 2, time=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing a required argument: 'number'"):
        Call.of(Contract.add)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["forget", "__init__", "__class__", "no_such_verb"])
def test_what_is_no_verb_is_refused(name: str) -> None:
    assert not is_verb(Adder, name)
    with pytest.raises(TypeError, match=f"Adder has no verb {name}; mark the contract's method with @verb"):
        Call(verb=name, arguments={}).carried_out_by(Adder())


def test_errors_that_cannot_travel_arrive_as_their_words() -> None:
    class LocalError(Exception):
        pass

    class TwoPartsError(RuntimeError):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(f"{first} {second}")

    for error, words in ((LocalError("no GPU"), "LocalError: no GPU"), (TwoPartsError("a", "b"), "TwoPartsError: a b")):
        assert str(portable(error)) == words
    known = ValueError("a bad row")
    assert portable(known) is known
