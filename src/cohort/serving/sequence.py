"""A request, and how far it is: what scheduler, runner and engine share."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from cohort.serving.kv_blocks import blocks_for
from cohort.serving.sampler import Sampling

__all__ = ["AdapterRef", "LiveSequence", "SequenceRequest"]

AdapterRef = Hashable
"""What names an adapter to the engine's adapters, such as a name; None is the frozen model alone."""


@dataclass(frozen=True, kw_only=True)
class SequenceRequest:
    """One prompt to continue.

    Attributes:
        prompt_tokens: At least one token.
        max_new_tokens: Most tokens to generate, at least 1; the model's context length may end it earlier.
        adapter: None for the frozen model alone.
        sampling: How tokens are picked.
        seed: What draws depend on: equal requests draw alike.
        stop_ids: Tokens that end the sequence and are not part of it.
        keeps_stop: Whether the token that ends it is part of it after all, as the last one.
        stop_strings: Texts that end it; the text ends before the first of them.
        needs_text: Whether its outputs have texts; False where someone else makes them of its tokens. Stop strings need
            them in any case.
        num_logprobs: The likeliest tokens to report with each token; None reports no logarithms.
        scales_logprobs: Whether these are of the distribution at the sampling temperature, and not at 1. What
            ``top_p`` and ``top_k`` cut off counts in both.
        tenant: Whose share of the base model it uses.
        cache_scope: Whose keys and values it may find, and leave to be found: sequences of another scope take as long
            as if it had never been. Empty is a scope like any other.
    """

    prompt_tokens: Sequence[int]
    max_new_tokens: int
    adapter: AdapterRef = None
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stop_ids: Collection[int] = frozenset()
    keeps_stop: bool = False
    stop_strings: tuple[str, ...] = ()
    needs_text: bool = True
    num_logprobs: int | None = None
    scales_logprobs: bool = False
    tenant: str = ""
    cache_scope: str = ""


@dataclass(eq=False)
class LiveSequence:
    """A request on its way.

    Attributes:
        number: The engine's number for it.
        most: Tokens it may generate.
        tokens: Prompt and generated tokens.
        num_computed: Positions whose keys and values are stored.
        version: The adapter's version, from the moment the sequence is admitted.
        slot: The adapter's slot while the sequence runs.
        blocks: Its blocks while it runs.
        hashes: Of the blocks of its prompt that others may share.
    """

    number: int
    request: SequenceRequest
    most: int
    tokens: list[int]
    num_computed: int = 0
    version: Hashable = None
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    hashes: tuple[bytes, ...] = ()
    num_prompt: int = field(init=False)

    def __post_init__(self) -> None:
        # asked for several times a token
        self.num_prompt = len(self.request.prompt_tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def is_prefilling(self) -> bool:
        """Whether positions of the prompt are still to be computed."""
        return self.num_computed < self.num_prompt

    @property
    def most_blocks(self) -> int:
        """Blocks at its longest."""
        return blocks_for(self.num_prompt + self.most)
