"""The executor: one frozen backbone and its bank, training whatever trials are resident."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from cohort.adapters.bank import AdapterBank, AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import SampleTooLargeError
from cohort.core.events import StepDone
from cohort.core.memory_records import GradientCheckpointing, MemoryShortage, PassKind
from cohort.data.packing import SlotSample, split_micro_batches
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.backend import Backend, choose_backend
from cohort.models.decoder import Decoder
from cohort.training.captured_pass import CapturedPasses
from cohort.training.device_memory import DeviceMemory
from cohort.training.evaluate import BASE_SLOT, EvaluationLoss, evaluation_losses
from cohort.training.fresh_weights import FreshWeights
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.micro_batches import MicroBatches, too_large
from cohort.training.optimizers import optimizer_named
from cohort.training.optimizers.optimizer import Optimizer, UnfinishedUpdateError
from cohort.training.step_samples import Resident, StepSamples, gather
from cohort.training.training_pass import StagedPass, TrainingPasses
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["Executor", "ExecutorSettings"]

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """Sizes of an executor; none of them changes a trial's numbers.

    Attributes:
        num_slots: Most resident trials.
        num_rank_rows: Most rank rows of resident trials (each takes its rank rounded up to 16).
        token_budget: Most tokens of one micro-batch; a longer sample stands alone.
        evaluation_token_budget: The same for evaluation, which keeps no activations.
        graph_tokens: On a GPU with the grouped kernels, micro-batches of fewer tokens are recorded as CUDA graphs and
            replayed; 0 launches every pass kernel by kernel.
        gradient_checkpointing: When a training pass recomputes its layers instead of keeping their activations.
        keep_tokens: Under ``auto``, training passes of more tokens do from the start; None: none, while memory lasts.
    """

    num_slots: int
    num_rank_rows: int
    token_budget: int
    evaluation_token_budget: int
    graph_tokens: int = 0
    gradient_checkpointing: GradientCheckpointing = GradientCheckpointing.AUTO
    keep_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_slots", "num_rank_rows", "token_budget", "evaluation_token_budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.graph_tokens < 0:
            raise ValueError(f"graph_tokens must not be negative, got {self.graph_tokens}")


class Executor:
    """Trains resident trials step by step: one packed pass per micro-batch, one optimizer launch per step for all.

    Attributes:
        memory: Watches its passes.
        gradient_checkpointing: Which training passes keep their activations.
        reliefs: Asked before a row is said not to fit: each gives up what is kept on the device only to save time, and
            says whether there was anything.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        target_linears: Mapping[str, tuple[int, int]],
        train_rows: TokenisedRows,
        settings: ExecutorSettings,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        compute_dtype: torch.dtype | None = None,
        memory_limit_bytes: int | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        """Allocate the bank beside ``decoder``.

        Args:
            decoder: The frozen backbone.
            target_linears: ``(in_features, out_features)`` of the adapted linears by full module path.
            train_rows: What trials train on that come without rows of their own.
            settings: Sizes.
            device: Of the bank; the decoder's.
            dtype: Of master weights and moments.
            compute_dtype: Of the factors in products; the decoder's.
            memory_limit_bytes: On a CPU, the most that model, bank and passes may take together.
            optimizer: Of all trials; None for the default.
        """
        self.decoder = decoder
        self.train_rows = train_rows
        self.settings = settings
        self.optimizer = optimizer or optimizer_named()
        self.bank = AdapterBank(
            AdapterLayout(dict(target_linears)),
            num_slots=settings.num_slots,
            num_rank_rows=settings.num_rank_rows,
            device=device,
            dtype=dtype,
            compute_dtype=compute_dtype,
            moments=self.optimizer.moments,
        )
        self._residents: dict[int, Resident] = {}
        records = settings.graph_tokens > 0 and self.bank.weights_RD.is_cuda
        records = records and choose_backend(self.bank.compute_RD) is Backend.TRITON
        self.captured = CapturedPasses(decoder, self.bank, most_rows=settings.graph_tokens) if records else None
        self._fresh_weights = FreshWeights(self.bank)
        # on a CPU the host is the device: there is nothing to be ahead of
        self._stages = self.bank.weights_RD.is_cuda
        self._staged: tuple[StepSamples, StagedPass] | None = None
        self.memory = DeviceMemory(
            device, limit_bytes=memory_limit_bytes, base_bytes=decoder.num_bytes + self.bank.num_bytes
        )
        self.reliefs: list[Callable[[], bool]] = [] if self.captured is None else [self.captured.give_up]
        self.gradient_checkpointing = GradientCheckpointingPolicy(
            settings.gradient_checkpointing, keep_tokens=settings.keep_tokens, device=device
        )
        self._training, self._evaluation = (
            MicroBatches(kind, token_budget=budget, memory=self.memory, reliefs=self.reliefs, policy=policy)
            for kind, budget, policy in (
                (PassKind.TRAIN, settings.token_budget, self.gradient_checkpointing),
                (PassKind.EVALUATE, settings.evaluation_token_budget, None),
            )
        )
        self._passes = TrainingPasses(decoder, self.bank, memory=self.memory, captured=self.captured)

    @property
    def token_budgets(self) -> dict[PassKind, int]:
        """Most tokens of a micro-batch now: as set, or less where memory has run out."""
        return {
            PassKind.TRAIN: self._training.token_budget,
            PassKind.EVALUATE: self._evaluation.token_budget,
        }

    def lower_token_budgets(self, budgets: Mapping[PassKind, int]) -> None:
        """Make micro-batches of each kind of at most so many tokens, where they were larger."""
        for kind, batches in ((PassKind.TRAIN, self._training), (PassKind.EVALUATE, self._evaluation)):
            batches.token_budget = min(batches.token_budget, budgets.get(kind, batches.token_budget))

    def take_shortages(self) -> tuple[MemoryShortage, ...]:
        """Return what ran out of memory since the last call; it has been done again and lost nothing."""
        return (*self._training.take_shortages(), *self._evaluation.take_shortages())

    @property
    def resident(self) -> tuple[int, ...]:
        """Ids of the trials in the bank, in slot order."""
        return tuple(r.spec.trial_id for r in self._by_slot())

    def fits(self, spec: TrialSpec) -> bool:
        """Tell whether the bank has room for another trial."""
        return self.bank.fits(spec.adapter.r)

    def load(self, spec: TrialSpec, state: TrialState | None = None, *, rows: TokenisedRows | None = None) -> int:
        """Make a trial resident, from the start or exactly where ``state`` left off; return its slot.

        Args:
            spec: The trial.
            state: Where it left off; None begins it.
            rows: What it trains on, where that is not what all do.

        Raises:
            BankFullError: no room.
        """
        if spec.trial_id in self._residents:
            raise ValueError(f"trial {spec.trial_id} is resident already")
        if state is None:
            state = TrialState(adapter=AdapterState(weights=self._fresh_weights.of(spec)))
        slot, step = self.bank.insert(spec.adapter, state.adapter), state.step
        rows = self.train_rows if rows is None else rows
        order = spec.order(len(rows))
        self._residents[spec.trial_id] = Resident(spec=spec, slot=slot, step=step, order=order, rows=rows)
        return slot

    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """Return a copy of where a resident trial stands, on the host unless ``on_device`` and there is room."""
        resident = self._residents[trial_id]
        adapter = self._copy(lambda there: self.bank.read(resident.slot, on_device=there), on_device=on_device)
        return TrialState(adapter=adapter, step=resident.step)

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        """Return a copy of a resident trial's weights [r, D], on the host unless ``on_device`` and there is room."""
        weights_rD = self.bank.weights_RD[self.bank.rank_rows(self._residents[trial_id].slot)]
        return self._copy(
            lambda there: weights_rD.clone() if there else weights_rD.to("cpu", copy=True), on_device=on_device
        )

    def _copy(self, copy: Callable[[bool], _T], *, on_device: bool) -> _T:
        if on_device:
            with contextlib.suppress(torch.OutOfMemoryError):
                return copy(True)
        return copy(False)

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """Take a trial out of the bank and return where it stands; :meth:`load` continues there bit for bit."""
        state = self.state(trial_id, on_device=on_device)
        self.drop(trial_id)
        return state

    def drop(self, trial_id: int) -> None:
        """Take a trial out of the bank and forget it."""
        self.bank.remove(self._residents.pop(trial_id).slot)

    def slot_of(self, trial_id: int) -> int:
        """Return the slot of a resident trial."""
        return self._residents[trial_id].slot

    def steps_of(self, trial_id: int) -> int:
        """Return the optimizer steps that a resident trial's state has seen."""
        return self._residents[trial_id].step

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """Run one optimizer step of each of ``trial_ids`` (default: all resident); return their events in slot order.

        The step is cut into micro-batches of at most ``token_budget`` tokens, smaller where memory runs out; losses are
        means over each trial's own trained tokens of its whole step, and the backward pass runs on their sum
        (algorithms.md 1).

        Raises:
            SampleTooLargeError: one row does not fit into memory even alone.
            UnfinishedUpdateError: the update broke off; the trials need to be loaded anew. Any other exception leaves
                all of them as they were before the step.
        """
        wanted = self._residents if trial_ids is None else trial_ids
        residents = [r for r in self._by_slot() if r.spec.trial_id in wanted]
        if not residents:
            return ()
        staged, self._staged = self._staged, None
        steps = tuple((r.spec, r.slot, r.step) for r in residents)
        samples, first = staged if staged is not None else (None, None)
        if samples is None or samples.steps != steps:
            samples, first = gather(residents), None
        trained = samples.trained
        fresh: set[int] = set()

        def begin() -> None:
            fresh.update(trained if self.bank.writes_gradients else ())

        def begin_again() -> None:
            self._clear_gradients(residents)
            begin()

        def one_pass(part: Sequence[SlotSample]) -> Tensor:
            present, recomputed = frozenset(entry.slot for entry in part), self._is_recomputed(part)
            sums = self._passes.run(part, trained, fresh_slots=present & fresh, staged=first, recomputed=recomputed)
            self.gradient_checkpointing.num_passes += recomputed
            fresh.difference_update(present)
            return sums

        begin()
        try:
            sums = self._training.run(samples.entries, one_pass, too_large=self._too_large, restart=begin_again)
            # before the update: whatever fails after it would leave weights a step ahead of their count
            loss_sums_S = torch.cat(sums)
        except BaseException:
            self._clear_gradients(residents)
            raise
        try:
            norms = self.optimizer.update(self.bank, residents)
        except Exception as error:
            self._clear_gradients(residents)
            raise UnfinishedUpdateError(f"an optimizer step broke off: {error}") from error
        self._stage_next(residents)
        # the only host reads of the step, after everything is launched
        loss_sums = loss_sums_S.tolist()
        losses = dict.fromkeys(trained, 0.0)
        for entry, loss_sum in zip(samples.entries, loss_sums, strict=True):
            losses[entry.slot] += loss_sum
        return tuple(
            self._event(
                resident,
                loss=losses[resident.slot] / trained[resident.slot],
                grad_norm=norm,
                num_tokens=samples.num_tokens[resident.slot],
            )
            for resident, norm in zip(residents, norms.tolist(), strict=True)
        )

    def evaluate(
        self, trial_ids: Sequence[int], *, rows: TokenisedRows, row_ids: Sequence[int]
    ) -> dict[int, EvaluationLoss]:
        """Return the validation loss of resident trials, packed, by trial id."""
        slots = {self._residents[trial_id].slot: trial_id for trial_id in trial_ids}
        found = self._evaluate(tuple(slots), rows=rows, row_ids=row_ids)
        return {slots[slot]: outcome for slot, outcome in found.items()}

    def evaluate_base(self, *, rows: TokenisedRows, row_ids: Sequence[int]) -> EvaluationLoss:
        """Return the validation loss of the frozen model itself."""
        return self._evaluate((BASE_SLOT,), rows=rows, row_ids=row_ids)[BASE_SLOT]

    def _evaluate(
        self, slots: Sequence[int], *, rows: TokenisedRows, row_ids: Sequence[int]
    ) -> dict[int, EvaluationLoss]:
        return evaluation_losses(
            self.decoder,
            self.bank,
            slots=slots,
            rows=rows,
            row_ids=row_ids,
            micro_batches=self._evaluation,
            memory=self.memory,
            too_large=lambda entry, words: self._too_large(entry, words, rows=rows),
            captured=self.captured,
        )

    def _clear_gradients(self, residents: Sequence[Resident]) -> None:
        """Gradients are zero between steps, or written by the next: a step that was not finished leaves none."""
        for resident in residents:
            self.bank.grads_RD[self.bank.rank_rows(resident.slot)].zero_()

    def _too_large(self, entry: SlotSample, words: str, *, rows: TokenisedRows | None = None) -> SampleTooLargeError:
        resident = next((r for r in self._residents.values() if r.slot == entry.slot), None)
        trial = None if resident is None else resident.spec
        mode = self.settings.gradient_checkpointing if rows is None else None
        rows = rows if rows is not None else self.train_rows if resident is None else resident.rows
        whose = "the base model" if trial is None else f"trial {trial.trial_id} (r = {trial.adapter.r})"
        return too_large(entry.sample, words, whose=whose, source=rows.sources[entry.sample.sample_id], mode=mode)

    def _by_slot(self) -> list[Resident]:
        return sorted(self._residents.values(), key=lambda resident: resident.slot)

    def _stage_next(self, residents: Sequence[Resident]) -> None:
        """Lay out the step after this one while the device computes; void where trials come or go before it."""
        if not self._stages or any(r.step + 1 >= r.spec.num_steps for r in residents):
            return
        # what is wrong with a row, or a device without room for a stream, will be said in the step itself
        with contextlib.suppress(Exception):
            samples = gather(residents, ahead=1)
            lengths = [len(entry.sample.tokens) for entry in samples.entries]
            first = split_micro_batches(lengths, token_budget=self._training.token_budget)[0]
            part = samples.entries[first.start : first.stop]
            present = frozenset(entry.slot for entry in part)
            fresh = present if self.bank.writes_gradients else frozenset()
            recomputed = self._is_recomputed(part)
            self._staged = samples, self._passes.stage(part, samples.trained, fresh_slots=fresh, recomputed=recomputed)

    def _is_recomputed(self, part: Sequence[SlotSample]) -> bool:
        return self.gradient_checkpointing.is_for(sum(len(entry.sample.tokens) for entry in part))

    def _event(self, resident: Resident, *, loss: float, grad_norm: float, num_tokens: int) -> StepDone:
        learning_rate = resident.spec.learning_rate_at(resident.step)
        resident.step += 1
        return StepDone(
            trial_id=resident.spec.trial_id,
            step=resident.step,
            loss=loss,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            num_tokens=num_tokens,
        )
