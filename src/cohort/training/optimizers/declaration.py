"""What an optimizer's file says of itself, read without torch: task files, plans and messages need no more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from cohort.core.registry import DeclaredRegistry

__all__ = ["DEFAULT_OPTIMIZER_NAME", "OPTIMIZER_DECLARATIONS", "OptimizerDeclaration", "readers_of", "refused_variants"]

DEFAULT_OPTIMIZER_NAME = "adamw"


@dataclass(frozen=True, kw_only=True)
class OptimizerDeclaration:
    """What is known of an optimizer before it is imported.

    Attributes:
        name: What ``training.optim`` calls it.
        summary: What it does, in one line.
        reads: The ``adam_*`` keys that its steps depend on; every other key of ``training`` all optimizers read.
        has_own_states: Whether it keeps moments that AdamW does not: a bank has room for them only where a trial of its
            task may ask for it.
        not_with: Keys of ``lora`` it cannot train with, each with the clause that says why of it: "which ...".
        not_divided: Strategies that divide a model in a way it cannot step, each with the reason, as a sentence.
    """

    name: str
    summary: str
    reads: tuple[str, ...] = ()
    has_own_states: bool = False
    not_with: Mapping[str, str] = field(default_factory=dict)
    not_divided: Mapping[str, str] = field(default_factory=dict)


OPTIMIZER_DECLARATIONS = DeclaredRegistry(
    kind=OptimizerDeclaration,
    noun="optimizer",
    package="cohort.training.optimizers.kinds",
    constant="OPTIMIZER",
    group="cohort.optimizers",
    default=DEFAULT_OPTIMIZER_NAME,
    words={"OptimizerDeclaration": OptimizerDeclaration},
)


def readers_of(key: str) -> list[str]:
    """Return the optimizers that read an ``adam_*`` key."""
    return [entry.name for entry in OPTIMIZER_DECLARATIONS.usable() if key in entry.reads]


def refused_variants(names: Collection[str], *, present: Collection[str]) -> Iterator[str]:
    """Yield, in words, which of the optimizers ``names`` cannot train with which of the keys of ``lora`` in use.

    Raises:
        InputError: an optimizer of another package cannot be used.
    """
    for name in names:
        declared = OPTIMIZER_DECLARATIONS.find(name)
        for key, why in ({} if declared is None else declared.not_with).items():
            if key in present:
                yield f"{name}, {why}, with {key}"
