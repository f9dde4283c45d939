"""A model divided over ranks: logits and losses of one process, collectives as the table says.

Ranks are threads of this process, and once processes that talk through gloo.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import local_layout, shard_adapter
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal
from cohort.core.errors import InputError
from cohort.data.packing import PackedBatch, SlotSample, pack
from cohort.models.attention import PackedAttention
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.ranks.tensor.groups import DistributedGroup, OneRank, RankGroup
from cohort.ranks.tensor.tensor_decoder import load_tensor_decoder
from cohort.training.token_losses import token_losses
from tests.ranks.tensor.divided_models import save_divided_gemma2, save_divided_qwen2
from tests.ranks.tensor.thread_group import run_threads
from tests.training.small_models import random_rows

SWAPPED = BlockDiagonal(nblocks=2, target_modules_bd_a=COLUMN_PARALLEL, target_modules_bd_b=ROW_PARALLEL)
SPECS = (
    AdapterSpec(r=8, lora_alpha=16.0),
    AdapterSpec(r=8, lora_alpha=16.0, use_rslora=True, use_bdlora=BlockDiagonal(nblocks=4)),
    AdapterSpec(r=4, lora_alpha=16.0, use_bdlora=BlockDiagonal(nblocks=2)),
    AdapterSpec(r=8, lora_alpha=16.0, use_bdlora=SWAPPED),
    AdapterSpec(r=5, lora_alpha=8.0),
)


def whole_rows(layout: AdapterLayout, spec: AdapterSpec) -> Tensor:
    """Rank rows whose B is not zero, within the blocks."""
    rows = initial_weights(layout, spec, seed=spec.r, dtype=torch.float64)
    bank = AdapterBank(layout, num_slots=1, num_rank_rows=16, dtype=torch.float64)
    slot = bank.insert(spec, AdapterState(weights=rows))
    noise = torch.randn(rows.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    bank.grads_RD[bank.rank_rows(slot)] = 0.3 * noise
    bank.before_update((slot,))
    return rows + bank.grads_RD[bank.rank_rows(slot)]


def stream(num_slots: int) -> PackedBatch:
    """Two samples for each adapter and one of none."""
    rows = random_rows(2 * num_slots + 1, seed=6, longest=14)
    slots = [*sorted([*range(num_slots)] * 2), -1]
    samples = [SlotSample(slot=slot, sample=rows.sample(i)) for i, slot in enumerate(slots)]
    return pack(samples, num_slots=num_slots)


def run(decoder: Decoder, bank: AdapterBank, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Return the losses and the logits of a pass; gradients are in the bank."""
    losses_T = token_losses(decoder, batch, bank.context(batch.segments))
    losses_T.sum().backward()
    with torch.no_grad():
        hidden_TD = decoder.forward(
            batch.tokens_T,
            positions_T=batch.positions_T,
            attention=PackedAttention(batch.sequence_offsets),
            lora=bank.context(batch.segments),
        )
        return losses_T.detach(), decoder.logits(hidden_TD)


def bank_of(layout: AdapterLayout, adapters: list[tuple[AdapterSpec, Tensor]]) -> AdapterBank:
    bank = AdapterBank(layout, num_slots=len(adapters), num_rank_rows=16 * len(adapters), dtype=torch.float64)
    for spec, rows in adapters:
        bank.insert(spec, AdapterState(weights=rows))
    return bank


def on_rank(group: RankGroup, folder: Path) -> tuple[Tensor, Tensor, Counter[str]]:
    """Run the mixed pack on one rank; return losses, logits and what a forward pass exchanged."""
    decoder = load_tensor_decoder(folder, group, dtype=torch.float64)
    whole = AdapterLayout(dict(load_decoder(folder, dtype="float64").linears))
    shards = [shard_adapter(whole, spec, whole_rows(whole, spec), rank=group.rank, size=group.size) for spec in SPECS]
    bank = bank_of(local_layout(whole, rank=group.rank, size=group.size), [(s.spec, s.weights_rD) for s in shards])
    losses, logits = run(decoder, bank, stream(len(SPECS)))
    group.counts.clear()
    with torch.no_grad():
        batch = stream(len(SPECS))
        decoder.forward(
            batch.tokens_T,
            positions_T=batch.positions_T,
            attention=PackedAttention(batch.sequence_offsets),
            lora=bank.context(batch.segments),
        )
    return losses, logits, Counter(group.counts)


def expected_of(folder: Path) -> tuple[Tensor, Tensor]:
    decoder = load_decoder(folder, dtype="float64")
    layout = AdapterLayout(dict(decoder.linears))
    bank = bank_of(layout, [(spec, whole_rows(layout, spec)) for spec in SPECS])
    return run(decoder, bank, stream(len(SPECS)))


@pytest.mark.parametrize("save", [save_divided_qwen2, save_divided_gemma2], ids=["qwen2", "gemma2"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_mixed_pack_equals_one_process(tmp_path: Path, save: Callable[[Path], object], size: int) -> None:
    save(tmp_path)
    losses, logits = expected_of(tmp_path)
    found = run_threads(size, lambda group: on_rank(group, tmp_path))
    for own_losses, own_logits, counts in found:
        # sums in another order, in float64
        torch.testing.assert_close(own_losses, losses, rtol=0, atol=1e-10)
        torch.testing.assert_close(own_logits, logits, rtol=0, atol=1e-10)
        # two a layer of two layers, whatever kinds of adapters share the pass
        assert counts == (Counter(all_reduce=4) if size > 1 else Counter())
        assert torch.equal(own_losses, found[0][0])


def _process(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    losses, _, counts = on_rank(DistributedGroup(), Path(folder) / "model")
    torch.save((losses, dict(counts)), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 4])
def test_processes_that_talk_through_gloo_give_the_same(tmp_path: Path, size: int) -> None:
    save_divided_qwen2(tmp_path / "model")
    context = mp.get_context("fork")
    processes = [context.Process(target=_process, args=(rank, size, str(tmp_path))) for rank in range(size)]
    for process in processes:
        process.start()
    expected = expected_of(tmp_path / "model")[0]
    for process in processes:
        process.join(timeout=120)
        assert process.exitcode == 0
    for rank in range(size):
        losses, counts = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(losses, expected, rtol=0, atol=1e-10)
        assert counts == {"all_reduce": 4}


def test_a_degree_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    save_divided_qwen2(tmp_path)

    class Three(OneRank):
        size = 3

    with pytest.raises(InputError, match="3 ranks for a model with 8 attention heads, 4 key-value heads"):
        load_tensor_decoder(tmp_path, Three())
