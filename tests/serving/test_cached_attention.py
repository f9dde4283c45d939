"""Chunks of prompts and steps of decoding give what attention over the whole sequences gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.models.attention import causal_attention
from cohort.models.config import AttentionRule
from cohort.models.config_file import read_config
from cohort.models.tiled_attention import TiledAttention, rounded_key_length
from cohort.serving.cached_attention import CachedAttention, NewPositions
from cohort.serving.kv_blocks import KvBlocks
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

RULES = [
    AttentionRule(),
    AttentionRule(window=7),
    AttentionRule(scale=0.7),
    AttentionRule(cap=1.5),
    AttentionRule(window=7, scale=0.7, cap=1.5),
]
CPU = torch.device("cpu")


@pytest.mark.parametrize("rule", RULES)
def test_prefill_and_decoding_equal_the_whole_sequences(rule: AttentionRule, tmp_path: Path) -> None:
    config = read_config(save_checkpoint(tmp_path, "Llama"))
    cache = KvBlocks(config, num_blocks=8, dtype=torch.float32, device=CPU)
    total = (8, 20)
    q, k, v = (
        [torch.randn(length, heads, config.head_dim) for length in total]
        for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    )
    expected = [causal_attention(*(x[index][None] for x in (q, k, v)), rule=rule)[0] for index in range(len(total))]
    blocks = [[1, 2], [5, 3]]
    chunks = [
        [(0, 5, True), (0, 16, True)],  # the second prompt in two chunks, beside a decode step of the first
        [(5, 1, False), (16, 1, True)],
        [(6, 1, False), (17, 1, False)],
        [(7, 1, False), (18, 2, False)][:1],
    ]
    for parts in chunks:
        new = [
            NewPositions(blocks=own, start=start, count=count, is_prompt=is_prompt)
            for own, (start, count, is_prompt) in zip(blocks, parts, strict=False)
        ]
        attention = CachedAttention(cache, new, device=CPU)
        assert attention.num_positions == max(start + count for start, count, _ in parts)
        stream = [
            torch.cat([own[start : start + count] for own, (start, count, _) in zip(x, parts, strict=False)])
            for x in (q, k, v)
        ]
        found = attention.attend(1, *stream, rule=rule).split([count for _, count, _ in parts])
        for ours, theirs, (start, count, _) in zip(found, expected, parts, strict=False):
            torch.testing.assert_close(ours, theirs[start : start + count])


def test_chunks_and_neighbours_change_no_bit_of_a_prompt(tmp_path: Path) -> None:
    config = read_config(save_checkpoint(tmp_path, "Llama"))
    length = 75
    q, k, v = (
        torch.randn(length, heads, config.head_dim)
        for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    )

    def outputs(ends: list[int], *, blocks: list[int], neighbour: bool) -> torch.Tensor:
        cache = KvBlocks(config, num_blocks=12, dtype=torch.float32, device=CPU)
        found, start = [], 0
        for end in ends:
            new = [NewPositions(blocks=blocks, start=start, count=end - start, is_prompt=True)]
            stream = [x[start:end] for x in (q, k, v)]
            if neighbour:
                new.append(NewPositions(blocks=[11, 12], start=0, count=20, is_prompt=True))
                stream = [torch.cat([x, torch.randn(20, *x.shape[1:])]) for x in stream]
            o = CachedAttention(cache, new, device=CPU).attend(0, *stream, rule=AttentionRule())
            found.append(o[: end - start])
            start = end
        return torch.cat(found)

    whole = outputs([length], blocks=[1, 2, 3, 4, 5], neighbour=False)
    assert torch.equal(outputs([16, 64, length], blocks=[7, 3, 9, 1, 2], neighbour=True), whole)


@pytest.mark.parametrize("rule", RULES)
def test_decoded_positions_in_whole_tiles_have_the_bits_of_tiled_attention(rule: AttentionRule, tmp_path: Path) -> None:
    config = read_config(save_checkpoint(tmp_path, "Llama"))
    cache = KvBlocks(config, num_blocks=8, dtype=torch.float32, device=CPU)
    length, prompt = 43, 21
    q, k, v = (
        torch.randn(length, heads, config.head_dim)
        for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    )
    found = []
    for start, count, is_prompt in [(0, prompt, True), *((place, 1, False) for place in range(prompt, length))]:
        new = [NewPositions(blocks=[4, 2, 7], start=start, count=count, is_prompt=is_prompt)]
        stream = [x[start : start + count] for x in (q, k, v)]
        if start % 3 == 0:
            # a neighbour in the same pass
            new.append(NewPositions(blocks=[1], start=5, count=1, is_prompt=False))
            stream = [torch.cat([x, torch.randn(1, *x.shape[1:])]) for x in stream]
        attention = CachedAttention(cache, new, device=CPU, whole_tiles=True)
        found.append(attention.attend(0, *stream, rule=rule)[:count])
    # among other sequences, and rows of none behind them
    around = [torch.cat([torch.randn(9, *x.shape[1:]), x, torch.randn(12, *x.shape[1:])]) for x in (q, k, v)]
    whole = TiledAttention((0, 9, 9 + length)).attend(0, *around, rule=rule)[9 : 9 + length]
    assert torch.equal(torch.cat(found), whole)
    torch.testing.assert_close(whole, causal_attention(q[None], k[None], v[None], rule=rule)[0])


def test_keys_are_read_up_to_a_rounded_length() -> None:
    assert [rounded_key_length(length, on_cpu=True) for length in (1, 32, 33, 512, 513)] == [32, 32, 64, 512, 640]
    assert rounded_key_length(33, on_cpu=False) == 256
