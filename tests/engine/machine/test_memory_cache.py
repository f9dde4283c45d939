"""What passes take is measured once for a kind of task; what cannot be read or no longer holds is measured again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.core.memory_records import PassKind, PassPeak, PassSize
from cohort.engine.machine.cost_cache import CostKey
from cohort.engine.machine.memory_cache import KnownPasses, MemoryKey, forget_passes, read_passes, write_passes

COST = CostKey(model="llama 1", hardware="H200", precision="bfloat16", length_bucket=256, adapters="all")
KEY = MemoryKey.of(COST, ranks=(16, 4, 64), longest=700)


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
    assert read_passes(KEY, directory=tmp_path) is None
    assert write_passes(KEY, PASSES, directory=tmp_path)
    assert read_passes(KEY, directory=tmp_path) == PASSES
    forget_passes(KEY, directory=tmp_path)
    assert read_passes(KEY, directory=tmp_path) is None
    forget_passes(KEY, directory=tmp_path)


def test_a_key_tells_ranks_lengths_and_versions_apart(tmp_path: Path) -> None:
    write_passes(KEY, PASSES, directory=tmp_path)
    assert read_passes(MemoryKey.of(COST, ranks=(64, 4), longest=1024), directory=tmp_path) == PASSES
    others = [
        MemoryKey.of(COST, ranks=(64, 8), longest=700),
        MemoryKey.of(COST, ranks=(64, 4), longest=1025),
        MemoryKey.of(replace(COST, hardware="H100"), ranks=(64, 4), longest=700),
        replace(KEY, versions=("another", *KEY.versions[1:])),
    ]
    assert [read_passes(other, directory=tmp_path) for other in others] == [None] * len(others)


@pytest.mark.parametrize("damage", ["", "{", '{"version": 1}', "[]"])
def test_a_damaged_file_counts_as_absent(tmp_path: Path, damage: str) -> None:
    write_passes(KEY, PASSES, directory=tmp_path)
    next((tmp_path / "memory").iterdir()).write_text(damage)
    assert read_passes(KEY, directory=tmp_path) is None


@pytest.mark.parametrize(("name", "value"), [("correction", 0.5), ("peaks", []), ("checked_tokens", "many")])
def test_figures_that_cannot_be_count_as_absent(tmp_path: Path, name: str, value: object) -> None:
    write_passes(KEY, PASSES, directory=tmp_path)
    file = next((tmp_path / "memory").iterdir())
    content = json.loads(file.read_text())
    content["passes"][name] = value
    file.write_text(json.dumps(content))
    assert read_passes(KEY, directory=tmp_path) is None


def test_a_cache_that_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file where the folder should be")
    assert not write_passes(KEY, PASSES, directory=tmp_path)
    assert read_passes(KEY, directory=tmp_path) is None
