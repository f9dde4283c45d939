"""Accounts: who is next, what a pause and a refund do, and orders of many items at once."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.scheduling.shares.accounts import Costed, ShareAccounts, divided_by_tokens


def test_one_that_comes_back_stands_where_the_least_charged_stands() -> None:
    accounts = ShareAccounts({"a": 2.0})
    accounts.advance("ab")
    accounts.charge({"a": 6.0, "b": 5.0})
    accounts.advance("ab")
    assert (accounts.tag("a"), accounts.tag("b"), accounts.tag("c")) == (3.0, 5.0, 3.0)
    # a goes: what it is behind by is gone with it
    accounts.advance("b")
    accounts.advance("ab")
    assert accounts.lead("a") == 0.0


def test_what_is_given_back_is_due_even_when_others_went_on() -> None:
    accounts = ShareAccounts()
    accounts.advance("ab")
    accounts.charge({"a": 100.0})
    accounts.charge({"b": 100.0})
    accounts.advance("ab")
    accounts.charge({"a": -75.0})
    assert accounts.lead("a") == -75.0
    assert accounts.order([Costed(tenant=name, seconds=25.0) for name in "bbaaaa"]) == [2, 3, 4, 0, 5, 1]


def test_a_charge_beyond_the_most_lead_is_forgiven() -> None:
    accounts = ShareAccounts()
    accounts.charge({"a": 5.0})
    accounts.charge({"a": 5.0}, most_lead=1.0)
    accounts.charge({"b": 5.0}, most_lead=1.0)
    assert (accounts.tag("a"), accounts.tag("b")) == (5.0, 1.0)


def test_another_weight_counts_from_now_on() -> None:
    accounts = ShareAccounts()
    accounts.charge({"a": 3.0})
    accounts.set_weight("a", 3.0)
    accounts.charge({"a": 3.0})
    assert accounts.tag("a") == 4.0


def test_accounts_of_tenants_long_gone_are_dropped() -> None:
    accounts = ShareAccounts()
    for number in range(1000):
        # every second time another comes for one pass
        wanting = ["steady", f"t{number}"] if number % 2 else ["steady"]
        accounts.advance(wanting)
        accounts.charge({min(wanting, key=accounts.tag): 1.0})
    assert len(accounts.to_record()["tags"]) < 10


def test_an_order_follows_the_weights_and_each_tenants_own() -> None:
    accounts = ShareAccounts({"a": 2.0})
    items = [Costed(tenant=tenant, seconds=1.0) for tenant in "aaaabb"]
    assert [items[number].tenant for number in accounts.order(items)] == list("abaaba")
    assert accounts.order(items) == [0, 4, 1, 2, 5, 3], "those of a tenant in the order in which they were given"
    assert accounts.tag("a") == 0.0, "nothing is charged by looking"


@given(
    costs=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.01, 10)), max_size=40),
    weights=st.fixed_dictionaries({name: st.floats(0.1, 10) for name in "abc"}),
)
def test_an_order_is_what_choosing_one_by_one_gives(costs: list[tuple[str, float]], weights: dict[str, float]) -> None:
    accounts = ShareAccounts(weights)
    items = [Costed(tenant=tenant, seconds=seconds) for tenant, seconds in costs]
    left, chosen = list(range(len(items))), []
    tags = dict.fromkeys("abc", 0.0)
    while left:
        heads = {items[number].tenant: number for number in reversed(left)}
        tenant = min(heads, key=lambda name: (tags[name], heads[name]))
        chosen.append(heads[tenant])
        left.remove(heads[tenant])
        tags[tenant] += items[heads[tenant]].seconds / weights[tenant]
    assert accounts.order(items) == chosen


@settings(max_examples=50)
@given(tokens=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**6), min_size=1), seconds=st.floats(0, 1e3))
def test_a_division_gives_all_of_it(tokens: dict[str, int], seconds: float) -> None:
    parts = divided_by_tokens(seconds, tokens)
    assert math.isclose(math.fsum(parts.values()), seconds, rel_tol=1e-12, abs_tol=1e-12)
    assert all(part >= 0 for part in parts.values())


def test_the_record_keeps_who_wanted_something() -> None:
    accounts = ShareAccounts()
    accounts.advance("ab")
    accounts.charge({"a": 10.0, "b": 10.0})
    accounts.advance("ab")
    accounts.charge({"a": -3.0})
    again = ShareAccounts.from_record(json.loads(json.dumps(accounts.to_record())))
    assert again.lead("a") == accounts.lead("a") == -3.0
