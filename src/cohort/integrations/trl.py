"""A TRL script's ``SFTConfig`` and PEFT's ``LoraConfig`` as keys of a task; what cannot be honoured is refused.

Every field is mapped, refused, or known to change nothing that a task decides; the last kind is returned by name where
it was set, so that nothing is ignored in silence. A field that is not known here has to be at its default.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.adapters.spec import INITIALISATIONS
from cohort.core.errors import InputError, Problem
from cohort.core.place import Place
from cohort.core.plain_values import plain_value
from cohort.integrations.trl_preference import IDLE_FIELDS, MAPPED_FIELDS, PREFERENCE_CONFIGS, preference_objective

__all__ = ["PEFT_DEFAULT_MODULES", "ConfigFields", "TrlKeys", "trl_keys"]

_SFT, _LORA, _VERA = "SFTConfig", "LoraConfig", "VeraConfig"

# mapped below, field by field
_MAPPED_SFT = """
    output_dir per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps learning_rate
    lr_scheduler_type warmup_steps warmup_ratio weight_decay max_grad_norm seed data_seed max_length max_seq_length
    completion_only_loss assistant_only_loss dataset_text_field report_to optim use_cpu no_cuda
"""
_MAPPED_LORA = """
    r lora_alpha lora_dropout use_rslora target_modules task_type peft_type base_model_name_or_path init_lora_weights
    use_dora use_bdlora
    rank_pattern alpha_pattern exclude_modules layers_to_transform layers_pattern
"""
_MAPPED_VERA = """
    r vera_dropout d_initial projection_prng_key save_projection target_modules task_type peft_type
    base_model_name_or_path layers_to_transform layers_pattern
"""
# how work is done, shown, stored or split over machines: Cohort decides it itself, and it leaves an adapter as it is
_NO_EFFECT = """
    bf16 fp16 bf16_full_eval fp16_full_eval tf32 gradient_checkpointing gradient_checkpointing_kwargs torch_compile
    torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config use_cache torch_empty_cache_steps
    auto_find_batch_size disable_tqdm run_name project average_tokens_across_devices eval_strategy evaluation_strategy
    eval_steps eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches
    eval_use_gather_object eval_accumulation_steps batch_eval_metrics eval_packing save_strategy save_steps
    save_on_each_node save_total_limit save_only_model save_safetensors enable_jit_checkpoint load_best_model_at_end
    greater_is_better ignore_data_skip restore_callback_states_from_checkpoint full_determinism accelerator_config
    remove_unused_columns length_column_name debug skip_memory_metrics do_train do_eval do_predict local_rank
    overwrite_output_dir logging_dir dataset_num_proc dataset_batch_size shuffle_dataset padding_free packing_strategy
    pad_token activation_offloading include_num_input_tokens_seen include_tokens_per_second
"""
_NO_EFFECT_PREFIXES = ("logging_", "log_", "dataloader_", "ddp_", "trackio_", "hub_")
# set by the libraries themselves
_INTERNAL = (
    "accelerator_config peft_version inference_mode runtime_config megatron_core disable_tqdm bf16 pad_to_multiple_of "
    # use_cpu turns it off
    "dataloader_pin_memory"
)

_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_xla")
_ADAMW_8BIT = ("adamw_8bit", "adamw_bnb_8bit")
_SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
_REASONS = {
    "packing": "blocks of max_length tokens would count as examples; rows are packed for speed in any case",
    "neftune_noise_alpha": "no noise is added to embeddings",
    "label_smoothing_factor": "the loss is the plain negative log-likelihood",
    "loss_type": "the loss is the plain negative log-likelihood",
    "dataloader_drop_last": "each epoch trains on all rows",
    "deepspeed": "the base model is not divided over GPUs; num_gpus divides the trials",
    "fsdp": "the base model is not divided over GPUs; num_gpus divides the trials",
    "push_to_hub": "nothing is uploaded; upload the folder best/ of the run",
    "resume_from_checkpoint": "trials begin with new adapters; cohort.resume continues a run",
    "metric_for_best_model": "evaluation={'metric': ...} of the task chooses the best trial",
    "truncation_mode": "long rows are cut at their end",
    "model_init_kwargs": "the model is loaded as its files say",
    "trust_remote_code": "model code of the hub is not run",
    "chat_template_path": "the template is an argument: dataset={'train': ..., 'chat_template': PATH}",
    "eos_token": "the end of an answer is the tokenizer's; write it there",
    "modules_to_save": "adapters alone are trained",
    "bias": "adapters have no biases",
    "lora_bias": "adapters have no biases",
}
PEFT_DEFAULT_MODULES = ("q_proj", "v_proj")
"""What PEFT adapts where ``target_modules`` is None, in every family that Cohort trains."""
_UNKNOWN = "this version of Cohort has no counterpart"


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


def trl_keys(sft_config: object, lora_config: object, *, columns: frozenset[str] | None) -> TrlKeys:
    """Translate TRL's and PEFT's configurations.

    Args:
        sft_config: A ``trl.SFTConfig``, DPOConfig, ORPOConfig, CPOConfig or KTOConfig. Its batch size counts for one
            process.
        lora_config: A ``peft.LoraConfig``, or a ``peft.VeraConfig``.
        columns: Columns of the rows, if known: TRL's default for the tokens that count depends on them.

    Raises:
        InputError: every field that cannot be honoured, with the reason.
    """
    problems = [*_wrong_type(sft_config, (_SFT, *PREFERENCE_CONFIGS)), *_wrong_type(lora_config, (_LORA, _VERA))]
    if problems:
        raise InputError(problems)
    kind = next(own.__name__ for own in type(sft_config).__mro__ if own.__name__ in (_SFT, *PREFERENCE_CONFIGS))
    adapter = next(own.__name__ for own in type(lora_config).__mro__ if own.__name__ in (_LORA, _VERA))
    sft, lora = ConfigFields(kind, sft_config), ConfigFields(adapter, lora_config)
    _refuse_wrong_types(sft, lora)
    if problems := [*sft.problems, *lora.problems]:
        # the values are computed with below
        raise InputError(problems)
    sections: dict[str, Any] = {
        "dataset": _dataset(sft, columns=columns),
        "training": _training(sft),
        "lora": _lora(lora) if adapter == _LORA else _vera(lora),
    }
    if kind != _SFT:
        sections["objective"] = preference_objective(sft, name=kind)
        if sft.get("disable_dropout"):
            # TRL's default: its trainer turns an adapter's dropout off as well
            sections["lora"]["lora_dropout"] = 0.0
    if sft.get("use_cpu") or sft.get("no_cuda"):
        sections["num_gpus"] = 0
    if trackers := _trackers(sft):
        sections["report_to"] = trackers
    sft.refuse_others(_MAPPED_SFT if kind == _SFT else _MAPPED_SFT + MAPPED_FIELDS)
    lora.refuse_others(_MAPPED_LORA if adapter == _LORA else _MAPPED_VERA)
    if problems := [*sft.problems, *lora.problems]:
        raise InputError(problems)
    name = Path(str(sft.get("output_dir") or "task")).name
    return TrlKeys(sections=sections, name=name, without_effect=(*sft.without_effect, *lora.without_effect))


class ConfigFields:
    """A configuration's fields, and what is wrong with them."""

    def __init__(self, name: str, config: Any) -> None:
        self.name, self._values = name, {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
        self._defaults = {f.name: _default(f) for f in dataclasses.fields(config)}
        self.problems: list[Problem] = []
        self.without_effect: list[str] = []

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def refuse(self, key: str, *, allowed: str, hint: str) -> None:
        where = Place(file=self.name, key=(key,))
        self.problems.append(Problem(where=where, found=repr(self._values.get(key)), allowed=allowed, hint=hint))

    def refuse_others(self, mapped: str) -> None:
        """Refuse what is set and not mapped, and note what is set and without effect."""
        for key, value in self._values.items():
            if key in mapped.split() or self._is_default(key):
                continue
            is_idle = key in (_NO_EFFECT + IDLE_FIELDS).split() or (
                key.startswith(_NO_EFFECT_PREFIXES) and key not in _REASONS
            )
            if not is_idle:
                default = self._defaults[key]
                self.refuse(
                    key, allowed=f"{default!r}: {_REASONS.get(key, _UNKNOWN)}", hint=f"Write {key}={default!r}."
                )
            elif key not in _INTERNAL.split():
                self.without_effect.append(f"{self.name}.{key}={value!r}")

    def _is_default(self, key: str) -> bool:
        value, default = self._values[key], self._defaults[key]
        value = getattr(value, "value", value)
        # libraries write [] or {} where None was the default
        return key in _INTERNAL.split() or value == getattr(default, "value", default) or (not default and not value)


def _default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


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
    if trackers is not None and not _are_names([trackers] if isinstance(trackers, str) else trackers):
        sft.refuse("report_to", allowed="a name, a list of names or None", hint="Write report_to='none'.")
    modules = lora.get("target_modules")
    if isinstance(modules, set | frozenset) and not _are_names(list(modules)):
        hint = "Write a list such as ['q_proj', 'v_proj']."
        lora.refuse("target_modules", allowed="'all-linear' or a list of names", hint=hint)


def _refuse_no_number(fields: ConfigFields, key: str, *, is_needed: bool) -> None:
    value = plain_value(fields.get(key))
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number and (value is not None or is_needed):
        fields.refuse(key, allowed="a number", hint=f"Write a number without quotes, such as {key}=1.")


def _are_names(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)


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
    found["batch_size"] = sft.get("per_device_train_batch_size") * (sft.get("gradient_accumulation_steps") or 1)
    if (max_steps := sft.get("max_steps") or 0) > 0:
        found["max_steps"] = max_steps
        del found["num_train_epochs"]
    if sft.get("data_seed") not in (None, sft.get("seed")):
        sft.refuse("data_seed", allowed="None, or the seed", hint="Write data_seed=None.")
    optim = _word(sft.get("optim"))
    if optim == "sgd":
        found["optim"] = "sgd"
    elif optim in _ADAMW_8BIT:
        found["optim"] = "adamw_8bit"
    elif optim not in _ADAMW:
        hint = f"Write optim={_ADAMW[0]!r}, or training.optim of a task file: lion or muon."
        sft.refuse("optim", allowed=f"sgd, {', '.join((*_ADAMW, *_ADAMW_8BIT))}", hint=hint)
    schedule = _word(sft.get("lr_scheduler_type"))
    if schedule not in _SCHEDULES:
        sft.refuse("lr_scheduler_type", allowed=", ".join(_SCHEDULES), hint="Write lr_scheduler_type='cosine'.")
        return found
    found["lr_scheduler_type"] = _SCHEDULES[schedule]
    # transformers warms up under every schedule but this one
    if schedule != "constant":
        found["warmup_ratio"] = _warmup_ratio(sft, max_steps=max_steps)
    return found


def _warmup_ratio(sft: ConfigFields, *, max_steps: int) -> float:
    """Return the warm-up as a share of the steps; transformers takes a number of steps, or a share below 1."""
    steps, ratio = sft.get("warmup_steps") or 0, sft.get("warmup_ratio") or 0
    if not steps or steps < 1:
        return float(steps or ratio)
    if max_steps > 0 and steps < max_steps:
        # the nearest share from below: the number of steps is rounded up
        return math.nextafter(steps / max_steps, 0.0)
    hint = "Write warmup_steps=0.03 (or warmup_ratio=0.03 in versions before 5), or set max_steps."
    sft.refuse("warmup_steps", allowed="a share below 1: trials of several batch sizes differ in steps", hint=hint)
    return 0.0


def _trackers(sft: ConfigFields) -> list[str] | str:
    found = sft.get("report_to")
    names = [found] if isinstance(found, str) else list(found or ())
    return [] if names in ([], ["none"]) else "all" if names == ["all"] else names


def _vera(vera: ConfigFields) -> dict[str, Any]:
    section = {key: vera.get(key) for key in ("r", "d_initial", "projection_prng_key", "save_projection")}
    section |= {"use_vera": True, "lora_dropout": vera.get("vera_dropout")}
    return section | _modules(vera)


def _lora(lora: ConfigFields) -> dict[str, Any]:
    section = {key: lora.get(key) for key in ("r", "lora_alpha", "lora_dropout", "use_rslora")}
    if lora.get("use_dora"):
        section["use_dora"] = True
    if (blocks := lora.get("use_bdlora")) is not None:
        # a list that is None names no linear, as in PEFT; left out it would be Cohort's default
        section["use_bdlora"] = dict(blocks if isinstance(blocks, Mapping) else vars(blocks))
    start = lora.get("init_lora_weights")
    start = str(start).lower() if start is not None else "true"
    if not re.fullmatch(INITIALISATIONS, start):
        allowed = "True, 'gaussian', 'olora', 'pissa' or 'pissa_niter_N'"
        lora.refuse("init_lora_weights", allowed=allowed, hint="Write init_lora_weights=True.")
    elif start != "true":
        section["init_lora_weights"] = start
    if _word(lora.get("peft_type")) not in (None, "LORA"):
        lora.refuse("peft_type", allowed="LORA", hint="Use a plain peft.LoraConfig.")
    return section | _modules(lora)


def _modules(lora: ConfigFields) -> dict[str, Any]:
    """Return which linears are adapted, and what differs between them."""
    section: dict[str, Any] = {}
    modules = lora.get("target_modules")
    if modules is None:
        modules = PEFT_DEFAULT_MODULES
    if modules == "all-linear":
        section["target_modules"] = modules
    elif isinstance(modules, list | tuple | set | frozenset):
        # PEFT keeps a set, whose order is another one in each process
        section["target_modules"] = sorted(modules)
    elif isinstance(modules, str):
        section["target_modules"] = modules
    else:
        hint = "Write target_modules='all-linear', or a list such as ['q_proj', 'v_proj']."
        allowed = "'all-linear', a list of names, an expression or None"
        lora.refuse("target_modules", allowed=allowed, hint=hint)
    for key in ("rank_pattern", "alpha_pattern", "exclude_modules", "layers_to_transform", "layers_pattern"):
        value = lora.get(key)
        if value is not None and value not in ({}, []):
            section[key] = sorted(value) if isinstance(value, set | frozenset) else value
    if _word(lora.get("task_type")) not in (None, "CAUSAL_LM"):
        lora.refuse("task_type", allowed="None or 'CAUSAL_LM'", hint="Write task_type='CAUSAL_LM'.")
    return section


def _word(value: Any) -> str | None:
    """Return the word of an enum or of text."""
    value = getattr(value, "value", value)
    return None if value is None else str(value)
