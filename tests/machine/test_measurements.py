"""What runs measured: kept, found again by what it holds for, and never half or mixed up."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.core.memory_records import PassKind, PassPeak, PassSize
from cohort.machine.measurements import (
    MOST_FILES,
    CostKey,
    KnownPasses,
    MemoryKey,
    RunCosts,
    forget_passes,
    length_bucket,
    read_costs,
    read_passes,
    write_costs,
    write_passes,
)
from cohort.models.config_file import read_config
from cohort.scheduling.cost.model import AdapterWork, StepSample
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

KEY = CostKey(model="llama 12", hardware="a CPU, 1 thread", precision="float32", length_bucket=64, adapters="qv")


def costs(seconds: float) -> RunCosts:
    work = AdapterWork(r=16, num_tokens=40.0, sum_squares=900.0, num_sequences=2)
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


def test_mixtures_of_other_experts_have_keys_of_their_own(tmp_path: Path) -> None:
    def key(**settings: Any) -> CostKey:
        folder = save_checkpoint(tmp_path / repr(settings), "Mixtral", **settings)
        return CostKey.of(
            read_config(folder), hardware="a CPU", precision="float32", mean_length=60.0, target_modules=["q_proj"]
        )

    keys = [key(num_local_experts=4), key(num_local_experts=8), key(num_local_experts=4, num_experts_per_tok=1)]
    assert len(set(keys)) == 3


def test_rows_of_one_power_of_two_share_a_bucket() -> None:
    assert [length_bucket(mean) for mean in (1, 2, 3, 100, 128, 128.4, 129)] == [1, 2, 4, 128, 128, 128, 256]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 0, "key": {}, "costs": {}}', "\x00\x01", "null"]
)
def test_a_damaged_file_counts_as_absent(tmp_path: Path, text: str) -> None:
    write_costs(KEY, costs(0.5), directory=tmp_path)
    (tmp_path / KEY.folder / "broken.json").write_text(text)
    assert read_costs(KEY, directory=tmp_path).runs == (costs(0.5),)


def test_another_version_or_key_in_the_file_counts_as_absent(tmp_path: Path) -> None:
    write_costs(KEY, costs(0.5), directory=tmp_path)
    (path,) = (tmp_path / KEY.folder).iterdir()
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


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("a file where a folder should be")
    assert not write_costs(KEY, costs(1.0), directory=tmp_path)
    assert read_costs(KEY, directory=tmp_path).runs == ()


COST_KEY = CostKey(model="llama 1", hardware="H200", precision="bfloat16", length_bucket=256, adapters="all")
MEMORY_KEY = MemoryKey.of(COST_KEY, ranks=(16, 4, 64), longest=700)


def peak(kind: PassKind, rows: int) -> PassPeak:
    size = PassSize(
        num_rows=rows, num_trained=rows, rank_entries=16 * rows, head_bytes=7, num_sequences=2, sum_squares=rows**2
    )
    return PassPeak(kind=kind, size=size, forward_bytes=100 * rows, backward_bytes=200 * rows)


PASSES = KnownPasses(
    peaks=(peak(PassKind.TRAIN, 64), peak(PassKind.TRAIN, 128), peak(PassKind.EVALUATE, 64)),
    correction=1.02,
    checked_tokens=4000,
    reserve_bytes=12,
    fit_error_percent=0.3,
)


def test_what_was_written_is_read_and_forgotten(tmp_path: Path) -> None:
    assert read_passes(MEMORY_KEY, directory=tmp_path) is None
    assert write_passes(MEMORY_KEY, PASSES, directory=tmp_path)
    assert read_passes(MEMORY_KEY, directory=tmp_path) == PASSES
    forget_passes(MEMORY_KEY, directory=tmp_path)
    assert read_passes(MEMORY_KEY, directory=tmp_path) is None
    forget_passes(MEMORY_KEY, directory=tmp_path)


def test_a_key_tells_ranks_lengths_and_versions_apart(tmp_path: Path) -> None:
    write_passes(MEMORY_KEY, PASSES, directory=tmp_path)
    assert read_passes(MemoryKey.of(COST_KEY, ranks=(64, 4), longest=1024), directory=tmp_path) == PASSES
    others = [
        MemoryKey.of(COST_KEY, ranks=(64, 8), longest=700),
        MemoryKey.of(COST_KEY, ranks=(64, 4), longest=1025),
        MemoryKey.of(replace(COST_KEY, hardware="H100"), ranks=(64, 4), longest=700),
        replace(MEMORY_KEY, versions=("another", *MEMORY_KEY.versions[1:])),
    ]
    assert [read_passes(other, directory=tmp_path) for other in others] == [None] * len(others)


@pytest.mark.parametrize("damage", ["", "{", '{"version": 1}', "[]"])
def test_damaged_passes_count_as_absent(tmp_path: Path, damage: str) -> None:
    write_passes(MEMORY_KEY, PASSES, directory=tmp_path)
    next((tmp_path / "memory").iterdir()).write_text(damage)
    assert read_passes(MEMORY_KEY, directory=tmp_path) is None


@pytest.mark.parametrize(("name", "value"), [("correction", 0.5), ("peaks", []), ("checked_tokens", "many")])
def test_passes_that_cannot_be_count_as_absent(tmp_path: Path, name: str, value: object) -> None:
    write_passes(MEMORY_KEY, PASSES, directory=tmp_path)
    file = next((tmp_path / "memory").iterdir())
    content = json.loads(file.read_text())
    content["passes"][name] = value
    file.write_text(json.dumps(content))
    assert read_passes(MEMORY_KEY, directory=tmp_path) is None


def test_passes_that_cannot_be_written_are_measured_again(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file where the folder should be")
    assert not write_passes(MEMORY_KEY, PASSES, directory=tmp_path)
    assert read_passes(MEMORY_KEY, directory=tmp_path) is None
