"""The bank: stacked factors, gradients and moments of all resident adapters, ragged in rank.

Shapes:  R rank rows of the bank · r rank of one adapter · D entries of a rank row (see adapters/layout.py)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState, Moment
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LoraContext
from cohort.adapters.module_scales import module_scales
from cohort.adapters.modules_to_save.saved_tables import SavedTables
from cohort.adapters.rank_row_slots import BankFullError, RankRowSlots, aligned_rank
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_gradients import BlockGradients
from cohort.adapters.variants.dora import Magnitudes, MagnitudeSlot
from cohort.adapters.variants.vera import ScalingVectors
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.dropout import module_key
from cohort.kernels.packed_linear import LoraPart, SlotTable
from cohort.kernels.packed_linear.launch.tables import LaunchTables
from cohort.kernels.packed_linear.rows.tables import MOST_ROWS, RowTables
from cohort.kernels.segments import SegmentTable

__all__ = ["AdapterBank", "BankFullError", "aligned_rank"]


class AdapterBank:
    """Owns the slots. A slot is a contiguous run of rank rows; results do not depend on which run it is.

    Attributes:
        is_exact: Whether the grouped kernels take the launches of exact numerics.
    """

    def __init__(
        self,
        layout: AdapterLayout,
        *,
        num_slots: int,
        num_rank_rows: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        compute_dtype: torch.dtype | None = None,
        moments: Sequence[Moment] = (),
        trains: bool = True,
        adds_gradients: bool = False,
    ) -> None:
        """Allocate an empty bank.

        Args:
            num_slots: Most adapters at once.
            num_rank_rows: Most rank rows at once; each adapter takes its rank rounded up to 16.
            compute_dtype: The dtype of the copies that products read; with None or ``dtype`` they read the masters.
            moments: The optimizer's; none where nothing is trained.
            trains: Whether there is room for gradients.
            adds_gradients: Add all gradients to what is there, also those of a slot's first pass: where a pass calls a
                linear once for each sequence, the last call would write over what the others gave.
        """
        self.layout = layout
        self.num_slots = num_slots
        self.trains = trains
        self.is_exact = False
        self._adds_gradients = adds_gradients
        self._slots = RankRowSlots(num_slots=num_slots, num_rank_rows=num_rank_rows)
        self.num_rank_rows = self._slots.num_rank_rows
        shape = (self.num_rank_rows, layout.width)
        self.weights_RD = torch.zeros(shape, dtype=dtype, device=device)
        self.grads_RD = torch.zeros(shape if trains else (0, layout.width), dtype=dtype, device=device)
        self.moments_RD = {
            moment.name: torch.zeros(
                (self.num_rank_rows, moment.num_columns(layout.width)), dtype=moment.dtype or dtype, device=device
            )
            for moment in moments
        }
        self.compute_RD = (
            self.weights_RD
            if compute_dtype in (None, dtype)
            else torch.zeros(shape, dtype=compute_dtype, device=device)
        )
        # the columns that LoRA+ gives a learning rate of their own
        self.b_columns_D = torch.zeros(layout.width, dtype=torch.bool)
        for columns in layout.columns.values():
            self.b_columns_D[columns.b] = True
        self.b_columns_D = self.b_columns_D.to(device)
        self._block_gradients = BlockGradients(layout)
        # by slot, what its columns are multiplied by for the products
        self._factors_D: dict[int, Tensor] = {}
        self._magnitudes = Magnitudes(layout, weights_RD=self.weights_RD, grads_RD=self.grads_RD)
        self._vectors = ScalingVectors(layout, weights_RD=self.weights_RD, grads_RD=self.grads_RD)
        # by slot, the linears that its magnitudes are for
        self._magnitude_modules: dict[int, frozenset[str]] = {}
        self._parts = self._views()

    def _views(self) -> dict[str, LoraPart]:
        return {
            name: LoraPart(
                a_RK=self.compute_RD[:, columns.a],
                b_RN=self.compute_RD[:, columns.b],
                grad_a_RK=self.grads_RD[:, columns.a] if self.trains else None,
                grad_b_RN=self.grads_RD[:, columns.b] if self.trains else None,
                module_key=module_key(name),
                first_feature=self.layout.first_features.get(name, 0),
            )
            for name, columns in self.layout.columns.items()
        }

    @property
    def num_bytes(self) -> int:
        return sum(buffer.numel() * buffer.element_size() for buffer in self._unique_buffers())

    @property
    def occupied(self) -> tuple[int, ...]:
        """Slots in use, ascending."""
        return self._slots.occupied

    def spec(self, slot: int) -> AdapterSpec:
        return self._slots.spec(slot)

    def rank_rows(self, slot: int) -> slice:
        """Return the rank rows of the state of ``slot``, padding left out."""
        return self._slots.state_rows(slot)

    def slot_table(self) -> SlotTable:
        return self._slots.table()

    @property
    def writes_gradients(self) -> bool:
        """Whether a pass may write a slot's gradients over what the bank holds instead of adding to it."""
        return choose_backend(self.compute_RD) is Backend.TRITON and not self._adds_gradients

    def context(
        self, segments: SegmentTable, *, row_keys_T: Tensor | None = None, fresh_slots: Collection[int] = ()
    ) -> LoraContext:
        """Return what the linears need for one pass over a stream laid out by ``segments``.

        Where :attr:`writes_gradients`, the pass overwrites the gradients of ``fresh_slots``; otherwise it adds to all.
        """
        slots = self.slot_table()
        tables: LaunchTables | RowTables | None = None
        if self.writes_gradients:
            # decoding has a row or a few of each adapter, too few to share what is read; there a sum's order follows
            # from the widest rank of the pass, and in exact numerics a row has its bits in any pass
            if segments.multiplies_slots and segments.num_rows <= MOST_ROWS and not self.is_exact:
                tables = RowTables(segments, slots, device=self.compute_RD.device)
            else:
                tables = LaunchTables(
                    segments, slots, device=self.compute_RD.device, exact=self.is_exact, fresh_slots=fresh_slots
                )
        return LoraContext(
            factors=self._parts,
            slots=slots,
            segments=segments,
            row_keys_T=row_keys_T,
            tables=tables,
            magnitudes=self._magnitudes if self.has_magnitudes else None,
            magnitude_slots=tuple(map(self._magnitude_slot, sorted(self._magnitude_modules))),
            saved=self._saved_tables(),
        )

    @property
    def has_magnitudes(self) -> bool:
        """Whether an adapter of the bank is DoRA."""
        return bool(self._magnitude_modules)

    @property
    def has_saved_modules(self) -> bool:
        """Whether an adapter of the bank has an embedding or a head of its own."""
        return any(self.spec(slot).saved is not None for slot in self.occupied)

    def _saved_tables(self) -> tuple[SavedTables, ...]:
        grads_RD = self.grads_RD if self.trains else None
        owns = ((slot, self.spec(slot).saved) for slot in self.occupied)
        return tuple(
            SavedTables.of(slot, saved, rows=self._saved_rows(slot), compute_RD=self.compute_RD, grads_RD=grads_RD)
            for slot, saved in owns
            if saved is not None
        )

    def _saved_rows(self, slot: int) -> slice:
        return slice(self._slots.start(slot) + self.spec(slot).saved_row, self.rank_rows(slot).stop)

    def _magnitude_slot(self, slot: int) -> MagnitudeSlot:
        spec, start = self.spec(slot), self._slots.start(slot)
        return MagnitudeSlot(
            slot=slot,
            rank_rows=slice(start, start + spec.num_factor_rows),
            row=start + spec.magnitude_row,
            scale=spec.scale,
            dropout=spec.lora_dropout,
            modules=self._magnitude_modules[slot],
        )

    def fits(self, spec: AdapterSpec) -> bool:
        return self._slots.fits(spec)

    def insert(self, spec: AdapterSpec, state: AdapterState) -> int:
        """Put an adapter into a free slot and return the slot.

        Raises:
            BankFullError: no slot or no run of rank rows is free.
            ValueError: the state has the moments of another optimizer.
        """
        if state.moments and state.moments.keys() != self.moments_RD.keys():
            raise ValueError(f"a state with moments {[*state.moments]} for a bank with moments {[*self.moments_RD]}")
        factors_D = module_scales(self.layout, spec)
        if factors_D is not None:
            self.separate_compute()
        slot = self._take_rank_rows(spec)
        try:
            self._fill(slot, spec, state, factors_D)
        except BaseException:
            # such as too little memory: the slot is free again
            self.remove(slot)
            raise
        return slot

    def _fill(self, slot: int, spec: AdapterSpec, state: AdapterState, factors_D: Tensor | None) -> None:
        if factors_D is not None:
            self._factors_D[slot] = factors_D.to(self.weights_RD)
        rank_rows = self.rank_rows(slot)
        self.weights_RD[rank_rows].copy_(state.weights, non_blocking=True)
        for name, moment in state.moments.items():
            self.moments_RD[name][rank_rows].copy_(moment, non_blocking=True)
        if spec.use_dora:
            row_D = state.weights[spec.magnitude_row]
            # a linear that an adapter leaves alone has no magnitudes, and its output keeps its own
            columns = self.layout.columns.items()
            self._magnitude_modules[slot] = frozenset(name for name, own in columns if bool(row_D[own.b].any()))
        self.refresh(slot)

    def _take_rank_rows(self, spec: AdapterSpec) -> int:
        """Return a free slot with rank rows for ``spec``, all of them zero."""
        for move in self._slots.moves_for(spec):
            # no result depends on where an adapter is
            for buffer in self._unique_buffers():
                moved = buffer[move.old : move.old + move.size].clone()
                buffer[move.old : move.old + move.size].zero_()
                buffer[move.new : move.new + move.size].copy_(moved)
        slot = self._slots.take(spec)
        for buffer in self._unique_buffers():
            buffer[self._slots.padded_rows(slot)].zero_()
        return slot

    def needs_separate_compute(self, spec: AdapterSpec) -> bool:
        """Return whether :meth:`insert` will move what products read to a copy of its own."""
        return self.compute_RD is self.weights_RD and module_scales(self.layout, spec) is not None

    def separate_compute(self) -> None:
        """Let products read a copy of the masters from now on, if they do not yet."""
        if self.compute_RD is self.weights_RD:
            # what VeRA's products read is in the clone as well
            self.compute_RD = self.weights_RD.clone()
            self._parts = self._views()

    def refresh(self, slot: int) -> None:
        """Make what products read of ``slot`` from its master weights, where it is not the same."""
        self._magnitudes.changed(slot)
        rank_rows = self._slots.factor_rows(slot)
        if (vectors := self.spec(slot).use_vera) is not None:
            row = self.rank_rows(slot).start
            self._vectors.write_factors(vectors, self.compute_RD, rank_rows=rank_rows, row=row)
            return
        if self.compute_RD is self.weights_RD:
            return
        if self.spec(slot).saved is not None:
            tables = self._saved_rows(slot)
            self.compute_RD[tables].copy_(self.weights_RD[tables])
        masters_rD, factors_D = self.weights_RD[rank_rows], self._factors_D.get(slot)
        self.compute_RD[rank_rows].copy_(masters_rD if factors_D is None else masters_rD * factors_D)

    def before_update(self, slots: Collection[int]) -> None:
        """Turn the gradients of what products read into those of the masters, for the optimizer."""
        for slot in slots:
            rank_rows, factors_D = self.rank_rows(slot), self._factors_D.get(slot)
            if (blocks := self.spec(slot).use_bdlora) is not None:
                self._block_gradients.confine(self.grads_RD[self._slots.factor_rows(slot)], blocks)
            if self.spec(slot).use_dora:
                self._magnitudes.finish_gradients(rank_rows)
            if (vectors := self.spec(slot).use_vera) is not None:
                self._vectors.turn_gradients(vectors, rank_rows=self._slots.factor_rows(slot), row=rank_rows.start)
            if factors_D is not None:
                self.grads_RD[self._slots.factor_rows(slot)].mul_(factors_D)
            frozen = slice(rank_rows.start + self.spec(slot).num_trained_rows, rank_rows.stop)
            if frozen.start < frozen.stop:
                self.grads_RD[frozen].zero_()

    def after_update(self, slots: Collection[int]) -> None:
        """Make what products read from the masters that an optimizer stepped; plain copies it has refreshed itself."""
        # torch counts no writes of its fused optimizers, and what is arranged of factors is as old as the count
        torch.autograd.graph.increment_version(self.compute_RD)
        for slot in slots:
            if slot in self._factors_D or self.spec(slot).use_vera is not None:
                self.refresh(slot)
            if slot in self._magnitude_modules:
                self._magnitudes.changed(slot)
                # passes add to them, also where they write over those of the factors
                self.grads_RD[self._slots.start(slot) + self.spec(slot).magnitude_row].zero_()
            if self.spec(slot).saved is not None and self.writes_gradients:
                # elsewhere the optimizer has zeroed them
                self.grads_RD[self._saved_rows(slot)].zero_()

    def clear_gradients(self, slot: int) -> None:
        """Zero what an unfinished step has left."""
        self.grads_RD[self._slots.start(slot) : self.rank_rows(slot).stop].zero_()
        self._magnitudes.clear_gradients(self.rank_rows(slot))

    def read(self, slot: int, *, on_device: bool = False) -> AdapterState:
        """Return a copy of the adapter in ``slot``, on the host unless ``on_device``."""
        rank_rows = self.rank_rows(slot)
        device = self.weights_RD.device if on_device else torch.device("cpu")
        weights, *moments = (
            buffer[rank_rows].detach().to(device, copy=True) for buffer in (self.weights_RD, *self.moments_RD.values())
        )
        return AdapterState(weights=weights, moments=dict(zip(self.moments_RD, moments, strict=True)))

    def weights(self, slot: int, *, dtype: torch.dtype) -> Tensor:
        """Return a copy of the weights in ``slot``, on the device."""
        return self.weights_RD[self.rank_rows(slot)].detach().to(dtype, copy=True)

    def remove(self, slot: int) -> None:
        """Free ``slot`` and zero its rows, so that nothing of a diverged adapter stays."""
        for buffer in self._unique_buffers():
            buffer[self._slots.padded_rows(slot)].zero_()
        self._slots.free(slot)
        self._factors_D.pop(slot, None)
        self._magnitude_modules.pop(slot, None)
        self._magnitudes.changed(slot)

    def _unique_buffers(self) -> tuple[Tensor, ...]:
        shared = self.compute_RD is self.weights_RD
        masters = (self.weights_RD, self.grads_RD, *self.moments_RD.values())
        return masters if shared else (*masters, self.compute_RD)
