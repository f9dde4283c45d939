"""The decoder: one frozen model over a packed token stream; its family says what it computes.

Shapes:  T rows of the stream · D hidden width · H query heads · G key-value heads · E head width · F MLP width
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD, SAVED_PATHS
from cohort.adapters.modules_to_save.saved_tables import own_embeddings
from cohort.kernels.deferred_lora_term import Apart, joined
from cohort.kernels.exact_product import AgreedShapes
from cohort.kernels.packed_linear import FrozenProduct, LaunchTables
from cohort.kernels.packed_linear.dense_rows import dense_rows
from cohort.kernels.packed_linear.frozen_product import can_arrange, can_be_exact, may_ask
from cohort.models.attention import AttentionContext
from cohort.models.config import DecoderConfig
from cohort.models.decoder_layer import DecoderLayer, add_and_norm, norm_weight
from cohort.models.exact_forms import require_exact_forms
from cohort.models.pass_inputs.needed_rows import NeededRows
from cohort.models.pass_inputs.shared_by_layers import SharedByLayers, TensorRegion
from cohort.models.rotary import RotaryTable
from cohort.models.streaming.layer_passage import enter_layer, leave_layer
from cohort.models.streaming.weight_ring import WeightRing

__all__ = ["Decoder"]

# Weights of a model that are kept once more for products of few rows; a larger model does without.
MOST_ARRANGED_BYTES = 1 << 30


class Decoder:
    """A frozen decoder-only transformer.

    Attributes:
        part: The layers of the model that it has, by number; all but in a stage of a pipeline.
        linears: ``(in_features, out_features)`` of each adaptable linear by full module path, in order of use.
        num_bytes: Bytes of all weights, shared storage counted once; spare columns (below 1 %) are not counted. With a
            ring, its buffers and the streamed layers in its source are counted, wherever that is.
        ring: Fetches the layers that are not resident; None where all are.
        is_recorded: Whether a CUDA graph may know where the weights are: from then on none is moved.
        computes_all_rows: Whether grouped kernels compute all rows of the last layer, as when kernels are collected.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        tensors: Mapping[str, Tensor],
        products: Mapping[str, FrozenProduct],
        ring: WeightRing | None = None,
        region: TensorRegion | None = None,
        part: range | None = None,
    ) -> None:
        """Build from what :func:`~cohort.models.weights.freeze_weights` gives.

        Args:
            tensors: The token table ``embed`` and the norms, by their names in the checkpoint's layout.
            products: The ``head`` and, as ``layers.N.qkv``, the linears of the layers. Their format is their own.
            ring: Fetches the layers that are not resident.
            region: Joins the shards of several ranks around attention and MLP; ``config`` and products are a rank's.
            part: Layers of a stage of a pipeline, which has the token table only where they begin, and the final norm
                and the head where they end or where all stages share it; None for all.
        """
        self.config, self.ring = config, ring
        self.part: Sequence[int] = range(config.num_layers) if part is None else part
        self._table_VD = tensors.get("embed")
        self.layers = tuple(
            DecoderLayer(config, layer, tensors=tensors, products=products, region=region) for layer in self.part
        )
        self._has_end = config.num_layers - 1 in self.part
        self._norm_D = norm_weight(tensors["norm"], config) if "norm" in tensors else None
        self._head = products.get("head")
        first = next(iter(tensors.values()))
        self.dtype, self.device = first.dtype, first.device
        # rounded to the stream's dtype before it multiplies, as the families' own code does
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=self.dtype).item()
        self.is_recorded = self.computes_all_rows = False
        self._is_divided = region is not None or part is not None
        self.num_bytes = sum(tensor.nbytes for tensor in tensors.values()) + sum(
            product.num_bytes
            for name, product in products.items()
            # a tied head is the token table
            if name != "head" or not config.tie_word_embeddings or "embed" not in tensors
        )
        self.num_bytes += 0 if ring is None else ring.num_bytes
        self._rotary, self._local_rotary = (
            None if rotary is None else RotaryTable(rotary, dtype=self.dtype, device=self.device)
            for rotary in (config.rotary, config.local_rotary)
        )
        self.linears: dict[str, tuple[int, int]] = {
            part.name: (linear.frozen.in_features, part.out_features)
            for layer in self.layers
            for linear in layer.adaptable
            for part in linear.parts
        }

    @property
    def products(self) -> tuple[FrozenProduct, ...]:
        """Every frozen product: those of the layers in their order, then the head where it is here."""
        found = [linear.frozen for layer in self.layers for linear in layer.linears]
        return (*found, *(() if self._head is None else (self._head,)))

    @property
    def can_be_recorded(self) -> bool:
        """Whether a CUDA graph can hold its passes: nothing in them waits for the device."""
        return True

    @property
    def calls_linears_once(self) -> bool:
        """Whether a pass calls each linear once, with all rows of the stream."""
        return True

    def leaves_out_rows(self, lora: LoraContext | None) -> bool:
        """Return whether the last layer can leave out rows that nothing reads; ``lora`` says what its linears launch.

        On a CPU it can, and for the grouped kernels where :attr:`grouped_leaves_out_rows` says so.
        """
        if lora is not None and isinstance(lora.tables, LaunchTables):
            return self.grouped_leaves_out_rows
        return self.device.type == "cpu" and (lora is None or lora.tables is None)

    @property
    def grouped_leaves_out_rows(self) -> bool:
        """Whether passes of grouped kernels leave rows out: of a whole model without experts."""
        # no adapter and no pass decides: a trial has the same bits whatever shares its passes
        return not self._is_divided and self.config.mixture is None and not self.computes_all_rows

    @property
    def takes_any_rows(self) -> bool:
        """Whether a row has its own bits in a stream of any number of rows, without filler.

        On a CPU in float32: every product fills up its rows by itself where it must, and all else works row by row.
        Blocks of experts count on filled streams.
        """
        return self.device.type == "cpu" and self.dtype == torch.float32 and self.config.mixture is None

    def arrange_for_few_rows(self) -> None:
        """Let frozen weights be kept once more on a CPU, as products of few rows read them best, to the same bits.

        Copies are made by the first passes of few rows. No effect on layers that are streamed, and above 1 GiB.
        """
        products = [product for product in self.products if can_arrange(product)]
        if self.ring is None and sum(product.num_bytes for product in products) <= MOST_ARRANGED_BYTES:
            for product in products:
                product.arrange_for_few_rows()

    def use_exact_products(self, *, exact: bool = True, asks_blas: bool = True) -> None:
        """Give each row the same bits in any stream from now on, on a GPU, too; or, without ``exact``, no longer.

        Args:
            asks_blas: Whether products may ask the BLAS for its bits, which waits for the device.

        Raises:
            InputError: a format of weights, or a rule of attention, has no such form.
        """
        if exact:
            require_exact_forms(self.products, config=self.config, is_divided=self._is_divided)
        agreed = AgreedShapes() if exact and asks_blas else None
        for layer in self.layers:
            # routers, as the head below, ask for themselves: what is asked of them says nothing of other products
            layer.use_exact_mlp(exact=exact, agreed=AgreedShapes() if agreed else None)
        for product in self.products:
            if can_be_exact(product):
                product.is_exact = exact
            if may_ask(product):
                product.agreed_shapes = AgreedShapes() if agreed and product is self._head else agreed

    def weight_of(self, name: str) -> Tensor:
        """Return the base weight [N, K] of one linear, the embedding or the head, as a tensor of its own.

        Args:
            name: Its full path.

        Raises:
            KeyError: the decoder has no such module.
        """
        if name == SAVED_PATHS[EMBEDDING] and self._table_VD is not None:
            return self._table_VD.clone()
        if name == SAVED_PATHS[HEAD] and self._head is not None:
            return dense_rows(self._head, slice(0, self._head.out_features), device=self.device)
        for index, layer in zip(self.part, self.layers, strict=True):
            for linear in layer.linears:
                if (columns := linear.columns_of(name)) is not None:
                    if self.ring is not None and index in self.ring:
                        self.ring.need(index)
                    return dense_rows(linear.frozen, columns, device=self.device)
        raise KeyError(name)

    @property
    def head(self) -> FrozenProduct:
        """Product to vocabulary logits; shares the token table's storage where the checkpoint ties them."""
        assert self._head is not None, "the last stage has the head"
        return self._head

    def embed(self, tokens_T: Tensor) -> Tensor:
        assert self._table_VD is not None, "the first stage has the token table"
        rows_TD = F.embedding(tokens_T, self._table_VD)
        return rows_TD if self._embedding_scale == 1.0 else rows_TD * self._embedding_scale

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """Return the vocabulary logits [T, V] of final hidden states; outside autograd."""
        logits_TV = self.head.forward(hidden_TD)
        cap = self.config.logit_cap
        return logits_TV if cap is None else cap * torch.tanh(logits_TV / cap)

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
        """Return hidden states [T, D] after the final norm.

        With ``lora`` and gradients enabled the result is differentiable in the adapters although the frozen rows below
        them are constants: the graph begins at the first adapted linear, or at the stream.

        Args:
            positions_T: int64 [T], each below ``attention.num_positions`` (any small number in rows of no sequence).
            lora: The resident adapters; None for the frozen model alone.
            gradient_checkpointing: Keep only the input of each layer and recompute the layer in the backward pass: the
                same bits for one more forward pass of the layers. No effect without gradients.
            needed: The rows whose hidden states something reads, where the model :meth:`leaves_out_rows`; others are 0.
                None for all.

        Raises:
            InputError: a position that the model's rotary scaling does not cover.
        """
        residual_TD = self.embed(tokens_T)
        if lora is not None and torch.is_grad_enabled() and not self._begins_graph_later(lora):
            residual_TD.requires_grad_()
        if lora is not None and lora.saved:
            residual_TD = own_embeddings(
                residual_TD,
                tokens_T,
                saved=lora.saved,
                segments=lora.segments,
                scale=self._embedding_scale,
                padding_id=self.config.pad_token_id,
            )
        residual_TD, delta_TD = self._through_layers(
            residual_TD,
            positions_T=positions_T,
            attention=attention,
            lora=lora,
            gradient_checkpointing=gradient_checkpointing,
            needed=needed,
        )
        hidden_TD = self.final_norm(residual_TD, delta_TD)
        if needed is None or needed.tables is None:
            return hidden_TD
        return needed.placed(hidden_TD, num_rows=tokens_T.shape[0])

    def _begins_graph_later(self, lora: LoraContext) -> bool:
        """Return whether an adapted linear begins the graph, so that no gradient of the token rows is computed.

        Only on a CPU and for plain adapters: divided layers, experts, magnitudes and saved modules read the stream's.
        """
        is_plain = self.device.type == "cpu" and self.ring is None and not self._is_divided
        if not is_plain or self.config.mixture is not None or lora.magnitudes is not None or lora.saved:
            return False
        return any(name in self.linears and part.grad_a_RK is not None for name, part in lora.factors.items())

    def run_layers(
        self,
        residual_TD: Tensor,
        *,
        positions_T: Tensor,
        attention: AttentionContext,
        lora: LoraContext | None,
        gradient_checkpointing: bool = False,
        needed: NeededRows | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream behind the layers, and what the next norm adds to it; None behind no layer.

        The other arguments are those of :meth:`forward`.
        """
        residual_TD, delta_TD = self._through_layers(
            residual_TD,
            positions_T=positions_T,
            attention=attention,
            lora=lora,
            gradient_checkpointing=gradient_checkpointing,
            needed=needed,
        )
        return residual_TD, None if delta_TD is None else joined(delta_TD)

    def _through_layers(
        self,
        residual_TD: Tensor,
        *,
        positions_T: Tensor,
        attention: AttentionContext,
        lora: LoraContext | None,
        gradient_checkpointing: bool,
        needed: NeededRows | None,
    ) -> tuple[Tensor, Tensor | Apart | None]:
        angles, local = (
            None if table is None else table.lookup(positions_T, num_positions=attention.num_positions)
            for table in (self._rotary, self._local_rotary)
        )
        assert angles is not None, "every native family has rotary frequencies"
        shared = SharedByLayers(
            angles=angles,
            local_angles=local or angles,
            attention=attention,
            lora=lora,
            query_scale_T=self._query_scale(positions_T, num_positions=attention.num_positions),
            has_one_node=self.ring is None,
        )
        delta_TD: Tensor | Apart | None = None
        gradient_checkpointing = gradient_checkpointing and torch.is_grad_enabled()
        for index, layer in zip(self.part, self.layers, strict=True):
            run = layer.recomputed if gradient_checkpointing else layer
            # of few layers (few_layers.py) the last plays the model's last
            if self._has_end and layer is self.layers[-1]:
                shared = shared.leaving_out(needed)
            if self.ring is None or index not in self.ring:
                residual_TD, delta_TD = run(residual_TD, delta_TD, shared)
                continue
            # a layer that is copied in is waited for anyhow: nothing is gained by terms apart
            summed_TD = None if delta_TD is None else joined(delta_TD)
            residual_TD, summed_TD = enter_layer(self.ring, index, residual_TD, summed_TD)
            residual_TD, delta_TD = run(residual_TD, summed_TD, shared)
            residual_TD, delta_TD = leave_layer(self.ring, index, residual_TD, joined(delta_TD))
        return residual_TD, delta_TD

    def _query_scale(self, positions_T: Tensor, *, num_positions: int) -> Tensor | None:
        """Return the factor on the queries of each row; None where no position below ``num_positions`` has any."""
        growth = self.config.query_growth
        if growth is None or num_positions <= growth.period:
            return None
        periods_T = torch.div(positions_T, growth.period, rounding_mode="floor")
        return (1 + growth.beta * torch.log(1 + periods_T.float())).to(self.dtype)

    def final_norm(self, residual_TD: Tensor, delta_TD: Tensor | Apart | None) -> Tensor:
        assert self._norm_D is not None, "the last stage has the final norm"
        hidden_TD = add_and_norm(residual_TD, delta_TD, weight_D=self._norm_D, eps=self.config.rms_norm_eps)[0]
        # logits are linear in it, and every product with the head is then the same as in other families
        return hidden_TD if self.config.head_scale == 1.0 else hidden_TD * self.config.head_scale
