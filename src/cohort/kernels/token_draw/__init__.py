"""Tokens drawn from logits, and what a token's logarithm of probability is, without a copy of the logits."""

from cohort.kernels.token_draw.op import draw_tokens, picked_logprobs

__all__ = ["draw_tokens", "picked_logprobs"]
