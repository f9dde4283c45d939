"""Whether the blocks that a task's trials may have fit its model and its ranks (BD-LoRA), and what they come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cohort.adapters.variants.block_diagonal import BlockFactor, num_parameters, rank_of_equal_size
from cohort.core.errors import InputError, Problem
from cohort.core.units import format_count
from cohort.models.config import DecoderConfig
from cohort.prepare.trials import PlannedTrial
from cohort.tasks.hyperparameters import key_of
from cohort.tasks.task_file import TaskFile
from cohort.tuning.parameters import MOST_POINTS, Choice, Conditional, Constant, Parameter, Range
from cohort.tuning.space import SearchSpace

__all__ = ["adapted_shapes", "block_notes", "block_problems", "block_warnings", "has_blocks"]

Linears = Mapping[str, tuple[int, int]]


def block_problems(task: TaskFile, *, linears: Linears, known: Linears) -> list[Problem]:
    """Return why some trial of the task cannot have the blocks it may be given; nothing for plain LoRA.

    Args:
        linears: The adapted linears among all ``known`` ones of the model.
    """
    try:
        pairs = _ranks_and_blocks(task.search_space())
    except InputError:
        # a space that is wrong in itself is reported by those who list it
        return []
    nblocks_key = ("search", "space", "nblocks") if "nblocks" in task.search.space else key_of("nblocks")
    found: dict[Problem, None] = {}
    for r, nblocks in sorted(pairs):
        blocks = task.block_diagonal(nblocks)
        if blocks is None:
            continue
        of_rank = blocks.rank_refusal(r)
        for refusal in (*blocks.refusals(linears, known=known), *(() if of_rank is None else (of_rank,))):
            key = nblocks_key if refusal.at == ("nblocks",) else (*key_of("nblocks")[:-1], *refusal.at)
            problem = Problem(
                where=task.where(".".join(map(str, key))),
                found=refusal.found,
                allowed=refusal.allowed,
                hint=refusal.hint,
            )
            found[problem] = None
    return list(found)


def _ranks_and_blocks(space: SearchSpace) -> set[tuple[int, int]]:
    """Return the (r, nblocks) that configurations may have: exactly where the space is small, else from above."""
    if _values(space.parameters["nblocks"]) == {1}:
        return set()
    size = space.size_bound()
    if size is not None and size <= MOST_POINTS:
        return {(int(c["r"]), int(c["nblocks"])) for c in space.configurations()}
    about = [constraint for constraint in space.constraints if constraint.names <= {"r", "nblocks"}]
    return {
        (r, nblocks)
        for r in _values(space.parameters["r"])
        for nblocks in _values(space.parameters["nblocks"])
        if all(constraint.holds({"r": r, "nblocks": nblocks}) for constraint in about)
    }


def _values(parameter: Parameter) -> set[int]:
    if isinstance(parameter, Conditional):
        rest = parameter.otherwise
        return _values(parameter.parameter) | ({rest} if isinstance(rest, int) else set())
    if isinstance(parameter, Choice):
        return {int(value) for value in parameter.values if isinstance(value, int | float)}
    if isinstance(parameter, Range):
        points = parameter.points()
        return {int(p) for p in points} if points is not None else {*range(int(parameter.min), int(parameter.max) + 1)}
    return {int(parameter.value)} if isinstance(parameter, Constant) else set()


def block_notes(trials: Sequence[PlannedTrial], *, linears: Linears) -> Iterator[str]:
    """Yield, for each block structure, how large its adapters are next to plain LoRA."""
    seen = dict.fromkeys((trial.spec.adapter.use_bdlora, trial.spec.adapter.r) for trial in trials)
    for blocks, r in seen:
        if blocks is None:
            continue
        parameters = num_parameters(linears, r=r, blocks=blocks)
        equal = parameters / num_parameters(linears, r=1, blocks=None)
        other = rank_of_equal_size(linears, r=r, blocks=blocks)
        yield (
            f"nblocks {blocks.nblocks}, r {r}: {format_count(parameters)} trainable parameters, as LoRA of rank "
            f"{equal:.3g}; as many as LoRA of rank {r} has BD-LoRA of rank {other}"
        )


def block_warnings(trials: Sequence[PlannedTrial], *, linears: Linears, config: DecoderConfig) -> Iterator[str]:
    """Yield a warning for numbers of blocks that no tensor parallel server can have ranks of its own for."""
    heads = config.num_kv_heads
    structures = dict.fromkeys(trial.spec.adapter.use_bdlora for trial in trials)
    for blocks in structures:
        if blocks is None or heads % blocks.nblocks == 0:
            continue
        if any(blocks.factor_of(path) is BlockFactor.B and path.endswith(("k_proj", "v_proj")) for path in linears):
            degrees = [d for d in range(2, heads + 1) if heads % d == 0 and (blocks.nblocks % d == 0)]
            served = f"tensor parallel degrees {', '.join(map(str, degrees))}" if degrees else "one GPU"
            yield (
                f"nblocks {blocks.nblocks} does not divide the model's {heads} key-value heads: a server with as many "
                f"ranks cannot divide this model, so the adapter is for {served} and below; choose a divisor of {heads}"
            )


def has_blocks(task: TaskFile) -> bool:
    """Return whether a trial of the task may be BD-LoRA."""
    return task.lora.use_bdlora is not None or "nblocks" in task.search.space


def adapted_shapes(linears: Linears) -> dict[str, tuple[int, int, int]]:
    """Return inputs, outputs and count of the adapted linears of each name."""
    found: dict[tuple[str, int, int], int] = {}
    for path, (in_features, out_features) in linears.items():
        kind = (path.rsplit(".", 1)[-1], in_features, out_features)
        found[kind] = found.get(kind, 0) + 1
    shapes: dict[str, tuple[int, int, int]] = {}
    for (name, in_features, out_features), count in found.items():
        # a name whose layers differ in shape; what a name contains decides on its blocks, and still does
        key = name if name not in shapes else f"{name} {in_features} x {out_features}"
        shapes[key] = (in_features, out_features, count)
    return shapes
