"""What an adapter takes of the bank, what ranks share, and what a resumed run asks for again."""

from __future__ import annotations

from dataclasses import replace

from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD, SavedModules
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.memory.budget import too_large
from cohort.memory.size_inputs import SizeInputs, SizeRequest, rank_row_bytes
from cohort.runs.fact_groups import SizeFacts
from tests.memory.test_budget import LAYOUT_8B, gpu, grid


def test_a_rank_row_of_8b_is_what_arithmetic_says() -> None:
    assert LAYOUT_8B.width == 2_621_440
    # master, gradient and two moments in float32, and a bf16 copy
    assert rank_row_bytes(LAYOUT_8B, has_compute_copy=True) == 2_621_440 * 18


def test_executors_divide_the_trials_that_need_most() -> None:
    machine, specs = gpu(80), grid()
    whole, half = (
        SizeInputs(specs=specs, layout=LAYOUT_8B, machine=machine, longest_row=9, request=SizeRequest(num_ranks=ranks))
        for ranks in (1, 2)
    )
    assert whole.rows_by_need == sorted((spec.adapter.r for spec in specs), reverse=True)
    assert half.rows_by_need == whole.rows_by_need[: len(specs) // 2]


def test_whole_modules_take_weight_gradient_moments_and_copy() -> None:
    saved = SavedModules(names=(EMBEDDING, HEAD), vocab_size=128_256, hidden_size=4096, width=LAYOUT_8B.width)
    spec = grid()[0]
    whole = replace(spec, adapter=replace(spec.adapter, saved=saved))
    inputs = SizeInputs(specs=[spec, whole], layout=LAYOUT_8B, machine=gpu(80), longest_row=9)
    tables = (inputs.rows_by_need[0] - inputs.rows_by_need[1]) * inputs.row_bytes
    entries = 2 * 128_256 * 4096
    # 18 bytes an entry, up to two tiles of 16 rank rows
    assert 0 <= tables - 18 * entries < 32 * inputs.row_bytes
    assert inputs.most_rows == whole.adapter.num_rows


def test_a_resumed_run_asks_for_the_sizes_it_began_with() -> None:
    facts = SizeFacts(num_slots=3, rank_rows=64, token_budget=512)
    request = SizeRequest.recorded(facts, num_ranks=2)
    assert (request.num_slots, request.rank_rows, request.token_budget, request.num_ranks) == (3, 64, 512, 2)
    # a run that began without a group of ranks goes on so
    assert request.began_with == "replicas"


def test_blocks_take_a_byte_for_each_of_them_and_each_column() -> None:
    blocks = BlockDiagonal(nblocks=8)
    with_blocks = [replace(spec, adapter=replace(spec.adapter, use_bdlora=blocks)) for spec in grid()]
    inputs = SizeInputs(specs=[*grid(), *with_blocks], layout=LAYOUT_8B, machine=gpu(80), longest_row=512)
    assert inputs.mask_bytes == 8 * LAYOUT_8B.width
    assert SizeInputs(specs=grid(), layout=LAYOUT_8B, machine=gpu(80), longest_row=512).mask_bytes == 0


def test_a_state_of_whole_modules_that_does_not_fit_names_them() -> None:
    saved = SavedModules(names=(EMBEDDING, HEAD), vocab_size=128_256, hidden_size=4096, width=LAYOUT_8B.width)
    whole = replace(grid()[0].adapter, saved=saved)
    row_bytes = rank_row_bytes(LAYOUT_8B, has_compute_copy=True)
    problem = too_large(whole, row_bytes=row_bytes, room=8 << 30, free_bytes=9 << 30)
    assert "lora.modules_to_save" in str(problem.where)
    assert problem.found == "embed_tokens, lm_head, of which a trial's copy takes 19.0 GiB with its adapter"
    plain = too_large(replace(whole, saved=None), row_bytes=row_bytes, room=1 << 20, free_bytes=1 << 30)
    assert "search.space.r" in str(plain.where)
