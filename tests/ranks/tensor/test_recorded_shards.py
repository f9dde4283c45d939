"""Passes of shards as CUDA graphs on two GPUs, their sums over the ranks among what is recorded."""

from __future__ import annotations

import faulthandler
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.ranks.tensor.groups import DistributedGroup
from cohort.ranks.tensor.sharded_executor import ShardedExecutor
from cohort.ranks.tensor.tensor_decoder import load_tensor_decoder
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama

ROWS = random_rows(40, seed=3)
# a cold cache of kernels is filled first, by each rank for itself
MOST_SECONDS = 100.0


def _trained(folder: Path, group: DistributedGroup, *, graph_tokens: int) -> dict[str, Any]:
    decoder = load_tensor_decoder(folder, group, device="cuda")
    executor = ShardedExecutor(
        decoder,
        group,
        layout=AdapterLayout(linear_shapes(read_config(folder))),
        train_rows=ROWS,
        settings=ExecutorSettings(
            num_slots=3,
            num_rank_rows=64,
            token_budget=4096,
            evaluation_token_budget=4096,
            graph_tokens=graph_tokens,
        ),
    )
    spec = TrialSpec(
        trial_id=0,
        seed=0,
        adapter=AdapterSpec(r=8, lora_alpha=16.0),
        learning_rate=1e-3,
        batch_size=2,
        num_steps=20,
        max_grad_norm=1.0,
    )
    for trial_id in range(2):
        executor.load(replace(spec, trial_id=trial_id, seed=trial_id))
    events = [event for _ in range(10) for event in executor.step()]
    captured = executor.captured
    found = {
        "losses": [event.loss for event in events],
        "norms": [event.grad_norm for event in events],
        "evaluated": [executor.evaluate([0, 1], rows=ROWS, row_ids=range(9))[0].loss for _ in range(4)][-1],
        "replays": 0 if captured is None else captured.num_replays,
    }
    # NCCL does not end a group while there are graphs with its messages
    assert executor.make_room() == (captured is not None)
    return found


def _rank(rank: int, folder: str) -> None:
    # ranks that wait for each other raise nothing: they say where they wait before they are ended
    with Path(folder, f"{rank}.stacks").open("w", encoding="utf-8") as stacks:
        faulthandler.dump_traceback_later(MOST_SECONDS / 5, repeat=True, file=stacks)
        try:
            _train_both(rank, folder)
        except BaseException:
            Path(folder, f"{rank}.txt").write_text(traceback.format_exc(), encoding="utf-8")
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()


def _train_both(rank: int, folder: str) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=2, device_id=device)
    group = DistributedGroup()
    found = [_trained(Path(folder), group, graph_tokens=graph_tokens) for graph_tokens in (0, 4096)]
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.timeout(150)
def test_recorded_shards_train_like_launched_ones(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    # two shards of heads and of a width that the kernels take
    save_llama(tmp_path, hidden_size=96, num_layers=3)
    processes = [mp.get_context("spawn").Process(target=_rank, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in processes:
        process.start()
    ends = time.monotonic() + MOST_SECONDS
    for process in processes:
        process.join(max(0.1, ends - time.monotonic()))
    late = [process.is_alive() for process in processes]
    for process in processes:
        process.kill()
        process.join()
    said = [path.read_text(encoding="utf-8") for path in sorted(tmp_path.glob("?.txt"))]
    if any(late):
        said += [path.read_text(encoding="utf-8")[-8000:] for path in sorted(tmp_path.glob("?.stacks"))]
    assert not said, "\n".join(said)
    assert [process.exitcode for process in processes] == [0, 0]
    (launched, recorded), theirs = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    assert theirs == [launched, recorded], "ranks agree to the bit"
    assert recorded["replays"] >= 8
    assert launched["replays"] == 0
    assert recorded["losses"] == pytest.approx(launched["losses"], rel=1e-5)
    # AdamW makes a step of the learning rate's size of the rounding of a small gradient
    assert recorded["norms"] == pytest.approx(launched["norms"], rel=2e-3)
    assert recorded["evaluated"] == pytest.approx(launched["evaluated"], rel=1e-5)
