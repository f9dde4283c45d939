"""Sizes of passes: nothing is recomputed that fits, what does not is first made smaller, and what is chosen fits."""

from __future__ import annotations

import pytest

from cohort.core.memory_records import GradientCheckpointing
from cohort.scheduling.pass_sizes import MemoryNeeds, PassSizes, choose_pass_sizes, row_too_long

# a token keeps 10 units, or 2 where layers are recomputed; the head takes 100
NEEDS = MemoryNeeds(
    pass_bytes=lambda tokens: 10.0 * tokens + 100,
    recomputed_bytes=lambda tokens: 2.0 * tokens + 100,
    graph_bytes=lambda tokens: 0.0,
)
SIZES = (4096, 2048, 1024)


def chosen(
    room: int,
    *,
    longest_row: int = 300,
    mode: GradientCheckpointing = GradientCheckpointing.AUTO,
    least_split: int = 512,
    needs: MemoryNeeds = NEEDS,
) -> PassSizes:
    return choose_pass_sizes(
        needs,
        room=room,
        least_bytes=1000,
        wanted_bytes=4000,
        sizes=SIZES,
        most_recorded=512,
        longest_row=longest_row,
        mode=mode,
        least_split=least_split,
    )


def test_nothing_is_recomputed_that_fits() -> None:
    roomy = chosen(100_000)
    assert (roomy.tokens, roomy.keep_tokens, roomy.num_bytes) == (4096, None, 41_060)
    assert roomy.evaluation_tokens == 8192
    tight = chosen(7000)
    assert (tight.tokens, tight.keep_tokens) == (512, None), "smaller passes come first"


def test_a_row_that_does_not_fit_is_recomputed_and_shorter_ones_are_not() -> None:
    sizes = chosen(20_000, longest_row=5000)
    assert sizes.tokens == 1024
    assert sizes.keep_tokens is not None
    assert sizes.tokens <= sizes.keep_tokens < 5000
    # what the pass takes is what its largest kept and its longest recomputed one take
    assert sizes.num_bytes == max(10 * 1024 + 100, 2 * 5000 + 100)
    assert 10 * sizes.keep_tokens + 100 <= sizes.num_bytes
    assert sizes.num_bytes + 1000 <= 20_000
    assert sizes.evaluation_tokens == 2048


def test_uselessly_small_passes_are_recomputed_on_a_gpu_and_not_on_a_cpu() -> None:
    assert chosen(4200, least_split=1) == PassSizes(tokens=256, keep_tokens=None, num_bytes=3100)
    gpu = chosen(4200)
    assert gpu.tokens == 1024
    assert gpu.keep_tokens is not None
    assert 256 <= gpu.keep_tokens < 512
    assert gpu.num_bytes + 1000 <= 4200
    assert gpu.evaluation_tokens == max(1024, 2 * gpu.keep_tokens)


def test_modes_are_kept() -> None:
    always = chosen(20_000, mode=GradientCheckpointing.ALWAYS)
    assert (always.tokens, always.keep_tokens, always.kept_tokens) == (4096, 0, 0)
    assert always.tokens > chosen(20_000).tokens
    assert always.evaluation_tokens == always.tokens
    never = chosen(20_000, longest_row=5000, mode=GradientCheckpointing.NEVER)
    assert never.keep_tokens is None
    assert never.num_bytes == 50_100
    unknown = MemoryNeeds(pass_bytes=NEEDS.pass_bytes)
    assert chosen(20_000, longest_row=5000, needs=unknown).keep_tokens is None
    assert chosen(20_000, mode=GradientCheckpointing.ALWAYS, needs=unknown).keep_tokens == 0


@pytest.mark.parametrize("room", range(1300, 60_000, 1777))
@pytest.mark.parametrize("longest_row", [10, 300, 2000, 9000])
@pytest.mark.parametrize("least_split", [1, 512])
def test_what_can_fit_does(room: int, longest_row: int, least_split: int) -> None:
    sizes = chosen(room, longest_row=longest_row, least_split=least_split)
    largest = max(sizes.tokens, longest_row)
    kept = largest if sizes.keep_tokens is None else min(largest, sizes.keep_tokens)
    assert sizes.num_bytes >= 10 * kept + 100
    assert sizes.num_bytes >= 2 * largest + 100
    if 2 * max(64, longest_row) + 100 + 1000 <= room:
        assert sizes.num_bytes + 1000 <= room
    if 10 * max(64, longest_row) + 100 + 1000 <= room and least_split == 1:
        assert sizes.keep_tokens is None


def test_a_row_that_fits_in_no_way_says_what_does() -> None:
    sizes = chosen(5000, longest_row=9000)
    problem = row_too_long(
        NEEDS, sizes, left=4000, longest_row=9000, source="rows.jsonl:7", mode=GradientCheckpointing.AUTO
    )
    assert problem is not None
    assert str(problem.where) == "dataset.max_length"
    assert "9,000 tokens (rows.jsonl:7)" in problem.found
    assert "every layer recomputed" in problem.found
    assert "rows of up to 1,950 tokens" in problem.allowed
    assert problem.hint.startswith("Set dataset.max_length to 1950 or less")
    kept = chosen(5000, longest_row=9000, mode=GradientCheckpointing.NEVER)
    never = row_too_long(
        NEEDS, kept, left=4000, longest_row=9000, source="rows.jsonl:7", mode=GradientCheckpointing.NEVER
    )
    assert never is not None
    assert "all its activations kept" in never.found
    assert never.hint.startswith("Set memory.gradient_checkpointing: auto, set dataset.max_length to 390 or less")
    assert row_too_long(NEEDS, sizes, left=150, longest_row=9000, source="", mode=GradientCheckpointing.AUTO) is None, (
        "the rank"
    )
    assert row_too_long(NEEDS, sizes, left=50_000, longest_row=9000, source="", mode=GradientCheckpointing.AUTO) is None
