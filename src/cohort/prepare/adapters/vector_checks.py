"""Whether a task's VeRA trials can be what it says, and whether all that it says of them has an effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import Problem
from cohort.core.units import format_count
from cohort.tasks.hyperparameters import LORA_ALPHA, LoraKeys, key_of
from cohort.tasks.possible_values import possible_values
from cohort.tasks.task_file import TaskFile
from cohort.tuning.parameters import Conditional

__all__ = ["has_vectors", "vector_notes", "vector_problems"]

# what LoRA alone reads, and what VeRA alone reads
_OF_LORA = {"lora_alpha": LORA_ALPHA.default, "use_rslora": False}
_OF_VECTORS = {name: getattr(LoraKeys(), name) for name in ("d_initial", "projection_prng_key")}


def has_vectors(task: TaskFile) -> bool:
    """Return whether a trial of the task may be VeRA."""
    return True in possible_values(task, "use_vera")


def vector_problems(task: TaskFile, *, linears: Mapping[str, tuple[int, int]]) -> Iterator[Problem]:
    """Yield what is wrong with the VeRA trials of a task.

    Args:
        linears: ``(in_features, out_features)`` of the adapted linears by full path.
    """
    kinds = set(possible_values(task, "use_vera"))
    if True in kinds:
        yield from _wide_ranks(task, linears)
    for names, is_read_if in ((_OF_LORA, False), (_OF_VECTORS, True)):
        for name, default in names.items():
            if name in task.search.space:
                if kinds != {is_read_if} and not _is_conditional(task, name, is_read_if=is_read_if):
                    yield _unread(task, name, f"a search over {name}", is_read_if=is_read_if, is_searched=True)
            elif kinds == {not is_read_if} and possible_values(task, name) != (default,):
                yield _unread(task, name, name, is_read_if=is_read_if, is_searched=False)
    if True not in kinds and not task.lora.save_projection:
        yield _unread(task, "save_projection", "save_projection: false", is_read_if=True, is_searched=False)


def vector_notes(adapters: Iterable[AdapterSpec], *, linears: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """Yield, for each rank of VeRA adapters, how large they are next to plain LoRA."""
    per_rank = sum(ins + outs for ins, outs in linears.values())
    for r in sorted({adapter.r for adapter in adapters if adapter.use_vera is not None}):
        parameters = sum(r + outs for _, outs in linears.values())
        yield (
            f"VeRA, r {r}: {format_count(parameters)} trainable parameters, as LoRA of rank {parameters / per_rank:.3g}"
        )


def _is_conditional(task: TaskFile, name: str, *, is_read_if: bool) -> bool:
    searched = task.search.space[name]
    return isinstance(searched, Conditional) and tuple(searched.when.get("use_vera", ())) == (is_read_if,)


def _unread(task: TaskFile, name: str, found: str, *, is_read_if: bool, is_searched: bool) -> Problem:
    own, other = ("VeRA", "LoRA") if is_read_if else ("LoRA", "VeRA")
    if is_searched and len(set(possible_values(task, "use_vera"))) == 2:
        # two trials that differ in nothing that is read would train to the same bits
        allowed = f"values for {own} trials only: {other} has no {name}"
        hint = f"Write {name}: {{values: [...], when: {{use_vera: [{str(is_read_if).lower()}]}}}}."
    else:
        allowed = f"{name} with use_vera: {str(is_read_if).lower()}; {other} has none"
        hint = f"Remove {name}, or write use_vera: {str(is_read_if).lower()}."
    place = f"search.space.{name}" if is_searched else f"lora.{name}"
    return Problem(where=task.where(place), found=f"{found}, which {other} does not read", allowed=allowed, hint=hint)


def _wide_ranks(task: TaskFile, linears: Mapping[str, tuple[int, int]]) -> Iterator[Problem]:
    r = max(int(value) for value in possible_values(task, "r"))
    name = min(linears, key=lambda name: linears[name][0])
    most = linears[name][0]
    if r > most:
        key = "search.space.r" if "r" in task.search.space else ".".join(map(str, key_of("r")))
        yield Problem(
            where=task.where(key),
            found=f"r {r} with use_vera",
            allowed=f"at most {most}, the inputs of {name}: a projection of them has no more independent rows",
            hint=f"Write r of at most {most}, or leave that linear out of target_modules.",
        )
