"""The table of this machine: kept, merged, read by the choice of tiles behind the package's own; damage is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cohort.kernels.packed_linear.choice.own_table import own_rows, read_own_table, table_path, write_own_rows
from cohort.kernels.packed_linear.choice.tiles import (
    TileChoice,
    TileTableError,
    choose_tiles,
    describe_tiles,
    keep_measured,
)

GPU = "NVIDIA Test 9000 (PCIe)"


def row(in_features: int = 64, *, out_widths: tuple[int, ...] = (32, 16), **choice: int) -> dict[str, Any]:
    measured = {"default_us": 5.0, "best_us": 4.0}
    return {
        "in_features": in_features,
        "out_widths": list(out_widths),
        "min_rows": 0,
        "choice": choice,
        "measured": measured,
    }


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path))
    choose_tiles.cache_clear()
    yield tmp_path
    choose_tiles.cache_clear()


def test_rows_are_kept_by_shape_and_gpu() -> None:
    assert own_rows(GPU) == ()
    write_own_rows(GPU, [row(shrink_warps=8)])
    path = write_own_rows(GPU, [row(shrink_stages=3), row(128, expand_strip=512)])
    assert path == table_path(GPU)
    assert [(found["in_features"], found["choice"]) for found in own_rows(GPU)] == [
        (64, {"shrink_stages": 3}),
        (128, {"expand_strip": 512}),
    ]
    # a name that differs in other characters only is another GPU
    assert own_rows("NVIDIA Test 9000 PCIe") == ()


def test_the_choice_of_tiles_takes_them_where_the_package_has_none() -> None:
    shape = {"in_features": 64, "out_widths": (32, 16), "num_rows": 4096}
    assert choose_tiles(GPU, **shape) == TileChoice()
    assert "defaults (not measured here)" in describe_tiles(GPU, [(64, (32, 16))], num_rows=4096)[0]
    keep_measured(GPU, [row(shrink_warps=8)])
    assert choose_tiles(GPU, **shape) == TileChoice(shrink_warps=8)
    assert choose_tiles(GPU, in_features=64, out_widths=(32,), num_rows=4096) == TileChoice()
    assert "measured on this machine; shrink_warps=8" in describe_tiles(GPU, [(64, (32, 16))], num_rows=4096)[0]
    # the table of the package comes first
    known = {"in_features": 4096, "out_widths": (4096,), "num_rows": 8192}
    before = choose_tiles("NVIDIA H200", **known)
    write_own_rows("NVIDIA H200", [row(4096, out_widths=(4096,), shrink_warps=8)])
    choose_tiles.cache_clear()
    assert choose_tiles("NVIDIA H200", **known) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged"),
        ("[]", "is no table of tiles"),
        (json.dumps({"gpu": "another", "rows": []}), "is no table of tiles"),
        (json.dumps({"gpu": GPU, "rows": [{"in_features": 3}]}), "other keys"),
        (json.dumps({"gpu": GPU, "rows": [row(input_rows=32)]}), "settings that change results.*input_rows"),
        (json.dumps({"gpu": GPU, "rows": [row(expand_block=33)]}), "power of two"),
        (json.dumps({"gpu": GPU, "rows": [row(shrink_warps=-1)]}), "no positive number"),
        (json.dumps({"gpu": GPU, "rows": [{**row(), "out_widths": "wide"}]}), "no numbers"),
    ],
)
def test_a_damaged_table_is_named_and_runs_take_the_defaults(content: str, message: str) -> None:
    path = table_path(GPU)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(TileTableError, match=message):
        read_own_table(GPU)
    assert own_rows(GPU) == ()
    # measuring again replaces it
    write_own_rows(GPU, [row(shrink_warps=8)])
    assert [found["choice"] for found in own_rows(GPU)] == [{"shrink_warps": 8}]
