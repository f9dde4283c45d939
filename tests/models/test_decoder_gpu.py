"""The same decoder on a GPU: equal to transformers, and NaNs stay where they are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.models.attention import PackedAttention
from cohort.models.config import AttentionRule
from cohort.models.weights import load_decoder
from cohort.serving.generate import GenerateRequest, generate
from tests.models.fixtures.streams import num_rows, offsets_of, packed_logits
from tests.models.fixtures.tiny_checkpoints import reference_logits, save_checkpoint

pytestmark = pytest.mark.gpu

# of the largest number: what bfloat16 may be off by
ROUNDED = 0.05
# the same of the scores of experts, which stand behind half as many roundings and no head
SCORES_ROUNDED = 0.02
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 20},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 16},
    "Qwen3Moe": {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    # no kernel knows capped scores: plain torch on a GPU as well
    "Gemma2": {"head_dim": 16, "sliding_window": 20, "attn_logit_softcapping": 5.0},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, dtype: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, family, hidden_size=64, intermediate_size=176, **FAMILIES[family])
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(0, 67, (length,), generator=generator) for length in (1, 33, 128, 90)]
    decoder = load_decoder(folder, dtype=dtype, device="cuda")
    theirs = reference_logits(folder, sequences)
    near = near_ties(folder, sequences) if dtype == "bfloat16" and "num_experts" in FAMILIES[family] else None
    for number, (own_TV, their_TV) in enumerate(zip(packed_logits(decoder, sequences), theirs, strict=True)):
        # bfloat16: 8 bits of mantissa, a few dozen roundings on the way
        allowed = 1e-4 if dtype == "float32" else ROUNDED * their_TV.abs().max().item()
        is_close_T = ((own_TV.cpu().float() - their_TV).abs() <= allowed).all(dim=1)
        # a choice of experts jumps: a token near a tie may pass others than in float32
        assert bool((is_close_T if near is None else is_close_T | near[number]).all())


def near_ties(folder: Path, sequences: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return which tokens, in any layer, choose their last expert by less than two scores in bfloat16 may be off."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    count, found = model.config.num_experts_per_tok, list[torch.Tensor]()
    for tokens in sequences:
        with torch.no_grad():
            scores = model(tokens[None], output_router_logits=True).router_logits
        is_near_T = torch.zeros(len(tokens), dtype=torch.bool)
        for scores_TE in scores:
            best_TE = scores_TE.reshape(len(tokens), -1).sort(dim=1, descending=True).values
            is_near_T |= best_TE[:, count - 1] - best_TE[:, count] <= 2 * SCORES_ROUNDED * scores_TE.abs().max()
        found.append(is_near_T)
    # most tokens are far from a tie, so that the comparison says something
    assert torch.cat(found).float().mean() < 0.5
    return found


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_stays_in_its_sequence(dtype: torch.dtype, window: int | None) -> None:
    lengths = (40, 130, 256, 47)
    offsets = offsets_of(lengths)
    shape = (num_rows(lengths), 8, 64)
    generator = torch.Generator("cuda").manual_seed(0)
    streams = [torch.randn(shape, generator=generator, device="cuda", dtype=dtype) for _ in range(4)]

    def run(poison: int | None) -> list[torch.Tensor]:
        q, k, v, do = (stream.clone() for stream in streams)
        k, v = k[:, :4].clone(), v[:, :4].clone()
        for stream in (q, k, v, do):
            if poison is not None:
                stream[offsets[poison] : offsets[poison + 1]] = float("nan")
        for stream in (q, k, v):
            stream.requires_grad_()
        o = PackedAttention(offsets).attend(0, q, k, v, rule=AttentionRule(window=window))
        o.backward(do)
        results = [o.detach(), q.grad, k.grad, v.grad]
        return [result for result in results if result is not None]

    clean = run(None)
    for poison in range(len(lengths)):
        dirty = run(poison)
        for index, (start, stop) in enumerate(itertools.pairwise(offsets)):
            for a, b in zip(clean, dirty, strict=True):
                assert b[start:stop].isnan().all() if index == poison else torch.equal(a[start:stop], b[start:stop])
        assert all(torch.equal(a[offsets[-1] :], torch.zeros_like(a[offsets[-1] :])) for a in dirty)


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_gives_the_tokens_of_the_cpu(family: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, family, **FAMILIES[family])
    generator = torch.Generator().manual_seed(2)
    requests = [
        GenerateRequest(prompt_tokens=torch.randint(0, 67, (n,), generator=generator).tolist(), max_new_tokens=20)
        for n in (1, 5, 60, 17)
    ]
    on_cpu = generate(load_decoder(folder, dtype="float32"), requests, stop_ids=())
    on_gpu = generate(load_decoder(folder, dtype="float32", device="cuda"), requests, stop_ids=())
    assert on_gpu == on_cpu
