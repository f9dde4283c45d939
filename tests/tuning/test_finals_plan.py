"""The last comparison stays within its share of the search: fewer finalists first, then fewer rows, and it says so."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cohort.core.errors import InputError
from cohort.tuning.evaluation_times import EVALUATION_TOKEN_COST, EvaluationSettings
from cohort.tuning.finals_plan import FinalsPlan, free_tokens, plan_finals

SETTINGS = EvaluationSettings()


def plan(
    cost_tokens: float, *, candidates: int = 24, available: int = 100, evaluated: int = 16, others: int = 1
) -> FinalsPlan:
    return plan_finals(
        num_candidates=candidates,
        num_others=others,
        row_tokens=[20] * available,
        num_evaluated=evaluated,
        cost_tokens=cost_tokens,
        settings=SETTINGS,
    )


def test_a_search_that_pays_for_it_compares_all_that_were_asked_for_on_all_rows() -> None:
    # six contenders on 100 rows of 20 tokens, each half a training token: 6,000
    assert plan(60_000) == FinalsPlan(num_finalists=5, num_rows=100)
    assert plan(60_000, candidates=3) == FinalsPlan(num_finalists=3, num_rows=100)


def test_finalists_go_before_rows() -> None:
    cheaper = plan(59_000)
    assert (cheaper.num_finalists, cheaper.num_rows) == (4, 100)
    assert cheaper.note == "4 instead of 5 finalists: finalists_cost_fraction 0.1 of the search pays for no more"
    least = plan(15_000)
    assert (least.num_finalists, least.num_rows) == (2, 50)
    assert "2 instead of 5 finalists and 50 instead of 100 validation rows" in least.note


def test_a_comparison_of_seconds_takes_all_finalists_and_rows_whatever_its_share() -> None:
    # 2 of 5 finalists and 8 of 60 rows were compared in a task of 12 s, of a model of 260,000 weights
    free = free_tokens(num_weights=260_000, device_type="cpu")
    found = plan_finals(
        num_candidates=12,
        num_others=2,
        row_tokens=[120] * 60,
        num_evaluated=8,
        cost_tokens=40_000,
        settings=SETTINGS,
        free_tokens=free,
    )
    assert found == FinalsPlan(num_finalists=5, num_rows=60)
    # a model of a billion weights reads nothing in that time
    assert free_tokens(num_weights=10**9, device_type="cpu") < 120


def test_there_are_never_fewer_rows_than_trials_were_compared_on() -> None:
    assert plan(10) == FinalsPlan(
        num_finalists=2,
        num_rows=16,
        note="2 instead of 5 finalists and 16 instead of 100 validation rows: "
        "finalists_cost_fraction 0.1 of the search pays for no more",
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    cost=st.floats(1, 1e6),
    lengths=st.lists(st.integers(2, 400), min_size=1, max_size=200),
    others=st.integers(1, 2),
    candidates=st.integers(1, 60),
)
def test_the_bound_holds_on_ragged_rows_unless_the_least_breaks_it(
    cost: float, lengths: list[int], others: int, candidates: int
) -> None:
    available = len(lengths)
    found = plan_finals(
        num_candidates=candidates,
        num_others=others,
        row_tokens=lengths,
        num_evaluated=min(16, available),
        cost_tokens=cost,
        settings=SETTINGS,
    )
    spent = EVALUATION_TOKEN_COST * sum(lengths[: found.num_rows]) * (found.num_finalists + others)
    assert spent <= SETTINGS.finalists_cost_fraction * cost * (1 + 1e-9) or (
        found.num_finalists <= 2 and found.num_rows == min(16, available)
    )
    assert 1 <= found.num_finalists <= min(5, candidates)
    assert 1 <= found.num_rows <= available
    assert bool(found.note) == (found.num_finalists < min(5, candidates) or found.num_rows < available)


def test_every_number_of_finalists_is_accepted_but_a_negative_one() -> None:
    assert EvaluationSettings(finalists=0).finalists == 0
    with pytest.raises(InputError, match="finalists"):
        EvaluationSettings(finalists=-1)
