"""The executor: one frozen backbone and its bank; trains the trials that are resident."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.core.events import StepDone
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.core.numerics import Numerics
from cohort.data.packing import SlotSample
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.staging import lists_unwaited
from cohort.models.decoder import Decoder
from cohort.training.batch_values import with_measured_values
from cohort.training.cuda_graphs.captured_passes import CapturedPasses
from cohort.training.cuda_graphs.recorded_shapes import MEASURED_ROW_COST
from cohort.training.device_memory import DeviceMemory, copied_where_there_is_room
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.exact_numerics import set_numerics
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.fresh_weights import FreshWeights
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.launched_step import LaunchedStep
from cohort.training.micro_batches import MicroBatches, RowsTooLarge
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.optimizers import DEFAULT_OPTIMIZER
from cohort.training.optimizers.optimizer import Optimizer, UnfinishedUpdateError
from cohort.training.passes import Passes
from cohort.training.resident_evaluation import ResidentEvaluation
from cohort.training.rollouts.answer_training import AnswerTraining
from cohort.training.rollouts.answered_step import AnsweredStep
from cohort.training.step_ahead import StepAhead
from cohort.training.step_samples import Resident
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["Executor"]


class Executor:
    """Trains resident trials step by step: one packed pass per micro-batch, one optimizer launch per step for all.

    Attributes:
        memory: Watches its passes.
        fresh_weights: Draws what trials begin with.
        gradient_checkpointing: Decides which training passes are recomputed.
        reliefs: Called one after another before a row is declared too large. Each frees what is kept on the device only
            to save time, and returns whether there was anything.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        target_linears: Mapping[str, tuple[int, int]] | AdapterLayout,
        train_rows: TokenisedRows,
        settings: ExecutorSettings,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        compute_dtype: torch.dtype | None = None,
        memory_limit_bytes: int | None = None,
        optimizer: Optimizer = DEFAULT_OPTIMIZER,
        repeats_smaller: bool = True,
    ) -> None:
        """Allocate the bank next to ``decoder``.

        Args:
            target_linears: ``(in_features, out_features)`` of the adapted linears by full module path, or their layout.
            train_rows: The rows of trials that come without rows of their own.
            dtype: What master weights and gradients are kept in.
            compute_dtype: What products read the factors in; the decoder's.
            memory_limit_bytes: On a CPU, the most that model, bank and passes may take together.
            optimizer: How all trials minimise what each of them minimises.
            repeats_smaller: As of :class:`~cohort.training.micro_batches.MicroBatches`.

        Raises:
            InputError: exact numerics are asked for and the model has no exact form on this GPU.
        """
        self.decoder, self.train_rows, self.settings = decoder, train_rows, settings
        self.optimizer = optimizer
        self.bank = AdapterBank(
            target_linears if isinstance(target_linears, AdapterLayout) else AdapterLayout(dict(target_linears)),
            num_slots=settings.num_slots,
            num_rank_rows=settings.num_rank_rows,
            device=device,
            dtype=dtype,
            compute_dtype=compute_dtype,
            moments=optimizer.moments,
            adds_gradients=not decoder.calls_linears_once,
        )
        set_numerics(settings.numerics, decoder=decoder, bank=self.bank)
        self._residents: dict[int, Resident] = {}
        self.fresh_weights = FreshWeights(self.bank, decoder)
        self.captured = CapturedPasses.where_they_run(decoder, self.bank, settings=settings)
        self.memory = DeviceMemory(
            device, limit_bytes=memory_limit_bytes, base_bytes=decoder.num_bytes + self.bank.num_bytes
        )
        self.reliefs: list[Callable[[], bool]] = [] if self.captured is None else [self.captured.give_up]
        self.gradient_checkpointing = GradientCheckpointingPolicy(
            settings.gradient_checkpointing, keep_tokens=settings.keep_tokens, device=device
        )
        batches = functools.partial(
            MicroBatches, memory=self.memory, reliefs=self.reliefs, repeats_smaller=repeats_smaller
        )
        self._training = batches(PassKind.TRAIN, token_budget=settings.token_budget, policy=self.gradient_checkpointing)
        self._evaluation = batches(PassKind.EVALUATE, token_budget=settings.evaluation_token_budget, policy=None)
        self._passes = Passes(decoder, self.bank, memory=self.memory, captured=self.captured)
        self._too_large = RowsTooLarge(self._residents, train_rows=train_rows, mode=settings.gradient_checkpointing)
        self._evaluations = ResidentEvaluation(
            self._passes,
            micro_batches=self._evaluation,
            residents=self._residents,
            too_large=self._too_large,
            is_ahead=self.bank.weights_RD.is_cuda,
        )
        self._ahead = StepAhead(
            self._passes, bank=self.bank, micro_batches=self._training, policy=self.gradient_checkpointing
        )

    @property
    def token_budgets(self) -> dict[PassKind, int]:
        """Most tokens of a micro-batch now: as set, or less where memory has run out."""
        return {batches.kind: batches.token_budget for batches in (self._training, self._evaluation)}

    def lower_token_budgets(self, budgets: Mapping[PassKind, int]) -> None:
        """Lower the budget of each kind of pass to the given one, where it is higher."""
        for batches in (self._training, self._evaluation):
            batches.token_budget = min(batches.token_budget, budgets.get(batches.kind, batches.token_budget))

    def take_shortages(self) -> tuple[MemoryShortage, ...]:
        """Return the memory shortages since the last call. Their passes have been run again, and nothing was lost."""
        return (*self._training.take_shortages(), *self._evaluation.take_shortages())

    @property
    def resident(self) -> tuple[int, ...]:
        """Trials in slot order."""
        return tuple(resident.spec.trial_id for resident in self._by_slot())

    def fits(self, spec: TrialSpec) -> bool:
        return self.bank.fits(spec.adapter)

    def load(self, spec: TrialSpec, state: TrialState | None = None, *, rows: TokenisedRows | None = None) -> int:
        """Make a trial resident, fresh or exactly where ``state`` left off; return its slot.

        Args:
            state: None starts the trial.
            rows: The trial's own training rows; None for those of the executor.

        Raises:
            BankFullError: no room.
        """
        if spec.trial_id in self._residents:
            raise ValueError(f"trial {spec.trial_id} is already resident")
        if state is None:
            state = TrialState(adapter=AdapterState(weights=self.fresh_weights.of(spec.adapter, spec.seed)))
        if self.captured is not None and self.bank.needs_separate_compute(spec.adapter):
            # graphs have recorded where products read
            self.captured.give_up()
        slot, rows = self.bank.insert(spec.adapter, state.adapter), self.train_rows if rows is None else rows
        order = spec.order(len(rows) // spec.objective.group_size)
        self._evaluations.ahead.clear()
        self._residents[spec.trial_id] = Resident(spec=spec, slot=slot, step=state.step, order=order, rows=rows)
        return slot

    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """Return a copy of a resident trial's state, on the host unless ``on_device`` and there is room."""
        resident = self._residents[trial_id]
        adapter = copied_where_there_is_room(
            lambda there: self.bank.read(resident.slot, on_device=there), on_device=on_device
        )
        return TrialState(adapter=adapter, step=resident.step)

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        """Return a copy of a resident trial's weights [r, D], on the host unless ``on_device`` and there is room."""
        weights_rD = self.bank.weights_RD[self.bank.rank_rows(self._residents[trial_id].slot)]
        return copied_where_there_is_room(
            lambda there: weights_rD.clone() if there else weights_rD.to("cpu", copy=True), on_device=on_device
        )

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """Take a trial out of the bank and return its state; :meth:`load` continues there bit for bit."""
        state = self.state(trial_id, on_device=on_device)
        self.drop(trial_id)
        return state

    def drop(self, trial_id: int) -> None:
        self.bank.remove(self._residents.pop(trial_id).slot)

    def slot_of(self, trial_id: int) -> int:
        return self._residents[trial_id].slot

    def steps_of(self, trial_id: int) -> int:
        return self._residents[trial_id].step

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """Run one optimizer step of each of ``trial_ids`` (default: all resident); return their events in slot order.

        Raises:
            SampleTooLargeError, UnfinishedUpdateError: as :meth:`launch_step`.
        """
        return self.launch_step(trial_ids).events()

    def launch_step(self, trial_ids: Sequence[int] | None = None) -> LaunchedStep:
        """Launch one optimizer step of each of ``trial_ids`` (default: all resident), and count it as done.

        The step is cut into micro-batches of at most ``token_budget`` tokens, smaller where memory runs out. Each
        trial's loss is its objective's over its whole step, and the backward pass runs on the sum of the losses
        (algorithms.md 1). On a GPU the host goes on before the step has ended, so that the next can be launched.

        Raises:
            SampleTooLargeError: one row does not fit into memory even alone.
            UnfinishedUpdateError: the update broke off, and the trials have to be loaded again from a state. After any
                other exception all of them are as they were before the step.
        """
        wanted = self._residents if trial_ids is None else trial_ids
        residents = [resident for resident in self._by_slot() if resident.spec.trial_id in wanted]
        if not residents:
            return LaunchedStep.of_none()
        samples, first = self._ahead.take(residents)
        slots = frozenset(samples.terms)
        # a slot's first pass writes over what the bank holds, so nothing has to zero it
        written = slots if self.bank.writes_gradients else frozenset()
        fresh = set(written)

        def restart() -> None:
            self._clear_gradients(residents)
            fresh.update(written)

        def one_pass(part: Sequence[SlotSample]) -> Tensor:
            present = frozenset(entry.slot for entry in part)
            recomputed = self.gradient_checkpointing.recomputes(part)
            terms_G = self._passes.train(
                part,
                terms,
                fresh_slots=present & fresh,
                staged=first,
                recomputed=recomputed,
                upcoming=lambda: self._ahead.passes_after(residents),
            )
            self.gradient_checkpointing.num_passes += recomputed
            fresh.difference_update(present)
            return terms_G

        try:
            too_large = self._too_large.in_training
            terms = with_measured_values(
                self._passes, samples.entries, samples.terms, micro_batches=self._evaluation, too_large=too_large
            )
            found = self._training.run(samples.entries, one_pass, too_large=too_large, restart=restart)
            # before the update: an error after it would leave weights one step ahead of their count
            terms_G = torch.cat(found)
        except BaseException:
            self._clear_gradients(residents)
            raise
        norms = self._update(residents)
        # the only numbers that the host reads of the step; nothing that is launched from here on is waited for
        numbers = lists_unwaited([terms_G, norms])
        self._evaluations.follow(residents)
        following = self._ahead.before_next(residents, among=self._by_slot())
        self._ahead.lay_out(following)
        num_rows = sum(samples.num_tokens.values()) + MEASURED_ROW_COST * self._evaluations.ahead.num_tokens
        self._passes.record_ahead(lambda: self._ahead.passes_after(following), num_rows=num_rows)
        for resident in residents:
            resident.step += 1
        return LaunchedStep(samples=samples, numbers=numbers)

    @property
    def draws_as_trained(self) -> bool:
        """Whether decoding and training passes over answers have the same products and tiles."""
        is_on_cpu = self.bank.weights_RD.device.type == "cpu"
        return is_on_cpu and self.settings.numerics is Numerics.EXACT and self.decoder.config.bridged is None

    def train_answers(self, steps: Sequence[AnsweredStep]) -> tuple[StepDone, ...]:
        """Run one optimizer step of each trial on the answers it has given; return their events in slot order.

        Raises:
            SampleTooLargeError, UnfinishedUpdateError: as :meth:`launch_step`.
        """
        events = AnswerTraining(
            self.decoder,
            self.bank,
            memory=self.memory,
            micro_batches=self._training,
            measuring=self._evaluation,
            policy=self.gradient_checkpointing,
            too_large=self._too_large.in_training,
            update=lambda residents: self._update(residents).tolist(),
            as_drawn=self.draws_as_trained,
        ).train(steps)
        for step in steps:
            self._residents[step.resident.spec.trial_id].step += 1
        return events

    def _update(self, residents: Sequence[Resident]) -> Tensor:
        """Step trials whose gradients are in the bank; return the norms of these [residents], still on the device."""
        slots = frozenset(resident.slot for resident in residents)
        try:
            self.bank.before_update(slots)
            norms = self.optimizer.update(self.bank, residents)
            self.bank.after_update(slots)
        except Exception as error:
            self._clear_gradients(residents)
            raise UnfinishedUpdateError(f"an optimizer step broke off: {error}") from error
        return norms

    def evaluate(
        self,
        trial_ids: Sequence[int],
        *,
        rows: TokenisedRows,
        row_ids: Sequence[int],
        objective: Objective | None = None,
    ) -> dict[int, EvaluationLoss]:
        """Return the validation loss of resident trials, packed, by trial id; None takes each trial's own objective."""
        return self._evaluations.of_trials(trial_ids, rows=rows, row_ids=row_ids, objective=objective)

    def expect_evaluation(self, groups: Sequence[Collection[int]]) -> None:
        """Say which trials will be evaluated together, as they were the last time, right after the next step.

        Where they are, their losses are there earlier; otherwise nothing but time is lost.
        """
        self._evaluations.ahead.expect(groups)

    def expect_step(self, trial_ids: Collection[int]) -> None:
        """Set which trials the step after the next one will be of; by default those of the next one.

        Where they are, it begins earlier; otherwise nothing but time is lost.
        """
        self._ahead.expect(trial_ids)

    def evaluate_base(
        self, *, rows: TokenisedRows, row_ids: Sequence[int], objective: Objective = DEFAULT_OBJECTIVE
    ) -> EvaluationLoss:
        return self._evaluations.of_base(rows=rows, row_ids=row_ids, objective=objective)

    def _clear_gradients(self, residents: Sequence[Resident]) -> None:
        """Gradients are zero between steps, or written by the next: an unfinished step must leave none."""
        for resident in residents:
            self.bank.clear_gradients(resident.slot)

    def _by_slot(self) -> list[Resident]:
        return sorted(self._residents.values(), key=lambda resident: resident.slot)
