"""Trains trials on the answers that they have just given, in passes that all that are ready share.

The old log-probabilities are those of the training pass itself: one optimizer step follows on each set of answers, and
where there are several (``num_iterations``), the first pass gives them at no cost of its own. So the first ratio is
exactly 1, whatever the sampler's last bits are; their distance is reported with every step.

Shapes:  G prompts of a step · S answers to each · P tokens of an answer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cohort.adapters.bank import AdapterBank
from cohort.core.events import StepDone
from cohort.core.memory_records import PassKind
from cohort.data.packing import SlotSample
from cohort.data.tokenised import Sample
from cohort.kernels.dropout import row_keys
from cohort.models.attention import PackedAttention
from cohort.models.decoder import Decoder
from cohort.models.tiled_attention import TiledAttention
from cohort.training.client_training.datum import Datum, TokenLoss
from cohort.training.client_training.token_passes import DatumResult, SlotDatum, measure_tokens, train_tokens
from cohort.training.device_memory import DeviceMemory
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.micro_batches import MicroBatches
from cohort.training.optimizers.optimizer import UnfinishedUpdateError
from cohort.training.rollouts.answered_step import AnsweredStep, step_metrics
from cohort.training.rollouts.group_objective import GroupObjective
from cohort.training.step_samples import Resident

__all__ = ["AnswerTraining"]

# the slot of rows that only the frozen model reads
_NO_ADAPTER = -1

Rows = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Entry:
    """An answer on its way into passes, with what its loss reads [P] besides the old log-probabilities."""

    place: SlotSample
    answer: NDArray[np.int32]
    own: NDArray[np.bool_]
    advantage: float
    weight: float
    temperature: float
    reference: Rows

    def datum(self, *, old: Rows) -> Datum:
        size = len(self.answer)
        return Datum(
            tokens=self.place.sample.tokens[:-1].astype(np.int64),
            targets=self.answer.astype(np.int64)[:, None],
            inputs={
                "logprobs": old[:, None],
                "advantages": np.full((size, 1), self.advantage),
                "weights": np.where(self.own, self.weight, 0.0)[:, None],
                "ref_logprobs": self.reference[:, None],
            },
            temperature=self.temperature,
        )


class AnswerTraining:
    """The optimizer steps of trials that sample answers, of one executor."""

    def __init__(
        self,
        decoder: Decoder,
        bank: AdapterBank,
        *,
        memory: DeviceMemory,
        micro_batches: MicroBatches,
        measuring: MicroBatches,
        policy: GradientCheckpointingPolicy,
        too_large: Callable[[SlotSample, str], Exception],
        update: Callable[[Sequence[Resident]], Sequence[float]],
        as_drawn: bool = False,
    ) -> None:
        """Train adapters in ``bank``.

        Args:
            micro_batches, measuring: Those of training passes, and of passes without gradients.
            policy: Which passes are recomputed.
            too_large: Makes the error for an answer that does not fit into memory alone.
            update: Steps residents whose gradients are in the bank, and returns their norms.
            as_drawn: Attend in the tiles of decoding (``as_trained`` there).
        """
        self._attends = TiledAttention if as_drawn else PackedAttention
        self._decoder, self._bank, self._memory = decoder, bank, memory
        self._micro_batches, self._measuring, self._policy = micro_batches, measuring, policy
        self._too_large, self._update = too_large, update

    def train(self, steps: Sequence[AnsweredStep]) -> tuple[StepDone, ...]:
        """Take one step of each trial on its own answers and return the events, in slot order.

        A trial whose logits were no numbers is not trained: its loss is NaN.

        Raises:
            UnfinishedUpdateError: an update broke off, or one of several on the same answers.
        """
        steps = sorted(steps, key=lambda step: step.resident.slot)
        trained = [step for step in steps if step.is_finite]
        found = self._trained(trained) if trained else {}
        return tuple(found.get(step.resident.slot) or _event(step, metrics={}, norm=float("nan")) for step in steps)

    def _trained(self, steps: Sequence[AnsweredStep]) -> dict[int, StepDone]:
        advantages = {step.resident.slot: step.objective.advantages(step.rewards) for step in steps}
        entries = {step.resident.slot: _entries(step, advantages[step.resident.slot]) for step in steps}
        self._add_references(steps, entries)
        firsts: dict[int, list[DatumResult]] = {}
        events: dict[int, StepDone] = {}
        left, iteration = list(steps), 0
        while left:
            try:
                results = self._gradients(left, entries, firsts=firsts)
            except Exception as error:
                if not iteration:
                    raise
                # weights are past the first update, and the step is not done
                raise UnfinishedUpdateError(f"a further update on the same answers broke off: {error}") from error
            norms = self._update([_at_iteration(step, iteration) for step in left])
            iteration += 1
            for step, norm in zip(left, norms, strict=True):
                slot = step.resident.slot
                if iteration == 1:
                    firsts[slot] = results[slot]
                if iteration == step.objective.num_iterations:
                    logps = [result.logps[:, 0] for result in firsts[slot]]
                    metrics = step_metrics(step, advantages=advantages[slot], trained_logps=logps)
                    metrics |= _loss_metrics(results[slot], entries[slot], firsts[slot], objective=step.objective)
                    events[slot] = _event(step, metrics=metrics, norm=norm)
            left = [step for step in left if iteration < step.objective.num_iterations]
        return events

    def _add_references(self, steps: Sequence[AnsweredStep], entries: dict[int, list[_Entry]]) -> None:
        """Measure the answers of trials that are held to the frozen model by it: the same passes without adapters."""
        held = [step.resident.slot for step in steps if step.objective.beta != 0]
        asked = [
            replace(entry, place=replace(entry.place, slot=_NO_ADAPTER, row_keys=None))
            for slot in held
            for entry in entries[slot]
        ]
        losses = {step.resident.slot: _loss(step, first=True) for step in steps}
        of_entry = [losses[slot] for slot in held for _ in entries[slot]]
        if not asked:
            return
        data = {id(entry.place): (entry, loss) for entry, loss in zip(asked, of_entry, strict=True)}

        def one_pass(part: Sequence[SlotSample]) -> list[DatumResult]:
            with self._memory.observe(PassKind.EVALUATE, None):
                return measure_tokens(self._decoder, self._bank, _slot_data(part, data, old={}), attends=self._attends)

        found = self._measuring.run([entry.place for entry in asked], one_pass, too_large=self._too_large)
        results = iter([result for part in found for result in part])
        for slot in held:
            entries[slot] = [replace(entry, reference=next(results).logps[:, 0]) for entry in entries[slot]]

    def _gradients(
        self,
        steps: Sequence[AnsweredStep],
        entries: Mapping[int, list[_Entry]],
        *,
        firsts: Mapping[int, list[DatumResult]],
    ) -> dict[int, list[DatumResult]]:
        """Put the gradients of one iteration into the bank and return what its passes found, by slot."""
        slots = [step.resident.slot for step in steps]
        asked = [entry for slot in slots for entry in entries[slot]]
        losses = {step.resident.slot: _loss(step, first=not firsts) for step in steps}
        data = {id(entry.place): (entry, losses[entry.place.slot]) for entry in asked}
        old = {
            id(entry.place): result.logps[:, 0]
            for slot in slots
            if slot in firsts
            for entry, result in zip(entries[slot], firsts[slot], strict=True)
        }
        written = frozenset(slots) if self._bank.writes_gradients else frozenset()
        fresh = set(written)

        def clear() -> None:
            for slot in slots:
                self._bank.clear_gradients(slot)
            fresh.update(written)

        def one_pass(part: Sequence[SlotSample]) -> list[DatumResult]:
            present = frozenset(place.slot for place in part)
            recomputed = self._policy.recomputes(part)
            with self._memory.observe(PassKind.TRAIN, None):
                results = train_tokens(
                    self._decoder,
                    self._bank,
                    _slot_data(part, data, old=old),
                    fresh_slots=present & fresh,
                    gradient_checkpointing=recomputed,
                    attends=self._attends,
                )
            self._policy.num_passes += recomputed
            fresh.difference_update(present)
            return results

        try:
            places = [entry.place for entry in asked]
            found = self._micro_batches.run(places, one_pass, too_large=self._too_large, restart=clear)
        except BaseException:
            clear()
            raise
        results = iter([result for part in found for result in part])
        return {slot: [next(results) for _ in entries[slot]] for slot in slots}


def _slot_data(
    part: Sequence[SlotSample], data: Mapping[int, tuple[_Entry, TokenLoss]], *, old: Mapping[int, Rows]
) -> list[SlotDatum]:
    found = []
    for place in part:
        entry, loss = data[id(place)]
        # unread where the pass's own are the old ones
        own = old.get(id(place), np.zeros(len(entry.answer)))
        datum = entry.datum(old=own)
        found.append(SlotDatum(slot=place.slot, datum=datum, loss=loss, row_keys=place.row_keys))
    return found


def _entries(step: AnsweredStep, advantages: NDArray[np.float64]) -> list[_Entry]:
    pairs = list(step.pairs())
    weights = step.objective.shares(
        [int(answer.own.sum()) for _, answer in pairs], truncated=[answer.is_cut for _, answer in pairs]
    )
    size = len(pairs) // len(step.row_ids)
    found = []
    for number, ((prompt, answer), advantage, weight) in enumerate(
        zip(pairs, advantages.ravel(), weights, strict=True)
    ):
        tokens = np.concatenate([prompt, answer.tokens]).astype(np.int32)
        sample = Sample(
            sample_id=step.row_ids[number // size], tokens=tokens, trained=np.zeros(len(tokens), dtype=np.bool_)
        )
        found.append(
            _Entry(
                place=SlotSample(
                    slot=step.resident.slot, sample=sample, row_keys=_row_keys(step, number, num_rows=len(tokens) - 1)
                ),
                answer=answer.tokens,
                own=answer.own,
                advantage=float(advantage),
                weight=weight,
                temperature=step.objective.temperature,
                reference=np.zeros(len(answer.tokens)),
            )
        )
    return found


def _row_keys(step: AnsweredStep, number: int, *, num_rows: int) -> NDArray[np.int64] | None:
    """Return the dropout keys of an answer's rows: one mask for all updates on it, another for each answer."""
    spec = step.resident.spec
    if not spec.adapter.lora_dropout:
        return None
    size = len(step.answers[0])
    sample_id = step.row_ids[number // size] * size + number % size
    return row_keys(num_rows, trial_seed=spec.seed, step=step.resident.step, sample_id=sample_id)


def _loss(step: AnsweredStep, *, first: bool) -> TokenLoss:
    return step.objective.token_loss(on_policy=first)


def _at_iteration(step: AnsweredStep, iteration: int) -> Resident:
    """Return the trial as its optimizer sees it: schedules and moments count every update."""
    resident, updates = step.resident, step.objective.num_iterations
    if updates == 1:
        return resident
    spec = replace(resident.spec, num_steps=resident.spec.num_steps * updates)
    return replace(resident, spec=spec, step=resident.step * updates + iteration)


def _loss_metrics(
    results: Sequence[DatumResult],
    entries: Sequence[_Entry],
    firsts: Sequence[DatumResult],
    *,
    objective: GroupObjective,
) -> dict[str, float]:
    """Return the surrogate loss, the distance from the frozen model, and the share of tokens whose ratio is clipped."""
    owned = [entry.own for entry in entries]
    log_ratios = [(last.logps - first.logps)[own, 0] for last, first, own in zip(results, firsts, owned, strict=True)]
    clipped = objective.clipped(log_ratios, [entry.advantage for entry in entries])
    found = {"loss": float(sum(result.loss for result in results)), "clip_share": float(clipped.mean())}
    reference = np.concatenate([entry.reference[entry.own] for entry in entries])
    if reference.any():
        away = reference - np.concatenate([result.logps[own, 0] for result, own in zip(results, owned, strict=True)])
        # the estimate that TRL uses (Schulman's k3): never negative, unbiased
        found["kl"] = float((np.exp(away) - away - 1).mean())
    return found


def _event(step: AnsweredStep, *, metrics: Mapping[str, float], norm: float) -> StepDone:
    spec, done_before = step.resident.spec, step.resident.step
    return StepDone(
        trial_id=spec.trial_id,
        step=done_before + 1,
        loss=-metrics["reward"] if metrics else float("nan"),
        grad_norm=norm,
        learning_rate=spec.learning_rate_at(done_before),
        num_tokens=step.num_tokens,
        metrics=metrics,
    )
