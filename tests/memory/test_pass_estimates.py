"""Estimates of passes are from above, and grow with their tokens."""

from __future__ import annotations

from cohort.memory.pass_estimates import LOSS_HEAD_BYTES, estimated_needs


def test_a_gpus_pass_is_its_activations_and_a_loss_head() -> None:
    needs = estimated_needs(1000, 10)
    assert needs.pass_bytes(2048) == 2048 * 1000 + LOSS_HEAD_BYTES
    assert needs.recomputed_bytes is not None
    assert needs.recomputed_bytes(2048) == 2048 * 10 + LOSS_HEAD_BYTES
    assert estimated_needs(1000).recomputed_bytes is None
