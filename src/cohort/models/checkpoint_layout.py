"""Which tensors of a checkpoint make up which fused tensor of the decoder, in every family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cohort.adapters.expert_names import expert_shapes
from cohort.adapters.layout import AdapterLayout
from cohort.models.config import BridgedModel, DecoderConfig
from cohort.models.experts.mixture import MixtureOfExperts

__all__ = [
    "FusedTensor",
    "Piece",
    "adapter_layout",
    "checkpoint_layout",
    "expert_parameters",
    "factor_shapes",
    "linear_shapes",
    "module_names",
]


@dataclass(frozen=True)
class Piece:
    """One checkpoint tensor: its key and shape. Its first axis is the one that is fused."""

    key: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class FusedTensor:
    """One tensor of the decoder: checkpoint tensors one below the other."""

    name: str
    pieces: tuple[Piece, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(piece.shape[0] for piece in self.pieces), *self.pieces[0].shape[1:])

    @property
    def is_linear(self) -> bool:
        """Whether this is the weight of a layer's linear, which a weight format may keep in its own way."""
        return self.name.startswith("layers.") and self.name.endswith(".weight")


def checkpoint_layout(config: DecoderConfig) -> tuple[FusedTensor, ...]:
    """Return every tensor the decoder needs, in the order of use.

    Names: ``embed``, ``norm``, ``head`` (absent when tied) and ``layers.N.`` followed by ``input_norm``, ``qkv``,
    ``q_norm``, ``k_norm``, ``output``, ``mlp_norm``, ``gate_up``, ``down``, ``attention_post_norm`` and
    ``mlp_post_norm``, of which a family has those that it norms by; linears end in ``.weight`` and, where the
    family has it, ``.bias``. A layer with experts has ``router``, ``experts_up`` and ``experts_down`` in place of
    ``gate_up`` and ``down``: gate and up of each expert, one expert below the other, and down of each. Those of a
    model that transformers computes have the model's own names, its adaptable linears behind ``layers.``.
    """
    return tuple(_tensors(config) if config.bridged is None else _bridged(config.bridged))


def linear_shapes(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Return ``(in_features, out_features)`` of each adaptable linear by full module path.

    Those are all but the head; of a mixture of experts those of attention alone. The same as ``decoder.linears``, for
    those who have no weights yet.
    """
    return {
        piece.key.removesuffix(".weight"): (piece.shape[1], piece.shape[0])
        for fused in checkpoint_layout(config)
        if fused.is_linear and _is_adaptable(fused, config)
        for piece in fused.pieces
    }


def _is_adaptable(fused: FusedTensor, config: DecoderConfig) -> bool:
    # where PEFT takes the names of an MLP's linears for experts it would load adapters of dense layers into those
    return config.mixture is None or not fused.name.endswith((".gate_up.weight", ".down.weight"))


def factor_shapes(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Return ``(in_features, out_features)`` of all that an adapter can have factors for: linears, then each expert."""
    return linear_shapes(config) | expert_shapes(expert_parameters(config))


def expert_parameters(config: DecoderConfig) -> dict[str, tuple[int, int, int]]:
    """Return experts, input width and output width of each adaptable stacked parameter, by path."""
    if config.mixture is not None:
        own = (config.mixture.parameters(n, hidden_size=config.hidden_size) for n in range(config.num_layers))
        return {path: shape for parameters in own for path, shape in parameters.items()}
    found = () if config.bridged is None else config.bridged.expert_parameters
    return {path: (num_experts, ins, outs) for path, num_experts, ins, outs, _ in found}


def adapter_layout(config: DecoderConfig, targets: Iterable[str]) -> AdapterLayout:
    """Return where the factors of these linears and stacked parameters stand in a rank row, unknown ones left out."""
    shapes, experts = linear_shapes(config), expert_parameters(config)
    found: dict[str, tuple[int, int]] = {}
    for path in targets:
        if path in shapes:
            found[path] = shapes[path]
        elif path in experts:
            found |= expert_shapes({path: experts[path]})
    return AdapterLayout(found)


def module_names(config: DecoderConfig) -> tuple[str, ...]:
    """Return the full paths of what PEFT could take an adapter's target names for, the adaptable linears first."""
    others: Iterable[str] = () if config.bridged is None else (key for key, _ in config.bridged.others)
    if config.mixture is not None:
        fused = (fused for fused in checkpoint_layout(config) if fused.is_linear and not _is_adaptable(fused, config))
        routers = (f"model.layers.{layer}.mlp.gate.weight" for layer in config.mixture.sparse_layers)
        others = (*(piece.key for own in fused for piece in own.pieces), *sorted(routers))
    weights = (key.removesuffix(".weight") for key in others if key.endswith(".weight"))
    return (*linear_shapes(config), *weights)


def _tensors(config: DecoderConfig) -> Iterator[FusedTensor]:
    hidden = config.hidden_size
    yield _single("embed", "model.embed_tokens.weight", config.vocab_size, hidden)
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        attention, mlp = theirs + "self_attn.", theirs + "mlp."
        norms = config.norms
        yield from _norm(ours + "input_norm", theirs, norms.before_attention, hidden)
        qkv = {attention + key: width for key, width in config.qkv_parts.items()}
        yield from _linear(ours + "qkv", qkv, hidden, bias=config.qkv_bias)
        if config.qk_norm:
            widths = (config.query_width, config.kv_width) if config.norms_all_heads else (config.head_dim,) * 2
            yield _single(ours + "q_norm", attention + "q_norm.weight", widths[0])
            yield _single(ours + "k_norm", attention + "k_norm.weight", widths[1])
        yield from _linear(ours + "output", {attention + "o_proj": hidden}, config.query_width, bias=config.output_bias)
        # the same key is the norm after attention in one family and the norm before the MLP in another
        yield from _norm(ours + "attention_post_norm", theirs, norms.after_attention, hidden)
        yield from _norm(ours + "mlp_post_norm", theirs, norms.after_mlp, hidden)
        yield from _norm(ours + "mlp_norm", theirs, norms.before_mlp, hidden)
        if config.mixture is not None and config.is_sparse(layer):
            yield from _experts(ours, theirs, config.mixture, hidden)
            continue
        gate_up = {mlp + key: width for key, width in config.gate_up_parts.items()}
        yield from _linear(ours + "gate_up", gate_up, hidden, bias=config.mlp_bias)
        yield from _linear(ours + "down", {mlp + "down_proj": hidden}, config.intermediate_size, bias=config.mlp_bias)
    yield _single("norm", "model.norm.weight", hidden)
    if not config.tie_word_embeddings:
        yield _single("head", "lm_head.weight", config.vocab_size, hidden)


def _experts(ours: str, theirs: str, mixture: MixtureOfExperts, hidden: int) -> Iterator[FusedTensor]:
    block, width, experts = theirs + mixture.block, mixture.intermediate_size, range(mixture.num_experts)
    yield _single(ours + "router", f"{block}.gate.weight", mixture.num_experts, hidden)
    up = (
        (f"{block}.experts.{expert}.{own}.weight", (width, hidden))
        for expert in experts
        for own in (mixture.gate, mixture.up)
    )
    yield FusedTensor(ours + "experts_up", tuple(Piece(key, shape) for key, shape in up))
    down = (f"{block}.experts.{expert}.{mixture.down}.weight" for expert in experts)
    yield FusedTensor(ours + "experts_down", tuple(Piece(key, (hidden, width)) for key in down))


def _bridged(model: BridgedModel) -> Iterator[FusedTensor]:
    for path, in_features, out_features in model.linears:
        yield FusedTensor(f"layers.{path}.weight", (Piece(f"{path}.weight", (out_features, in_features)),))
    for key, shape in model.others:
        yield FusedTensor(key, (Piece(key, shape),))


def _norm(name: str, layer: str, own: str | None, hidden: int) -> Iterator[FusedTensor]:
    if own is not None:
        yield _single(name, f"{layer}{own}.weight", hidden)


def _single(name: str, key: str, *shape: int) -> FusedTensor:
    return FusedTensor(name, (Piece(key, shape),))


def _linear(name: str, parts: dict[str, int], in_features: int, *, bias: bool) -> Iterator[FusedTensor]:
    # the bias comes first: a weight is frozen as soon as it is read, together with its bias
    if bias:
        yield FusedTensor(f"{name}.bias", tuple(Piece(f"{key}.bias", (n,)) for key, n in parts.items()))
    yield FusedTensor(f"{name}.weight", tuple(Piece(f"{key}.weight", (n, in_features)) for key, n in parts.items()))
