"""The picture of a plan against its course: bars of packs by executor, and what was predicted and happened in words."""

from __future__ import annotations

import re

from cohort.report.planned_packs import planned_packs
from cohort.runs.packing_records import PackingRecord, PackRecord
from cohort.runs.records import ResidencyRecord


def pack(*trial_ids: int, rank: int, start: float, end: float) -> PackRecord:
    return PackRecord(trial_ids=trial_ids, rank=rank, start_seconds=start, end_seconds=end)


def stay(trial_id: int, *, slot: int, start: float, stop: float | None) -> ResidencyRecord:
    return ResidencyRecord(
        trial_id=trial_id, slot=slot, start_position=1, start_seconds=start, stop_position=None, stop_seconds=stop
    )


PLAN = PackingRecord(
    at_seconds=10.0,
    choice="planned",
    reason="2 planned packs predicted to end after 30.0s, refilled slots after 40.0s",
    planned_seconds=30.0,
    refill_seconds=40.0,
    packs=(pack(0, 1, rank=0, start=10, end=40), pack(2, rank=1, start=10, end=35)),
    num_changes=1,
)


def drawn(*records: PackingRecord, stays: list[ResidencyRecord]) -> dict[str, str]:
    return planned_packs(records, stays=stays, slots_per_rank=2, num_ranks=2, run_seconds=60.0, device="GPU")


def test_each_pack_is_drawn_as_planned_and_as_it_was() -> None:
    stays = [
        # before the plan
        stay(0, slot=0, start=0, stop=10),
        stay(0, slot=0, start=10, stop=30),
        stay(1, slot=1, start=10, stop=45),
        stay(2, slot=2, start=10, stop=None),
    ]
    found = drawn(PLAN, stays=stays)
    titles = re.findall(r"<title>(pack [^<]+)</title>", found["drawing"])
    assert titles == [
        "pack 1 on GPU 0, planned: 10s to 40s; trials 0, 1",
        "pack 2 on GPU 1, planned: 10s to 35s; trials 2",
        "pack 1 on GPU 0, actual: 10s to 45s",
        "pack 2 on GPU 1, actual: 10s to 1m 00s",
    ]
    assert found["note"] == (
        "After 10s: planned; 2 planned packs predicted to end after 30.0s, refilled slots after 40.0s. "
        "Packs that had not begun were placed again 1 time. The packs took 50s."
    )
    assert "what happened" in found["legend"]


def test_a_plan_ends_where_the_next_process_makes_another() -> None:
    again = PackingRecord(
        at_seconds=20.0, choice="planned", reason="once more", packs=(pack(0, 1, 2, rank=0, start=20, end=50),)
    )
    stays = [stay(0, slot=0, start=10, stop=20), stay(0, slot=1, start=20, stop=50)]
    titles = re.findall(r"<title>(pack [^<]+)</title>", drawn(PLAN, again, stays=stays)["drawing"])
    assert "pack 1 on GPU 0, planned: 10s to 20s; trials 0, 1" in titles
    assert [title for title in titles if "actual" in title] == [
        "pack 1 on GPU 0, actual: 10s to 20s",
        "pack 3 on GPU 0, actual: 20s to 50s",
    ]


def test_refilled_slots_are_words_alone() -> None:
    record = PackingRecord(at_seconds=3.0, choice="refill", reason="what is left is predicted to take 2.0s")
    assert drawn(record, stays=[]) == {
        "drawing": "",
        "legend": "",
        "note": "After 3s: refill; what is left is predicted to take 2.0s.",
    }
    assert drawn(stays=[])["note"] == ""
