"""A transformers model behind what :class:`~cohort.models.decoder.Decoder` offers to training and serving.

On a CPU each sequence of a stream is computed by itself, so that a row has the same bits alone and in any pack whatever
the model computes. On a GPU the stream is one row of the model, whose position ids begin again with each sequence; a
model that does not keep the sequences of such a row apart is computed as on a CPU.

Shapes:  T rows of the stream · L rows of one sequence · D hidden width · V vocabulary
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cohort.adapters.linear import LoraContext
from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD, SAVED_PATHS
from cohort.core.errors import InputError, Problem
from cohort.kernels.packed_linear import FrozenProduct
from cohort.kernels.packed_linear.dense_rows import dense_rows
from cohort.kernels.segments import SampleSpan, SegmentTable
from cohort.models.attention import AttentionContext, PackedAttention
from cohort.models.bridge.adapted import AdaptedLinear
from cohort.models.bridge.pass_state import BridgedPass, during
from cohort.models.bridge.structure import text_decoder
from cohort.models.config import DecoderConfig
from cohort.models.decoder import Decoder
from cohort.models.pass_inputs.needed_rows import NeededRows
from cohort.models.weight_formats.kinds.plain import FrozenLinear

__all__ = ["BridgedCache", "BridgedDecoder"]


@dataclass(eq=False)
class BridgedCache:
    """What is kept of a sequence that is continued.

    Attributes:
        state: The model's own cache of keys, values and recurrent states; None where it has none.
        tokens_L: All tokens, for a model that keeps nothing and reads them again.
    """

    state: Any = None
    tokens_L: Tensor | None = None


class BridgedDecoder(Decoder):
    """A frozen model whose layers transformers computes.

    Attributes:
        model: The model of transformers, its linears replaced.
        is_packed: Whether a stream is one row of the model; otherwise each sequence is computed by itself.
        why_one_by_one: Why a stream cannot be one row; empty where it can, and on a CPU.
        unadaptable: Linears that no adapter can adapt, and why; found by the probe.
        rows_seen: Where the probe wants to know it, the rows of each call of each linear.
    """

    def __init__(
        self, config: DecoderConfig, model: Any, *, linears: Mapping[str, AdaptedLinear], is_packed: bool
    ) -> None:
        # what a native decoder builds from checkpoint tensors is the model here
        assert config.bridged is not None, "a native family has a decoder of its own"
        self.config, self.ring, self.part, self.layers = config, None, range(config.num_layers), ()
        self.model, self._body, self.is_packed = model, text_decoder(model), is_packed
        self._adapted = dict(linears)
        output: nn.Linear = model.get_output_embeddings()
        weight = output.weight.detach()
        self._head = FrozenLinear(weight, None if output.bias is None else output.bias.detach())
        self.dtype, self.device, self.is_recorded = weight.dtype, weight.device, False
        self.linears = {name: (ins, outs) for name, ins, outs in config.bridged.linears}
        own = "whose class computes something else than a product"
        self.unadaptable = {name: own for name, _, _ in config.bridged.linears if name not in self._adapted}
        for name, each in linears.items():
            if each.dtype != self.dtype:
                kept = f"{each.dtype}".removeprefix("torch.")
                self.unadaptable[name] = f"which the model keeps in {kept}, unlike its other linears"
        self.rows_seen: dict[str, list[int]] | None = None
        self._attention = self._own_attention = getattr(model.config, "_attn_implementation", None) or "eager"
        self.why_one_by_one = ""
        self._takes_positions = "position_ids" in inspect.signature(self._body.forward).parameters
        tensors = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
        self.num_bytes = sum(tensors.values()) + sum(each.packed.frozen.num_bytes for each in linears.values())

    @property
    def products(self) -> tuple[FrozenProduct, ...]:
        return (*(each.packed.frozen for each in self._adapted.values()), self.head)

    @property
    def can_be_recorded(self) -> bool:
        return False

    def leaves_out_rows(self, lora: LoraContext | None) -> bool:
        """Return that it does not: the model's own classes compute whole sequences."""
        del lora
        return False

    @property
    def takes_any_rows(self) -> bool:
        """Never: what the model's own classes compute between its linears is not known."""
        return False

    @property
    def calls_linears_once(self) -> bool:
        return self.is_packed

    @property
    def attention(self) -> str:
        """How the model attends, by the name that transformers has for it."""
        return self._attention

    def attend_by(self, attention: str) -> None:
        """Let the model attend in another way.

        Raises:
            ValueError: its classes have no such attention.
        """
        self.model.set_attn_implementation(attention)
        self._attention = attention

    def compute_one_by_one(self, why: str) -> None:
        """Compute each sequence of a stream by itself from now on, with attention of the model's own."""
        self.is_packed, self.why_one_by_one = False, why
        if self._attention != self._own_attention:
            self.attend_by(self._own_attention)

    def use_exact_products(self, *, exact: bool = True, asks_blas: bool = True) -> None:
        """Refuse exact numerics on a GPU: products between the adapted linears are the model's own.

        Raises:
            InputError: ``exact`` is asked for.
        """
        del asks_blas
        if exact:
            raise InputError(
                Problem(
                    where="numerics: exact",
                    found=f"{self.config.architecture}, which transformers computes",
                    allowed="exact with native families, or on a CPU",
                    hint="Set numerics: fast.",
                )
            )

    def weight_of(self, name: str) -> Tensor:
        if name == SAVED_PATHS[EMBEDDING]:
            table_VD: Tensor = self.model.get_input_embeddings().weight.detach().clone()
            return table_VD
        if name == SAVED_PATHS[HEAD]:
            return dense_rows(self.head, slice(0, self.head.out_features), device=self.device)
        found = self._adapted[name].packed.frozen
        return dense_rows(found, slice(0, found.out_features), device=self.device)

    def embed(self, tokens_T: Tensor) -> Tensor:
        rows_TD: Tensor = self.model.get_input_embeddings()(tokens_T)
        return rows_TD

    def forward(
        self,
        tokens_T: Tensor,
        *,
        positions_T: Tensor,
        attention: AttentionContext,
        lora: LoraContext | None,
        gradient_checkpointing: bool = False,
        needed: NeededRows | None = None,
    ) -> Tensor:
        """Return the hidden states [T, D] that the head multiplies; zeros in rows of no sequence on a CPU.

        The arguments are those of :meth:`Decoder.forward`.

        Raises:
            InputError: an adapter adapts a linear that does not see the rows of the stream.
        """
        assert needed is None, "no row is left out"
        assert isinstance(attention, PackedAttention), "caches of a bridged model are the model's own"
        if lora is not None:
            self._require_adaptable(lora)
        now = BridgedPass(
            lora=lora,
            wants_gradient=lora is not None and torch.is_grad_enabled(),
            recomputes=gradient_checkpointing and torch.is_grad_enabled(),
            rows_seen=self.rows_seen,
        )
        if self.is_packed:
            hidden_TD = self._computed(tokens_T, positions_T, replace(now, attention=attention))
        else:
            hidden_TD = self._one_by_one(tokens_T, now, attention.sequence_offsets)
        return hidden_TD if self.head_scale == 1.0 else hidden_TD * self.head_scale

    def _one_by_one(self, tokens_T: Tensor, now: BridgedPass, offsets: tuple[int, ...]) -> Tensor:
        pieces = [tokens_T.new_zeros(len(tokens_T) - offsets[-1], self.config.hidden_size, dtype=self.dtype)]
        # The last sequence first: a backward pass then ends with it, and gradients are added in the order of the
        # samples however a step is cut into micro-batches (decision 0002).
        for start, stop in reversed(list(pairwise(offsets))):
            if stop == start:
                continue
            lora = None if now.lora is None else _of_sequence(now.lora, start, stop)
            pieces.append(self._computed(tokens_T[start:stop], None, replace(now, lora=lora)))
        return torch.cat(pieces[::-1])

    def _computed(self, tokens_L: Tensor, positions_L: Tensor | None, now: BridgedPass) -> Tensor:
        options = {} if positions_L is None else {"position_ids": positions_L[None]}
        with during(now):
            output = self._body(input_ids=tokens_L[None], use_cache=False, **options)
        hidden_LD: Tensor = output[0][0]
        return hidden_LD

    def continued(
        self, tokens_L: Tensor, cache: BridgedCache, *, lora_for: Callable[[int], LoraContext | None]
    ) -> Tensor:
        """Return the hidden states [L, D] of the next tokens of a sequence, and let ``cache`` know them; no gradients.

        Args:
            lora_for: Gives the adapter for a stream of that many rows.
        """
        if cache.state is None and cache.tokens_L is not None:
            tokens_L = torch.cat([cache.tokens_L, tokens_L])
        count = len(tokens_L)
        # a prompt is a stream of one sequence; its later tokens come one by one
        attention = PackedAttention((0, count)) if self.is_packed and cache.state is None else None
        lora = lora_for(count)
        if lora is not None:
            self._require_adaptable(lora)
        with during(BridgedPass(lora=lora, attention=attention)):
            output = self._body(input_ids=tokens_L[None], use_cache=True, **self._cached(cache))
        cache.state = getattr(output, "past_key_values", None)
        cache.tokens_L = None if cache.state is not None else tokens_L
        hidden_LD: Tensor = output[0][0]
        return hidden_LD * self.head_scale

    def _cached(self, cache: BridgedCache) -> dict[str, Any]:
        return {} if cache.state is None else {"past_key_values": cache.state}

    @property
    def head_scale(self) -> float:
        """Factor on the logits, taken into the hidden states."""
        return 1.0 if self.config.bridged is None else self.config.bridged.head_scale

    def _require_adaptable(self, lora: LoraContext) -> None:
        wrong = sorted(self.unadaptable.keys() & lora.factors.keys())
        if wrong:
            name = wrong[0]
            raise InputError(
                Problem(
                    where="lora.target_modules",
                    found=f"{name}, {self.unadaptable[name]}"
                    + (f" ({len(wrong) - 1} more like it)" if len(wrong) > 1 else ""),
                    allowed="linears that multiply every row of a sequence once",
                    hint=f"Leave it out: exclude_modules: [{name.rsplit('.', 1)[-1]}].",
                )
            )

    def run_layers(self, *arguments: object, **options: object) -> tuple[Tensor, Tensor | None]:
        """Fail: the stages of a pipeline are native decoders.

        Raises:
            NotImplementedError: always; strategies that divide a model refuse this one before.
        """
        raise NotImplementedError("a bridged model is never divided")


def _of_sequence(lora: LoraContext, start: int, stop: int) -> LoraContext:
    """Return the adapters of one sequence, rows ``start:stop`` of a stream, as a stream of its own."""
    count = stop - start
    slot = next((span.slot for span in lora.segments.samples if span.start == start and span.stop == stop), -1)
    num_slots = lora.segments.num_slots
    segments = SegmentTable(
        num_rows=count,
        offsets=tuple(count if slot >= 0 and place > slot else 0 for place in range(num_slots + 1)),
        samples=(SampleSpan(0, count, slot),),
    )
    keys_T = None if lora.row_keys_T is None else lora.row_keys_T[start:stop]
    return replace(lora, segments=segments, row_keys_T=keys_T, tables=None)
