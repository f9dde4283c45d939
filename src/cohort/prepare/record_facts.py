"""The facts that a run's record begins with: its task, machine, kernels and data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from cohort.data.loading import LoadedDataset
from cohort.kernels.backend import describe_backend
from cohort.machine.kernel_choices import (
    attention_of,
    inside_products,
    linear_groups,
    plain_torch,
    product_name,
    tile_lines,
    tile_source,
)
from cohort.machine.machine import Machine, package_versions
from cohort.prepare.adapters.block_checks import adapted_shapes, has_blocks
from cohort.prepare.adapters.vector_checks import has_vectors
from cohort.prepare.base_model.model_computation import model_computation
from cohort.prepare.inputs import TaskInputs
from cohort.prepare.reference import reference_adapter_hash
from cohort.prepare.rows.data_notes import data_counts, data_problems
from cohort.prepare.trials import PlannedTrial
from cohort.runs.fact_groups import InputFacts, MachineFacts, TaskFacts
from cohort.runs.records import JsonValue
from cohort.tasks.possible_values import possible_values
from cohort.tasks.task_file import TaskFile
from cohort.tasks.trial_values import default_values
from cohort.tuning.evaluation_times import EvaluationPlan

__all__ = ["input_facts", "machine_facts", "row_facts", "task_facts"]


def task_facts(task: TaskFile, trials: Sequence[PlannedTrial], *, num_trials: int) -> TaskFacts:
    """Return what the record says of a task with these first trials, of ``num_trials`` that will be tried."""
    # a trial of the search may have exactly the values a user would train with: the report compares with it
    defaults, document = default_values(task), task.model_dump(mode="json")
    return TaskFacts(
        document=document,
        # sorted: the order of keys in a task file says nothing about the task
        task_hash=hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest(),
        objective=task.objective.type,
        training=_shared_training(task),
        default_trial_id=next(
            (t.spec.trial_id for t in trials if all(defaults[k] == v for k, v in t.configuration.items())), None
        ),
        warmup_fraction=task.early_exit_settings().warmup_fraction,
        kept_share=task.early_exit_settings().kept_share(num_trials),
    )


def machine_facts(machine: Machine, inputs: TaskInputs, *, token_budget: int) -> MachineFacts:
    device, config = machine.device, inputs.config
    linears = inputs.layout.linears
    groups = linear_groups(linears, targets=[path for path in inputs.target_modules if path in linears])
    # tiles depend on the rows of a full pass, so they are known only with the sizes
    tiles = tile_lines(device, groups, num_rows=token_budget)
    return MachineFacts(
        versions=dict(package_versions()),
        device=f"{device.type} ({machine.device_name})",
        precision=f"base model ({machine.precision}), float32 adapters",
        threads=machine.threads,
        backend=f"{describe_backend(device).backend.value}: {product_name(device)}{plain_torch(config, device)}",
        model=model_computation(config),
        attention=attention_of(config, device),
        tile_table=tile_source(device) if tiles else None,
        tiles=tuple(tiles) or None,
        term_inside=inside_products(device) if tiles else None,
        # a CPU has one way, which no run has to keep
        numerics=None if device.type == "cpu" else str(machine.numerics),
        numerics_reason=machine.numerics_reason or None,
    )


def row_facts(data: LoadedDataset) -> InputFacts:
    """Return what is known of the rows, without the model."""
    return InputFacts(
        data_hash=data.report.data_hash,
        data_format=data.report.format,
        is_chat=data.report.is_chat,
        data_counts=data_counts(data.report),
        data_problems=data_problems(data.report),
        # a resume compares these, of the rows that are used; the hashes of files only say what changed
        train_fingerprint=data.train.fingerprint,
        validation_fingerprint=data.validation.fingerprint,
        train_input=data.report.train_input,
        validation_input=data.report.validation_input,
        test_input=data.report.test_input,
        tokenizer_hash=data.report.tokenizer_hash,
        num_train_rows=len(data.train),
    )


def input_facts(task: TaskFile, inputs: TaskInputs, *, plan: EvaluationPlan, model_hash: str) -> InputFacts:
    saved = inputs.saved_modules(task)
    return replace(
        row_facts(inputs.data),
        # rows that no evaluation reads may change without a difference
        all_validation_input=inputs.data.report.all_validation_input if task.evaluation.finalists else None,
        model_hash=model_hash,
        target_modules=tuple(inputs.target_modules),
        # a rank tells the size of plain LoRA
        adapted_shapes=adapted_shapes(inputs.layout.linears) if has_blocks(task) or has_vectors(task) else None,
        whole_modules=None if saved is None else {"entries": saved.num_entries, "rank_rows": saved.num_rows},
        evaluation_rows=plan.num_rows,
        evaluation_times=plan.times,
        evaluation_cost_fraction=plan.cost_fraction,
        metric_functions=inputs.metric_functions or None,
        reference_adapter_hash=reference_adapter_hash(task),
        start_adapter_hash=None if inputs.start is None else inputs.start.sha256,
    )


def _shared_training(task: TaskFile) -> dict[str, JsonValue]:
    """Return the settings that all trials share, for the report and model cards."""
    searched = set(task.search.space)
    hidden = searched if has_blocks(task) else {*searched, "nblocks"}
    hidden = hidden if has_vectors(task) else {*hidden, "use_vera", "d_initial", "projection_prng_key"}
    if set(possible_values(task, "use_vera")) == {True}:
        # what VeRA does not read
        hidden = {*hidden, "lora_alpha", "use_rslora"}
    shared = {name: value for name, value in task.searchable_defaults().items() if name not in hidden}
    # a value that depends on another hyperparameter (2r) is kept as it is written
    plain: dict[str, JsonValue] = {
        name: value if isinstance(value, int | float | str | bool) else f"{value.factor:g}{value.parameter}"
        for name, value in shared.items()
    }
    if task.training.max_steps is not None:
        plain["max_steps"] = task.training.max_steps
    return plain
