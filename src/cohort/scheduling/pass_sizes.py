"""The tokens of a training pass, and which passes are recomputed, in the memory that the base model leaves.

None is recomputed that fits. Passes become smaller first, which costs nothing while they still fill the machine; only a
row that fits in no pass with everything kept, or passes that would be uselessly small, are recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cohort.core.errors import Problem
from cohort.core.memory_records import MARGIN_SHARE, GradientCheckpointing
from cohort.core.source_location import Place
from cohort.core.units import format_bytes
from cohort.scheduling.pass_memory import largest_that_fits

__all__ = [
    "LEAST_TOKENS",
    "MemoryNeeds",
    "PassSizes",
    "choose_pass_sizes",
    "row_too_long",
]

LEAST_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class MemoryNeeds:
    """The bytes of passes, in addition to base model and bank.

    Attributes:
        pass_bytes: Peak by tokens of a micro-batch, the largest evaluation that goes with it included.
        recomputed_bytes: The same where layers are recomputed; None where that is not known.
        graph_bytes: What recorded passes hold for good, by the tokens of the largest of them.
        launching_tokens: Of a pass that takes the device as long as the host takes to launch it; 0 where not known.
        reserve_bytes: What the allocator holds beyond its own peak.
        margin_share: Of the memory, that stays free.
    """

    pass_bytes: Callable[[int], float]
    recomputed_bytes: Callable[[int], float] | None = None
    graph_bytes: Callable[[int], float] = lambda _: 0.0
    launching_tokens: float = 0.0
    reserve_bytes: int = 0
    margin_share: float = MARGIN_SHARE


@dataclass(frozen=True, kw_only=True)
class PassSizes:
    """What was chosen.

    Attributes:
        tokens: Most tokens of a micro-batch; a longer row stands alone.
        keep_tokens: Passes of more tokens are recomputed; None: none is.
        num_bytes: Peak of the pass that takes most, a longest row's included.
    """

    tokens: int
    keep_tokens: int | None
    num_bytes: int

    @property
    def kept_tokens(self) -> int:
        """Most tokens of a micro-batch that keeps its activations."""
        return self.tokens if self.keep_tokens is None else min(self.tokens, self.keep_tokens)

    @property
    def evaluation_tokens(self) -> int:
        """Most tokens of an evaluation."""
        # An evaluation keeps no activations, so twice the tokens of a pass that keeps them take no more.
        return max(self.tokens, 2 * self.kept_tokens)


def choose_pass_sizes(
    needs: MemoryNeeds,
    *,
    room: int,
    least_bytes: int,
    wanted_bytes: int,
    sizes: Sequence[int],
    most_recorded: int,
    longest_row: int,
    mode: GradientCheckpointing,
    least_split: int,
) -> PassSizes:
    """Return the sizes of passes; they may not fit, if nothing does.

    Args:
        needs: What passes take.
        room: Bytes for passes and adapters.
        least_bytes: Of adapters, without which nothing trains.
        wanted_bytes: Of all adapters together.
        sizes: Tokens to choose from, most first.
        most_recorded: Tokens of the largest pass that is recorded as a graph.
        longest_row: Tokens of the longest row.
        mode: When passes are recomputed.
        least_split: Tokens below which smaller passes cost more than recomputing larger ones.
    """
    kept, recomputed = needs.pass_bytes, needs.recomputed_bytes

    def tokens_of(num_bytes: Callable[[int], float], sizes: Sequence[int]) -> int:
        """Of ``sizes`` the most with which all adapters fit, else the last, or so few that the least do."""
        # Large passes first, as long as all adapters fit with them; then smaller ones until the least adapters do.
        tokens = next((size for size in sizes if room - num_bytes(size) >= wanted_bytes), sizes[-1])
        while tokens > LEAST_TOKENS and room - num_bytes(tokens) < least_bytes:
            tokens //= 2
        return tokens

    if mode is GradientCheckpointing.ALWAYS and recomputed is not None:
        # Recomputed passes are never recorded as graphs, so no graph takes memory here.
        tokens = tokens_of(recomputed, sizes)
        return PassSizes(tokens=tokens, keep_tokens=0, num_bytes=math.ceil(recomputed(max(tokens, longest_row))))
    tokens = tokens_of(lambda count: kept(count) + needs.graph_bytes(min(most_recorded, count)), sizes)
    # Smaller passes cost nothing while they still fill the machine; below `least_split` recomputing is cheaper.
    is_small = tokens < min(least_split, sizes[-1])
    largest = kept(max(tokens, longest_row))
    fits = largest + least_bytes <= room and not is_small
    if mode is not GradientCheckpointing.AUTO or recomputed is None or fits:
        keep_tokens = 0 if mode is GradientCheckpointing.ALWAYS else None
        return PassSizes(tokens=tokens, keep_tokens=keep_tokens, num_bytes=math.ceil(largest))
    # Recomputed passes may be as large as the largest size again, but never smaller than those that keep everything.
    wider = max(tokens, tokens_of(recomputed, sizes[-1:])) if is_small else tokens
    num_bytes = recomputed(max(wider, longest_row))
    if kept(tokens) + least_bytes <= room:
        num_bytes = max(num_bytes, kept(tokens))
    # Passes that fit into that peak with their activations need not be recomputed.
    keep_tokens = largest_that_fits(lambda count: kept(count) <= num_bytes, at_most=max(wider, longest_row))
    return PassSizes(tokens=wider, keep_tokens=keep_tokens, num_bytes=math.ceil(num_bytes))


def row_too_long(
    needs: MemoryNeeds | None,
    passes: PassSizes,
    *,
    left: int,
    longest_row: int,
    source: str,
    mode: GradientCheckpointing,
) -> Problem | None:
    """Return a problem if the longest row does not fit but shorter ones do; else None.

    Args:
        needs: What passes take; None where that is not known.
        passes: As they were chosen.
        left: Bytes for passes that the base model and an adapter of the largest rank leave.
        longest_row, source: Its tokens, and its file and line.
        mode: When passes are recomputed.
    """
    if needs is None:
        return None
    recomputes = passes.keep_tokens is not None and needs.recomputed_bytes is not None
    takes = needs.recomputed_bytes if recomputes and needs.recomputed_bytes is not None else needs.pass_bytes
    fitting = largest_that_fits(lambda tokens: takes(tokens) <= left, at_most=longest_row)
    # Rows are not the problem where not even a short one fits, nor where the longest does.
    if fitting < LEAST_TOKENS or fitting == longest_row:
        return None
    first = "Set memory.gradient_checkpointing: auto, set" if mode is GradientCheckpointing.NEVER else "Set"
    return Problem(
        where=Place(key=("dataset", "max_length")),
        found=f"a row of {longest_row:,} tokens ({source}), whose training takes {format_bytes(takes(longest_row))} "
        f"with {'every layer recomputed' if recomputes else 'all its activations kept'}",
        allowed=f"at most {format_bytes(left)}, which the base model, an adapter of the largest rank and the margin "
        f"leave: rows of up to {fitting:,} tokens",
        hint=f"{first} dataset.max_length to {fitting} or less, choose smaller ranks or fewer target_modules, raise "
        "memory.limit where it is set, or take a machine with more memory.",
    )
