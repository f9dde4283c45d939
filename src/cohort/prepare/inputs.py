"""The inputs of a task, read and checked together: model files, target modules, tokenizer and every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cohort.adapters.initial_adapter import AdapterStart
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.modules_to_save.saved_modules import SavedModules
from cohort.core.errors import InputError, Problem, in_file_order
from cohort.core.numerics import Numerics
from cohort.data.loading import LoadedDataset
from cohort.data.problems import LISTED_PROBLEMS
from cohort.data.tokenised import TokenisedRows
from cohort.integrations.trackers import tracker_problems
from cohort.machine.machine import Machine, choose_machine
from cohort.machine.measurements import CostKey
from cohort.memory.demand import Demand
from cohort.memory.host_streaming import least_weight_bytes
from cohort.memory.size_inputs import SizeRequest
from cohort.memory.smallest_memory import estimated_inputs, limit_problem, smallest_memory
from cohort.models.checkpoint_layout import adapter_layout, linear_shapes
from cohort.models.config import DecoderConfig
from cohort.models.weights import format_problem
from cohort.prepare.adapters.block_checks import block_problems
from cohort.prepare.adapters.saved_checks import saved_modules
from cohort.prepare.adapters.start_checks import read_start
from cohort.prepare.base_model.chosen_modules import read_model, select_modules
from cohort.prepare.base_model.model_computation import model_problems
from cohort.prepare.base_model.numerics import NumericsChoice, asked_numerics, numerics_problems, with_numerics
from cohort.prepare.loss_functions import loss_identity, loss_problems
from cohort.prepare.metrics import function_identities, metric_problems
from cohort.prepare.proposals import TrialProposals
from cohort.prepare.reference import reference_problems
from cohort.prepare.reward_functions import reward_identities, reward_problems
from cohort.prepare.rollouts import rollout_problems, with_scoring
from cohort.prepare.rows.reading import check_rows, context_problems, read_rows
from cohort.prepare.strategy_problems import strategy_problems
from cohort.tasks.task_file import TaskFile
from cohort.training.trial import TrialSpec
from cohort.tuning.samplers import count_configurations

__all__ = ["TaskInputs", "machine_of", "read_inputs", "read_inputs_and_machine"]


@dataclass(frozen=True, kw_only=True)
class TaskInputs:
    """A task's inputs, complete and consistent; no weight has been read yet.

    Attributes:
        model_directory: Local files of the base model.
        config: Its configuration.
        target_modules: Full paths of the linears that get an adapter.
        tokenizer: The base model's tokenizer.
        data: Tokenised rows and the report about them.
        num_trials: Configurations that will be tried.
        start: The adapter whose weights each trial begins with; None for drawn ones.
        metric_functions: SHA-256 of the code of the user's functions: by the name of a metric, as ``loss:NAME`` or
            ``reward:NAME``.
    """

    model_directory: Path
    config: DecoderConfig
    target_modules: tuple[str, ...]
    tokenizer: Any
    data: LoadedDataset
    num_trials: int
    metric_functions: Mapping[str, str] = field(default_factory=dict)
    start: AdapterStart | None = None

    @property
    def layout(self) -> AdapterLayout:
        """Where the adapted linears stand in a rank row."""
        return adapter_layout(self.config, self.target_modules)

    def saved_modules(self, task: TaskFile) -> SavedModules | None:
        """Return the modules that each trial of ``task`` trains a copy of."""
        return saved_modules(task, config=self.config, layout=self.layout)

    def demand(
        self, task: TaskFile, machine: Machine, *, specs: Sequence[TrialSpec], num_ranks: int | None = None
    ) -> Demand:
        """Return what ``task`` wants of a machine.

        Args:
            specs: Its trials with the most needs.
            num_ranks: Processes that train; one for each of the machine's GPUs when None.
        """
        return Demand(
            task=task,
            machine=machine,
            config=self.config,
            layout=self.layout,
            specs=specs,
            rows=self.data.train,
            num_ranks=num_ranks or max(1, machine.num_gpus),
        )

    def cost_key(self, *, hardware: str, precision: str) -> CostKey:
        """Return what measured steps of such a task are kept under."""
        # runs write and plans read under this key: made in two places, plans would not find what runs measured
        return CostKey.of(
            self.config,
            hardware=hardware,
            precision=precision,
            mean_length=float(self.data.train.lengths.mean()),
            target_modules=self.target_modules,
        )


def read_inputs(
    task: TaskFile,
    *,
    max_problems: int | None = LISTED_PROBLEMS,
    also: Sequence[Problem] = (),
    reads_rows: bool = True,
    machine: Machine | None = None,
    num_ranks: int = 0,
    can_skip: bool = True,
    on_model: Callable[[Path, DecoderConfig], None] | None = None,
) -> TaskInputs:
    """Read and check the inputs of ``task``.

    Args:
        max_problems: Most problems of the data to list; None lists all.
        also: Known problems, to be listed with the others.
        reads_rows: False where known problems would only lead to more in the rows.
        machine: The device it will train on, if known; ``memory.limit`` must hold the base model there.
        num_ranks: Processes that will train, where known: the task's strategy must work with that number.
        can_skip: As for :func:`cohort.data.loading.load_dataset`.
        on_model: Called with the model's files before the rows are read, if no problem is known by then.

    Raises:
        InputError: every problem of the trackers, the model's files, the target modules, the search space, the rows and
            the memory.
    """
    # each part goes on after the errors of another: a second error after an hour is what users complain of most
    problems = [*also, *tracker_problems(task.report_to, where=task.where("report_to"))]
    model, is_unsupported = read_model(task, problems)
    target_modules = None if model is None else select_modules(task, model[1], problems)
    num_trials = _count_trials(task, problems)
    problems += [] if model is None else list(model_problems(task, model[1]))
    start = None
    if model is not None and target_modules is not None:
        start, misfits = _begun_with(task, model, target_modules)
        problems += misfits
        # trials whose blocks do not fit, or that cannot begin with the adapter, cannot be planned with
        num_trials = 0 if misfits else num_trials
    if on_model is not None and model is not None and not problems:
        on_model(*model)
    context = None if model is None else model[1].max_position_embeddings
    tokenised = None
    if reads_rows and is_unsupported:
        # another base model will have another tokenizer, so this one's problems are none
        check_rows(task, problems, max_problems=max_problems, can_skip=can_skip)
    elif reads_rows:
        tokenised = read_rows(task, problems, context=context, max_problems=max_problems, can_skip=can_skip)
    demand_on = None
    # only inputs that are correct alone can be compared
    if model is not None and tokenised is not None:
        problems += context_problems(task, model[1], tokenised[1])
        problems += reference_problems(task, model[1], model_directory=model[0])
        problems += metric_problems(task, tokenised[1], tokenizer=tokenised[0])
        problems += [*loss_problems(task), *rollout_problems(task, model[1], tokenised[1], num_ranks=num_ranks)]
        problems += reward_problems(task, tokenised[1].train)
        if target_modules is not None and num_trials:
            layout = adapter_layout(model[1], target_modules)
            demand_on = partial(_demand, task, config=model[1], layout=layout, rows=tokenised[1].train)
            problems += strategy_problems(task, machine, num_ranks=num_ranks, demand_on=demand_on)
    if machine is not None:
        problems += numerics_problems(task, machine, config=None if model is None else model[1])
    if machine is not None and model is not None:
        problems += _limit_problems(task, machine, config=model[1], demand_on=demand_on)
    if problems or model is None or target_modules is None or tokenised is None:
        raise InputError(in_file_order(problems))
    return TaskInputs(
        model_directory=model[0],
        config=model[1],
        target_modules=target_modules,
        tokenizer=tokenised[0],
        data=with_scoring(tokenised[1], task=task),
        num_trials=num_trials,
        metric_functions={**function_identities(task), **loss_identity(task), **reward_identities(task)},
        start=start,
    )


def read_inputs_and_machine(
    task: TaskFile,
    *,
    max_problems: int | None = LISTED_PROBLEMS,
    also: Sequence[Problem] = (),
    request: SizeRequest | None = None,
    numerics: NumericsChoice | None = None,
    on_model: Callable[[Path, DecoderConfig, Machine], None] | None = None,
) -> tuple[TaskInputs, Machine]:
    """Choose the device that ``task`` trains on here and read its inputs; the arguments are those of read_inputs.

    Args:
        request: Names the processes that train, on a GPU each unless the task is for the CPU; None: as the task says.
        numerics: Those of a run that is resumed, which it keeps where the task leaves them to the machine.
        on_model: Called with the model's files and the device before the rows are read, if no problem is known by then.

    Raises:
        InputError: there is no such device, and every problem of :func:`read_inputs`.
    """
    on_gpu = task.num_gpus != 0 and torch.cuda.is_available()
    num_ranks = None if request is None else request.ranks_here
    try:
        machine = machine_of(task, num_gpus=num_ranks if on_gpu else None, numerics=numerics)
    except InputError as error:
        # raises this problem together with those of the inputs, and of the strategy on the GPUs that were asked for
        asked = num_ranks or (task.num_gpus if isinstance(task.num_gpus, int) else 0)
        read_inputs(task, max_problems=max_problems, also=[*also, *error.problems], num_ranks=asked)
        raise
    wanted = num_ranks or machine.num_gpus
    inputs = read_inputs(
        task,
        max_problems=max_problems,
        also=also,
        machine=machine,
        num_ranks=wanted,
        on_model=None if on_model is None else partial(_with_machine, on_model, machine),
    )
    everywhere = wanted if request is None or request.num_ranks is None else request.num_ranks
    return inputs, with_numerics(task, machine, config=inputs.config, num_gpus=everywhere, recorded=numerics)


def _with_machine(
    on_model: Callable[[Path, DecoderConfig, Machine], None], machine: Machine, directory: Path, config: DecoderConfig
) -> None:
    on_model(directory, config, machine)


def machine_of(task: TaskFile, *, num_gpus: int | str | None = None, numerics: NumericsChoice | None = None) -> Machine:
    """Return the device that ``task`` trains on here, with the format of its base model.

    Args:
        num_gpus: Replaces the task's own.
        numerics: Where the task leaves them to the machine; fast where None, until the base model is known.

    Raises:
        InputError: there is no such device, or it cannot compute in that format.
    """
    machine = choose_machine(task.num_gpus if num_gpus is None else num_gpus, where=task.where("num_gpus"))
    problem = format_problem(task.quantization, device=machine.device, where=task.where("quantization"))
    if problem is not None:
        raise InputError(problem)
    chosen = asked_numerics(task) or (Numerics.FAST if numerics is None else numerics.numerics)
    return replace(machine, quantization=task.quantization, numerics=chosen)


def _begun_with(
    task: TaskFile, model: tuple[Path, DecoderConfig], target_modules: Sequence[str]
) -> tuple[AdapterStart | None, list[Problem]]:
    """Return the adapter that trials begin with, and what is wrong with it or with the blocks of their factors."""
    linears = adapter_layout(model[1], target_modules).linears
    misfits = list(block_problems(task, linears=linears, known=linear_shapes(model[1])))
    start, unusable = read_start(task, linears=linears, model_directory=model[0])
    return start, [*misfits, *unusable]


def _demand(
    task: TaskFile, machine: Machine, *, config: DecoderConfig, layout: AdapterLayout, rows: TokenisedRows
) -> Demand:
    specs = TrialProposals(task, rows, saved=saved_modules(task, config=config, layout=layout)).largest()
    return Demand(task=task, machine=machine, config=config, layout=layout, specs=specs, rows=rows)


def _limit_problems(
    task: TaskFile, machine: Machine, *, config: DecoderConfig, demand_on: Callable[[Machine], Demand] | None
) -> list[Problem]:
    """Return what is wrong with a limit that the base model uses up, and which limit would do where that is known."""
    base_bytes = least_weight_bytes(task, config, machine)
    problem = limit_problem(task, base_bytes=base_bytes)
    # the smallest memory is searched for, which takes trials and rows: only where a message will name it
    if problem is not None and demand_on is not None:
        inputs = estimated_inputs(demand_on(machine))
        enough = smallest_memory(task, inputs, base_bytes=base_bytes, there_bytes=machine.memory_bytes)
        problem = limit_problem(task, base_bytes=base_bytes, enough=enough)
    return [] if problem is None else [problem]


def _count_trials(task: TaskFile, problems: list[Problem]) -> int:
    try:
        found = count_configurations(task.search_space(), sampler=task.search.sampler, trials=task.search.trials)
    except InputError as error:
        problems.extend(task.located(problem) for problem in error.problems)
        return 0
    if not found:
        problems.append(_unmet(task))
    return found


def _unmet(task: TaskFile) -> Problem:
    return Problem(
        where=task.where("search.constraints"),
        found="; ".join(task.search.constraints),
        allowed="constraints that some configuration of the space meets",
        hint="Loosen one of them, or widen the space.",
    )
