"""How many blocks of keys and values a GPU has room for, measured with a pass of the largest size."""

from __future__ import annotations

import torch

from cohort.models.decoder import Decoder
from cohort.serving.adapter_pool import AdapterPool
from cohort.serving.engine import ServingEngine
from cohort.serving.kv_blocks import KvBlocks, blocks_for
from cohort.serving.ranks import ServingRanks
from cohort.serving.scheduler import SchedulerSettings
from cohort.serving.sequence import SequenceRequest

__all__ = ["device_block_count"]

# of the device's memory; the rest is for what the allocator cannot use and for other processes
_SHARE = 0.9


def device_block_count(
    decoder: Decoder, pool: AdapterPool, *, most_rows: int, ranks: ServingRanks | None = None
) -> int:
    """Return how many blocks fit next to the weights and the largest pass; other ranks have as much room."""
    context = decoder.config.max_position_embeddings
    lengths = [min(context - 1, most_rows - start) for start in range(0, most_rows, context - 1)]
    engine = ServingEngine(
        decoder,
        adapters=pool,
        num_blocks=sum(blocks_for(length + 1) for length in lengths),
        settings=SchedulerSettings(max_num_batched_tokens=most_rows, finds_prefixes=False, max_num_seqs=most_rows),
        ranks=ranks,
    )
    own = engine.num_cache_bytes
    torch.cuda.reset_peak_memory_stats(decoder.device)
    for length in lengths:
        engine.submit(SequenceRequest(prompt_tokens=[0] * length, max_new_tokens=1))
    while engine.has_work:
        engine.step()
    peak = torch.cuda.max_memory_allocated(decoder.device) - own
    del engine
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(decoder.device)
    taken_by_others = total - free - torch.cuda.memory_reserved(decoder.device)
    room = int(_SHARE * total) - taken_by_others - peak
    return room // KvBlocks.block_bytes(decoder.config, dtype=decoder.dtype)
