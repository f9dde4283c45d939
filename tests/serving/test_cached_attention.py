"""Decoding step by step from the cache gives what attention over the whole sequence gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.models.attention import causal_attention
from cohort.models.config import AttentionRule
from cohort.models.config_file import read_config
from cohort.serving.cached_attention import CachedRows, DecodeAttention, PrefillAttention
from cohort.serving.kv_blocks import KvBlocks
from tests.models.tiny_checkpoints import save_checkpoint

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
    prompts, total = (5, 17), (8, 20)
    q, k, v = (
        [torch.randn(length, heads, config.head_dim) for length in total]
        for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    )
    expected = [causal_attention(*(x[index][None] for x in (q, k, v)), rule=rule)[0] for index in range(len(total))]
    rows = [cache.take(2) for _ in total]

    def cached(lengths: list[int]) -> list[CachedRows]:
        return [CachedRows(rows=own, length=length) for own, length in zip(rows, lengths, strict=True)]

    prefill = PrefillAttention(cache, cached(list(prompts)), device=CPU)
    stream = [torch.cat([own[:length] for own, length in zip(x, prompts, strict=True)]) for x in (q, k, v)]
    found = prefill.attend(1, *stream, rule=rule).split(list(prompts))
    for ours, theirs, length in zip(found, expected, prompts, strict=True):
        torch.testing.assert_close(ours, theirs[:length])
    for step in range(3):
        places = [length + step for length in prompts]
        decode = DecodeAttention(cache, cached([place + 1 for place in places]), device=CPU)
        assert decode.num_positions == max(places) + 1
        newest = [torch.stack([own[place] for own, place in zip(x, places, strict=True)]) for x in (q, k, v)]
        for ours, theirs, place in zip(decode.attend(1, *newest, rule=rule), expected, places, strict=True):
            torch.testing.assert_close(ours, theirs[place])
