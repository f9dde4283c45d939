"""A TRL script's ``SFTConfig`` and PEFT's ``LoraConfig`` as keys of a task; what cannot be honoured is refused.

Every field is mapped, refused, or known to change nothing that a task decides; the last kind is returned by name where
it was set, so that nothing is ignored in silence. A field that is not known here has to be at its default.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.plain_values import plain_value
from cohort.core.source_location import Place
from cohort.integrations.trl_adapter import ADAPTER_CONFIGS, adapter_section, refuse_unnamed_modules
from cohort.integrations.trl_fields import ConfigFields, are_names, word_of
from cohort.integrations.trl_grpo import (
    GRPO_CONFIG,
    GRPO_FIELDS,
    grpo_objective,
    prompts_of_a_step,
    reward_problems,
    rewards_of,
)
from cohort.integrations.trl_preference import MAPPED_FIELDS, PREFERENCE_CONFIGS, preference_objective
from cohort.metrics import LOSS, REWARD, REWARD_ACCURACY, REWARD_MARGIN
from cohort.training.schedules import Schedule

__all__ = ["TrlKeys", "trl_keys"]

_SFT = "SFTConfig"

# mapped below, field by field
_MAPPED_SFT = """
    output_dir per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps learning_rate
    lr_scheduler_type warmup_steps warmup_ratio weight_decay max_grad_norm seed data_seed max_length max_seq_length
    completion_only_loss assistant_only_loss dataset_text_field report_to optim use_cpu no_cuda
    adam_beta1 adam_beta2 adam_epsilon lr_scheduler_kwargs metric_for_best_model greater_is_better
    load_best_model_at_end
"""

_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_xla")
_ADAM_KEYS = ("adam_beta1", "adam_beta2", "adam_epsilon")
_ADAMW_8BIT = ("adamw_8bit", "adamw_bnb_8bit")
# TRL's names of what a trainer can keep its best checkpoint by, and whether more is better
_BEST_BY = {
    "loss": (LOSS, False),
    "reward": (REWARD, True),
    "rewards/accuracies": (REWARD_ACCURACY, True),
    "rewards/margins": (REWARD_MARGIN, True),
}


@dataclass(frozen=True, kw_only=True)
class TrlKeys:
    """What two configurations say, in the words of a task.

    Attributes:
        sections: ``dataset``, ``lora``, ``training``, ... by name, as plain values.
        name: Last part of ``output_dir``.
        without_effect: Fields that were set and that no task decides.
    """

    sections: Mapping[str, Any]
    name: str
    without_effect: tuple[str, ...]


_CONFIGS = (_SFT, *PREFERENCE_CONFIGS, GRPO_CONFIG)


def trl_keys(
    sft_config: object, lora_config: object, *, columns: frozenset[str] | None, reward_funcs: object = None
) -> TrlKeys:
    """Translate TRL's and PEFT's configurations.

    Args:
        sft_config: A ``trl.SFTConfig``, DPOConfig, ORPOConfig, CPOConfig, KTOConfig or GRPOConfig. Its batch size
            counts for one process.
        lora_config: A ``peft.LoraConfig``, or a ``peft.VeraConfig``.
        columns: Columns of the rows, if known: TRL's default for the tokens that count depends on them.
        reward_funcs: The trainer's, with a GRPOConfig.

    Raises:
        InputError: every field that cannot be honoured, with the reason.
    """
    problems = [*_wrong_type(sft_config, _CONFIGS), *_wrong_type(lora_config, ADAPTER_CONFIGS)]
    if problems:
        raise InputError(problems)
    kind = next(own.__name__ for own in type(sft_config).__mro__ if own.__name__ in _CONFIGS)
    if kind == GRPO_CONFIG:
        problems = reward_problems(reward_funcs)
    elif reward_funcs is not None:
        problems = [_unread_rewards(kind)]
    adapter = next(own.__name__ for own in type(lora_config).__mro__ if own.__name__ in ADAPTER_CONFIGS)
    sft, lora = ConfigFields(kind, sft_config), ConfigFields(adapter, lora_config)
    _refuse_wrong_types(sft, lora)
    if problems := [*problems, *sft.problems, *lora.problems]:
        # the values are computed with below
        raise InputError(problems)
    sections: dict[str, Any] = {
        "dataset": {} if kind == GRPO_CONFIG else _dataset(sft, columns=columns),
        "training": _training(sft),
        "lora": adapter_section(lora),
    }
    if kind == GRPO_CONFIG:
        sections["objective"], sections["rewards"] = grpo_objective(sft), rewards_of(sft, reward_funcs)
        size = prompts_of_a_step(sft, num_completions=sections["training"]["batch_size"])
        sections["training"]["batch_size"] = size
    elif kind != _SFT:
        sections["objective"] = preference_objective(sft, name=kind)
    if kind != _SFT and sft.get("disable_dropout"):
        # TRL's default in preference trainers: they turn an adapter's dropout off as well
        sections["lora"]["lora_dropout"] = 0.0
    if evaluation := _best_metric(sft):
        sections["evaluation"] = evaluation
    if sft.get("use_cpu") or sft.get("no_cuda"):
        sections["num_gpus"] = 0
    if trackers := _trackers(sft):
        sections["report_to"] = trackers
    own_fields = "" if kind == _SFT else GRPO_FIELDS if kind == GRPO_CONFIG else MAPPED_FIELDS
    sft.refuse_others(_MAPPED_SFT + own_fields)
    if problems := [*sft.problems, *lora.problems]:
        raise InputError(problems)
    name = Path(str(sft.get("output_dir") or "task")).name
    return TrlKeys(sections=sections, name=name, without_effect=(*sft.without_effect, *lora.without_effect))


def _unread_rewards(kind: str) -> Problem:
    where = Place(text="Task.from_trl: reward_funcs")
    allowed = f"reward_funcs with a trl.{GRPO_CONFIG}"
    return Problem(where=where, found=f"reward_funcs with a {kind}", allowed=allowed, hint="Remove it.")


def _wrong_type(config: object, allowed: Sequence[str]) -> Iterator[Problem]:
    # by the names of the classes: neither package has to be installed
    names = {kind.__name__ for kind in type(config).__mro__}
    if not names.intersection(allowed) or not dataclasses.is_dataclass(config):
        name = allowed[0]
        package = "trl" if name == _SFT else "peft"
        found, hint = f"a value of type {type(config).__name__}", f"Write {package}.{name}(...)."
        words = f"a {package}.{' or '.join((', '.join(allowed[:-1]), allowed[-1])) if len(allowed) > 1 else name}"
        yield Problem(where=Place(text=f"Task.from_trl: {name}"), found=found, allowed=words, hint=hint)


def _refuse_wrong_types(sft: ConfigFields, lora: ConfigFields) -> None:
    """Refuse text and other values in fields that are computed with; a configuration takes anything."""
    for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "max_steps", "warmup_steps"):
        _refuse_no_number(sft, key, is_needed=key == "per_device_train_batch_size")
    for key in ("warmup_ratio", "max_length", "max_seq_length"):
        _refuse_no_number(sft, key, is_needed=False)
    trackers = sft.get("report_to")
    if trackers is not None and not are_names([trackers] if isinstance(trackers, str) else trackers):
        sft.refuse("report_to", allowed="a name, a list of names or None", hint="Write report_to='none'.")
    refuse_unnamed_modules(lora)


def _refuse_no_number(fields: ConfigFields, key: str, *, is_needed: bool) -> None:
    value = plain_value(fields.get(key))
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number and (value is not None or is_needed):
        fields.refuse(key, allowed="a number", hint=f"Write a number without quotes, such as {key}=1.")


def _dataset(sft: ConfigFields, *, columns: frozenset[str] | None) -> dict[str, Any]:
    # TRL cuts long rows
    section: dict[str, Any] = {"on_long_rows": "truncate"}
    length = sft.get("max_length") or sft.get("max_seq_length")
    if length is None:
        hint = "Write the number of tokens that the longest row needs."
        sft.refuse("max_length", allowed="a number of tokens", hint=hint)
    else:
        section["max_length"] = int(length)
    if sft.name != _SFT:
        # both trainers compare answers alone
        return section
    if (text := sft.get("dataset_text_field")) not in (None, "text"):
        section["columns"] = {"text": text}
    only = sft.get("completion_only_loss")
    if sft.get("assistant_only_loss") or only:
        section["completion_only_loss"] = True
    elif only is False or (columns is not None and not {"prompt", "completion"} <= columns):
        section["completion_only_loss"] = False
    elif columns is not None:
        section["completion_only_loss"] = True
    else:
        hint = "Write completion_only_loss=True, or assistant_only_loss=True for chats, or give the rows themselves."
        sft.refuse("completion_only_loss", allowed="True or False: which tokens count depends on the rows", hint=hint)
    return section


def _training(sft: ConfigFields) -> dict[str, Any]:
    found: dict[str, Any] = {
        key: sft.get(key) for key in ("learning_rate", "weight_decay", "max_grad_norm", "num_train_epochs", "seed")
    }
    found |= {key: sft.get(key) for key in _ADAM_KEYS if sft.get(key) is not None}
    found["batch_size"] = sft.get("per_device_train_batch_size") * (sft.get("gradient_accumulation_steps") or 1)
    if (max_steps := sft.get("max_steps") or 0) > 0:
        found["max_steps"] = max_steps
        del found["num_train_epochs"]
    if sft.get("data_seed") not in (None, sft.get("seed")):
        sft.refuse("data_seed", allowed="None, or the seed", hint="Write data_seed=None.")
    optim = word_of(sft.get("optim"))
    if optim == "sgd":
        found["optim"] = "sgd"
    elif optim in _ADAMW_8BIT:
        found["optim"] = "adamw_8bit"
    elif optim not in _ADAMW:
        hint = f"Write optim={_ADAMW[0]!r}, or training.optim of a task file: lion or muon."
        sft.refuse("optim", allowed=f"sgd, {', '.join((*_ADAMW, *_ADAMW_8BIT))}", hint=hint)
    if found.get("optim") == "sgd":
        # transformers passes them to no SGD, and the warning about unread keys is for what a person wrote
        found = {key: value for key, value in found.items() if key not in _ADAM_KEYS}
    return found | _schedule(sft, max_steps=max_steps)


def _schedule(sft: ConfigFields, *, max_steps: int) -> dict[str, Any]:
    schedule, names = word_of(sft.get("lr_scheduler_type")), [kind.value for kind in Schedule]
    if schedule not in names:
        allowed = f"{', '.join(names)}: the rate of a trial follows from its step alone"
        sft.refuse("lr_scheduler_type", allowed=allowed, hint="Write lr_scheduler_type='cosine'.")
        return {}
    # transformers warms up under every schedule but this one
    if schedule == Schedule.CONSTANT:
        return {"lr_scheduler_type": schedule}
    found: dict[str, Any] = {"lr_scheduler_type": schedule, "warmup_ratio": _warmup_ratio(sft, max_steps=max_steps)}
    if schedule == Schedule.CONSTANT_WITH_WARMUP:
        found["lr_scheduler_type"] = Schedule.CONSTANT.value
    if options := plain_value(sft.get("lr_scheduler_kwargs")):
        found["lr_scheduler_kwargs"] = options
    return found


def _best_metric(sft: ConfigFields) -> dict[str, Any]:
    """Return what ``load_best_model_at_end`` means to a sweep, which always takes the best of each trial and of all."""
    name = sft.get("metric_for_best_model")
    if name is None:
        return {}
    if str(name).removeprefix("eval_") not in _BEST_BY:
        hint = "Write metric_for_best_model='loss', and evaluation={'metric': ...} of Task.from_trl for another metric."
        sft.refuse("metric_for_best_model", allowed=", ".join(_BEST_BY), hint=hint)
        return {}
    metric, is_more_better = _BEST_BY[str(name).removeprefix("eval_")]
    if sft.get("greater_is_better") not in (None, is_more_better):
        hint = f"Write greater_is_better={is_more_better}."
        sft.refuse("greater_is_better", allowed=f"{is_more_better} with metric_for_best_model={name!r}", hint=hint)
    return {"metric": metric}


def _warmup_ratio(sft: ConfigFields, *, max_steps: int) -> float:
    """Return the warm-up as a share of the steps; transformers takes a number of steps, or a share below 1."""
    steps, ratio = sft.get("warmup_steps") or 0, sft.get("warmup_ratio") or 0
    if not steps or steps < 1:
        return float(steps or ratio)
    if max_steps > 0 and steps < max_steps:
        # the nearest share from below: the number of steps is rounded up
        return math.nextafter(steps / max_steps, 0.0)
    # transformers before version 5 has a key of its own for the share
    hint = f"Write {'warmup_ratio' if sft.has('warmup_ratio') else 'warmup_steps'}=0.03, or set max_steps."
    sft.refuse("warmup_steps", allowed="a share below 1: trials of several batch sizes differ in steps", hint=hint)
    return 0.0


def _trackers(sft: ConfigFields) -> list[str] | str:
    found = sft.get("report_to")
    names = [found] if isinstance(found, str) else list(found or ())
    return [] if names in ([], ["none"]) else "all" if names == ["all"] else names
