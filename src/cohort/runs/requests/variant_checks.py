"""Whether the hyperparameters of a trial that a person adds make an adapter: which variants exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cohort.adapters.modules_to_save.saved_modules import SavedModules
from cohort.adapters.spec import AdapterSpec, VariantError
from cohort.adapters.variants.vera_settings import VectorAdapter
from cohort.core.errors import Problem
from cohort.runs.facts import RunFacts
from cohort.tasks.task_file import TaskFile
from cohort.tasks.trial_values import default_values
from cohort.training.optimizers.declaration import refused_variants
from cohort.tuning.parameters import Value

__all__ = ["variant_refusals"]

_OF_THE_START = ("r", "lora_alpha", "use_rslora", "use_dora", "use_vera", "nblocks", "init_lora_weights")


def variant_refusals(parameters: Mapping[str, Value], *, task: TaskFile, facts: RunFacts) -> Iterator[Problem]:
    """Yield why no adapter can have these hyperparameters together."""
    values = {**default_values(task), **parameters}
    is_vera, r = bool(values["use_vera"]), int(values["r"])
    named = task.lora.modules_to_save
    try:
        AdapterSpec(
            r=r,
            lora_alpha=1.0,
            lora_dropout=float(values["lora_dropout"]),
            init_lora_weights=str(values["init_lora_weights"]),
            use_dora=bool(values["use_dora"]),
            use_vera=VectorAdapter() if is_vera else None,
            use_bdlora=task.block_diagonal(int(values["nblocks"])),
            rank_pattern=tuple(task.lora.rank_pattern.items()),
            alpha_pattern=tuple(task.lora.alpha_pattern.items()),
            # what goes together does not follow from their sizes
            saved=SavedModules(names=named, vocab_size=1, hidden_size=1, width=1) if named else None,
        )
    except VariantError as error:
        yield _together(str(error))
    except ValueError:
        # a number of blocks that does not divide r has a message of its own
        pass
    in_use = {"use_dora": values["use_dora"], "use_vera": is_vera, "modules_to_save": named}
    present = [key for key, is_used in in_use.items() if is_used]
    yield from map(_together, refused_variants([str(values["optim"])], present=present))
    yield from _of_another_start(task, values)
    if is_vera and float(values["loraplus_lr_ratio"]) != 1.0:
        yield _together("loraplus_lr_ratio, a rate of B, with use_vera, which trains neither A nor B")
    if named and float(values["loraplus_lr_ratio"]) != 1.0:
        yield _together("loraplus_lr_ratio with modules_to_save, whose tables have one rate")
    shapes = facts.inputs.adapted_shapes or {}
    most = min((in_features for in_features, _, _ in shapes.values()), default=r)
    if is_vera and r > most:
        yield Problem(
            where="--r",
            found=f"{r} with use_vera",
            allowed=f"at most {most}, the fewest inputs of an adapted linear",
            hint=f"Write --r {most} or less.",
        )


def _of_another_start(task: TaskFile, values: Mapping[str, Value]) -> Iterator[Problem]:
    """Yield what differs from the adapter that the run's trials begin with; the task itself was compared with it."""
    if task.lora.adapter_name_or_path is None:
        return
    own = default_values(task)
    for name in _OF_THE_START:
        if values[name] != own[name]:
            yield Problem(
                where=f"--{name}",
                found=str(values[name]),
                allowed=f"{own[name]}, as in {task.lora.adapter_name_or_path}, which trials begin with",
                hint=f"Leave --{name} out, or start a run without lora.adapter_name_or_path.",
            )


def _together(found: str) -> Problem:
    allowed = "hyperparameters of a trial that go together"
    return Problem(where="cohort trials", found=found, allowed=allowed, hint="Change one of them.")
