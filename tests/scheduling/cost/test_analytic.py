"""The first guess of a step against what was measured."""

import pytest

from cohort.scheduling.cost.analytic import ModelWork, analytic_interconnect, analytic_step_cost
from cohort.scheduling.cost.hardware import KNOWN_GPUS
from cohort.scheduling.cost.model import AdapterWork, LaunchRegime, derive_cost


def test_the_analytic_guess_is_near_what_an_h200_was_measured_at() -> None:
    work = ModelWork(
        flops_per_token=4 * 7.5e9,
        flops_per_square=1.5 * 4 * 4096 * 32,
        weight_bytes=16e9,
        rank_width=2_621_440,
        num_linears=224,
        num_layers=32,
        hidden_size=4096,
        bytes_per_value=2,
    )
    cost = analytic_step_cost(work, KNOWN_GPUS["H200"])
    # lora_tax: 450 ms for eight adapters of rank 16 and 8,192 tokens in sequences of 512
    pack = [AdapterWork(r=16, num_tokens=1024, sum_squares=2 * 512.0**2, num_sequences=2)] * 8
    assert cost.step_seconds(pack) == pytest.approx(0.45, rel=0.2)
    # launches and reads hide the first tokens
    assert cost.step_seconds([AdapterWork(r=16, num_tokens=64)]) < 0.03
    # 192 ms of launches were fitted to passes of 3,072 tokens and more
    regime = LaunchRegime(from_tokens=3072, tokens_per_pass=8192)
    launched = analytic_step_cost(work, KNOWN_GPUS["H200"], launched=regime)
    assert launched.step_seconds([AdapterWork(r=16, num_tokens=3072)]) == pytest.approx(0.2, rel=0.1)
    assert launched.step_seconds([AdapterWork(r=16, num_tokens=2000)]) == cost.step_seconds(
        [AdapterWork(r=16, num_tokens=2000)]
    )
    four = derive_cost(cost, num_gpus=4, interconnect=analytic_interconnect(work, KNOWN_GPUS["H200"]))
    assert 0.25 * cost.step_seconds(pack) < four.step_seconds(pack) < cost.step_seconds(pack)
