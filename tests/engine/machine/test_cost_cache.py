"""What runs measured: kept, found again by what it holds for, and never half or mixed up."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.engine.machine.cost_cache import MOST_FILES, CostKey, RunCosts, length_bucket, read_costs, write_costs
from cohort.scheduling.cost.model import StepSample, TrialWork

KEY = CostKey(model="llama 12", hardware="a CPU, 1 thread", precision="float32", length_bucket=64, adapters="qv")


def costs(seconds: float) -> RunCosts:
    work = TrialWork(r=16, num_tokens=40.0, sum_squares=900.0, num_sequences=2)
    sample = StepSample(pack=(work,), seconds=seconds)
    return RunCosts(samples=(sample,), evaluated_tokens=10, evaluation_seconds=seconds, steps=3, start_seconds=1.0)


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    assert read_costs(KEY, directory=tmp_path).runs == ()
    assert write_costs(KEY, costs(0.5), directory=tmp_path)
    found = read_costs(KEY, directory=tmp_path)
    assert found.runs == (costs(0.5),)
    assert found.seconds_per_evaluated_token == 0.05
    for other in ({"length_bucket": 128}, {"hardware": "H200"}, {"adapters": "all"}, {"precision": "bfloat16"}):
        assert read_costs(replace(KEY, **other), directory=tmp_path).runs == ()


def test_rows_of_one_power_of_two_share_a_bucket() -> None:
    assert [length_bucket(mean) for mean in (1, 2, 3, 100, 128, 128.4, 129)] == [1, 2, 4, 128, 128, 128, 256]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 0, "key": {}, "costs": {}}', "\x00\x01", "null"]
)
def test_a_damaged_file_counts_as_absent(tmp_path: Path, text: str) -> None:
    write_costs(KEY, costs(0.5), directory=tmp_path)
    (tmp_path / "costs" / KEY.folder / "broken.json").write_text(text)
    assert read_costs(KEY, directory=tmp_path).runs == (costs(0.5),)


def test_another_version_or_key_in_the_file_counts_as_absent(tmp_path: Path) -> None:
    write_costs(KEY, costs(0.5), directory=tmp_path)
    (path,) = (tmp_path / "costs" / KEY.folder).iterdir()
    content = json.loads(path.read_text())
    for change in ({"version": 99}, {"key": {**content["key"], "hardware": "other"}}):
        path.write_text(json.dumps({**content, **change}))
        assert read_costs(KEY, directory=tmp_path).runs == ()
    content["costs"]["samples"][0]["seconds"] = -1
    path.write_text(json.dumps(content))
    assert read_costs(KEY, directory=tmp_path).runs == ()


def test_writers_at_the_same_moment_lose_nothing(tmp_path: Path) -> None:
    def write(number: int) -> None:
        assert write_costs(KEY, costs(number + 1.0), directory=tmp_path)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(run.evaluation_seconds for run in read_costs(KEY, directory=tmp_path).runs) == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
    ]


def test_the_newest_runs_are_kept(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 3):
        write_costs(KEY, costs(number + 1.0), directory=tmp_path)
    assert len(read_costs(KEY, directory=tmp_path).runs) == MOST_FILES


def test_a_cache_that_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("a file where a folder should be")
    assert not write_costs(KEY, costs(1.0), directory=tmp_path)
    assert read_costs(KEY, directory=tmp_path).runs == ()
