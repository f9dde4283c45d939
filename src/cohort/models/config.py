"""What a decoder is: sizes, per-layer windows and rotary frequencies, the same record for every family."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DecoderConfig", "RotaryConfig"]


@dataclass(frozen=True, kw_only=True)
class RotaryConfig:
    """Rotary position embedding, already worked out from the checkpoint's settings.

    Attributes:
        rope_type: Name of the scaling rule (``default``, ``linear``, ``llama3``, ``yarn``, ``dynamic``).
        inverse_frequencies: ``head_dim / 2`` angles per position, in radians.
        scale: Factor on cosine and sine (1 except for yarn).
        max_positions: Positions for which the frequencies hold; None where they hold for any length.
    """

    rope_type: str
    inverse_frequencies: tuple[float, ...]
    scale: float = 1.0
    max_positions: int | None = None


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder-only transformer of the Llama shape. All sizes are elements.

    Attributes:
        family: ``model_type`` of the checkpoint, such as ``llama``.
        architecture: Class name the checkpoint was saved from, such as ``LlamaForCausalLM``.
        vocab_size: Rows of the token table.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP.
        num_layers: Decoder layers.
        num_heads: Query heads.
        num_kv_heads: Key-value heads; divides ``num_heads``.
        head_dim: Width of one head.
        rms_norm_eps: Added to the mean square in every norm.
        max_position_embeddings: Context length the checkpoint states.
        tie_word_embeddings: The head shares the token table.
        qkv_bias: q, k and v add a bias.
        output_bias: o adds a bias.
        mlp_bias: gate, up and down add a bias.
        qk_norm: Queries and keys are normalised per head before the rotary embedding.
        windows: By layer, how many positions back (itself included) a query sees; None for all.
        rotary: Rotary frequencies.
        bos_token_id: First token of a sequence, where the checkpoint names one.
        eos_token_ids: Tokens that end a completion, as the checkpoint's generation settings name them.
        pad_token_id: Padding token, where the checkpoint names one.
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

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2 or len(self.rotary.inverse_frequencies) != self.head_dim // 2:
            raise ValueError(
                f"head_dim {self.head_dim} needs {self.head_dim / 2:g} rotary frequencies, "
                f"got {len(self.rotary.inverse_frequencies)}"
            )
        if len(self.windows) != self.num_layers:
            raise ValueError(f"{len(self.windows)} windows for {self.num_layers} layers")

    @property
    def query_width(self) -> int:
        """Output width of q, and input width of o."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Output width of k, and of v."""
        return self.num_kv_heads * self.head_dim
