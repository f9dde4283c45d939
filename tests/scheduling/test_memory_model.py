"""Bytes by hand, the fit on exact and on noisy passes, and the search for the largest pass."""

from __future__ import annotations

import random

import pytest

from cohort.scheduling.memory_model import (
    ActivationPeak,
    AdaptedLinear,
    AdapterSharding,
    MemoryModel,
    PeakSample,
    Sharding,
    StatePrecision,
    adapter_state_bytes,
    base_shard_bytes,
    fit_activation_peak,
    largest_that_fits,
)

COLUMN = AdaptedLinear(in_features=64, out_features=128)
ROW = AdaptedLinear(in_features=128, out_features=64, is_row_parallel=True)


def state(linear: AdaptedLinear, **how: object) -> int:
    return adapter_state_bytes([linear], r=8, num_layers=4, sharding=Sharding(**how))  # type: ignore[arg-type]


def test_each_array_is_counted_once() -> None:
    entries = 8 * (64 + 128) * 4
    assert state(COLUMN) == entries * (4 + 4 + 2 * 4)
    mixed = StatePrecision(weight=2, gradient=2, moment=4, master=4)
    assert adapter_state_bytes([COLUMN], r=8, num_layers=4, precision=mixed) == entries * (2 + 2 + 8 + 4)


@pytest.mark.parametrize("linear", [COLUMN, ROW])
def test_tensor_parallelism_divides_only_sharded_factors(linear: AdaptedLinear) -> None:
    # both have the whole side 64 and the sharded side 128
    def entries(scheme: AdapterSharding) -> int:
        return state(linear, tensor=4, scheme=scheme) // 16 // 4

    assert entries(AdapterSharding.MEGATRON) == 8 * 64 + 8 * 32
    assert entries(AdapterSharding.S_LORA) == 2 * 64 + 8 * 32
    assert entries(AdapterSharding.BLOCK_DIAGONAL) == 2 * 64 + 2 * 32


def test_what_the_other_axes_divide() -> None:
    whole = state(COLUMN)
    assert state(COLUMN, pipeline=3) == whole // 4 * 2, "the fullest of 3 stages has 2 of 4 layers"
    assert state(COLUMN, adapter=8) == whole, "a trial's state stays whole on its GPU"
    assert state(COLUMN, zero_stage=1, data=4) == whole // 16 * (2 + 4 + 4)
    assert state(COLUMN, zero_stage=2, data=4) == whole // 16 * (2 + 1 + 4)
    assert state(COLUMN, zero_stage=3, data=4) == whole // 16 * (2 + 1 + 1)
    assert base_shard_bytes(1000, sharding=Sharding(tensor=2, adapter=5)) == 100
    assert base_shard_bytes(1000, sharding=Sharding(zero_stage=2, data=4)) == 1000
    assert base_shard_bytes(1000, sharding=Sharding(zero_stage=3, data=4)) == 250


def test_wrong_degrees_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Sharding(tensor=0)
    with pytest.raises(ValueError, match="zero_stage"):
        Sharding(zero_stage=4)


def samples(*, noise: float, seed: int = 0) -> list[PeakSample]:
    rng = random.Random(seed)
    found = []
    for _ in range(40):
        lengths = [rng.randint(16, 2048) for _ in range(rng.randint(1, 8))]
        tokens, squares = sum(lengths), sum(length**2 for length in lengths)
        peak = 5e8 + 1.5e5 * tokens + 12.0 * squares
        found.append(
            PeakSample(num_tokens=tokens, sum_squares=squares, peak_bytes=peak * (1 + rng.uniform(-noise, noise)))
        )
    return found


def test_the_fit_finds_exact_coefficients() -> None:
    fit = fit_activation_peak(samples(noise=0))
    assert fit.peak.fixed_bytes == pytest.approx(5e8, rel=1e-6)
    assert fit.peak.bytes_per_token == pytest.approx(1.5e5, rel=1e-6)
    assert fit.peak.bytes_per_square == pytest.approx(12.0, rel=1e-6)
    assert fit.held_out_error_percent < 1e-6
    assert (fit.num_fitted, fit.num_held_out) == (30, 10)


def test_noise_shows_in_the_held_out_error() -> None:
    fit = fit_activation_peak(samples(noise=0.02))
    # a uniform error of 2 % has a mean of 1 %
    assert 0.3 < fit.held_out_error_percent < 2


def test_a_square_term_that_would_be_negative_is_none() -> None:
    falling = [
        PeakSample(num_tokens=n, sum_squares=n * n, peak_bytes=1e6 + 1e4 * n - 0.5 * n * n)
        for n in range(100, 2000, 50)
    ]
    assert fit_activation_peak(falling).peak.bytes_per_square == 0


def test_too_few_passes_are_refused() -> None:
    with pytest.raises(ValueError, match="a fit needs 3 passes"):
        fit_activation_peak(samples(noise=0)[:2])


def test_what_fits() -> None:
    peak = ActivationPeak(fixed_bytes=100, bytes_per_token=1)
    model = MemoryModel(gpu_bytes=1000, base_bytes=500, activations=peak, load_factor=0.8)
    assert model.room_bytes == pytest.approx(300)
    assert model.fits(num_tokens=150, state_bytes=50)
    assert not model.fits(num_tokens=151, state_bytes=50)
    with pytest.raises(ValueError, match="load_factor"):
        MemoryModel(gpu_bytes=1, base_bytes=0, activations=peak, load_factor=1.5)


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 64, 99, 100, 1000])
def test_the_largest_that_fits(limit: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= limit

    assert largest_that_fits(fits, at_most=100) == min(limit, 100)
    assert all(1 <= size <= 100 for size in asked)
    assert sum(size > limit for size in asked) <= 8, "each failure is a real out-of-memory error"
