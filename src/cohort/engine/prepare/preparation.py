"""Everything a run needs before its first step: data, model, trials and sizes, from a task file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.adapters.layout import AdapterLayout
from cohort.core.clock import Clock
from cohort.core.errors import InputError, Problem
from cohort.core.memory_records import GradientCheckpointing
from cohort.core.seeds import derive_seed
from cohort.data.loading import LoadedDataset
from cohort.data.tokenised import TokenisedRows
from cohort.engine.machine.kernel_choices import (
    attention_name,
    inside_products,
    linear_groups,
    plain_torch,
    product_name,
    tile_lines,
    tile_source,
)
from cohort.engine.machine.machine import Machine, choose_machine, package_versions
from cohort.engine.memory.plan import MemoryPlan, plan_memory
from cohort.engine.memory.sizes import SizeRequest, Sizes, choose_sizes, recomputed_note, size_facts
from cohort.engine.prepare.data_notes import data_counts, data_problems, split_notes
from cohort.engine.prepare.inputs import TaskInputs, read_inputs
from cohort.engine.prepare.proposals import TrialProposals
from cohort.engine.prepare.trials import PlannedTrial, default_configuration, evaluation_note, plan_evaluation
from cohort.kernels.backend import describe_backend
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.runs.facts import Activity, InputFacts, MachineFacts, PassFacts, RunFacts, TaskFacts
from cohort.runs.records import JsonValue
from cohort.tasks.task_file import TaskFile
from cohort.training.executor import Executor
from cohort.training.objectives import OBJECTIVES
from cohort.training.trial import TrialSpec
from cohort.tuning.evaluation_times import EvaluationPlan

__all__ = ["Backbone", "Preparation", "prepare"]


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A base model that is loaded already.

    Attributes:
        decoder: The model.
        model_hash: Of its files.
        memory: What passes through it take, as it was measured for the first task.
        sizes: Of the executor it is in, if it is in one.
    """

    decoder: Decoder
    model_hash: str
    memory: MemoryPlan
    sizes: Sizes | None = None

    def require_same(self, task: TaskFile, *, directory: Path, machine: Machine) -> None:
        """Refuse a task of another base model or device.

        Raises:
            InputError: the files in ``directory`` are others, or ``machine`` trains on another device.
        """
        device, own = self.memory.machine.device.type, machine.device.type
        if device != own:
            raise InputError(
                Problem(
                    where=task.where("num_gpus"),
                    found=f"{own}, where the tasks it should run beside train on {device}",
                    allowed="one device for all",
                    hint="Write the same num_gpus.",
                )
            )
        if model_fingerprint(directory) != self.model_hash:
            raise InputError(
                Problem(
                    where=task.where("model_name_or_path"),
                    found=f"{task.model_name_or_path}, another base model than that of the tasks it should run beside",
                    allowed="the same weights and configuration",
                    hint="Tune it in a session of its own.",
                )
            )


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A task that is ready to run.

    Attributes:
        task: The task.
        machine: Device and precision.
        model_directory: Local files of the base model.
        tokenizer: The base model's tokenizer.
        decoder: The frozen backbone.
        data: Tokenised rows and what was found in them.
        proposals: Its trials: the first ones, and those that follow from results.
        evaluation_rows: Validation rows that every evaluation uses.
        target_modules: Full paths of the adapted linears.
        sizes: Of the executor.
        memory: What the sizes were chosen by.
        facts: For the run record.
        notes: What the user may want to know before training begins.
    """

    task: TaskFile
    machine: Machine
    model_directory: Path
    tokenizer: Any
    decoder: Decoder
    data: LoadedDataset
    proposals: TrialProposals
    evaluation_rows: tuple[int, ...]
    target_modules: tuple[str, ...]
    sizes: Sizes
    memory: MemoryPlan
    facts: RunFacts
    notes: tuple[str, ...] = ()

    @property
    def layout(self) -> AdapterLayout:
        """Where the adapted linears stand in a rank row."""
        return AdapterLayout({name: self.decoder.linears[name] for name in self.target_modules})

    @property
    def backbone(self) -> Backbone:
        """Its base model, for tasks that are to share it."""
        model_hash = self.facts.inputs.model_hash
        assert model_hash is not None, "prepare() hashes the files of the model"
        return Backbone(decoder=self.decoder, model_hash=model_hash, memory=self.memory)

    def build_executor(self) -> Executor:
        """Allocate the bank beside the backbone."""
        return Executor(
            self.decoder,
            target_linears=self.layout.linears,
            train_rows=self.data.train,
            settings=self.sizes.executor,
            device=self.machine.device,
            compute_dtype=self.decoder.dtype,
            memory_limit_bytes=self.memory.limit_bytes,
            objective=OBJECTIVES[self.task.objective],
        )


def prepare(
    task: TaskFile,
    *,
    clock: Clock,
    say: Callable[[str], None] = lambda _: None,
    request: SizeRequest | None = None,
    also: Sequence[Problem] = (),
    backbone: Backbone | None = None,
) -> Preparation:
    """Read data and model of ``task`` and plan its trials; nothing is trained or written but caches.

    Args:
        task: The validated task.
        clock: Measures how long reading takes.
        say: Told, in one line each, what is being done.
        request: Sizes to use where the machine allows it.
        also: Problems that are known already, to be listed with the others.
        backbone: The same base model, where it is loaded already.

    Raises:
        InputError: anything is wrong with the data, the model or the search space; all of it.
    """
    started, also, machine = clock.monotonic(), list(also), None
    try:
        machine = choose_machine(task.num_gpus, where=task.where("num_gpus"))
    except InputError as error:
        also += error.problems
    say("reading and tokenising the data")
    inputs = read_inputs(task, also=also, machine=machine)
    assert machine is not None, "what kept it from being chosen was raised"
    data, target_modules, tokenised = inputs.data, inputs.target_modules, clock.monotonic()
    say(f"loading {task.model_name_or_path}")
    decoder = _load(task, machine, directory=inputs.model_directory, backbone=backbone)
    proposals = TrialProposals(task, num_rows=len(data.train), num_tokens=int(data.train.offsets[-1]))
    loaded = clock.monotonic()
    layout = AdapterLayout({name: decoder.linears[name] for name in target_modules})
    memory = backbone.memory if backbone else plan_memory(
        task, machine=machine, decoder=decoder, layout=layout, specs=proposals.largest(), rows=data.train, clock=clock,
        say=say,
    )  # fmt: skip
    machine = memory.machine
    sizes = (backbone.sizes if backbone else None) or _sizes(
        task, memory, layout=layout, specs=proposals.largest(), rows=data.train, request=request or SizeRequest()
    )
    plan = plan_evaluation(task, proposals.first, validation=data.validation)
    note = evaluation_note(plan, task=task, num_available=len(data.validation))
    facts = RunFacts(
        task=_task_facts(task, proposals.first),
        machine=_machine_facts(machine, decoder, target_modules=target_modules, sizes=sizes),
        inputs=_input_facts(inputs, plan=plan),
        sizes=size_facts(sizes),
        memory=memory.facts(),
        passes=PassFacts(recomputed_above_tokens=sizes.executor.keep_tokens),
        seconds={Activity.TOKENISE: tokenised - started, Activity.LOAD: loaded - tokenised},
    )
    return Preparation(
        task=task,
        machine=machine,
        model_directory=inputs.model_directory,
        tokenizer=inputs.tokenizer,
        decoder=decoder,
        data=data,
        proposals=proposals,
        evaluation_rows=_choose_rows(task, data.validation, wanted=plan.num_rows),
        target_modules=target_modules,
        sizes=sizes,
        facts=facts,
        memory=memory,
        notes=_told(*split_notes(data.report), note, memory.note(), recomputed_note(sizes, data.train.lengths)),
    )


def _told(*lines: str | None) -> tuple[str, ...]:
    return tuple(line for line in lines if line is not None)


def _sizes(
    task: TaskFile,
    memory: MemoryPlan,
    *,
    layout: AdapterLayout,
    specs: Sequence[TrialSpec],
    rows: TokenisedRows,
    request: SizeRequest,
) -> Sizes:
    longest = int(rows.lengths.argmax())

    def sizes_of(machine: Machine) -> Sizes:
        return choose_sizes(
            specs,
            layout=layout,
            machine=machine,
            longest_row=int(rows.lengths[longest]),
            longest_source=rows.sources[longest],
            request=request,
            needs=memory.needs,
            gradient_checkpointing=GradientCheckpointing(task.memory.gradient_checkpointing),
        )

    try:
        return sizes_of(memory.machine)
    except InputError as error:
        problems, enough = [task.located(problem) for problem in error.problems], memory.enough(sizes_of)
        raise InputError(problems if enough is None else enough.with_hints(problems)) from None


def _load(task: TaskFile, machine: Machine, *, directory: Path, backbone: Backbone | None) -> Decoder:
    if backbone is None:
        return load_decoder(directory, dtype=machine.dtype, device=machine.device)
    backbone.require_same(task, directory=directory, machine=machine)
    return backbone.decoder


def _task_facts(task: TaskFile, trials: Sequence[PlannedTrial]) -> TaskFacts:
    defaults, document = default_configuration(task), task.model_dump(mode="json")
    return TaskFacts(
        document=document,
        task_hash=hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest(),
        objective=task.objective,
        training=_shared_training(task),
        default_trial_id=next(
            (t.spec.trial_id for t in trials if all(defaults[k] == v for k, v in t.configuration.items())), None
        ),
        warmup_fraction=task.early_exit_settings().warmup_fraction,
        kept_share=task.early_exit_settings().kept_share,
    )


def _machine_facts(machine: Machine, decoder: Decoder, *, target_modules: Sequence[str], sizes: Sizes) -> MachineFacts:
    device, config = machine.device, decoder.config
    groups = linear_groups(decoder.linears, targets=target_modules)
    tiles = tile_lines(device, groups, num_rows=sizes.executor.token_budget)
    return MachineFacts(
        versions=dict(package_versions()),
        device=f"{device.type} ({machine.device_name})",
        precision=f"{machine.dtype} base, float32 adapters",
        threads=machine.threads,
        backend=f"{describe_backend(device).backend.value}: {product_name(device)}{plain_torch(config, device)}",
        attention=attention_name(device, rule=config.attention_rule(0)),
        tile_table=tile_source(device) if tiles else None,
        tiles=tuple(tiles) or None,
        term_inside=inside_products(device) if tiles else None,
    )


def _input_facts(inputs: TaskInputs, *, plan: EvaluationPlan) -> InputFacts:
    data = inputs.data
    return InputFacts(
        data_hash=data.report.data_hash,
        data_format=data.report.format,
        is_chat=data.report.is_chat,
        data_counts=data_counts(data.report),
        data_problems=data_problems(data.report),
        train_fingerprint=data.train.fingerprint,
        validation_fingerprint=data.validation.fingerprint,
        train_input=data.report.train_input,
        validation_input=data.report.validation_input,
        tokenizer_hash=data.report.tokenizer_hash,
        model_hash=model_fingerprint(inputs.model_directory),
        target_modules=tuple(inputs.target_modules),
        num_train_rows=len(data.train),
        evaluation_rows=plan.num_rows,
        evaluation_cost_fraction=plan.cost_fraction,
    )


def model_fingerprint(directory: Path) -> str:
    """Return the SHA-256 over the base model's configuration and weight files."""
    digest = hashlib.sha256()
    for path in sorted([*directory.glob("*.safetensors"), directory / "config.json"]):
        digest.update(path.name.encode())
        with path.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _shared_training(task: TaskFile) -> dict[str, JsonValue]:
    """Settings that all trials share, for report and model card."""
    searched = set(task.search.space)
    shared = {name: value for name, value in task.searchable_defaults().items() if name not in searched}
    plain: dict[str, JsonValue] = {
        name: value if isinstance(value, int | float | str | bool) else str(value) for name, value in shared.items()
    }
    if task.training.max_steps is not None:
        plain["max_steps"] = task.training.max_steps
    return plain


def _choose_rows(task: TaskFile, rows: TokenisedRows, *, wanted: int) -> tuple[int, ...]:
    """Choose evaluation rows, or groups of rows, by seed: the same for every trial of the task."""
    available = len(rows) // OBJECTIVES[task.objective].group_size
    ranked = sorted(range(available), key=lambda row: derive_seed(task.training.seed, "evaluation rows", row))
    return tuple(sorted(ranked[:wanted]))
