"""What one process asks of another: a method of a contract with its arguments. Back come its result or its error.

A contract is a class whose methods are marked as verbs. A verb travels by its name, with arguments that its signature
in the contract has bound, and nothing else of an object can be asked for.
"""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from cohort.core.memory_records import MemoryShortage, PassKind

__all__ = ["Call", "Reply", "Standing", "Tenant", "is_verb", "portable", "verb"]

_P = ParamSpec("_P")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def verb(method: _Method) -> _Method:
    """Let other processes ask for a method, of the class that has it and of those that inherit from it."""
    vars(method)["is_verb"] = True
    return method


def is_verb(kind: type, name: str) -> bool:
    """Return whether ``kind``, or a class that it inherits from, has a verb of this name."""
    return any(getattr(vars(base).get(name), "is_verb", False) for base in kind.__mro__)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A method to carry out.

    Attributes:
        verb: Its name.
        arguments: All of its arguments, by name.
        is_answered: Whether the caller waits for a reply. An error of a call without one ends the rank.
    """

    verb: str
    arguments: Mapping[str, Any]
    is_answered: bool = True

    @classmethod
    def of(cls, method: Callable[Concatenate[Any, _P], object], *args: _P.args, **named: _P.kwargs) -> Call:
        """Return the call of a contract's method, with its defaults.

        Raises:
            TypeError: the method does not take such arguments.
        """
        bound = _signature(method).bind(None, *args, **named)
        bound.apply_defaults()
        (_, *arguments) = bound.arguments.items()
        return cls(verb=method.__name__, arguments=dict(arguments))

    def carried_out_by(self, tenant: object) -> Any:
        """Return what the method returns.

        Raises:
            TypeError: it is no verb of ``tenant``, or takes other arguments there.
            Exception: what it raises.
        """
        if not is_verb(type(tenant), self.verb):
            raise TypeError(f"{type(tenant).__name__} has no verb {self.verb}; mark the contract's method with @verb")
        return getattr(tenant, self.verb)(**self.arguments)


@functools.lru_cache(maxsize=256)
def _signature(method: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(method)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a rank stands after a call, which rank 0 has to know without asking.

    Attributes:
        shortages: Its memory shortages since its last answer.
        token_budgets: Most tokens of a micro-batch of the rank now.
        num_recomputed: Its training passes that used gradient checkpointing, up to now.
    """

    shortages: tuple[MemoryShortage, ...] = ()
    token_budgets: Mapping[PassKind, int] = field(default_factory=dict)
    num_recomputed: int = 0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a rank answers.

    Attributes:
        value: What the method returned; None where it raised.
        error, cause: What it raised, and what led to that.
        standing: Of the rank.
        seconds: What the call took.
    """

    value: Any = None
    error: BaseException | None = None
    cause: BaseException | None = None
    standing: Standing = field(default_factory=Standing)
    seconds: float = 0.0


class Tenant(Protocol):
    """What a rank serves with: its verbs are what can be asked of it."""

    def standing(self) -> Standing: ...
    def make_room(self) -> bool:
        """Free the next of what it keeps only to save time; return False if there was nothing."""
        ...


def portable(error: BaseException) -> BaseException:
    """Return ``error``, or its words where it cannot travel."""
    try:
        same = type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        same = False
    return error if same else RuntimeError(f"{type(error).__name__}: {error}")
