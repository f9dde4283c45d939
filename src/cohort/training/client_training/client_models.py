"""The models of clients on one frozen base: in the bank, or in host memory until they are asked for again.

A model's results do not depend on where it was meanwhile, nor on which models are next to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank, aligned_rank
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import CohortError, InputError, Problem
from cohort.models.decoder import Decoder
from cohort.training.fresh_weights import FreshWeights

__all__ = ["ClientModel", "ClientModels", "ModelState", "UnknownModelError"]


class UnknownModelError(CohortError):
    """There is no model of this name."""


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """Everything of a client's model that calls change.

    Attributes:
        adapter: Weights and moments, on the host.
        step: Optimizer steps done.
        gradients: What ``forward_backward`` has added since the last step, [rank rows, D]; None where nothing was.
    """

    adapter: AdapterState
    step: int = 0
    gradients: Tensor | None = None


@dataclass(kw_only=True, eq=False)
class ClientModel:
    """One model.

    Attributes:
        model_id: Its name.
        spec: Its adapter.
        seed: What its first weights are drawn from.
        frozen: Linears of the bank's layout that it leaves alone.
        step: Optimizer steps done.
        slot: Where it is in the bank; None while its state is ``parked``.
        parked: Its state while it is not in the bank.
        has_gradients: Whether the bank holds gradients of it.
    """

    model_id: str
    spec: AdapterSpec
    seed: int
    frozen: frozenset[str] = frozenset()
    step: int = 0
    slot: int | None = None
    parked: ModelState | None = field(default=None, repr=False)
    has_gradients: bool = False


class ClientModels:
    """Owns which models are in the bank; the least recently used make room."""

    def __init__(self, decoder: Decoder, bank: AdapterBank) -> None:
        """Keep models of ``decoder`` in ``bank``, which holds nothing else."""
        self._bank, self._fresh = bank, FreshWeights(bank, decoder)
        # the least recently used first
        self._models: OrderedDict[str, ClientModel] = OrderedDict()

    def __contains__(self, model_id: str) -> bool:
        return model_id in self._models

    def __getitem__(self, model_id: str) -> ClientModel:
        try:
            return self._models[model_id]
        except KeyError:
            raise UnknownModelError(f"there is no model {model_id!r}") from None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._models)

    def create(
        self, model_id: str, spec: AdapterSpec, *, seed: int, frozen: Collection[str] = (), state: ModelState | None
    ) -> None:
        """Add a model, fresh or as ``state`` has it. It enters the bank when it is first needed.

        Raises:
            InputError: its rank never fits into the bank.
            ValueError: there is a model of this name.
        """
        if model_id in self._models:
            raise ValueError(f"model {model_id!r} exists")
        if spec.num_rows > self._bank.num_rank_rows:
            raise InputError(
                Problem(
                    where="lora_config.rank",
                    found=str(spec.r),
                    allowed=f"1 to {self._bank.num_rank_rows}",
                    hint="Choose a smaller rank.",
                )
            )
        if state is None:
            state = ModelState(adapter=AdapterState(weights=self._fresh.of(spec, seed)))
        self._models[model_id] = ClientModel(
            model_id=model_id, spec=spec, seed=seed, frozen=frozenset(frozen), step=state.step, parked=state
        )

    def drop(self, model_id: str) -> None:
        """Forget a model.

        Raises:
            UnknownModelError: there is none.
        """
        model = self[model_id]
        if model.slot is not None:
            self._bank.remove(model.slot)
        del self._models[model_id]

    def load(self, model_id: str, state: ModelState) -> None:
        """Give a model another state; gradients of before are gone.

        Raises:
            UnknownModelError: there is none.
        """
        model = self[model_id]
        if model.slot is not None:
            self._bank.remove(model.slot)
        model.slot, model.parked, model.step, model.has_gradients = None, state, state.step, False

    def state(self, model_id: str) -> ModelState:
        """Return a copy of a model's state, on the host.

        Raises:
            UnknownModelError: there is none.
        """
        model = self[model_id]
        if model.slot is None:
            assert model.parked is not None, "a model is in the bank or parked"
            return model.parked
        gradients = None
        if model.has_gradients:
            gradients = self._bank.grads_RD[self._bank.rank_rows(model.slot)].to("cpu", copy=True)
        return ModelState(adapter=self._bank.read(model.slot), step=model.step, gradients=gradients)

    def weights(self, model_id: str, *, dtype: torch.dtype) -> Tensor:
        """Return a copy of a model's weights where they are, on the device or on the host, [rank rows, D].

        Raises:
            UnknownModelError: there is none.
        """
        model = self[model_id]
        if model.slot is not None:
            return self._bank.weights(model.slot, dtype=dtype)
        assert model.parked is not None, "a model is in the bank or parked"
        return model.parked.adapter.weights.to(dtype, copy=True)

    def fitting(self, wanted: Sequence[str]) -> list[str]:
        """Return as many of ``wanted``, from the first on, as the bank holds at once; at least one."""
        rows, found = 0, list[str]()
        for model_id in wanted:
            rows += aligned_rank(self[model_id].spec.num_rows)
            if found and (rows > self._bank.num_rank_rows or len(found) == self._bank.num_slots):
                break
            found.append(model_id)
        return found

    def enter(self, wanted: Sequence[str]) -> None:
        """Bring ``wanted`` into the bank, which holds them at once; others leave it where there is no room."""
        needed = set(wanted)
        for model_id in wanted:
            self._models.move_to_end(model_id)
        for model_id in wanted:
            model = self[model_id]
            if model.slot is not None:
                continue
            while not self._bank.fits(model.spec):
                resident = (m for m in self._models.values() if m.slot is not None and m.model_id not in needed)
                self._park(next(resident))
            self._insert(model)

    def _park(self, model: ClientModel) -> None:
        assert model.slot is not None, "only a resident model can leave the bank"
        model.parked = self.state(model.model_id)
        self._bank.remove(model.slot)
        model.slot, model.has_gradients = None, False

    def _insert(self, model: ClientModel) -> None:
        state = model.parked
        assert state is not None, "a model is in the bank or parked"
        slot = self._bank.insert(model.spec, state.adapter)
        if state.gradients is not None:
            self._bank.grads_RD[self._bank.rank_rows(slot)].copy_(state.gradients)
        model.slot, model.parked, model.has_gradients = slot, None, state.gradients is not None

    def clear_gradients(self, model_id: str) -> None:
        """Forget what ``forward_backward`` has added since the last step."""
        model = self[model_id]
        if model.slot is not None:
            self._bank.clear_gradients(model.slot)
        elif model.parked is not None:
            model.parked = replace(model.parked, gradients=None)
        model.has_gradients = False

    def freeze(self, model: ClientModel) -> None:
        """Zero the gradients of the linears that a resident model leaves alone."""
        assert model.slot is not None, "the gradients of a resident model"
        rank_rows = self._bank.rank_rows(model.slot)
        for name in model.frozen:
            columns = self._bank.layout.columns[name]
            self._bank.grads_RD[rank_rows, columns.a] = 0.0
            self._bank.grads_RD[rank_rows, columns.b] = 0.0

    def slot_of(self, model_id: str) -> int:
        slot = self[model_id].slot
        assert slot is not None, "enter brings a model into the bank"
        return slot
