"""Prints which kernels packs launch that no worker was handed.

Run it with ``python -m tests.machine.compile_ahead.uncollected_launches``.

No kernel runs and none is compiled, so no GPU is needed: Triton believes in one, and each launch is only noted. What
passes compute is whatever was in memory.
"""

from __future__ import annotations

import importlib
import json
import pickle
import sys
import tempfile
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.kernels import backend
from cohort.machine.compile_ahead.launches import _Passes, _run, collect_launches, kinds_of_adapters
from cohort.machine.compile_ahead.workers import KernelCompiler, NamedGpu
from cohort.models.weights import load_decoder
from cohort.training.cuda_graphs.few_layers import few_layers
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama

PASS_TOKENS, STEP_TOKENS = (500, 60), (240, 120)
ADAPTERS = (
    AdapterSpec(r=16, lora_alpha=32.0),
    AdapterSpec(r=40, lora_alpha=32.0, lora_dropout=0.1),
    AdapterSpec(r=8, lora_alpha=32.0, use_dora=True),
    AdapterSpec(r=12, lora_alpha=32.0, lora_dropout=0.2, use_dora=True),
)


class Gpu(NamedGpu):
    """A Hopper of which Triton asks no more than this before it launches."""

    def get_current_stream(self, _device: int) -> int:
        return 0


class Notes(KernelCompiler):
    """Notes launches where others compile."""

    def __init__(self) -> None:
        self._compiling: dict[bytes, Future[None]] = {}
        self._jobs: dict[Hashable, bytes] = {}

    def _submit(self, *_: object) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def launches(self) -> set[tuple[str, str]]:
        """What was launched: names of kernels, and all that chooses their code.

        Not the jobs themselves: parts of equal ones are one object here and two there.
        """
        found = set[tuple[str, str]]()
        for job in self._compiling:
            _, name, signature, constants, *others = pickle.loads(job)
            own = {place: getattr(value, "cache_key", value) for place, value in constants.items()}
            found.add((name, str((signature, own, *others))))
        return found


def uncollected(numerics: Numerics, *, folder: Path) -> tuple[int, list[str], list[str]]:
    """Return how many kernels a task hands to workers, and the names of those that its packs launch besides.

    And of those besides that all kinds of passes launch, through the first layer and others, at each of the sizes.
    """
    decoder = load_decoder(folder, dtype="float32", device="cpu")
    ahead, later, exhaustive = Notes(), Notes(), Notes()
    kinds = kinds_of_adapters(ADAPTERS)
    named: Any = {"target_linears": decoder.linears, "usual": 25, "numerics": numerics}
    collect_launches(decoder, compiler=ahead, adapters=kinds, pass_tokens=PASS_TOKENS, step_tokens=STEP_TOKENS, **named)
    packs: Sequence[Sequence[AdapterSpec]] = [ADAPTERS, ADAPTERS[:1], ADAPTERS[-1:]]
    with later.collecting():
        for adapters in packs:
            train(decoder, adapters, numerics=numerics)
    sizes = dict.fromkeys((*PASS_TOKENS, *STEP_TOKENS), _Passes.ALL)
    with few_layers(decoder, layout=AdapterLayout(decoder.linears)), exhaustive.collecting():
        for adapters in [kinds, *([kind] for kind in kinds)]:
            _run(decoder, adapters, sizes=sizes, **named)
    others = [sorted(name for name, _ in notes.launches - ahead.launches) for notes in (later, exhaustive)]
    return len(ahead.launches), others[0], others[1]


def train(decoder: Any, adapters: Sequence[AdapterSpec], *, numerics: Numerics) -> None:
    rows = random_rows(20, seed=3)
    settings = ExecutorSettings(
        num_slots=len(adapters),
        num_rank_rows=sum(aligned_rank(adapter.num_rows) for adapter in adapters),
        token_budget=500,
        evaluation_token_budget=500,
        numerics=numerics,
    )
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=settings,
        device=decoder.device,
        compute_dtype=decoder.dtype,
    )
    spec = TrialSpec(trial_id=0, seed=0, adapter=adapters[0], learning_rate=1e-3, batch_size=2, num_steps=9)
    for trial_id, adapter in enumerate(adapters):
        executor.load(replace(spec, trial_id=trial_id, adapter=adapter))
    executor.step()
    executor.evaluate(executor.resident, rows=rows, row_ids=range(4))


def main() -> None:
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    importlib.import_module("triton.runtime.driver").driver.set_active(Gpu((9, 0)))
    # the operations take Triton's kernels on a CPU only where Python runs them
    backend.triton_interprets = lambda: True
    with tempfile.TemporaryDirectory() as folder, backend.use_backend(backend.Backend.TRITON):
        save_llama(Path(folder), hidden_size=96, num_layers=2)
        found = {str(numerics): uncollected(numerics, folder=Path(folder)) for numerics in Numerics}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
