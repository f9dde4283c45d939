"""What a decoder is: sizes, order of its blocks, attention and rotary frequencies, one record for every family."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.kernels.gated_activation import Activation
from cohort.models.experts.mixture import MixtureOfExperts

__all__ = ["AttentionRule", "BridgedModel", "DecoderConfig", "LayerNorms", "QueryGrowth", "RotaryConfig"]


@dataclass(frozen=True, kw_only=True)
class RotaryConfig:
    """Rotary position embedding, already worked out from the checkpoint's settings.

    Attributes:
        rope_type: Name of the scaling rule (``default``, ``linear``, ``llama3``, ``yarn``, ``dynamic``).
        inverse_frequencies: Angles per position, in radians: ``head_dim / 2``, or fewer where the end of a head stays.
        scale: Factor on cosine and sine (1 except for yarn).
        max_positions: Positions for which the frequencies hold; None where they hold for any length.
    """

    rope_type: str
    inverse_frequencies: tuple[float, ...]
    scale: float = 1.0
    max_positions: int | None = None


@dataclass(frozen=True, kw_only=True)
class QueryGrowth:
    """Queries at position p are multiplied by ``1 + beta * log(1 + p // period)``.

    Attributes:
        beta: 0 leaves them as they are.
        period: Positions below it are not changed.
    """

    beta: float
    period: int


@dataclass(frozen=True, kw_only=True)
class AttentionRule:
    """How one layer turns scores into weights.

    Attributes:
        window: How many positions back, itself included, a query sees; None for all.
        scale: Factor on the scores; None for ``head_dim ** -0.5``.
        cap: Scores become ``cap * tanh(score / cap)``; None leaves them.
    """

    window: int | None = None
    scale: float | None = None
    cap: float | None = None

    @property
    def suits_kernels(self) -> bool:
        """Whether fused attention kernels compute it: they know windows, one scale and no cap."""
        return self.scale is None and self.cap is None


@dataclass(frozen=True, kw_only=True)
class LayerNorms:
    """What the norms of a layer are called in the checkpoint; None for one that the family does not have.

    Attributes:
        before_attention: Reads the stream in front of attention.
        after_attention: Reads what attention gives, before it joins the stream.
        before_mlp: Reads the stream in front of the MLP.
        after_mlp: Reads what the MLP gives, before it joins the stream.
    """

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None

    @property
    def num_after(self) -> int:
        return (self.after_attention is not None) + (self.after_mlp is not None)


_NORMS_BEFORE = LayerNorms()


@dataclass(frozen=True, kw_only=True)
class BridgedModel:
    """A model that transformers computes, because no native family does.

    Attributes:
        linears: Path, input width and output width of each adaptable linear, in the order of the model.
        others: Key and shape of every other tensor; one that is shared is there once.
        layers: Path of the list of layers.
        head_scale: Factor on the logits.
        are_transposed: Whether the model keeps the weights of its linears as [K, N], as GPT-2 does.
        experts_per_token: Experts of a layer that one token passes, where it has any.
        whole_modules: Which of embedding and head an adapter can train a copy of.
        own_code: Python files of the checkpoint that compute it; none where transformers does.
        left_alone: Parts of the checkpoint that no text passes through, such as ``vision_tower``.
        expert_parameters: Path, experts, input width, output width and whether the input's axis stands first, of each
            stacked parameter whose experts an adapter can adapt, in the order of the model; all are among ``others``.
    """

    linears: tuple[tuple[str, int, int], ...]
    others: tuple[tuple[str, tuple[int, ...]], ...]
    layers: str
    head_scale: float = 1.0
    are_transposed: bool = False
    experts_per_token: int = 1
    left_alone: tuple[str, ...] = ()
    whole_modules: tuple[str, ...] = ()
    own_code: tuple[str, ...] = ()
    expert_parameters: tuple[tuple[str, int, int, int, bool], ...] = ()

    @property
    def experts(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of stacked weights of experts, whose first axis counts the experts."""
        return tuple(shape for key, shape in self.others if len(shape) == 3 and key.startswith(f"{self.layers}."))

    @property
    def values_per_token(self) -> int:
        """Inputs and outputs of all linears and experts that one token passes."""
        linears = sum(ins + outs for _, ins, outs in self.linears)
        return linears + sum(self.experts_per_token * (ins + outs) for _, ins, outs in self.experts)

    @property
    def passed_weights(self) -> int:
        """Weights of the linears and experts that one token passes."""
        linears = sum(ins * outs for _, ins, outs in self.linears)
        return linears + sum(min(count, self.experts_per_token) * ins * outs for count, ins, outs in self.experts)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder-only transformer. All sizes are elements; the defaults are Llama's.

    Attributes:
        family: ``model_type`` of the checkpoint, such as ``llama``.
        architecture: Class name the checkpoint was saved from, such as ``LlamaForCausalLM``.
        vocab_size: Rows of the token table.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP, where it is dense.
        num_kv_heads: Key-value heads; divides ``num_heads``.
        rms_norm_eps: Added to the mean square in every norm.
        max_position_embeddings: Context length the checkpoint states.
        tie_word_embeddings: The head shares the token table.
        qkv_bias: q, k and v add a bias.
        output_bias: o adds a bias.
        mlp_bias: gate, up and down add a bias.
        qk_norm: Queries and keys are normalised before the rotary embedding, each head by itself.
        norms_all_heads: They are normalised over all heads together.
        has_fused_qkv: q, k and v are one linear of the checkpoint: its adapter is a pair of factors over all of it.
        has_fused_gate_up: The same of gate and up.
        rotates_pairs: The rotary embedding turns entries that stand next to each other, not half a head apart.
        query_growth: How queries grow with the position, where they do.
        local_rotary: What layers with a window rotate by, where it is not what the others rotate by.
        unrotated_layers: Layers without a rotary embedding.
        residual_scale: Factor on the outputs of attention and MLP where they join the stream.
        head_scale: Factor on the logits.
        mixture: The blocks of experts that layers have in place of an MLP; None where all are dense.
        activation: What the gate of the MLP goes through.
        norm_offset: Added to the weight of every norm; Gemma stores weights around 0 and adds 1.
        norms: The norms of a layer.
        embedding_scale: Factor on the token rows.
        attention_scale: Factor on the scores; None for ``head_dim ** -0.5``.
        attention_cap: Scores become ``cap * tanh(score / cap)``; None leaves them.
        logit_cap: The same for the logits.
        windows: By layer, how many positions back (itself included) a query sees; None for all.
        bos_token_id: First token of a sequence, where the checkpoint names one.
        eos_token_ids: Tokens that end a completion, as the checkpoint's generation settings name them.
        pad_token_id: Padding token, where the checkpoint names one.
        stored_quantization: The weight format that the checkpoint's linears are stored in; none: as numbers.
        bridged: What transformers computes; None for a native family. With it the attributes that say how a layer
            computes hold the defaults and are read by no one: heads and widths are what the checkpoint states.
    """

    family: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    rotary: RotaryConfig
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    activation: Activation = Activation.SILU
    norm_offset: float = 0.0
    norms: LayerNorms = _NORMS_BEFORE
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attention_cap: float | None = None
    logit_cap: float | None = None
    stored_quantization: str = "none"
    norms_all_heads: bool = False
    has_fused_qkv: bool = False
    has_fused_gate_up: bool = False
    rotates_pairs: bool = False
    query_growth: QueryGrowth | None = None
    local_rotary: RotaryConfig | None = None
    unrotated_layers: frozenset[int] = frozenset()
    residual_scale: float = 1.0
    head_scale: float = 1.0
    mixture: MixtureOfExperts | None = None
    bridged: BridgedModel | None = None

    def __post_init__(self) -> None:
        if self.bridged is not None:
            return
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2 or not 0 < self.rotated_width <= self.head_dim:
            raise ValueError(
                f"head_dim {self.head_dim} needs up to {self.head_dim / 2:g} rotary frequencies, "
                f"got {len(self.rotary.inverse_frequencies)}"
            )
        if len(self.windows) != self.num_layers:
            raise ValueError(f"{len(self.windows)} windows for {self.num_layers} layers")

    @property
    def query_width(self) -> int:
        """Output width of q, and input width of o."""
        return self.num_heads * self.head_dim

    @property
    def rotated_width(self) -> int:
        """How many entries of a head, its first, the rotary embedding turns."""
        return 2 * len(self.rotary.inverse_frequencies)

    @property
    def qkv_parts(self) -> dict[str, int]:
        """Output widths of the linears that queries, keys and values come from, by the checkpoint's names, in order."""
        widths = {"q_proj": self.query_width, "k_proj": self.kv_width, "v_proj": self.kv_width}
        return {"qkv_proj": sum(widths.values())} if self.has_fused_qkv else widths

    @property
    def gate_up_parts(self) -> dict[str, int]:
        """The same of the linears in front of the MLP's activation."""
        width = self.intermediate_size
        return {"gate_up_proj": 2 * width} if self.has_fused_gate_up else {"gate_proj": width, "up_proj": width}

    def is_sparse(self, layer: int) -> bool:
        """Return whether a layer has a block of experts in place of an MLP."""
        return self.mixture is not None and layer in self.mixture.sparse_layers

    @property
    def why_resident(self) -> str | None:
        """Why its layers are whole on their device, never streamed from elsewhere; None where they may be."""
        if self.bridged is not None:
            return f"{self.architecture}, whose layers transformers computes"
        return None if self.mixture is None else f"{self.architecture}, whose experts stay on the device"

    @property
    def mlp_width(self) -> float:
        """Width of the feed-forward block that a token passes, the mean over the layers: its experts' together."""
        if self.mixture is None:
            return self.intermediate_size
        share = sum(self.is_sparse(layer) for layer in range(self.num_layers)) / self.num_layers
        own = self.mixture.experts_per_token * self.mixture.intermediate_size
        return share * own + (1 - share) * self.intermediate_size

    @property
    def mlp_values(self) -> int:
        """Values that a token keeps of a feed-forward block, the mean over the layers: gate, up and their product.

        Each of a token's experts keeps, besides, the row that it reads and the row that it gives.
        """
        rows = 0
        if self.mixture is not None:
            num_sparse = sum(self.is_sparse(layer) for layer in range(self.num_layers))
            rows = 2 * self.hidden_size * self.mixture.experts_per_token * num_sparse // self.num_layers
        return round(3 * self.mlp_width) + rows

    @property
    def kv_width(self) -> int:
        """Output width of k, and of v."""
        return self.num_kv_heads * self.head_dim

    def attention_rule(self, layer: int) -> AttentionRule:
        return AttentionRule(window=self.windows[layer], scale=self.attention_scale, cap=self.attention_cap)

    @property
    def pads_attention(self) -> bool:
        """Whether no ragged kernel computes its attention, so that a recorded pass pads the sequences."""
        return self.attention_scale is not None or self.attention_cap is not None

    @property
    def slow_paths(self) -> tuple[str, ...]:
        """What this model computes in plain torch on a GPU as well, because no kernel covers it."""
        if self.bridged is not None:
            return ("everything between the adapted linears, which is transformers' own code",)
        found = []
        if self.attention_cap is not None:
            found.append(f"attention, with scores capped at {self.attention_cap:g}")
        elif self.attention_scale is not None:
            found.append(f"attention, with scores scaled by {self.attention_scale:g}")
        if self.activation is not Activation.SILU:
            found.append(f"the activation {self.activation.value}, outside of the fused feed-forward block")
        if self.logit_cap is not None:
            found.append(f"the cap of the logits at {self.logit_cap:g}")
        return tuple(found)
