"""The fused block's tiles: one for every padded rank, and strips that are the same for all."""

from __future__ import annotations

from cohort.kernels.packed_mlp.choice import default_tiles


def test_every_padded_rank_has_tiles_that_cut_the_strip_evenly() -> None:
    tiles = default_tiles()
    assert sorted(tiles.by_class) == [16, 32, 64, 128]
    for own in tiles.by_class.values():
        assert tiles.forward_strip % own.forward_block == 0
        assert min(own.forward_stages, own.backward_stages) >= 2
