"""A program for a GPU: prints what passes ask for, measured before their kernels are there and once they are.

In a process of its own, whose kernels nothing has loaded. Bytes are those that passes ask the allocator for: what it
gives them depends on the blocks that passes before have left.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from cohort.adapters.layout import AdapterLayout
from cohort.core.memory_records import GradientCheckpointing
from cohort.core.numerics import Numerics
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.memory.profile import profile_memory
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.objectives import DEFAULT_OBJECTIVE, objective_named
from cohort.training.objectives.objective import Objective
from tests.training.small_models import save_llama


def peaks(decoder: Decoder, *, numerics: Numerics, objective: Objective, mode: GradientCheckpointing) -> list[Any]:
    profile = profile_memory(
        decoder,
        layout=AdapterLayout(dict(decoder.linears)),
        ranks=[8, 40],
        usual=40,
        longest=300,
        longest_group=600,
        room_bytes=8 << 30,
        most_tokens=4096,
        gradient_checkpointing=mode,
        objective=objective,
        numerics=numerics,
    )
    assert profile is not None
    found = [
        [str(peak.kind), repr(peak.size), peak.forward_bytes, peak.backward_bytes] for peak in profile.model.samples
    ]
    return [*found, [profile.largest_tokens, profile.checked_tokens]]


def count_what_is_asked_for() -> None:
    """Let torch tell of the bytes asked for where it tells of those given; set up what the first product does."""
    torch.cuda.max_memory_allocated = lambda device=None: _asked_for("peak", device)
    torch.cuda.memory_allocated = lambda device=None: _asked_for("current", device)
    # the BLAS takes memory of its own for this thread and for the one of backward passes
    square = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    (square @ square).sum().backward()
    torch.cuda.synchronize()


def _asked_for(which: str, device: Any) -> int:
    return int(torch.cuda.memory_stats(device)[f"requested_bytes.all.{which}"])


def main() -> None:
    """Print how many kernels were handed over, and peaks of passes without launches and with them."""
    numerics, objective, mode = KINDS[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        save_llama(Path(folder), num_layers=12)
        decoder = load_decoder(Path(folder), dtype="bfloat16", device="cuda")
    count_what_is_asked_for()
    with KernelCompiler() as compiler:
        with compiler.collecting():
            before = peaks(decoder, numerics=numerics, objective=objective, mode=mode)
        num_kernels = len(compiler._jobs)
        with compiler.awaited():
            after = peaks(decoder, numerics=numerics, objective=objective, mode=mode)
    print(json.dumps([num_kernels, before, after]))


KINDS = {
    "exact": (Numerics.EXACT, DEFAULT_OBJECTIVE, GradientCheckpointing.AUTO),
    "fast": (Numerics.FAST, DEFAULT_OBJECTIVE, GradientCheckpointing.AUTO),
    "pairs": (Numerics.EXACT, objective_named("dpo"), GradientCheckpointing.AUTO),
    "recomputed": (Numerics.EXACT, DEFAULT_OBJECTIVE, GradientCheckpointing.ALWAYS),
}

if __name__ == "__main__":
    main()
