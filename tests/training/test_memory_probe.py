"""Profiling measures what training will take, finds what fits a limit, and changes no bit of what is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.core.memory_records import GradientCheckpointing, PassKind, PassPeak
from cohort.machine.measurements import KnownPasses
from cohort.memory.profile import MemoryProfile, profile_memory
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.scheduling.pass_memory import mean_error_percent
from cohort.training.memory_probe import MemoryProbe, ProbePass, probe_grid, probe_rows
from cohort.training.optimizers.optimizer import UnfinishedUpdateError
from tests.training.invariants.test_out_of_memory import executor_for, train
from tests.training.small_models import save_llama


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("model")
    save_llama(directory)
    return load_decoder(directory, dtype="float32", device="cpu")


def profiled(
    decoder: Decoder, *, room_bytes: float = 1e12, limit_bytes: int = 1 << 40, known: KnownPasses | None = None
) -> MemoryProfile | None:
    return profile_memory(
        decoder,
        layout=AdapterLayout(dict(decoder.linears)),
        ranks=[4, 16, 33, 8],
        usual=26,
        longest=50,
        room_bytes=room_bytes,
        most_tokens=512,
        memory_limit_bytes=limit_bytes,
        known=known,
    )


@pytest.fixture(scope="module")
def free(decoder: Decoder) -> MemoryProfile:
    """The profile without a limit, measured once."""
    profile = profiled(decoder)
    assert profile is not None
    return profile


def test_the_sweep_tells_the_terms_apart() -> None:
    grid = probe_grid([8, 16, 64], tokens=8192, longest=1000, usual=200)
    assert [probe.num_tokens for probe in grid] == sorted(probe.num_tokens for probe in grid)
    assert {probe.r for probe in grid} == {8, 64}
    assert max(probe.num_tokens for probe in grid) <= 8192 / 2
    assert len(grid) <= 16, "a profile takes seconds"
    rows = probe_rows(ProbePass(r=8, lengths=(10, 2, 7), trained_share=0.25), vocabulary=50)
    assert rows.lengths.tolist() == [10, 2, 7]
    assert [int(rows.sample(index).trained.sum()) for index in range(3)] == [2, 1, 2]
    assert not any(rows.sample(index).trained[0] for index in range(3))


@pytest.mark.parametrize("mode", [GradientCheckpointing.NEVER, GradientCheckpointing.ALWAYS])
def test_a_few_layers_tell_what_all_take(tmp_path: Path, mode: GradientCheckpointing) -> None:
    save_llama(tmp_path, num_layers=36)
    deep = load_decoder(tmp_path, dtype="float32", device="cpu")
    layers = deep.layers
    probe = MemoryProbe(
        deep,
        target_linears=dict(deep.linears),
        num_rank_rows=16,
        memory_limit_bytes=1 << 40,
        gradient_checkpointing=mode,
    )
    # tables that the first pass makes count as its own
    probe.measure(ProbePass(r=8, lengths=(10,)))
    for one in (ProbePass(r=8, lengths=(10, 12)), ProbePass(r=16, lengths=(40, 3), trained_share=0.25)):
        assert probe.measure(one) == probe.measure(one, through_all=True)
    assert deep.layers == layers


def test_passes_of_which_not_the_same_were_watched_are_run_through_all_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_llama(tmp_path, num_layers=36)
    deep = load_decoder(tmp_path, dtype="float32", device="cpu")
    probe = MemoryProbe(deep, target_linears=dict(deep.linears), num_rank_rows=16, memory_limit_bytes=1 << 40)
    one, measured = ProbePass(r=8, lengths=(10, 12)), MemoryProbe._measure
    probe.measure(one)

    def without_last(self: MemoryProbe, probe: ProbePass) -> tuple[tuple[PassPeak, ...], bool]:
        peaks, fits = measured(self, probe)
        return peaks[: 1 if len(deep.layers) == 6 else 2], fits

    monkeypatch.setattr(MemoryProbe, "_measure", without_last)
    found = probe.measure(one)
    assert len(found[0]) == 2
    assert found == probe.measure(one, through_all=True)


def test_held_out_steps_are_predicted(decoder: Decoder, free: MemoryProfile) -> None:
    assert free.fit_error_percent < 5
    executor = executor_for(decoder, token_budget=120, limit_bytes=1 << 40)
    executor.memory.observe_next(32)
    train(executor)
    peaks = executor.memory.take_peaks()
    assert {peak.kind for peak in peaks} == set(PassKind)
    pairs = [(free.model.predict(peak.kind, peak.size), peak.num_bytes) for peak in peaks]
    assert mean_error_percent(pairs) < 10, "tiny passes, of which rounding is a large part"
    assert all(measured <= 1.15 * predicted for predicted, measured in pairs)


def test_an_update_without_room_is_a_pass_that_does_not_fit(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = MemoryProbe(decoder, target_linears=dict(decoder.linears), num_rank_rows=16)
    one = ProbePass(r=8, lengths=(10, 12))

    def no_room(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")

    with monkeypatch.context() as patched:
        patched.setattr("cohort.training.optimizers.kinds.adamw.adamw_step", no_room)
        _, fits = probe.measure(one)
    assert not fits
    assert probe.measure(one)[1], "and the probe goes on"

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("launch failed")

    monkeypatch.setattr("cohort.training.optimizers.kinds.adamw.adamw_step", broken)
    with pytest.raises(UnfinishedUpdateError, match="launch failed"):
        probe.measure(one)


def test_what_is_said_to_fit_fits(decoder: Decoder, free: MemoryProfile) -> None:
    room = free.pass_bytes(192)
    limited = profiled(decoder, room_bytes=room)
    assert limited is not None
    assert 64 <= limited.largest_tokens <= 192
    assert limited.checked_tokens > 0


def test_what_is_known_is_not_measured_again(decoder: Decoder, free: MemoryProfile) -> None:
    assert free.num_passes > 10
    again = profiled(decoder, known=free.passes)
    assert again is not None
    assert again.num_passes == 0
    assert again.largest_tokens == free.largest_tokens
    assert again.pass_bytes(300) == free.pass_bytes(300)
    tighter = profiled(decoder, known=free.passes, room_bytes=free.pass_bytes(192))
    assert tighter is not None
    assert tighter.num_passes == 0, "a pass that is no larger than one that was run needs no check"
    assert 64 <= tighter.largest_tokens <= 192


def test_only_a_larger_pass_than_was_run_is_checked(decoder: Decoder, free: MemoryProfile) -> None:
    small = profiled(decoder, room_bytes=free.pass_bytes(128))
    assert small is not None
    larger = profiled(decoder, known=small.passes)
    assert larger is not None
    assert larger.num_passes == 2, "one to warm up, one to check"
    assert larger.checked_tokens > small.checked_tokens
    assert larger.largest_tokens == free.largest_tokens


def test_recomputed_passes_are_measured_where_the_longest_row_hardly_fits(
    decoder: Decoder, free: MemoryProfile
) -> None:
    assert not free.model.knows(PassKind.TRAIN, recomputed=True)
    takes = free.model.predict(PassKind.TRAIN, free.worst(50))
    # what is free when sizes are chosen, and what the allocator holds beyond its peak, may be those 3 %
    tight = profiled(decoder, known=free.passes, room_bytes=takes / 0.97)
    assert tight is not None
    assert tight.model.knows(PassKind.TRAIN, recomputed=True)
    assert tight.recomputed_bytes(50) < takes
    ample = profiled(decoder, known=free.passes, room_bytes=takes / 0.9)
    assert ample is not None
    assert not ample.model.knows(PassKind.TRAIN, recomputed=True)


def test_no_room_at_all_is_said(decoder: Decoder) -> None:
    assert profiled(decoder, limit_bytes=decoder.num_bytes) is None


def test_profiling_changes_no_bit(decoder: Decoder) -> None:
    before = torch.random.get_rng_state()
    undisturbed = executor_for(decoder)
    expected = train(undisturbed)
    executor = executor_for(decoder)
    profiled(decoder)
    found = train(executor)
    assert found[0] == expected[0]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[1], expected[1], strict=True))
    assert torch.equal(torch.random.get_rng_state(), before)
