"""What is measured on a GPU: settings that keep every bit, and are kept only where they are faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.kernels.packed_linear.choice.own_table import FREE_SETTINGS
from cohort.kernels.packed_linear.choice.tiles import TileChoice

measuring = pytest.importorskip("cohort.kernels.packed_linear.choice.measuring")


def test_candidates_change_no_setting_that_changes_a_bit() -> None:
    now = replace(TileChoice(), input_rows=32)
    for piece, names in measuring._NAMES.items():
        assert set(names) <= set(FREE_SETTINGS)
        candidates = measuring._candidates(piece, now)
        assert candidates.pop("now") is now
        assert candidates.pop("default") == TileChoice()
        for tiles in candidates.values():
            changed = {name for name in vars(tiles) if getattr(tiles, name) != getattr(TileChoice(), name)}
            assert changed
            assert changed <= set(names)


def test_segments_fill_the_stream_and_end_anywhere() -> None:
    lengths = measuring._lengths(8192, 16)
    assert sum(lengths) == 8192
    assert len(lengths) == 16
    assert min(lengths) > 0
    assert sum(length % 64 != 0 for length in lengths) > 8


@pytest.mark.gpu
def test_a_linear_is_measured_and_its_settings_keep_the_bits() -> None:
    import torch

    device = torch.device("cuda")
    found = measuring.measure_linear(256, (256, 128), device=device)
    assert set(found.choice) <= set(FREE_SETTINGS)
    assert 0 < found.best_us <= found.default_us
    assert found.now_us > 0
    assert found.row["out_widths"] == [256, 128]
    # what is chosen is what was compared
    pack = measuring._pack(256, (256, 128), device=device)
    for piece in measuring._NAMES:
        wanted = [tensor.clone() for tensor in pack.work(piece, TileChoice())()]
        chosen = pack.work(piece, TileChoice(**found.choice))()
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(chosen, wanted, strict=True)), piece
