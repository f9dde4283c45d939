"""What ranks that hold a model together measure is what the model itself measures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cohort.core.clock import ManualClock
from cohort.memory.size_inputs import SizeRequest
from cohort.prepare.group_reference import with_group_reference
from cohort.prepare.preparation import prepare
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


def test_ranks_measure_what_one_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_inputs(tmp_path / "in")
    pairs = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": f"{n}!"} for n in range(8)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    task = tiny_task(folder, dataset={"train": "pairs.jsonl"}, objective="dpo", strategy="pipeline")
    alone = prepare(task, clock=ManualClock())
    executor = alone.build_executor()
    assert with_group_reference(alone, executor) == (alone, None)
    together = prepare(task, clock=ManualClock(), request=SizeRequest(num_ranks=2))
    assert together.decoder is None
    assert not len(together.inputs.data.train.reference_logps)
    # else what was measured before would be found
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "cache"))
    # an executor of one rank has the same answers as a pipeline of two
    found, note = with_group_reference(together, executor)
    assert note is not None
    assert "computed once for all trials" in note
    for split in ("train", "validation", "all_validation"):
        expected, own = (getattr(each.inputs.data, split).reference_logps for each in (alone, found))
        assert np.array_equal(expected, own)
