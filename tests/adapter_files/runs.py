"""Run directories without training: the model, the task and the facts that using an adapter needs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from cohort.adapter_files.base_model import RunBase
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import PeftAdapter, peft_tensors
from cohort.adapters.spec import AdapterSpec
from cohort.models.decoder import Decoder
from cohort.prepare.fingerprints import model_fingerprint
from cohort.runs.directory import RunDirectory
from cohort.runs.fact_groups import InputFacts, RunPlaces
from cohort.runs.facts import RunFacts, RunState
from cohort.runs.store import RunStore
from tests.end_to_end.tiny_tasks import tiny_task

__all__ = ["adapter_of", "base_of", "write_run"]


def write_run(folder: Path, *, state: RunState = RunState.DONE, **inputs: Any) -> RunDirectory:
    """Write the record of a run on the inputs in ``folder``."""
    directory = RunDirectory.create(folder / "run")
    task = tiny_task(folder)
    directory.task_file.write_text(task.resolved_yaml())
    recorded = {"model_hash": model_fingerprint(folder / "model"), "data_format": "prompt_completion", **inputs}
    with closing(RunStore.create(directory.database)) as store:
        store.set_facts(
            state=state,
            inputs=InputFacts(**{"is_chat": False, **recorded}),
            places=RunPlaces(run_directory=str(directory.root), base_model=task.model_name_or_path),
        )
    return directory


def base_of(folder: Path, *, task: dict[str, Any] | None = None, **inputs: Any) -> RunBase:
    """Return the base model in ``folder`` as that of a run with these inputs."""
    recorded = {"data_format": "prompt_completion", "is_chat": False, **inputs}
    return RunBase(
        task=tiny_task(folder, **(task or {})),
        directory=folder / "model",
        facts=RunFacts(inputs=InputFacts(**recorded)),
    )


def adapter_of(decoder: Decoder, *, r: int = 2, seed: int = 0, modules: tuple[str, ...] = ()) -> PeftAdapter:
    """Return an adapter of random weights on ``modules``; on all query projections if none are named."""
    chosen = modules or tuple(name for name in decoder.linears if name.endswith("q_proj"))
    layout = AdapterLayout({name: decoder.linears[name] for name in chosen})
    weights_rD = torch.randn(r, layout.width, generator=torch.Generator().manual_seed(seed))
    spec = AdapterSpec(r=r, lora_alpha=4.0 * r)
    return PeftAdapter(spec=spec, tensors=peft_tensors(layout, spec, weights_rD))
