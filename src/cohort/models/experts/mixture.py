"""What a family says of its blocks of experts, worked out from the checkpoint's settings."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MixtureOfExperts"]


@dataclass(frozen=True, kw_only=True)
class MixtureOfExperts:
    """The blocks of experts of a decoder, all of one size. In code and in PEFT's files their weights are stacked.

    Attributes:
        num_experts: E of a block.
        experts_per_token: How many of them each token passes.
        intermediate_size: Width of an expert.
        renormalises: Whether the weights of a token's experts are divided by their sum.
        sparse_layers: The layers that have a block of experts; the others have a dense MLP, which no adapter adapts:
            PEFT takes the names of its linears for experts.
        block: What the files call the block of a layer; the router is its ``gate``, expert 3 its ``experts.3``.
        gate, up, down: What the files call the linears of an expert.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    renormalises: bool
    sparse_layers: frozenset[int]
    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"

    def __post_init__(self) -> None:
        for name in ("num_experts", "experts_per_token", "intermediate_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}")
        if self.experts_per_token > self.num_experts:
            raise ValueError(f"{self.experts_per_token} experts per token of {self.num_experts}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """What the time and memory of passes depend on."""
        return (self.num_experts, self.experts_per_token, self.intermediate_size, len(self.sparse_layers))

    def parameters(self, layer: int, *, hidden_size: int) -> dict[str, tuple[int, int, int]]:
        """Return experts, input width and output width of a layer's stacked parameters, by PEFT's path.

        They stand in the order in which a row passes them; a dense layer has none.
        """
        if layer not in self.sparse_layers:
            return {}
        holder, width = f"model.layers.{layer}.mlp.experts", self.intermediate_size
        return {
            f"{holder}.gate_up_proj": (self.num_experts, hidden_size, 2 * width),
            f"{holder}.down_proj": (self.num_experts, width, hidden_size),
        }
