"""Non-negative least squares against scipy's, exact lines found again, and what a model learns from passes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

from cohort.core.memory_records import PassKind, PassPeak, PassSize
from cohort.scheduling.pass_memory import (
    fit_passes,
    largest_that_fits,
    mean_error_percent,
    nonnegative_least_squares,
)


def sizes(count: int, *, seed: int = 0, regime: str = "plain") -> list[PassSize]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        lengths = [rng.randint(16, 1024) for _ in range(rng.randint(1, 16))]
        rows = -(-sum(lengths) // 16) * 16
        trained = int(rng.uniform(0.1, 1) * sum(lengths))
        found.append(
            PassSize(
                num_rows=rows,
                num_trained=trained,
                rank_entries=rows * rng.choice([16, 32, 64, 128]),
                head_bytes=min(trained, 512) * 4000,
                num_sequences=len(lengths),
                sum_squares=sum(length**2 for length in lengths),
                regime=regime,
            )
        )
    return found


def peak(size: PassSize, *, noise: float = 0.0, kind: PassKind = PassKind.TRAIN) -> PassPeak:
    """The loss head is the highest point of short passes, the backward pass that of long ones."""
    kept = 3e5 * size.num_rows + 120 * size.rank_entries
    forward = 1e7 + kept + 2 * size.head_bytes + 8e3 * size.num_trained
    backward = kept + 9e3 * size.num_rows + 200 * size.rank_entries
    return PassPeak(
        kind=kind,
        size=size,
        forward_bytes=int(forward * (1 + noise)),
        backward_bytes=int(backward * (1 + noise)) if kind is PassKind.TRAIN else 0,
    )


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_scipy_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    design, target = rng.normal(size=(12, 5)), rng.normal(size=12)
    ours, (theirs, residual) = nonnegative_least_squares(design, target), nnls(design, target)
    assert ours.min() >= 0
    # a term is left out that hardly helps: the residual is allowed as much
    assert np.linalg.norm(design @ ours - target) <= residual * 1.001 + 1e-9
    assert np.allclose(ours, theirs, atol=0.05)


def test_a_column_of_no_use_gets_nothing() -> None:
    x = np.linspace(1, 2, 9)
    assert nonnegative_least_squares(np.stack([x, -x], axis=1), x).tolist() == pytest.approx([1.0, 0.0])
    assert nonnegative_least_squares(np.stack([x], axis=1), -x).tolist() == [0.0]


def test_both_halves_of_a_pass_are_found_again() -> None:
    model = fit_passes([peak(size) for size in sizes(14)])
    held_out = [peak(size) for size in sizes(40, seed=1)]
    assert {found.forward_bytes > found.backward_bytes for found in held_out} == {True, False}
    assert model.error_percent(held_out) < 0.1
    (forward, backward) = model.lines[PassKind.TRAIN, "plain", False]
    assert min(*forward.coefficients, *backward.coefficients) >= 0


def test_noise_stays_noise() -> None:
    rng = random.Random(0)
    model = fit_passes([peak(size, noise=rng.uniform(-0.01, 0.01)) for size in sizes(40)])
    assert model.error_percent([peak(size) for size in sizes(40, seed=1)]) < 0.7


def test_regimes_and_kinds_have_their_own_lines() -> None:
    lean = [replace(peak(size), forward_bytes=10**6, backward_bytes=10**6) for size in sizes(12, regime="lean")]
    full = [peak(size) for size in sizes(12)]
    model = fit_passes([*lean, *full, *(peak(size, kind=PassKind.EVALUATE) for size in sizes(12))])
    assert model.error_percent([*lean, *full]) < 0.1
    unknown = replace(full[0].size, regime="never measured")
    assert model.predict(PassKind.TRAIN, unknown) == model.predict(PassKind.TRAIN, full[0].size)
    only_training = fit_passes(full)
    assert not only_training.knows(PassKind.EVALUATE)
    with pytest.raises(KeyError, match="no evaluation pass"):
        only_training.predict(PassKind.EVALUATE, unknown)


def test_a_model_never_predicts_less_than_it_saw() -> None:
    model = fit_passes([peak(size) for size in sizes(14)])
    more = [peak(size, noise=0.05 if index % 7 else 0.2) for index, size in enumerate(sizes(30, seed=2))]
    better = model.refitted(more)
    assert all(better.predict(found.kind, found.size) >= 0.999 * found.num_bytes for found in more)
    assert better.error_percent(more) < 25
    again = better.refitted([])
    assert again.correction == better.correction


def test_running_out_of_memory_corrects_it() -> None:
    model = fit_passes([peak(size) for size in sizes(14)])
    size = sizes(1, seed=5)[0]
    wanted = 1.5 * model.predict(PassKind.TRAIN, size)
    corrected = model.corrected(PassKind.TRAIN, size, at_least=wanted)
    assert corrected.predict(PassKind.TRAIN, size) == pytest.approx(wanted)
    assert corrected.corrected(PassKind.TRAIN, size, at_least=1.0) is corrected


def test_the_error_of_nothing_is_zero() -> None:
    assert mean_error_percent([]) == 0
    assert mean_error_percent([(99.0, 100.0), (102.0, 100.0)]) == pytest.approx(1.5)


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 64, 99, 100, 1000])
def test_the_largest_that_fits(limit: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= limit

    assert largest_that_fits(fits, at_most=100) == min(limit, 100)
    assert all(1 <= size <= 100 for size in asked)
    assert sum(size > limit for size in asked) <= 8, "each failure is a real out-of-memory error"
