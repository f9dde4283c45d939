"""The peer of one model over several GPUs: FSDP2 with PEFT's LoRA, which trains one adapter after the other.

transformers' Llama with random bfloat16 weights, each decoder layer a group of ``fully_shard``, no recomputation, SDPA
attention, AdamW on the shards: what a careful user of torch writes. An adapter's rows are divided over the ranks. A
rank without a row of its own repeats one, since every rank has to join the gathers. NCCL does not use NVLink's
multicast, here as in Cohort's own groups.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

__all__ = ["FsdpCase", "fsdp_steps"]


@dataclass(frozen=True, kw_only=True)
class FsdpCase:
    """What is trained.

    Attributes:
        config: The model's ``config.json``.
        num_ranks: GPUs, or processes on a CPU.
        batches: Rows of a step of one adapter; each is timed.
        length: Tokens of a row; the second half is trained.
        repeats: Steps that are timed, after two.
        r: Rank of the adapter, on all linears.
    """

    config: dict[str, Any]
    num_ranks: int
    batches: tuple[int, ...]
    length: int
    repeats: int = 6
    r: int = 16


def fsdp_steps(case: FsdpCase) -> list[dict[str, Any]]:
    """Return the median seconds of one adapter's step for each batch."""
    with tempfile.TemporaryDirectory(prefix="fsdp-") as folder:
        spawn(_rank, args=(case, folder), nprocs=case.num_ranks, join=True)
        found: list[dict[str, Any]] = json.loads((Path(folder) / "rows.json").read_text(encoding="utf-8"))
    return found


def _rank(rank: int, case: FsdpCase, folder: str) -> None:
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    torch.set_num_threads(1)
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=case.num_ranks
    )
    model = _model(case, device)
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    rows = []
    for batch in case.batches:
        own = -(-batch // case.num_ranks)
        tokens = torch.randint(0, case.config["vocab_size"], (own, case.length), device=device)
        labels = tokens.clone()
        labels[:, : case.length // 2] = -100
        seconds = []
        for turn in range(2 + case.repeats):
            _wait(device)
            dist.barrier()
            began = time.perf_counter()
            loss = model(input_ids=tokens, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            _wait(device)
            if turn >= 2:
                seconds.append(time.perf_counter() - began)
        peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
        rows.append({"batch": batch, "adapter_seconds": statistics.median(seconds), "peak_gib": peak})
        if rank == 0:
            print({"strategy": "fsdp in turn", **rows[-1]}, flush=True)
            (Path(folder) / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _model(case: FsdpCase, device: torch.device) -> torch.nn.Module:
    from peft import LoraConfig, get_peft_model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(**case.config)
    config._attn_implementation = "sdpa"
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device("meta"):
        base = LlamaForCausalLM(config).to(dtype)
        lora = LoraConfig(r=case.r, lora_alpha=2 * case.r, target_modules="all-linear", task_type="CAUSAL_LM")
        # one dtype for all parameters of a group, as fully_shard wants
        model = get_peft_model(base, lora, autocast_adapter_dtype=False).to(dtype)
    mesh = init_device_mesh(device.type, (case.num_ranks,))
    for layer in base.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local()
            if local.ndim == 1 or "norm" in name:
                local.fill_(1.0)
            elif "lora_B" in name:
                local.zero_()
            else:
                local.normal_(std=0.02)
    # its frequencies are a buffer, which was not computed on the meta device
    with device:
        base.model.rotary_emb = LlamaRotaryEmbedding(config=config)
    model.train()
    trained: torch.nn.Module = model
    return trained


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
