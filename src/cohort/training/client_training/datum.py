"""One datum of a client: tokens, the targets of each position, and what the loss reads of every target.

Shapes:  N positions · P of them with targets · K targets of a position
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cohort.core.errors import InputError, Problem
from cohort.training.client_losses.token_objective import TokenObjective

__all__ = ["TARGETS", "Datum", "TokenLoss", "checked_datum", "checked_loss"]

TARGETS = "target_tokens"

MOST_TARGETS = 64
"""Most targets of a position. Each has a row of the head's gradient, as wide as the model, while its pass runs."""


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """The loss of a call: an objective with its numbers."""

    objective: TokenObjective
    numbers: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Datum:
    """What one sequence is trained on.

    Attributes:
        tokens: int64 [N].
        targets: int64 [P, K], those of the last P positions; of all N in what clients send.
        inputs: What the loss reads of every target, float64 [P, K] each.
        temperature: What logits are divided by before they become log-probabilities.
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    inputs: Mapping[str, NDArray[np.float64]]
    temperature: float = 1.0

    @property
    def first(self) -> int:
        """The first position that has targets."""
        return len(self.tokens) - len(self.targets)

    @property
    def num_rows(self) -> int:
        """Rows that a pass computes for it: of its tokens, or of its targets where these are more."""
        return max(len(self.tokens), self.targets.size)


def checked_loss(name: str, config: Mapping[str, float], *, known: Mapping[str, TokenObjective]) -> TokenLoss:
    """Return the loss that a call asks for.

    Args:
        config: The call's own numbers.
        known: Objectives by name.

    Raises:
        InputError: there is no such loss, or it has no such number, or the number is not finite.
    """
    objective = known.get(name)
    if objective is None:
        raise _wrong("loss_fn", found=repr(name), allowed=", ".join(sorted(known)), hint="Name one of these losses.")
    numbers = dict(objective.numbers or {})
    for key, value in config.items():
        if key not in numbers:
            allowed = f"{', '.join(numbers)} with {name}" if numbers else f"no numbers: {name} reads none"
            raise _wrong(f"loss_fn_config.{key}", found=repr(key), allowed=allowed, hint=f"Remove {key}.")
        if not np.isfinite(value):
            raise _wrong(f"loss_fn_config.{key}", found=str(value), allowed="a finite number", hint=f"Set {key}.")
        numbers[key] = float(value)
    if numbers.get("clip_low_threshold", 0.0) > numbers.get("clip_high_threshold", 0.0):
        low, high = numbers["clip_low_threshold"], numbers["clip_high_threshold"]
        raise _wrong(
            "loss_fn_config",
            found=f"clip_low_threshold {low:g} above clip_high_threshold {high:g}",
            allowed="a low threshold that is not above the high one",
            hint="Set both, for example to 0.8 and 1.2.",
        )
    return TokenLoss(objective=objective, numbers=numbers)


def checked_datum(
    tokens: NDArray[np.int64],
    inputs: Mapping[str, NDArray[np.generic]],
    *,
    loss: TokenLoss,
    place: int,
    vocab_size: int,
    context: int,
) -> Datum:
    """Return a datum as passes read it.

    Args:
        tokens: int64 [N].
        inputs: As the client sent them, ``target_tokens`` among them: [N], or [N, K] where the loss has several
            targets.
        place: Number of the datum in its call, for messages.
        vocab_size: Token ids are below it.
        context: The most tokens that the model reads.

    Raises:
        InputError: a length, a token or a number that cannot be; nothing has been computed.
    """
    at = f"data[{place}]"
    if not 1 <= len(tokens) <= context:
        raise _wrong(
            f"{at}.model_input",
            found=f"{len(tokens):,} tokens",
            allowed=f"1 to {context:,} tokens, which the model reads",
            hint="Cut the sequence, or split it into several data.",
        )
    _check_tokens(tokens, vocab_size=vocab_size, at=f"{at}.model_input")
    _check_names(inputs, objective=loss.objective, at=at)
    raw = np.asarray(inputs[TARGETS])
    several = loss.objective.several_targets
    if raw.ndim not in ((1, 2) if several else (1,)) or len(raw) != len(tokens) or raw.size == 0:
        raise _wrong(
            f"{at}.loss_fn_inputs.{TARGETS}",
            found=f"shape {list(raw.shape)} with {len(tokens)} tokens",
            allowed=f"{'N or N x K' if several else 'N'} targets for N tokens",
            hint="Send the target of every position; a weight or an advantage of 0 leaves a position out.",
        )
    targets = raw.reshape(len(tokens), -1).astype(np.int64)
    if targets.shape[1] > MOST_TARGETS:
        raise _wrong(
            f"{at}.loss_fn_inputs.{TARGETS}",
            found=f"{targets.shape[1]:,} targets of a position",
            allowed=f"1 to {MOST_TARGETS}",
            hint="Keep the most probable ones, or send the sequence several times with a part of them each.",
        )
    _check_tokens(targets, vocab_size=vocab_size, at=f"{at}.loss_fn_inputs.{TARGETS}")
    values = _checked_values(inputs, loss.objective, shape=raw.shape, at=at)
    return Datum(
        tokens=tokens.astype(np.int64),
        targets=targets,
        inputs={name: own.reshape(targets.shape) for name, own in values.items()},
    )


def _check_names(inputs: Mapping[str, object], *, objective: TokenObjective, at: str) -> None:
    wanted, optional = (TARGETS, *objective.inputs), tuple(objective.optional or ())
    if missing := [name for name in wanted if name not in inputs]:
        raise _wrong(
            f"{at}.loss_fn_inputs",
            found=f"{', '.join(inputs) or 'nothing'}; no {missing[0]}",
            allowed=f"{', '.join(wanted)} for {objective.name}",
            hint=f"Send {missing[0]}, one value for each target.",
        )
    if unread := [name for name in inputs if name not in wanted and name not in optional]:
        raise _wrong(
            f"{at}.loss_fn_inputs.{unread[0]}",
            found=unread[0],
            allowed=f"{', '.join((*wanted, *optional))} for {objective.name}",
            hint=f"Remove {unread[0]}; {objective.name} does not read it.",
        )


def _checked_values(
    inputs: Mapping[str, NDArray[np.generic]], objective: TokenObjective, *, shape: tuple[int, ...], at: str
) -> dict[str, NDArray[np.float64]]:
    """Return what the loss reads of every target, each in the targets' shape."""
    found = {name: np.full(shape, value) for name, value in (objective.optional or {}).items()}
    for name in (*objective.inputs, *(name for name in found if name in inputs)):
        own = np.asarray(inputs[name]).astype(np.float64)
        if own.shape != shape:
            raise _wrong(
                f"{at}.loss_fn_inputs.{name}",
                found=f"shape {list(own.shape)} next to {TARGETS} of shape {list(shape)}",
                allowed="one value for each target",
                hint=f"Send {name} in the shape of {TARGETS}.",
            )
        if not np.isfinite(own).all():
            where = tuple(np.argwhere(~np.isfinite(own))[0].tolist())
            raise _wrong(
                f"{at}.loss_fn_inputs.{name}",
                found=f"{own[where]} at position {where[0]}",
                allowed="finite numbers",
                hint="Leave such a position out with a weight or an advantage of 0 and a finite log-probability.",
            )
        found[name] = own
    return found


def _check_tokens(tokens: NDArray[np.int64], *, vocab_size: int, at: str) -> None:
    outside = (tokens < 0) | (tokens >= vocab_size)
    if outside.any():
        raise _wrong(
            at,
            found=f"token {int(tokens[outside][0])}",
            allowed=f"0 to {vocab_size - 1}, the model's vocabulary",
            hint="Tokenise with the tokenizer of this base model.",
        )


def _wrong(where: str, *, found: str, allowed: str, hint: str) -> InputError:
    return InputError(Problem(where=where, found=found, allowed=allowed, hint=hint))
