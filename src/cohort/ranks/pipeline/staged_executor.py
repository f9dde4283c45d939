"""A stage of a pipeline as rank 0 commands it: it holds its part of every resident and runs windows with the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.core.events import StepDone
from cohort.core.memory_records import PassKind
from cohort.data.packing import SlotSample
from cohort.data.tokenised import ReferenceFiles, TokenisedRows
from cohort.models.decoder import Decoder
from cohort.ranks.answers import Prompt
from cohort.ranks.calls import verb
from cohort.ranks.divided_states.part_keeper import PartKeeper
from cohort.ranks.pipeline.pipeline_stage import PipelineStage
from cohort.ranks.pipeline.pipeline_window import PipelineMicroBatch
from cohort.ranks.pipeline.stage_generation import StageModel
from cohort.ranks.pipeline.stage_links import StageLinks
from cohort.ranks.pipeline.window_plan import flat_tokens, plan_window
from cohort.ranks.rank_group import PipelineGroup
from cohort.ranks.step_window import StepWindow
from cohort.scheduling.pipelines.simulation import PassTime
from cohort.scheduling.pipelines.window_packing import WindowSchedule
from cohort.serving.generate import GenerateRequest, PickedToken, stream
from cohort.serving.sampler import Sampling
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.group_terms import group_slots
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.optimizers import DEFAULT_OPTIMIZER
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.resident_evaluation import ResidentEvaluation
from cohort.training.step_samples import Resident, samples_of
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["StagedExecutor"]


class StagedExecutor(PartKeeper):
    """One stage. All stages get the same calls with the same arguments; the last one's answers are the pipeline's.

    A trial's state goes in whole and comes out as the stage's columns; slots are numbered alike on all stages. Methods
    do what those of :class:`~cohort.training.executor.Executor` do. A pass that runs out of memory raises: the other
    stages wait for it, so it cannot be cut by one of them alone.
    """

    def __init__(
        self,
        decoder: Decoder,
        plan: PipelineGroup,
        *,
        stage: int,
        links: StageLinks,
        layout: AdapterLayout,
        train_rows: TokenisedRows,
        settings: ExecutorSettings,
        memory_limit_bytes: int | None = None,
        optimizer: Optimizer = DEFAULT_OPTIMIZER,
    ) -> None:
        """Allocate the bank of the stage's linears.

        Args:
            decoder: The layers ``plan.layers(stage)``.
            layout: The adapted linears of the whole model.
        """
        self._plan, self._columns = plan, plan.columns(layout, stage)
        super().__init__(
            decoder,
            target_linears=plan.local_layout(layout, stage),
            train_rows=train_rows,
            # a window's passes are no recordings
            settings=replace(settings, graph_tokens=0),
            device=decoder.device,
            compute_dtype=decoder.dtype,
            memory_limit_bytes=memory_limit_bytes,
            optimizer=optimizer,
        )
        self._flat_tokens = flat_tokens(decoder.config, device_type=decoder.device.type)
        self._number, self._links = stage, links
        self._planned_ahead: WindowSchedule | None = None
        self._num_measured = 0
        self._generating: StageModel
        self._evaluations = ResidentEvaluation(
            self,
            micro_batches=self._evaluation,
            residents=self._residents,
            too_large=self._too_large,
            is_ahead=False,
        )
        self._stage = PipelineStage(
            decoder,
            self.bank,
            stage=stage,
            num_stages=plan.size,
            links=links,
            optimizer=optimizer,
            head_shares=plan.head_shares if plan.shares_head else (),
            is_recomputed=self.gradient_checkpointing.is_for,
        )

    @property
    def num_recomputed(self) -> int:
        return self._stage.num_recomputed

    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """Make a trial resident, fresh or from the whole ``state``; return its slot.

        Raises:
            BankFullError: no room.
        """
        # fresh weights are drawn by the names of linears: the columns of a stage are those of the whole adapter
        part = None if state is None else replace(state, adapter=self._own(state.adapter))
        return self.load_part(spec, part, rows=rows, rank=rank)

    def load_part(
        self,
        spec: TrialSpec,
        part: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """Make a trial resident, fresh or from this stage's columns of a state.

        Raises:
            BankFullError: no room.
        """
        slot = super().load(spec, part, rows=rows, rank=rank)
        self._stage.load(self._residents[spec.trial_id])
        return slot

    def drop(self, trial_id: int) -> None:
        slot = self.slot_of(trial_id)
        super().drop(trial_id)
        self._stage.drop(slot)

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """Run one step of each of ``trial_ids`` (default: all): a window by itself, whose pipeline fills and drains."""
        wanted = self._residents if trial_ids is None else trial_ids
        rounds = self.run(dict.fromkeys(wanted, 1)).rounds
        return rounds[0] if rounds else ()

    @verb
    def use_schedule(self, schedule: WindowSchedule) -> None:
        """Run the next window, whose steps it was made for, by this schedule; every stage gets the same."""
        self._planned_ahead = schedule

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        """Run ``quotas`` steps of each trial; the last stage returns their events, the others none.

        A trial whose loss is no number takes its other steps as well: they were planned before the first pass.
        """
        own = [resident for resident in self._by_slot() if quotas.get(resident.spec.trial_id, 0) > 0]
        schedule, self._planned_ahead = self._planned_ahead, None
        window = plan_window(
            own,
            quotas,
            token_budget=self.token_budgets[PassKind.TRAIN],
            group=self._plan,
            device_type=self.memory.device.type,
            flat_tokens=self._flat_tokens,
            schedule=schedule,
        )
        before = {resident.slot: resident.step for resident in own}
        with self.memory.observe(PassKind.TRAIN, None):
            self._stage.run_window(window.micro_batches, shares_head=window.shares_head)
        if not self._stage.is_last:
            return StepWindow(rounds=())
        losses = _losses(window.micro_batches, self._stage.terms)
        rounds: list[list[StepDone]] = [[] for _ in range(max(quotas.values(), default=0))]
        for resident in own:
            for ahead, event in enumerate(self._events(resident, before[resident.slot], losses[resident.slot])):
                rounds[ahead].append(event)
        return StepWindow(rounds=tuple(map(tuple, rounds)))

    def evaluate(
        self,
        trial_ids: Sequence[int],
        *,
        rows: TokenisedRows,
        row_ids: Sequence[int],
        objective: Objective | None = None,
    ) -> dict[int, EvaluationLoss]:
        """Return validation losses on the last stage, and numbers without a meaning on the others."""
        with self._measuring():
            return super().evaluate(trial_ids, rows=rows, row_ids=row_ids, objective=objective)

    def evaluate_base(
        self, *, rows: TokenisedRows, row_ids: Sequence[int], objective: Objective = DEFAULT_OBJECTIVE
    ) -> EvaluationLoss:
        with self._measuring():
            return super().evaluate_base(rows=rows, row_ids=row_ids, objective=objective)

    def generate(self, prompts: Sequence[Prompt], *, max_new_tokens: int, stop_ids: frozenset[int]) -> list[list[int]]:
        """Return the likeliest continuation of each prompt, without the stop token, on every stage."""
        self._generating = StageModel(self.decoder, stage=self._number, num_stages=self._plan.size, links=self._links)
        found = super().generate(prompts, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
        self._links.flush()
        return found

    @verb
    def pass_times(self) -> tuple[PassTime, ...]:
        """Return when the passes of the stage's last window ran."""
        return self._stage.clock.times()

    @property
    def context(self) -> int:
        """The longest row that the model reads."""
        return self.decoder.config.max_position_embeddings

    def measure(self, entries: Sequence[SlotSample]) -> Tensor:
        """Return the token losses [T] of a pass of all stages; zeros on all but the last."""
        self._num_measured += 1
        with self.memory.observe(PassKind.EVALUATE, None):
            return self._stage.measure(entries, number=self._num_measured)

    def of_adapter(self, reference: ReferenceFiles) -> StagedExecutor:
        """Refuse: a trial that needs it does not begin with a pipeline."""
        raise NotImplementedError(
            f"the stages of a pipeline have no passes for a reference adapter ({reference.directory})"
        )

    @contextlib.contextmanager
    def _measuring(self) -> Iterator[None]:
        self._num_measured = 0
        yield
        self._stage.flush()

    def _stream(
        self,
        requests: Sequence[GenerateRequest],
        *,
        stop_ids: frozenset[int],
        token_budget: int,
        sampling: Sampling | None = None,
    ) -> Iterator[PickedToken]:
        return stream(
            self._generating,
            requests,
            lora_for=self.bank.context,
            num_slots=self.bank.num_slots,
            stop_ids=stop_ids,
            sampling=sampling,
            token_budget=token_budget,
            scores_of=self._generating.scores,
        )

    def _own(self, whole: AdapterState) -> AdapterState:
        moments = {name: moment[:, self._columns] for name, moment in whole.moments.items()}
        return AdapterState(weights=whole.weights[:, self._columns], moments=moments)

    def _events(self, resident: Resident, first: int, sums: Sequence[float]) -> list[StepDone]:
        events: list[StepDone] = []
        for ahead, (total, norm) in enumerate(zip(sums, self._stage.norms[resident.slot], strict=True)):
            samples = [entry.sample for entry in samples_of(resident, step=first + ahead)]
            event = StepDone(
                trial_id=resident.spec.trial_id,
                step=first + ahead + 1,
                loss=total / resident.spec.objective.divisor(samples),
                grad_norm=norm,
                learning_rate=resident.spec.learning_rate_at(first + ahead),
                num_tokens=sum(len(sample.tokens) for sample in samples),
            )
            events.append(event)
        return events


def _losses(window: Sequence[PipelineMicroBatch], terms: Sequence[Tensor]) -> dict[int, list[float]]:
    """Return by slot the sum of the terms of each of its batches, added in the order of the micro-batches."""
    filled = [micro_batch for micro_batch in window if micro_batch.entries]
    # one wait for the device
    found = torch.cat(list(terms)).tolist() if terms else []
    sums: dict[int, float] = {}
    finished: dict[int, list[float]] = {}
    place = 0
    for micro_batch in filled:
        for slot in group_slots(micro_batch.entries):
            sums[slot] = sums.get(slot, 0.0) + found[place]
            place += 1
        for slot in micro_batch.ends:
            finished.setdefault(slot, []).append(sums.pop(slot))
    return finished
