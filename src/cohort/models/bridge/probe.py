"""Proves a bridged model before anything trains: a stream of sequences must give what the model gives each alone.

Shapes:  T rows of the stream · L rows of one sequence · V vocabulary · D hidden width
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from cohort.core.errors import InputError, Problem
from cohort.models.bridge.backbone import BridgedDecoder
from cohort.models.bridge.pass_state import BridgedPass, during
from cohort.models.bridge.probed_model import (
    LENGTHS,
    Computed,
    compute_alone,
    compute_in_stream,
    hidden_of_stream,
    own_attention,
    probe_sequences,
    short_windows,
    wide,
)

__all__ = ["prove"]

# The largest difference of a row, relative to the row. 16-bit sums in another order differ by a few percent behind many
# layers, and a router may then choose another expert for a row or two; a leak changes most rows by more than that, or,
# where a convolution of a few rows leaks in one layer, most of those next to a bound.
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
_ROUNDED_TOLERANCE = 5e-2
# Where rounding alone makes a difference of about that size, a stream may differ by two such roundings, up to this.
_TWO_ROUNDINGS, _MOST_WIDENED = 2.0, 3.0
# Of a row whose neighbours in the stream have changed and nothing else.
_ROUNDINGS_APART = 4
# a gradient has passed every layer twice
_GRADIENT_FACTOR = 10
_ROWS_THAT_COUNT = 0.75
# a convolution sees two rows before its own at least
_ROWS_NEXT_TO_BOUND = 2
_REPORTED = "Report the architecture, or choose another base model."


def prove(decoder: BridgedDecoder, *, where: str) -> None:
    """Compare a stream of three sequences with each alone, and note which linears see every row once.

    Args:
        where: The model, for messages.

    Raises:
        InputError: logits or a gradient differ, or a position sees later ones; names the first layer that does.
    """
    sequences = probe_sequences(decoder)
    tokens_T = torch.cat(sequences)
    offsets = (0, *accumulate(len(sequence) for sequence in sequences))
    seen: dict[str, list[int]] = {}
    tolerance = _TOLERANCE.get(decoder.dtype, _ROUNDED_TOLERANCE)
    _require_causal(decoder, sequences[-1], tolerance, where=where)
    with short_windows(decoder) if decoder.is_packed else _unchanged():
        alone = compute_alone(decoder, sequences)
        found = _packed(decoder, tokens_T, offsets, seen, where=where)
        behind, before = _next_to_bounds(offsets)
        for what, own, other, allowed, at_risk in (
            ("logits", found.logits_TV, alone.logits_TV, tolerance, behind),
            ("gradients", found.gradient_TD, alone.gradient_TD, tolerance * _GRADIENT_FACTOR, before),
        ):
            difference = _difference(own, other, at_risk=at_risk)
            if allowed < difference <= _MOST_WIDENED * allowed and tolerance == _ROUNDED_TOLERANCE:
                by_rounding = _by_rounding(decoder, sequences, alone, what=what, at_risk=at_risk)
                allowed = max(allowed, min(_TWO_ROUNDINGS * by_rounding, _MOST_WIDENED * allowed))
            # not "above": a NaN is no agreement
            if not difference <= allowed:
                layer = _first_that_differs(decoder, sequences, tokens_T, offsets, tolerance)
                raise InputError(_differs(decoder, what, difference, allowed, layer, where=where))
    if decoder.is_packed:
        _require_apart(decoder, sequences, offsets, found, where=where)
        _require_contained(decoder, tokens_T, offsets, found, where=where)
    lengths = [len(tokens_T)] if decoder.is_packed else sorted(LENGTHS)
    for name in decoder.linears:
        rows = sorted(seen.get(name, ()))
        if rows != lengths and name not in decoder.unadaptable:
            decoder.unadaptable[name] = (
                "whose module does not call it" if not rows else "which does not see each row of a sequence once"
            )


def _require_apart(
    decoder: BridgedDecoder, sequences: Sequence[Tensor], offsets: tuple[int, ...], before: Computed, *, where: str
) -> None:
    """Change the middle sequence: rows of the others, computed by the same kernels at the same places, stay.

    Rounding plays no part here, so a leak of any size is seen that is larger than a few roundings.
    """
    changed = [sequences[0], sequences[1].flip(0), sequences[2]]
    after = _packed(decoder, torch.cat(changed), offsets, {}, where=where)
    _require_equal(decoder, offsets, before, after, with_what="another sequence of the stream", where=where)


def _require_contained(
    decoder: BridgedDecoder, tokens_T: Tensor, offsets: tuple[int, ...], before: Computed, *, where: str
) -> None:
    """Let the middle sequence be NaN, as a trial that diverges makes it: rows of the others stay.

    A mask over the whole stream keeps sequences apart only as long as all numbers are finite: nothing times NaN is NaN.
    """
    diverged = range(offsets[1], offsets[2])
    after = _packed(decoder, tokens_T, offsets, {}, where=where, diverged=diverged)
    _require_equal(decoder, offsets, before, after, with_what="a sequence of the stream that is NaN", where=where)


def _require_equal(
    decoder: BridgedDecoder,
    offsets: tuple[int, ...],
    before: Computed,
    after: Computed,
    *,
    with_what: str,
    where: str,
) -> None:
    others = [row for row in range(offsets[-1]) if not offsets[1] <= row < offsets[2]]
    allowed = max(_ROUNDINGS_APART * torch.finfo(decoder.dtype).eps, _TOLERANCE.get(decoder.dtype, 0.0) / 10)
    for what, own, other in (
        ("logits", after.logits_TV, before.logits_TV),
        ("gradients", after.gradient_TD, before.gradient_TD),
    ):
        own, other = wide(own[others]), wide(other[others])
        apart = float(((own - other).norm(dim=1) / other.norm(dim=1).clamp_min(torch.finfo(other.dtype).tiny)).max())
        if not apart <= allowed:
            raise InputError(
                Problem(
                    where=where,
                    found=f"{decoder.config.architecture}, whose {what} of a sequence change with {with_what} "
                    f"(relative difference {apart:.2g})",
                    allowed=f"at most {allowed:.2g}: adapters that share a pass would see each other's rows",
                    hint=_REPORTED,
                )
            )


def _by_rounding(
    decoder: BridgedDecoder, sequences: Sequence[Tensor], alone: Computed, *, what: str, at_risk: Sequence[int]
) -> float:
    """Return how far sequences that are a stream each are from what the model itself gives: nothing leaks there.

    Deep models of 16 bits differ by more than shallow ones: a rounded sum in another order goes on through all layers.
    """
    found = [compute_in_stream(decoder, tokens_L, (0, len(tokens_L)), {}) for tokens_L in sequences]
    if what == "logits":
        return _difference(torch.cat([own.logits_TV for own in found]), alone.logits_TV, at_risk=at_risk)
    return _difference(torch.cat([own.gradient_TD for own in found]), alone.gradient_TD, at_risk=at_risk)


def _packed(
    decoder: BridgedDecoder,
    tokens_T: Tensor,
    offsets: tuple[int, ...],
    seen: dict[str, list[int]],
    *,
    where: str,
    diverged: range = range(0),
) -> Computed:
    """Return what :func:`compute_in_stream` does; what a model raises about a stream becomes the reason."""
    try:
        return compute_in_stream(decoder, tokens_T, offsets, seen, diverged=diverged)
    except (torch.OutOfMemoryError, InputError):
        raise
    except Exception as error:  # the model's own code, which was written for a batch of padded rows
        raise InputError(
            Problem(
                where=where,
                found=f"{decoder.config.architecture}, which fails on sequences in one stream: "
                f"{' '.join(str(error).split()) or type(error).__name__}",
                allowed="a model that computes a stream whose position ids begin again with each sequence",
                hint=_REPORTED,
            )
        ) from error


def _require_causal(decoder: BridgedDecoder, tokens_L: Tensor, tolerance: float, *, where: str) -> None:
    changed_L = tokens_L.clone()
    changed_L[-1] = tokens_L[0] if tokens_L[0] != tokens_L[-1] else tokens_L[1]
    with torch.no_grad(), own_attention(decoder), during(BridgedPass(uses_own_experts=True)):
        first, second = (
            decoder.model(input_ids=tokens[None], use_cache=False).logits[0, :-1] for tokens in (tokens_L, changed_L)
        )
    if _difference(first, second) <= tolerance:
        return
    raise InputError(
        Problem(
            where=where,
            found=f"{decoder.config.architecture}, whose positions see later ones: another last token changes what is "
            "predicted before it",
            allowed="a model that predicts each token from those before it alone",
            hint="Choose a base model that was trained to generate text.",
        )
    )


def _next_to_bounds(offsets: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the rows behind the bounds, which a leak changes first, and those before, whose gradients it changes."""
    behind = [bound + place for bound in offsets[1:-1] for place in range(_ROWS_NEXT_TO_BOUND)]
    before = [bound - 1 - place for bound in offsets[1:-1] for place in range(_ROWS_NEXT_TO_BOUND)]
    return behind, before


def _difference(own: Tensor, other: Tensor, *, at_risk: Sequence[int] = ()) -> float:
    """Return how far rows are apart, relative to their size.

    The farthest row; in 16 bits that of most rows, or of most of those ``at_risk`` where they are farther apart.
    """
    is_rounded = own.dtype not in _TOLERANCE
    own, other = wide(own), wide(other)
    apart = (own - other).norm(dim=1) / other.norm(dim=1).clamp_min(torch.finfo(other.dtype).tiny)
    if not bool(torch.isfinite(apart).all()):
        return float("nan")
    if not is_rounded:
        return float(apart.max())
    # the lower one of two in the middle: all but one of four
    of_risk = float(apart[list(at_risk)].median()) if at_risk else 0.0
    return max(float(apart.quantile(_ROWS_THAT_COUNT)), of_risk)


def _differs(
    decoder: BridgedDecoder, what: str, difference: float, allowed: float, layer: str, *, where: str
) -> Problem:
    lengths = ", ".join(map(str, LENGTHS))
    return Problem(
        where=where,
        found=f"{decoder.config.architecture}, which gives other {what} for sequences of {lengths} tokens in one "
        f"stream than for each alone (relative difference {difference:.2g}), first behind {layer}",
        allowed=f"at most {allowed:g}: adapters that share a pass would see each other's rows",
        hint=_REPORTED,
    )


def _first_that_differs(
    decoder: BridgedDecoder,
    sequences: Sequence[Tensor],
    tokens_T: Tensor,
    offsets: tuple[int, ...],
    tolerance: float,
) -> str:
    """Return the path of the first layer whose output differs; the loss head where none does."""
    assert decoder.config.bridged is not None, "bridged models alone are probed"
    path = decoder.config.bridged.layers
    layers: Any = decoder.model.get_submodule(path)

    def outputs(compute: Callable[[], object]) -> list[Tensor]:
        """Return the output [T, D] of each layer; calls of the sequences one by one come as they are made."""
        found: list[list[Tensor]] = [[] for _ in layers]

        def keep(place: int) -> Callable[..., None]:
            def hook(_module: nn.Module, _inputs: object, output: Any) -> None:
                hidden = output[0] if isinstance(output, tuple | list) else output
                found[place].append(hidden.reshape(-1, hidden.shape[-1]))

            return hook

        handles = [layer.register_forward_hook(keep(place)) for place, layer in enumerate(layers)]
        try:
            with torch.no_grad():
                compute()
        finally:
            for handle in handles:
                handle.remove()
        return [torch.cat(own) for own in found]

    def alone() -> None:
        # in the order in which a stream's sequences are computed
        with own_attention(decoder), during(BridgedPass(uses_own_experts=True)):
            for tokens_L in sequences if decoder.is_packed else reversed(sequences):
                decoder.model(input_ids=tokens_L[None], use_cache=False)

    pairs = zip(outputs(alone), outputs(lambda: hidden_of_stream(decoder, tokens_T, offsets)), strict=True)
    # sequences that are computed one by one have no bound to leak over
    behind = _next_to_bounds(offsets)[0] if decoder.is_packed else ()
    for place, (expected, own) in enumerate(pairs):
        if not _difference(own, expected, at_risk=behind) <= tolerance:
            return f"{path}.{place}"
    return "the loss head"


@contextmanager
def _unchanged() -> Iterator[None]:
    yield
