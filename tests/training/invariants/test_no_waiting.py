"""Nothing in the passes and the update of an optimizer step makes the host wait for the GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.spec import AdapterSpec
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows, save_llama

pytestmark = [
    pytest.mark.gpu,
    # torch says so whenever the mode is set; here a warning is an error
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, in which whatever waits for the device raises."""

    def call(*args: Any, **keywords: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return function(*args, **keywords)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return call


@pytest.mark.parametrize("graph_tokens", [0, 4096], ids=["launched", "recorded"])
def test_a_step_is_launched_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph_tokens: int) -> None:
    save_llama(tmp_path)
    decoder = load_decoder(tmp_path, dtype="bfloat16", device="cuda")
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=random_rows(40, seed=3),
        settings=ExecutorSettings(
            num_slots=2,
            num_rank_rows=64,
            token_budget=2000,
            evaluation_token_budget=2000,
            graph_tokens=graph_tokens,
        ),
        device="cuda",
        compute_dtype=decoder.dtype,
    )
    for trial_id, dropout in enumerate([0.0, 0.0 if graph_tokens else 0.1]):
        executor.load(
            TrialSpec(
                trial_id=trial_id,
                seed=trial_id,
                adapter=AdapterSpec(r=16, lora_alpha=32.0, lora_dropout=dropout),
                learning_rate=1e-3,
                batch_size=4,
                num_steps=40,
            )
        )
    # compiling, recording and the tables of optimizer states may wait
    for _ in range(20):
        executor.step()
    monkeypatch.setattr(executor._passes, "train", guarded(executor._passes.train))
    monkeypatch.setattr(type(executor.optimizer), "update", guarded(type(executor.optimizer).update))
    for _ in range(5):
        assert len(executor.step()) == 2
    # nor does anything around them: a step is launched while the one before it is computed
    launched = [guarded(executor.launch_step)() for _ in range(3)]
    assert [len(step.events()) for step in launched] == [2, 2, 2]
