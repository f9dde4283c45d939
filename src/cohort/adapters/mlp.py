"""The feed-forward block that a decoder calls: gate and up, the activation, down, each with its adapters."""

from __future__ import annotations

from torch import Tensor

from cohort.adapters.linear import LoraContext, PackedLinear
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.deferred_lora_term import Apart
from cohort.kernels.fp8_product import Fp8Rows
from cohort.kernels.gated_activation import Activation, gated_activation
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.kernels.packed_mlp import fuses, packed_mlp
from cohort.kernels.swiglu import swiglu

__all__ = ["PackedMlp"]


class PackedMlp:
    """``y = down(activation(gate(x)) * up(x))`` over two packed linears.

    Attributes:
        is_composed: Call the two linears themselves: they may be of another kind, which no joint op knows.
        fused: Let the kernels of :mod:`cohort.kernels.packed_mlp` take the whole block where they are worth it; they
            know SiLU alone.
    """

    fused: bool = True
    is_composed: bool = False

    def __init__(self, gate_up: PackedLinear, down: PackedLinear, *, activation: Activation = Activation.SILU) -> None:
        self.gate_up = gate_up
        self.down = down
        self._activation = activation

    def __call__(self, x_TD: Tensor, lora: LoraContext | None, *, codes: Fp8Rows | None = None) -> Tensor:
        """Return y [T, D]; without ``lora`` the frozen block alone.

        ``codes``: what gate and up's ``code_room`` gave for this pass, with the codes of ``x`` in it.
        """
        if lora is not None and isinstance(lora.tables, RowTables):
            return self.down(self._hidden(x_TD, lora, codes=codes), lora)
        # magnitudes multiply what comes out of each linear, so the block is not one node
        if lora is None or self.is_composed or self._activation is not Activation.SILU or lora.magnitudes is not None:
            return self._composed(self.gate_up(x_TD, lora, codes=codes), lora)
        return packed_mlp(
            x_TD,
            gate_up=self.gate_up.reading(codes),
            gate_up_parts=self.gate_up.adapted(lora),
            down=self.down.frozen,
            down_parts=self.down.adapted(lora),
            slots=lora.slots,
            segments=lora.segments,
            row_keys_T=lora.row_keys_T,
            tables=lora.tables,
            fused=self.fused,
        )

    def apart(self, x_TD: Tensor, lora: LoraContext | None, *, codes: Fp8Rows | None = None) -> Tensor | Apart:
        """Return y, or where few rows of many adapters are decoded the product of down and its LoRA terms separately.

        The arguments are those of a call.
        """
        if lora is not None and isinstance(lora.tables, RowTables):
            return self.down.apart(self._hidden(x_TD, lora, codes=codes), lora)
        return self(x_TD, lora, codes=codes)

    def _composed(self, gate_up_TF: Tensor, lora: LoraContext | None) -> Tensor:
        if self._activation is not Activation.SILU:
            return self.down(gated_activation(gate_up_TF, activation=self._activation), lora)
        room = self.down.code_room(gate_up_TF)
        return self.down(swiglu(gate_up_TF, codes=room), lora, codes=room)

    def _hidden(self, x_TD: Tensor, lora: LoraContext, *, codes: Fp8Rows | None) -> Tensor:
        # GELU has no kernel that adds terms as it reads
        gate_up = self.gate_up.apart if self._activation is Activation.SILU else self.gate_up
        return gated_activation(gate_up(x_TD, lora, codes=codes), activation=self._activation)

    def is_fused(self, x_TD: Tensor, lora: LoraContext) -> bool:
        """Return whether a pass over rows such as ``x`` runs as one node, which keeps less until its backward pass."""
        if self.is_composed or self._activation is not Activation.SILU or lora.magnitudes is not None:
            return False
        parts = {"gate_up_parts": self.gate_up.adapted(lora), "down_parts": self.down.adapted(lora)}
        return self.fused and choose_backend(x_TD) is Backend.TRITON and fuses(x_TD, **parts, slots=lora.slots)
