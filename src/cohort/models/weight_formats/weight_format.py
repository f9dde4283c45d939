"""What a format of frozen weights tells the loader, the decoder and everyone who counts bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.kernels.packed_linear import FrozenProduct

__all__ = ["Disassemble", "Quantisation", "StoredTensors", "WeightFormat"]

StoredTensors = Mapping[str, Tensor]
"""What a format keeps of one checkpoint tensor, by name."""

Disassemble = Callable[[FrozenProduct, Sequence[int]], Sequence[StoredTensors]]
"""From products and the rows of each sibling to what is kept of each."""


@dataclass(frozen=True, kw_only=True)
class Quantisation:
    """How a format that does not keep weights as they are reads and keeps them.

    Attributes:
        quantise: From a checkpoint tensor [n, K] of any float dtype to what is kept of it, the same as of its float32
            values. Siblings are quantised one by one, so that a linear has the same numbers fused and alone.
        assemble: From what is kept of the siblings of one fused linear, in the order of their rows, its bias [N] or
            None, and the dtype of inputs and outputs, to the products.
        disassemble: The inverse of ``assemble``, by views of the memory that the products keep: what is kept on disk is
            written from it while the model is used. None where that is not possible: it is written within the load.
        finish: Takes all linears' products, and the bytes that the model may take of their device, None for all of it;
            may keep more to save time.
        version: Counted up whenever ``quantise`` gives other numbers: what was kept on disk is then quantised again.
    """

    quantise: Callable[[Tensor], StoredTensors]
    assemble: Callable[[Sequence[StoredTensors], Tensor | None, torch.dtype], FrozenProduct]
    disassemble: Disassemble | None = None
    finish: Callable[[Collection[FrozenProduct], int | None], None] | None = None
    version: int = 1

    def freeze(self, weight_NK: Tensor, bias_N: Tensor | None) -> FrozenProduct:
        """Return the products over a whole weight."""
        return self.assemble([self.quantise(weight_NK)], bias_N, weight_NK.dtype)


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """How the weights of the layers' linears are kept; the token table, the head and the norms stay as they are.

    Attributes:
        name: What a task file's ``quantization`` and :func:`~cohort.models.weights.load_decoder` call it.
        summary: What it does, in a few words for `cohort doctor`.
        freeze: From a weight [N, K] in the dtype the model computes in, and a bias [N] or None, to the products over
            it. Sibling linears are fused by rows: N is that of all siblings, whose rows stand one below the other. The
            function may keep the tensors themselves.
        weight_bytes: Bytes that ``freeze`` keeps of a weight, by (N, K) and that dtype; the bias is not counted.
        compute_dtypes: What a model in this format can compute in.
        stored_dtypes: Dtypes of checkpoint tensors that can be read, as safetensors spells them.
        quantisation: How weights are read where they are not kept as they are.
        device_problem: Why a device cannot compute in this format; None where it can.
        gpu_needs: What a GPU must have for it, in words; None where any will do.
        copy_bytes: Bytes of what is kept besides the weights to save time, by the bytes of all weights and those that
            the model may take of a GPU.
    """

    name: str
    summary: str
    freeze: Callable[[Tensor, Tensor | None], FrozenProduct]
    weight_bytes: Callable[[int, int, torch.dtype], int]
    compute_dtypes: tuple[torch.dtype, ...]
    stored_dtypes: tuple[str, ...] = ("F64", "F32", "BF16", "F16")
    quantisation: Quantisation | None = None
    device_problem: Callable[[torch.device], str | None] = lambda _: None
    gpu_needs: str | None = None
    copy_bytes: Callable[[int, int], int] = lambda *_: 0

    @property
    def runs_on(self) -> str:
        """Which devices compute in the format, in words; doctor, messages and documentation all say this."""
        gpu = "any GPU" if self.gpu_needs is None else f"a GPU of {self.gpu_needs}"
        return f"{gpu}; any CPU{'' if self.quantisation is None else ', in float32 and more slowly than `none`'}"

    def tensor_bytes(self, shape: tuple[int, ...], dtype: torch.dtype, *, is_linear: bool) -> int:
        """Return the bytes of one tensor of the decoder: a linear's weight, or any other."""
        if is_linear:
            return self.weight_bytes(shape[0], shape[1], dtype)
        return math.prod(shape) * dtype.itemsize
