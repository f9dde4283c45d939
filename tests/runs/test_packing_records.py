"""What a run chose comes back from its record as it was."""

from __future__ import annotations

import json
from dataclasses import asdict

from cohort.runs.packing_records import PackingRecord, PackRecord


def test_a_record_is_read_back() -> None:
    record = PackingRecord(
        at_seconds=1.5,
        choice="planned",
        reason="it ends sooner",
        planned_seconds=10.0,
        refill_seconds=12.0,
        packs=(PackRecord(trial_ids=(1, 2), rank=1, start_seconds=1.5, end_seconds=11.5),),
        num_changes=2,
    )
    assert PackingRecord.from_json(json.loads(json.dumps(asdict(record)))) == record
