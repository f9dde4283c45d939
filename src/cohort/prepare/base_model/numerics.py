"""Which numerics a task trains with on a GPU, decided once before it begins: what was asked for, or what auto takes.

A CPU has no other numerics than exact ones, so there the key changes nothing and nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cohort.core.errors import Problem
from cohort.core.numerics import AUTO, Numerics
from cohort.kernels.exact_product import has_exact_product
from cohort.machine.exact_steps import known_exact_steps
from cohort.machine.kernel_choices import exact_products
from cohort.machine.machine import Machine
from cohort.models.config import DecoderConfig
from cohort.scheduling.cost.exact_ratios import MOST_RATIO, LayerWidths, described_ratios, gpu_kind, is_cheap, steps_of
from cohort.tasks.possible_values import possible_values
from cohort.tasks.task_file import TaskFile

__all__ = [
    "NumericsChoice",
    "asked_numerics",
    "choose_numerics",
    "numerics_note",
    "numerics_problems",
    "numerics_text",
    "recorded_choice",
    "with_numerics",
]

_FAST = "Write numerics: fast, or remove the key."
_RESUMED = "Resume it where it began."


@dataclass(frozen=True, kw_only=True)
class NumericsChoice:
    """Numerics and, where it was not the task file that named them, why."""

    numerics: Numerics
    reason: str = ""


def asked_numerics(task: TaskFile) -> Numerics | None:
    """Return the numerics that ``task`` names; None where it leaves them to the machine."""
    return None if task.numerics == AUTO else Numerics(task.numerics)


def recorded_choice(numerics: str | None) -> NumericsChoice | None:
    """Return what a run that is resumed keeps of the numerics on record; None for one on a CPU, which records none."""
    return None if numerics is None else NumericsChoice(numerics=Numerics(numerics), reason="as the run began")


def with_numerics(
    task: TaskFile,
    machine: Machine,
    *,
    config: DecoderConfig,
    num_gpus: int | None = None,
    recorded: NumericsChoice | None = None,
) -> Machine:
    """Return ``machine`` with the numerics that ``task`` trains with there.

    Args:
        num_gpus: GPUs that train on all machines; None: those of this one.
        recorded: What a run that is resumed keeps.
    """
    if machine.device.type == "cpu":
        return machine
    choice = recorded if asked_numerics(task) is None and recorded is not None else None
    if choice is None:
        choice = choose_numerics(
            task,
            config=config,
            gpu=gpu_kind(machine.device_name),
            num_gpus=machine.num_gpus if num_gpus is None else num_gpus,
            has_product=has_exact_product(machine.device),
        )
    return replace(machine, numerics=choice.numerics, numerics_reason=choice.reason)


def choose_numerics(
    task: TaskFile, *, config: DecoderConfig, gpu: str, num_gpus: int = 1, has_product: bool = True
) -> NumericsChoice:
    """Return the numerics that the task asks for; where it asks for none, exact if a step costs at most 5 % more.

    Args:
        config: The base model's.
        gpu: The kind of GPU (:func:`gpu_kind`), which need not be here.
        num_gpus: How many of them train.
        has_product: Whether the kernels of exact numerics run there.
    """
    if (asked := asked_numerics(task)) is not None:
        return NumericsChoice(numerics=asked)

    def fast(why: str) -> NumericsChoice:
        return NumericsChoice(numerics=Numerics.FAST, reason=why)

    if not has_product:
        return fast("exact needs a GPU with Triton's kernels")
    if without_form := [what for what, _ in _without_form(task, config)]:
        return fast(f"no exact form for {without_form[0]}")
    if task.strategy == AUTO and num_gpus > 1:
        return fast("strategy: auto may divide the model; with replicas or adapter_parallel numerics can be exact")
    if config.mixture is not None:
        return fast(f"what exact costs was not measured for the experts of {config.architecture}")
    widths = LayerWidths(hidden_size=config.hidden_size, intermediate_size=config.intermediate_size)
    known = known_exact_steps(gpu=gpu, widths=widths, quantization=task.quantization)
    # passes of DoRA are never recorded
    steps = steps_of(known, launched=any(possible_values(task, "use_dora")))
    if not steps:
        kept = "" if task.quantization == "none" else f" in {task.quantization}"
        measure = "" if kept else "; `cohort doctor --measure MODEL` measures it for later runs"
        return fast(f"what exact costs was not measured for layers as wide as these{kept} on {gpu}{measure}")
    if not is_cheap(steps):
        return fast(
            f"with exact {described_ratios(steps)} on {gpu}, and auto takes it up to {100 * (MOST_RATIO - 1):.0f} %"
        )
    return NumericsChoice(numerics=Numerics.EXACT, reason=f"{described_ratios(steps)} on {gpu}")


def _without_form(task: TaskFile, config: DecoderConfig | None) -> Iterator[tuple[str, str]]:
    """Yield what of a task has no exact form on a GPU, and what has."""
    yield from _strategy_without_form(task)
    yield from _model_without_form(config)
    yield from _modules_without_form(task)


def _modules_without_form(task: TaskFile) -> Iterator[tuple[str, str]]:
    if task.lora.modules_to_save:
        yield "lora.modules_to_save, whose gradients are sums over all rows of a trial", "exact without modules_to_save"


def _strategy_without_form(task: TaskFile) -> Iterator[tuple[str, str]]:
    if task.strategy in ("tensor", "pipeline"):
        whole = "exact with strategy: auto | replicas | adapter_parallel, whose GPUs divide no model"
        yield f"strategy: {task.strategy}", whole


def _model_without_form(config: DecoderConfig | None) -> Iterator[tuple[str, str]]:
    if config is not None and config.bridged is not None:
        yield f"{config.architecture}, whose layers transformers computes", "exact with native families"
    elif config is not None and config.pads_attention:
        yield (
            f"{config.family}, whose capped scores are computed in padded batches on a GPU",
            "exact with other families",
        )


def numerics_problems(task: TaskFile, machine: Machine, *, config: DecoderConfig | None) -> Iterator[Problem]:
    """Yield why ``task`` cannot be trained with exact numerics on ``machine``; nothing where it does not ask.

    A CPU has one way to compute on each rank, but refuses the strategies that GPUs refuse: what was tried out on ranks
    of a CPU is then what GPUs do.

    Args:
        config: The base model's, where it could be read.
    """
    if machine.device.type == "cpu":
        if asked_numerics(task) is Numerics.EXACT:
            yield from _strategy_problems(task, hint=_FAST)
        return
    if machine.numerics is not Numerics.EXACT:
        return
    # where the machine decides, only a run that began elsewhere can have exact numerics that this GPU lacks
    hint = _RESUMED if asked_numerics(task) is None else _FAST
    if not has_exact_product(machine.device):
        what = f"exact on a GPU without Triton's kernels: {exact_products(machine.device)}"
        yield Problem(where=task.where("numerics"), found=what, allowed="fast here", hint=hint)
    yield from _strategy_problems(task, hint=hint)
    for what, allowed in (*_model_without_form(config), *_modules_without_form(task)):
        yield Problem(where=task.where("numerics"), found=f"exact with {what}", allowed=allowed, hint=hint)


def _strategy_problems(task: TaskFile, *, hint: str) -> Iterator[Problem]:
    for what, allowed in _strategy_without_form(task):
        fix = f"{hint[:-1]}; or strategy: replicas."
        yield Problem(where=task.where("numerics"), found=f"exact with {what}", allowed=allowed, hint=fix)


def numerics_text(machine: Machine) -> str | None:
    """Return what ``machine``, which need not be here, trains with, and why; None for a CPU."""
    if machine.device.type == "cpu":
        return None
    why = f" ({machine.numerics_reason})" if machine.numerics_reason else ""
    return f"{machine.numerics}{why}"


def numerics_note(machine: Machine) -> str | None:
    """Return one line about the numerics on a GPU; None where the task file says all there is to say."""
    chosen = numerics_text(machine)
    if chosen is None or machine.numerics is not Numerics.EXACT:
        return f"numerics: {chosen}" if chosen is not None and machine.numerics_reason else None
    return (
        f"numerics: {chosen}; a packed trial has the bits it would have alone on this model of GPU "
        f"({exact_products(machine.device)})"
    )
