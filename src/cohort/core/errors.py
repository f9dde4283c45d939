"""The exception tree: every error a user can cause derives from :class:`CohortError`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from cohort.core.source_location import Place

__all__ = [
    "CohortError",
    "InputError",
    "InUseError",
    "MemoryLimitError",
    "OperandError",
    "Problem",
    "RankLostError",
    "RunStateError",
    "SampleTooLargeError",
    "SegmentError",
    "ShapeError",
    "StorageFullError",
    "UnsupportedModelError",
    "in_file_order",
]


class CohortError(Exception):
    """Base of all errors raised on purpose by Cohort (exit code 1 unless a subclass says otherwise)."""


@dataclass(frozen=True, kw_only=True, init=False)
class Problem:
    """One thing that is wrong with the user's input.

    Attributes:
        where: Its place; plain words become one.
        found: What was there, quoted.
        allowed: What would be accepted.
        hint: What to do now, as one imperative sentence.
    """

    where: Place
    found: str
    allowed: str
    hint: str

    def __init__(self, *, where: Place | str, found: str, allowed: str, hint: str) -> None:
        place = where if isinstance(where, Place) else Place(text=where)
        # a frozen dataclass refuses plain assignment even while it is made
        for name, value in (("where", place), ("found", found), ("allowed", allowed), ("hint", hint)):
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}; allowed: {self.allowed}. {self.hint}"


def in_file_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the problems of each file together, in the order of its lines; files in the order they come in.

    A problem that names a file and no line, as of a key that is missing, comes first.
    """
    files = list(dict.fromkeys(problem.where.file for problem in problems))
    # of problems in one line the first stays the first
    return tuple(sorted(problems, key=lambda problem: (files.index(problem.where.file), problem.where.line or 0)))


class InputError(CohortError):
    """The user's input is wrong (exit code 2). Carries every problem found, not only the first."""

    def __init__(self, problems: Sequence[Problem] | Problem) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        # an exception is rebuilt from its words alone otherwise; errors travel between processes
        return type(self), (self.problems,)

    def about(self, problems: Sequence[Problem]) -> Self:
        """Return the same error, of the same class, with other words for its problems."""
        kind, (_, *more) = self.__reduce__()
        error: Self = kind(problems, *more)
        return error


class UnsupportedModelError(InputError):
    """The base model's architecture is not one of the supported families."""


class MemoryLimitError(CohortError):
    """A pass needs more memory than the user's limit allows. On a GPU torch raises its own error instead."""


class SampleTooLargeError(InputError):
    """One row of one trial does not fit into memory even in a pass of its own.

    Attributes:
        num_tokens: The row's length.
    """

    def __init__(self, problems: Sequence[Problem] | Problem, num_tokens: int) -> None:
        super().__init__(problems)
        self.num_tokens = num_tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems, self.num_tokens)


class ShapeError(CohortError, ValueError):
    """A tensor's width disagrees with its neighbour."""


class OperandError(CohortError, TypeError):
    """A kernel's operand has a dtype, a device or a type that does not go with the other operands."""


class SegmentError(CohortError, ValueError):
    """A table of segments or slots contradicts itself, the stream, or the factors it is used with."""


class RunStateError(CohortError):
    """A run directory cannot be read, continued or written."""


class InUseError(RunStateError):
    """Another process works on the run or the queue (exit code 2): it can be watched, or waited for."""


class RankLostError(RunStateError):
    """The process of a GPU has ended in the middle of a run. What was saved before is safe."""


class StorageFullError(RunStateError):
    """The disk is full. What was written before is safe."""
