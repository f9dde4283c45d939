"""Runs the operations of many clients' models on one frozen base: rows in shared passes, steps in one launch.

Continuous batching of training: forward and backward passes of different models at different points of their own
loops share a pass, and each model's gradients wait in the bank until its client asks for a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.core.numerics import Numerics
from cohort.data.packing import split_micro_batches
from cohort.kernels.adamw import SlotUpdate, adamw_step
from cohort.models.decoder import Decoder
from cohort.training.client_training.client_models import ClientModel, ClientModels
from cohort.training.client_training.datum import Datum, TokenLoss
from cohort.training.client_training.token_passes import DatumResult, SlotDatum, measure_tokens, train_tokens
from cohort.training.exact_numerics import set_numerics
from cohort.training.optimizers.kinds.adamw import AdamW

__all__ = ["AdamParameters", "PassRequest", "RequestExecutor"]

# the frozen model alone
NO_SLOT = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class PassRequest:
    """A ``forward`` or a ``forward_backward`` of one model.

    Attributes:
        model_id: None for the frozen model, which can only be measured.
        trains: Whether gradients are added.
    """

    model_id: str | None
    data: tuple[Datum, ...]
    loss: TokenLoss
    trains: bool

    @property
    def num_tokens(self) -> int:
        return sum(len(datum.tokens) for datum in self.data)


@dataclass(frozen=True, kw_only=True)
class AdamParameters:
    """The numbers of one optimizer step, with Tinker's names and defaults.

    Attributes:
        grad_clip_norm: Norm that the gradient is clipped to; 0 does not clip.
    """

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class RequestExecutor:
    """Owns the bank of clients' models.

    Attributes:
        models: The models, by name.
        layout: The linears that models may adapt.
        before_pass: Called before each pass.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        layout: AdapterLayout,
        num_slots: int,
        num_rank_rows: int,
        token_budget: int,
        dtype: torch.dtype = torch.float32,
        compute_dtype: torch.dtype | None = None,
        numerics: Numerics = Numerics.FAST,
    ) -> None:
        """Allocate an empty bank next to ``decoder``.

        Args:
            num_slots: Most models in the bank; others wait in host memory.
            num_rank_rows: Most rank rows in the bank.
            token_budget: Most tokens of a pass; a longer datum stands alone.
            dtype: Of master weights and gradients.
            compute_dtype: What products read the factors in; by default ``dtype``.
            numerics: With ``exact`` a model has the same bits in every pack on a GPU, too.

        Raises:
            InputError: exact numerics are asked for and the model has no exact form on this GPU.
        """
        self.decoder, self.layout, self.token_budget = decoder, layout, token_budget
        self.before_pass: Callable[[], None] = lambda: None
        self._bank = AdapterBank(
            layout,
            num_slots=num_slots,
            num_rank_rows=num_rank_rows,
            device=decoder.device,
            dtype=dtype,
            compute_dtype=compute_dtype,
            moments=AdamW.moments,
            adds_gradients=not decoder.calls_linears_once,
        )
        set_numerics(numerics, decoder=decoder, bank=self._bank)
        self.models = ClientModels(decoder, self._bank)

    def run(self, requests: Sequence[PassRequest]) -> list[list[DatumResult]]:
        """Run passes over the data of ``requests``, which may be of different models; return what they found.

        A model's gradients are added in the order of its requests. After an error nothing of the models that trained is
        left from since their last optimizer step: the clients' calls fail, and other models are as they were.

        Raises:
            UnknownModelError: a request names no model.
        """
        names = list(dict.fromkeys(r.model_id for r in requests if r.model_id is not None))
        for name in names:
            _ = self.models[name]
        try:
            return self._run_in_turns(requests, names)
        except BaseException:
            # of all parts: the call of a model whose own part succeeded fails as well
            for name in {r.model_id for r in requests if r.model_id is not None and r.trains and r.data}:
                self.models.clear_gradients(name)
            raise

    def _run_in_turns(self, requests: Sequence[PassRequest], names: Sequence[str]) -> list[list[DatumResult]]:
        fitting = self.models.fitting(names) if names else []
        if len(fitting) < len(names):
            # more models than the bank holds: those that fit now, then the others
            now = [place for place, r in enumerate(requests) if r.model_id is None or r.model_id in fitting]
            later = [place for place in range(len(requests)) if place not in set(now)]
            found: list[list[DatumResult]] = [[] for _ in requests]
            for places in (now, later):
                for place, result in zip(places, self.run([requests[place] for place in places]), strict=True):
                    found[place] = result
            return found
        self.models.enter(names)
        return self._run_resident(requests)

    def _run_resident(self, requests: Sequence[PassRequest]) -> list[list[DatumResult]]:
        found: list[list[DatumResult]] = [[] for _ in requests]
        for trains in (True, False):
            # of one model the order stays, as a stable sort keeps it; those of no adapter come last
            places = [place for place, request in enumerate(requests) if request.trains is trains and request.data]
            places.sort(key=lambda place: self._order_of(requests[place]))
            entries = [
                (place, SlotDatum(slot=self._slot_of(requests[place]), datum=datum, loss=requests[place].loss))
                for place in places
                for datum in requests[place].data
            ]
            for part in split_micro_batches(
                [entry.datum.num_rows for _, entry in entries], token_budget=self.token_budget
            ):
                own = [entry for _, entry in entries[part.start : part.stop]]
                self.before_pass()
                results = self._train(own) if trains else measure_tokens(self.decoder, self._bank, own)
                for (place, _), result in zip(entries[part.start : part.stop], results, strict=True):
                    found[place].append(result)
        return found

    def _train(self, entries: Sequence[SlotDatum]) -> list[DatumResult]:
        by_slot = {model.slot: model for model in map(self.models.__getitem__, self.models.names)}
        present = [by_slot[slot] for slot in sorted({entry.slot for entry in entries})]
        fresh = [model.slot for model in present if not model.has_gradients and model.slot is not None]
        results = train_tokens(
            self.decoder, self._bank, entries, fresh_slots=fresh if self._bank.writes_gradients else ()
        )
        for model in present:
            model.has_gradients = True
        return results

    def _slot_of(self, request: PassRequest) -> int:
        return NO_SLOT if request.model_id is None else self.models.slot_of(request.model_id)

    def _order_of(self, request: PassRequest) -> tuple[bool, int]:
        slot = self._slot_of(request)
        return slot == NO_SLOT, slot

    def step(self, steps: Sequence[tuple[str, AdamParameters]]) -> list[float]:
        """Take one optimizer step of each model and return the norms of their gradients before clipping.

        Raises:
            UnknownModelError: there is no such model.
        """
        fitting = self.models.fitting([model_id for model_id, _ in steps])
        now, later = steps[: len(fitting)], steps[len(fitting) :]
        self.models.enter(fitting)
        updates = []
        for model_id, numbers in now:
            model = self.models[model_id]
            if not model.has_gradients:
                # on a GPU the rows of a slot hold those of the step before
                self.models.clear_gradients(model_id)
            self.models.freeze(model)
            updates.append(self._update(model, numbers))
        slots = sorted(self.models.slot_of(model_id) for model_id in fitting)
        bank = self._bank
        bank.before_update(slots)
        norms: list[float] = adamw_step(
            bank.weights_RD,
            grads_RD=bank.grads_RD,
            exp_avg_RD=bank.moments_RD["exp_avg"],
            exp_avg_sq_RD=bank.moments_RD["exp_avg_sq"],
            slots=updates,
            compute_RD=None if bank.compute_RD is bank.weights_RD else bank.compute_RD,
            zero_grads=not bank.writes_gradients,
        ).tolist()
        bank.after_update(slots)
        for model_id, _ in now:
            model = self.models[model_id]
            model.step, model.has_gradients = model.step + 1, False
        return norms if not later else norms + self.step(later)

    def _update(self, model: ClientModel, numbers: AdamParameters) -> SlotUpdate:
        return SlotUpdate(
            row_start=self._bank.rank_rows(self.models.slot_of(model.model_id)).start,
            rank=model.spec.num_trained_rows,
            learning_rate=numbers.learning_rate,
            weight_decay=numbers.weight_decay,
            beta1=numbers.beta1,
            beta2=numbers.beta2,
            eps=numbers.eps,
            step=model.step + 1,
            # 0 means no clipping to clients; to the update it would be a norm that no gradient survives
            max_grad_norm=numbers.grad_clip_norm or None,
        )
