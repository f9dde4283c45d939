"""Block structures: which factor has blocks, how many parameters there are, and what does not fit."""

from __future__ import annotations

import pytest

from cohort.adapters.variants.block_diagonal import BlockDiagonal, BlockFactor, num_parameters, rank_of_equal_size

# one layer of Llama-3.1-8B and of 70B
LLAMA_8B = {
    "l.self_attn.q_proj": (4096, 4096),
    "l.self_attn.k_proj": (4096, 1024),
    "l.self_attn.v_proj": (4096, 1024),
    "l.self_attn.o_proj": (4096, 4096),
    "l.mlp.gate_proj": (4096, 14336),
    "l.mlp.up_proj": (4096, 14336),
    "l.mlp.down_proj": (14336, 4096),
}
LLAMA_70B = {
    **dict.fromkeys(("l.q_proj", "l.o_proj"), (8192, 8192)),
    **dict.fromkeys(("l.k_proj", "l.v_proj"), (8192, 1024)),
    **dict.fromkeys(("l.gate_proj", "l.up_proj"), (8192, 28672)),
    "l.down_proj": (28672, 8192),
}


@pytest.mark.parametrize(("nblocks", "of_8b", "of_70b"), [(2, 1.481, 1.477), (4, 1.951, 1.939), (8, 2.319, 2.298)])
def test_ranks_of_equal_size_are_those_of_the_real_shapes(nblocks: int, of_8b: float, of_70b: float) -> None:
    blocks = BlockDiagonal(nblocks=nblocks)
    for linears, factor in ((LLAMA_8B, of_8b), (LLAMA_70B, of_70b)):
        plain = num_parameters(linears, r=64, blocks=None)
        assert plain / num_parameters(linears, r=64, blocks=blocks) == pytest.approx(factor, abs=5e-4)
        rank = rank_of_equal_size(linears, r=64, blocks=blocks)
        assert rank % nblocks == 0
        # half a multiple of nblocks is the largest error of rounding
        assert abs(rank - 64 * factor) <= nblocks / 2 + 0.05


def test_what_pefts_lists_mean() -> None:
    blocks = BlockDiagonal(nblocks=2)
    kinds = {name.rsplit(".", 1)[-1]: blocks.factor_of(name) for name in LLAMA_8B}
    assert {name for name, kind in kinds.items() if kind is BlockFactor.A} == {"o_proj", "down_proj"}
    assert {name for name, kind in kinds.items() if kind is BlockFactor.B} == set(kinds) - {"o_proj", "down_proj"}
    # a part of a module's own name, never of its path
    part = BlockDiagonal(nblocks=2, target_modules_bd_a=("down",), target_modules_bd_b=("self_attn",))
    assert part.factor_of("l.mlp.down_proj") is BlockFactor.A
    assert part.factor_of("l.self_attn.q_proj") is None


def refused(blocks: BlockDiagonal, names: tuple[str, ...] = ("q_proj", "down_proj")) -> dict[str, str]:
    linears = {name: shape for name, shape in LLAMA_8B.items() if name.endswith(names)}
    return {".".join(map(str, refusal.at)): refusal.found for refusal in blocks.refusals(linears, known=LLAMA_8B)}


def test_what_does_not_fit_is_refused() -> None:
    assert refused(BlockDiagonal(nblocks=4)) == {}
    assert refused(BlockDiagonal(nblocks=3)) == {
        "nblocks": "3, which does not divide the 4096 outputs of q_proj, 14336 inputs of down_proj"
    }
    assert refused(BlockDiagonal(nblocks=2, target_modules_bd_a=("dwn_proj",)), names=("q_proj",)) == {
        "target_modules_bd_a": "'dwn_proj'"
    }
    assert refused(BlockDiagonal(nblocks=2, target_modules_bd_a=("q_proj",)), names=("q_proj",)) == {
        "target_modules_bd_b": "q_proj in both lists"
    }
    only_o = BlockDiagonal(nblocks=2, target_modules_bd_a=("o_proj",))
    assert "down_proj, which is adapted, in neither" in refused(only_o)["match_strict"]
    loose = BlockDiagonal(nblocks=2, target_modules_bd_a=("o_proj",), match_strict=False)
    assert refused(loose) == {}
    assert loose.width_of("l.mlp.down_proj", (14336, 4096)) == 14336 + 4096


def test_a_rank_that_blocks_do_not_divide_is_refused_with_the_nearest_that_they_do() -> None:
    refusal = BlockDiagonal(nblocks=4).rank_refusal(10)
    assert refusal is not None
    assert (refusal.found, refusal.hint) == ("4, which does not divide r 10", "Write r: 8, or another nblocks.")
    assert BlockDiagonal(nblocks=4).rank_refusal(12) is None
    with pytest.raises(ValueError, match="at least 2"):
        BlockDiagonal(nblocks=1)
