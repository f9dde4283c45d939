"""An engine over a divided model: the tokens of one process, for every way in which an adapter can be divided.

Ranks are threads of this process; test_opening starts processes.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import CONFIG_FILE, WEIGHTS_FILE, serialised_weights
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal
from cohort.adapters.variants.block_factors import outside_blocks
from cohort.core.errors import InputError
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from cohort.ranks.calls import Call
from cohort.ranks.serving.divided_ranks import DividedRanks
from cohort.ranks.serving.serving_rank import ServingRank
from cohort.ranks.tensor.tensor_decoder import load_tensor_decoder
from cohort.serving.adapter_pool import AdapterPool
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from cohort.serving.engine import ServingEngine
from cohort.serving.sampler import Sampling
from cohort.serving.scheduler import SchedulerSettings
from cohort.serving.sequence import SequenceRequest
from tests.ranks.tensor.divided_models import save_divided_qwen2
from tests.ranks.tensor.thread_group import ThreadGroup

POOL = AdapterPoolSettings(max_loras=3, max_lora_rank=8, max_cpu_loras=4)
MLP = BlockDiagonal(
    nblocks=3, target_modules_bd_a=("down_proj",), target_modules_bd_b=("gate_proj", "up_proj"), match_strict=False
)
SWAPPED = BlockDiagonal(nblocks=2, target_modules_bd_a=COLUMN_PARALLEL, target_modules_bd_b=ROW_PARALLEL)
# by name, with what 2 and 4 ranks make of it
SPECS = {
    "lora": AdapterSpec(r=8, lora_alpha=16.0),
    "rslora": AdapterSpec(r=5, lora_alpha=8.0, use_rslora=True),
    "n2": AdapterSpec(r=4, lora_alpha=16.0, use_bdlora=BlockDiagonal(nblocks=2)),
    "n4": AdapterSpec(r=8, lora_alpha=16.0, use_bdlora=BlockDiagonal(nblocks=4)),
    "n8": AdapterSpec(r=8, lora_alpha=16.0, use_bdlora=BlockDiagonal(nblocks=8)),
    "swapped": AdapterSpec(r=8, lora_alpha=16.0, use_bdlora=SWAPPED),
    # 3 blocks fit neither degree, and are expanded
    "n3": AdapterSpec(r=6, lora_alpha=16.0, use_bdlora=MLP),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("divided")
    save_divided_qwen2(folder / "model")
    layout = layout_of(folder / "model")
    for index, (name, spec) in enumerate(SPECS.items()):
        write(folder / name, layout, spec, seed=index)
    # PEFT writes such files where its base is quantised: dense factors, and a flag that says blocks
    write(folder / "dense", layout, replace(SPECS["n4"], use_bdlora=None), seed=9, named=SPECS["n4"])
    return folder / "model"


def layout_of(model: Path) -> AdapterLayout:
    return AdapterLayout(linear_shapes(check_checkpoint(model)))


def write(
    folder: Path, layout: AdapterLayout, spec: AdapterSpec, *, seed: int, named: AdapterSpec | None = None
) -> None:
    rows = 0.3 * torch.randn(spec.r, layout.width, generator=torch.Generator().manual_seed(seed))
    if spec.use_bdlora is not None:
        n = spec.use_bdlora.nblocks
        rows.view(n, -1, layout.width).masked_fill_(outside_blocks(layout, spec.use_bdlora)[:, None], 0.0)
    folder.mkdir()
    (folder / WEIGHTS_FILE).write_bytes(serialised_weights(layout, spec, rows))
    config = adapter_config(named or spec, base_model="model", target_modules=["q_proj"])
    (folder / CONFIG_FILE).write_text(json.dumps(config))


class ThreadLink:
    """A rank that is a thread."""

    def __init__(self, rank: ServingRank, group: ThreadGroup) -> None:
        self.rank, self._group = rank, group
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, call: Call | None) -> None:
        self._calls.put(call)

    def close(self) -> None:
        self.ask(None)
        self._thread.join(60)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                assert not call.is_answered
                call.carried_out_by(self.rank)
            except BaseException:
                self._group.abort()
                raise


@contextmanager
def divided(model: Path, size: int) -> Iterator[tuple[ServingEngine, AdapterPool, ThreadGroup, list[ThreadLink]]]:
    groups, layout = ThreadGroup.of(size), layout_of(model)
    decoders = [load_tensor_decoder(model, group, dtype=torch.float64) for group in groups]
    links = []
    for rank in range(1, size):
        own = ServingRank(
            lambda rank=rank: decoders[rank],  # type: ignore[misc]
            rank=rank,
            size=size,
            num_slots=POOL.max_loras,
            num_rank_rows=POOL.num_rank_rows,
        )
        own.load(layout)
        links.append(ThreadLink(own, groups[rank]))
    ranks = DividedRanks(layout, links)
    pool = AdapterPool(decoders[0], settings=POOL, layout=layout, ranks=ranks)
    for name in (*SPECS, "dense"):
        pool.load(name, model.parent / name)
    # few blocks, so that sequences are preempted and come back; short passes, so that prompts come in chunks
    engine = ServingEngine(
        decoders[0],
        adapters=pool,
        num_blocks=6,
        settings=SchedulerSettings(max_num_batched_tokens=48, max_num_seqs=6),
        ranks=ranks,
    )
    yield engine, pool, groups[0], links
    pool.close()
    for link in links:
        link.close()


def requests(pool: AdapterPool) -> Iterator[SequenceRequest]:
    names = (None, *SPECS, "dense", "lora", None)
    for index, name in enumerate(names):
        yield SequenceRequest(
            prompt_tokens=[3 + (7 * index + 5 * place) % 40 for place in range(4 + 9 * (index % 5))],
            max_new_tokens=6 + 3 * (index % 4),
            adapter=None if name is None else pool.handle(name),
            sampling=Sampling(temperature=0.8) if index % 3 == 2 else Sampling(),
            seed=index,
        )


def answers(engine: ServingEngine, pool: AdapterPool) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {engine.submit(request): [] for request in requests(pool)}
    first = min(found)
    while engine.has_work:
        outputs = engine.step()
        for output in outputs:
            assert output.error is None
            if output.token is not None:
                found[output.number].append(output.token)
        if not outputs and not engine.scheduler.running:
            pool.wait_changed(0.02)
    return {number - first: tokens for number, tokens in found.items()}


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[int, list[int]]:
    with divided(model, 1) as (engine, pool, _, _):
        found = answers(engine, pool)
        assert engine.scheduler.num_preemptions > 0
        return found


@pytest.mark.parametrize("size", [2, 4])
def test_every_kind_of_adapter_is_answered_as_by_one_process(
    model: Path, expected: dict[int, list[int]], size: int
) -> None:
    with divided(model, size) as (engine, pool, group, links):
        assert answers(engine, pool) == expected
        assert engine.scheduler.num_preemptions > 0
        # the same again, from the prefix cache and with adapters in other slots
        assert answers(engine, pool) == expected
        group.counts.clear()
        engine.submit(SequenceRequest(prompt_tokens=[5, 6, 7], max_new_tokens=3, adapter=pool.handle("n4")))
        passes = 0
        while engine.has_work:
            passes += bool(engine.step())
        # two sums for each of two layers, whatever the adapter, and the parts of the logits
        assert group.counts == Counter(all_reduce=4 * passes, all_gather=passes)
        pool.unload("n4")
        assert not any(link.rank._computer is None or link.rank._computer._stored for link in links)


def test_other_ranks_forget_what_rank_0_has_forgotten(model: Path) -> None:
    with divided(model, 2) as (engine, pool, _, links):
        for name in (*SPECS, "dense"):
            pool.unload(name)
        engine.submit(SequenceRequest(prompt_tokens=[5, 6, 7], max_new_tokens=1))
        while engine.has_work:
            engine.step()
        assert not links[0].rank._kept


def test_adapters_that_cannot_be_divided_are_refused(model: Path) -> None:
    with divided(model, 2) as (_, pool, _, _):
        layout = layout_of(model)
        spec = AdapterSpec(r=4, lora_alpha=8.0, use_dora=True)
        rows = torch.randn(spec.num_rows, layout.width)
        (folder := model.parent / "dora").mkdir()
        (folder / WEIGHTS_FILE).write_bytes(serialised_weights(layout, spec, rows))
        config = adapter_config(spec, base_model="model", target_modules=["q_proj"])
        (folder / CONFIG_FILE).write_text(json.dumps(config))
        with pytest.raises(InputError, match=r"2 ranks cannot divide.*without --tensor-parallel-size"):
            pool.load("dora", folder)
