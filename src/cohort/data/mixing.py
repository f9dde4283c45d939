"""Several data sets by weight: how many training rows each gives, and which.

A weight is a share of the training rows: the mix has as many rows as the data sets together (``max_train_samples`` if
that is fewer), of which each data set has its weight over the sum of all. One with too few rows for its share is
repeated, all of it before any row a further time; one with too many gives rows chosen by seed, each once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from cohort.core.setting_fields import Refusal
from cohort.data.files.reading import InputSource
from cohort.data.problems import ProblemKind, ProblemLog
from cohort.data.settings import DatasetSettings
from cohort.data.splits import choose_rows
from cohort.data.token_rows import TokenRow

__all__ = ["MixedDataset", "mix_rows", "note_datasets_named_twice", "rows_by_weight"]


@dataclass(frozen=True, kw_only=True)
class MixedDataset:
    """What one data set gives to the mix.

    Attributes:
        name: Its path or hub id as the task has it.
        share: Its part of the mix, above 0 and at most 1.
        num_usable: Its rows that could be trained on.
        num_taken: Its rows in the mix, repeated ones counted each time.
    """

    name: str
    share: float
    num_usable: int
    num_taken: int

    def __str__(self) -> str:
        most = -(-self.num_taken // self.num_usable)
        repeated = f", up to {most} times each" if most > 1 else ""
        return f"{self.name} {self.num_taken} ({100 * self.share:.3g} %) from {self.num_usable} usable{repeated}"


def rows_by_weight(weights: Sequence[float], *, total: int) -> list[int]:
    """Return how many of ``total`` rows each weight is worth: largest remainders, so that they add up."""
    # exact, because a sum of floats depends on their order
    whole = sum(map(Fraction, weights))
    exact = [Fraction(weight) * total / whole for weight in weights]
    counts = [math.floor(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda index: (counts[index] - exact[index], index))
    for index in by_rest[: total - sum(counts)]:
        counts[index] += 1
    return counts


def mix_rows(
    train: list[TokenRow], *, sources: Sequence[InputSource], settings: DatasetSettings, log: ProblemLog
) -> tuple[list[TokenRow], tuple[MixedDataset, ...]]:
    """Return the rows to train on, in the order of their data sets, and what each gives.

    Args:
        train: The usable rows, those for validation already put aside.
        sources: What they were read from.
        settings: Their weights, seed and limit.
        log: Notes a data set that gives no row.
    """
    weights = settings.weights
    assert weights is not None, "there is something to mix"
    written = settings.train_entries
    number_of = {entry.source.shown: entry.number for entry in sources if entry.split == "train"}
    own: list[list[TokenRow]] = [[] for _ in weights]
    for row in train:
        # rows given from Python have a key for a place and are one data set
        own[number_of.get(row.where.file, 0)].append(row)
    limit = settings.max_train_samples
    counts = rows_by_weight(weights, total=len(train) if limit is None else min(limit, len(train)))
    mixed: list[TokenRow] = []
    parts = []
    for number, (rows, count) in enumerate(zip(own, counts, strict=True)):
        refusals = list(_refusals(number, str(written[number]), rows=rows, count=count, weights=weights))
        for refusal in refusals:
            problem = refusal.problem(settings.key("train"))
            log.add(
                ProblemKind.INPUT, where=problem.where, found=refusal.found, allowed=refusal.allowed, hint=refusal.hint
            )
        if refusals:
            continue
        times, rest = divmod(count, len(rows))
        contents = [row.content for row in rows]
        chosen = choose_rows(contents, limit=rest, seed=settings.seed, purpose="mix")
        mixed += [*(rows * times), *(rows[index] for index in chosen)]
        share = weights[number] / math.fsum(weights)
        parts.append(MixedDataset(name=str(written[number]), share=share, num_usable=len(rows), num_taken=count))
    return mixed, tuple(parts)


def note_datasets_named_twice(sources: Sequence[InputSource], *, settings: DatasetSettings, log: ProblemLog) -> None:
    """Note files that two weighted entries name: their rows would belong to either."""
    if settings.weights is None:
        return
    first: dict[str, int] = {}
    for entry in (entry for entry in sources if entry.split == "train"):
        earlier = first.setdefault(entry.source.shown, entry.number)
        if earlier != entry.number:
            log.add(
                ProblemKind.INPUT,
                where=settings.key("train").below(entry.number),
                found=f"{entry.source.shown!r}, which entry {earlier + 1} has, too",
                allowed="each file in one entry, where entries have weights",
                hint="Remove one of the two, and add its weight to the other.",
            )


def _refusals(
    number: int, name: str, *, rows: Sequence[TokenRow], count: int, weights: Sequence[float]
) -> Iterator[Refusal]:
    if not rows:
        yield Refusal(
            found=f"{name!r} with weight {weights[number]:g}, but without a row to train on",
            allowed="at least one usable row that is not put aside for validation",
            hint="Add rows, or remove it; if its rows are too long, raise max_length or set on_long_rows: truncate.",
            at=(number,),
        )
    elif not count:
        share = weights[number] / math.fsum(weights)
        yield Refusal(
            found=f"{name!r} with {100 * share:.3g} % of the training rows, which is less than one row",
            allowed="a weight that is worth at least one row",
            hint="Raise its weight, or remove it.",
            at=(number,),
        )
