"""Everything a run needs before its first step: data, model, trials and sizes, from a task file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cohort.core.clock import Clock
from cohort.core.errors import Problem
from cohort.data.loading import LoadedDataset
from cohort.data.tokenised import TokenisedRows
from cohort.machine.compile_ahead.task_kernels import workers_ahead
from cohort.machine.compile_ahead.workers import settle_compiling
from cohort.machine.machine import Machine
from cohort.memory.budget import Sizes, recomputed_note, size_facts
from cohort.memory.demand import Demand
from cohort.memory.plan import MemoryPlan
from cohort.memory.size_inputs import SizeRequest
from cohort.models.config import DecoderConfig
from cohort.models.counts import count_model
from cohort.models.decoder import Decoder
from cohort.prepare.adapters.start_checks import start_notes
from cohort.prepare.base_model.kernels_ahead import KernelsAhead
from cohort.prepare.base_model.loaded_backbone import LoadedBackbone
from cohort.prepare.base_model.model_computation import model_note
from cohort.prepare.base_model.numerics import numerics_note, recorded_choice
from cohort.prepare.base_model.placed_model import PlacedModel, place_model
from cohort.prepare.base_model.quantization import quantization_note
from cohort.prepare.base_model.weights_ahead import weights_ahead
from cohort.prepare.evaluations import choose_rows, evaluation_note, plan_evaluation, recorded_evaluation
from cohort.prepare.inputs import TaskInputs, read_inputs_and_machine
from cohort.prepare.objectives import task_objective
from cohort.prepare.proposals import TrialProposals
from cohort.prepare.record_facts import input_facts, machine_facts, task_facts
from cohort.prepare.reference import Reference
from cohort.prepare.rows.data_notes import split_notes
from cohort.prepare.warnings import task_warnings
from cohort.ranks.launch.launched import LaunchedRanks
from cohort.ranks.launch.start_ranks import start_ranks
from cohort.ranks.rank_group import PipelineGroup, RankGroupPlan
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights
from cohort.ranks.step_window import ahead_steps, pipeline_window_steps, window_steps
from cohort.ranks.training_executor import TrainingExecutor
from cohort.ranks.training_setup import TrainingSetup
from cohort.runs.fact_groups import PassFacts
from cohort.runs.facts import Activity, RunFacts
from cohort.tasks.possible_values import possible_optimizers
from cohort.tasks.task_file import TaskFile
from cohort.training.objectives.objective import Objective
from cohort.tuning.evaluation_times import EvaluationPlan

__all__ = ["Preparation", "prepare"]


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A task that is ready to run.

    Attributes:
        task: The task.
        machine: Device and precision.
        inputs: Its model files, linears, tokenizer and rows.
        decoder: The frozen backbone; None where ranks that hold it together load it.
        proposals: Its trials: the first ones, and those that follow from results.
        evaluation_rows: Validation rows that every evaluation uses.
        sizes: The executor's.
        memory: The memory that the sizes fit in.
        weights: Which layers are not resident, and where their weights are.
        group: How ranks hold the model together; None where each has a whole one, or parts of layers.
        launched: The processes of all ranks but the first, where a launcher has started them.
        facts: For the run record.
        notes: For the user, before training begins.
        warnings: What is allowed, but rarely meant.
    """

    task: TaskFile
    machine: Machine
    inputs: TaskInputs
    decoder: Decoder | None
    proposals: TrialProposals
    evaluation_rows: tuple[int, ...]
    sizes: Sizes
    memory: MemoryPlan
    facts: RunFacts
    weights: RankWeights = ALL_RESIDENT
    group: RankGroupPlan | None = None
    launched: LaunchedRanks | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def objective(self) -> Objective:
        """What a trial minimises that searches nothing; the base model is measured by it."""
        return task_objective(self.task)

    @property
    def group_size(self) -> int:
        """Rows that share a term of the objective, and so are evaluated together."""
        return self.objective.group_size

    @property
    def backbone(self) -> LoadedBackbone:
        """Its base model, for tasks that share it."""
        model_hash = self.facts.inputs.model_hash
        assert model_hash is not None, "prepare() hashes the files of the model"
        assert self.decoder is not None, "tasks of a session share one process"
        return LoadedBackbone(decoder=self.decoder, model_hash=model_hash, memory=self.memory)

    @property
    def num_ranks(self) -> int:
        """Processes that train."""
        return self.sizes.capacity.num_ranks if self.group is None else self.group.size

    @property
    def window_steps(self) -> int:
        """Most steps between two boundaries of several ranks; 1 for one rank."""
        if self.objective.samples_answers:
            # each call trains those that are first to have their answers
            return 1
        num_ranks, tokens = self.num_ranks, self._tokens_per_step
        if isinstance(self.group, PipelineGroup):
            return pipeline_window_steps(
                num_stages=num_ranks,
                micro_batches_per_step=max(self._residents / 2, tokens / self.sizes.executor.token_budget),
            )
        return window_steps(
            num_ranks=num_ranks, device_type=self.machine.device.type, flops_per_step=self._flops_per_step
        )

    def ahead_steps(self, tokens_per_step: float) -> int:
        """Return the most steps between two boundaries of one rank, where each is launched before the last is read.

        Args:
            tokens_per_step: Of the trials that are resident.
        """
        flops = self._flops_per_token * tokens_per_step
        return ahead_steps(device_type=self.machine.device.type, flops_per_step=flops)

    @property
    def _residents(self) -> int:
        """Trials of a rank that step together."""
        return min(self.sizes.capacity.num_slots, -(-len(self.proposals.largest()) // self.sizes.capacity.num_ranks))

    @property
    def _tokens_per_step(self) -> float:
        """Tokens of a rank in a step of its residents."""
        specs = self.proposals.largest()
        rows_per_step = self._residents * sum(spec.batch_size for spec in specs) / len(specs)
        return rows_per_step * float(self.inputs.data.train.lengths.mean())

    @property
    def _flops_per_step(self) -> float:
        """Floating-point operations of a rank in a step of its residents."""
        flops = self._flops_per_token * self._tokens_per_step
        return flops if self.group is None else flops / self.num_ranks

    @property
    def _flops_per_token(self) -> float:
        # forward, and the gradient of the stream: the weights are frozen
        return 2 * count_model(self.inputs.config).linear_flops_per_token

    def build_executor(self) -> TrainingExecutor:
        """Allocate the bank; with several ranks, start the processes of the others, which load the model as well.

        Raises:
            RankLostError: one of them ended.
            Exception: one of them could not build its executor.
        """
        if self.num_ranks > 1:
            # processes of their own find kernels on the disk alone
            settle_compiling()
        first = TrainingSetup(
            rank=0,
            model_directory=str(self.inputs.model_directory),
            device=self.machine.device.type,
            dtype=self.machine.dtype,
            quantization=self.machine.quantization,
            room_bytes=self.memory.limit_bytes,
            optimizers=possible_optimizers(self.task),
            target_linears=self.inputs.layout.linears,
            settings=self.sizes.executor,
            memory_limit_bytes=self.memory.limit_bytes,
            train_rows=self.inputs.data.train,
            threads=self.machine.threads,
            weights=self.weights,
            group=self.group,
            microbatches=self.task.microbatches,
        )
        return start_ranks(first, num_ranks=self.num_ranks, decoder=self.decoder, launched=self.launched)


def prepare(
    task: TaskFile,
    *,
    clock: Clock,
    say: Callable[[str], None] = lambda _: None,
    request: SizeRequest | None = None,
    also: Sequence[Problem] = (),
    backbone: LoadedBackbone | None = None,
    begun: RunFacts | None = None,
) -> Preparation:
    """Read data and model of ``task`` and plan its trials; nothing is trained or written but caches.

    Args:
        also: Known problems, to be listed with the others.
        backbone: The same base model, where it is loaded already.
        begun: The record of a run that is resumed: it keeps its evaluations and its numerics.

    Raises:
        InputError: every problem of the data, the model and the search space.
    """
    # a model that is loaded has its kernels
    request = request or SizeRequest()
    with (
        nullcontext() if backbone is not None else workers_ahead(on_gpu=task.num_gpus != 0) as workers,
        weights_ahead(task, request=request, is_loaded=backbone is not None) as ahead,
    ):
        collected = KernelsAhead(task, weights=ahead, workers=workers, begun=begun, say=say)
        return _prepare(
            task,
            clock=clock,
            say=say,
            request=request,
            also=also,
            backbone=backbone,
            begun=begun,
            place=partial(
                place_model, request=request, clock=clock, say=say, workers=workers, ahead=ahead, collected=collected
            )
            if backbone is None
            else partial(_on_backbone, backbone, clock),
            on_model=collected.begin,
            fingerprint_of=ahead.fingerprint,
        )


def _prepare(
    task: TaskFile,
    *,
    clock: Clock,
    say: Callable[[str], None],
    request: SizeRequest,
    also: Sequence[Problem],
    backbone: LoadedBackbone | None,
    begun: RunFacts | None,
    place: Callable[[Demand, Path], PlacedModel],
    on_model: Callable[[Path, DecoderConfig, Machine], None],
    fingerprint_of: Callable[[Path], Future[str]],
) -> Preparation:
    started = clock.monotonic()
    say("reading and tokenising the data")
    there = None if backbone is None else backbone.numerics
    numerics = there if begun is None else recorded_choice(begun.machine.numerics)
    inputs, machine = read_inputs_and_machine(task, also=also, request=request, numerics=numerics, on_model=on_model)
    data, tokenised = inputs.data, clock.monotonic()
    say(f"loading {task.model_name_or_path}")
    # trials before the model and its memory: both depend on the ranks that will train
    proposals = TrialProposals(task, data.train, saved=inputs.saved_modules(task), start=inputs.start)
    demand = inputs.demand(task, machine, specs=proposals.largest(), num_ranks=request.num_ranks)
    # before `place`, which waits for the weights
    plan, evaluation = _settle_evaluation(task, proposals, validation=data.validation, begun=begun)
    placed = place(demand, inputs.model_directory)
    memory, machine = placed.memory, placed.memory.machine
    # a task that joins an executor has its sizes: the bank was allocated for the first one
    sizes = (backbone.sizes if backbone else None) or placed.sizes(request)
    split = split_notes(data.report, max_length=task.dataset.max_length)
    notes = (*split, *start_notes(inputs.start), evaluation, *placed.notes, *_machine_notes(memory, sizes, inputs))
    facts = RunFacts(
        task=task_facts(task, proposals.first, num_trials=inputs.num_trials),
        machine=machine_facts(machine, inputs, token_budget=sizes.executor.token_budget),
        inputs=input_facts(task, inputs, plan=plan, model_hash=fingerprint_of(inputs.model_directory).result()),
        sizes=replace(size_facts(sizes), num_ranks=placed.num_ranks(sizes), rank_group=placed.group_name),
        memory=memory.facts(placed.weights),
        passes=PassFacts(recomputed_above_tokens=sizes.executor.keep_tokens),
        # measured before there is a record to count them in
        seconds={Activity.TOKENISE: tokenised - started, Activity.LOAD: placed.loaded_at - tokenised},
    )
    data, referred = _with_reference(task, data, placed=placed, sizes=sizes, facts=facts, say=say)
    return Preparation(
        task=task,
        machine=machine,
        inputs=replace(inputs, data=data),
        decoder=placed.decoder,
        proposals=proposals,
        evaluation_rows=choose_rows(task, data.validation, wanted=plan.num_rows),
        sizes=sizes,
        facts=facts,
        memory=memory,
        weights=placed.weights,
        group=placed.group,
        launched=request.launched,
        notes=tuple(note for note in (*notes, referred) if note is not None),
        warnings=tuple(task_warnings(task, inputs, trials=proposals.first, plan=plan)),
    )


def _on_backbone(backbone: LoadedBackbone, clock: Clock, demand: Demand, directory: Path) -> PlacedModel:
    backbone.require_same(demand.task, directory=directory, machine=demand.machine)
    return backbone.placed(demand, loaded_at=clock.monotonic())


def _with_reference(
    task: TaskFile,
    data: LoadedDataset,
    *,
    placed: PlacedModel,
    sizes: Sizes,
    facts: RunFacts,
    say: Callable[[str], None],
) -> tuple[LoadedDataset, str | None]:
    """Return the rows with what the reference model gives their answers, where that is needed, and a note about it."""
    memory = placed.memory
    if placed.decoder is None:
        # ranks that hold the model together measure it once they have it
        return data, None
    reference = Reference(
        task=task,
        measured_by=placed.decoder,
        machine=memory.machine,
        model_hash=facts.inputs.model_hash or "",
        token_budget=sizes.executor.evaluation_token_budget,
        memory_limit_bytes=memory.limit_bytes,
    )
    return reference.of_data(data, say=say)


def _machine_notes(memory: MemoryPlan, sizes: Sizes, inputs: TaskInputs) -> tuple[str | None, ...]:
    """Return what is to be said about what computes the model, memory, numerics and the format of the weights."""
    machine, lengths = memory.machine, inputs.data.train.lengths
    recomputed = recomputed_note(sizes, lengths)
    model = model_note(inputs.config, machine)
    return model, memory.note(), recomputed, numerics_note(machine), quantization_note(machine)


def _settle_evaluation(
    task: TaskFile, proposals: TrialProposals, *, validation: TokenisedRows, begun: RunFacts | None
) -> tuple[EvaluationPlan, str | None]:
    """Plan how trials are evaluated, as they are to be from now on; return the plan and a note for the user."""
    # a resumed run showed its note when it began
    kept = None if begun is None else recorded_evaluation(begun.inputs)
    # by the first trials: evaluations must be the same for those that a sampler proposes later
    plan = kept or plan_evaluation(task, proposals.first, validation=validation)
    proposals.evaluate_at(plan.times)
    return plan, evaluation_note(
        plan, task=task, num_available=len(validation) // task_objective(task).group_size
    ) if kept is None else None
