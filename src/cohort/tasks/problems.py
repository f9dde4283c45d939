"""From pydantic's errors to problems that name place, find, allowed values and hint."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from cohort.core.errors import Problem
from cohort.core.place import KeyPath, dotted
from cohort.tasks.origin import TaskOrigin
from cohort.tasks.refusal import REFUSAL_TYPE, number_hint, refusals_of

__all__ = ["known_keys", "problems_from", "unknown_key_hint"]

# what the same thing is called elsewhere, by people who come from there
_OTHER_WORDS = {
    "model": "model_name_or_path",
    "model_name": "model_name_or_path",
    "base_model_name_or_path": "model_name_or_path",
    "datasets": "dataset.train",
    "train_file": "dataset.train",
    "dataset_name": "dataset.train",
    "val_file": "dataset.validation",
    "eval_dataset": "dataset.validation",
    "val_set_size": "dataset.validation",
    "type": "dataset.format",
    "sequence_len": "dataset.max_length",
    "max_seq_length": "dataset.max_length",
    "cutoff_len": "dataset.max_length",
    "train_on_inputs": "dataset.completion_only_loss",
    "lora_r": "lora.r",
    "rank": "lora.r",
    "lora_rank": "lora.r",
    "alpha": "lora.lora_alpha",
    "dropout": "lora.lora_dropout",
    "lora_target_modules": "lora.target_modules",
    "lora_target_linear": "lora.target_modules",
    "lr": "training.learning_rate",
    "epochs": "training.num_train_epochs",
    "num_epochs": "training.num_train_epochs",
    "steps": "training.max_steps",
    "micro_batch_size": "training.batch_size",
    "per_device_train_batch_size": "training.batch_size",
    "train_batch_size": "training.batch_size",
    "lr_scheduler": "training.lr_scheduler_type",
    "scheduler": "training.lr_scheduler_type",
    "gradient_clipping": "training.max_grad_norm",
    "random_seed": "training.seed",
    "n_trials": "search.trials",
    "num_trials": "search.trials",
    "search_space": "search.space",
    "gpus": "num_gpus",
}
# settings that have no counterpart, and why
_NOT_NEEDED = {
    "gradient_accumulation_steps": "batch_size is the whole optimizer step; it is split to fit the memory by itself",
    "per_device_eval_batch_size": "evaluation is packed to fit the memory by itself",
    "sample_packing": "rows are always packed, and never see each other",
    "packing": "rows are always packed, and never see each other",
    "output_dir": "the run directory is given on the command line: -o RUN_DIR",
    "flash_attention": "the attention is chosen for the machine; `cohort doctor` shows it",
    "attn_implementation": "the attention is chosen for the machine; `cohort doctor` shows it",
    "bf16": "the precision follows the model's files and the machine; `cohort doctor` shows it",
    "fp16": "the precision follows the model's files and the machine; `cohort doctor` shows it",
    "optim": "the optimizer is AdamW",
    "optimizer": "the optimizer is AdamW",
}


def known_keys(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Return every key of a task file by its dotted name, sections included."""
    found: dict[str, FieldInfo] = {}
    for name, info in model.model_fields.items():
        found[prefix + name] = info
        if (section := _section_of(info)) is not None:
            found |= known_keys(section, f"{prefix}{name}.")
    return found


def _section_of(info: FieldInfo) -> type[BaseModel] | None:
    annotation = info.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _field_at(model: type[BaseModel], path: KeyPath) -> FieldInfo | None:
    """Return the field that a path leads to or through."""
    found: FieldInfo | None = None
    current: type[BaseModel] | None = model
    for part in path:
        if current is None or part not in current.model_fields:
            break
        found = current.model_fields[str(part)]
        current = _section_of(found)
    return found


def unknown_key_hint(model: type[BaseModel], path: KeyPath) -> str:
    """Return the advice for a key that does not exist: what it is called here, where it belongs, or what is nearest."""
    key, section = str(path[-1]), ".".join(str(part) for part in path[:-1])
    word = key.lower().replace("-", "_")
    if word in _NOT_NEEDED:
        return f"Remove it: {_NOT_NEEDED[word]}."
    keys = known_keys(model)
    prefix = f"{section}." if section else ""
    siblings = [name.removeprefix(prefix) for name in keys if name.startswith(prefix)]
    near = get_close_matches(word, [name for name in siblings if "." not in name], n=1, cutoff=0.75)
    elsewhere = [name for name in keys if name.rsplit(".", 1)[-1] == word]
    if elsewhere:
        return f"Did you mean {elsewhere[0]}? Move it there."
    if near:
        return f"Did you mean {prefix}{near[0]}? Rename it."
    if word in _OTHER_WORDS:
        return f"Did you mean {_OTHER_WORDS[word]}? Rename it."
    by_leaf = {name.rsplit(".", 1)[-1]: name for name in keys}
    far = get_close_matches(word, by_leaf, n=1, cutoff=0.6)
    return f"Did you mean {by_leaf[far[0]]}? Rename it." if far else "Remove it."


def _allowed(info: FieldInfo | None) -> str:
    extra = info.json_schema_extra if info is not None else None
    return str(extra["allowed"]) if isinstance(extra, Mapping) and "allowed" in extra else "a valid value"


def _found(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _hint(detail: ErrorDetails, info: FieldInfo | None) -> str:
    value, kind = detail["input"], detail["type"]
    name = str(detail["loc"][-1])
    if kind == "literal_error" and isinstance(value, str) and info is not None:
        words = [word for word in get_args(info.annotation) if isinstance(word, str)]
        near = get_close_matches(value.lower(), words, n=1, cutoff=0.5)
        return f"Did you mean {name}: {near[0]}?" if near else "Choose one of these."
    if kind == "bool_type":
        return "Write true or false, without quotes."
    if info is None or info.is_required() or info.default is None:
        return "Write one of the allowed values."
    if isinstance(info.default, str | int | float):
        default = str(info.default).lower() if isinstance(info.default, bool) else str(info.default)
        if number_hint(value, example="").startswith("Remove"):
            return number_hint(value, example="")
        return f"Write for instance {name}: {default}, the default."
    return "Write one of the allowed values, or remove the key."


def _problem(detail: ErrorDetails, *, model: type[BaseModel], origin: TaskOrigin) -> list[tuple[KeyPath, Problem]]:
    path: KeyPath = detail["loc"]
    info = _field_at(model, path)
    if detail["type"] == REFUSAL_TYPE:
        return [
            (
                (*path, *refusal.at),
                Problem(
                    where=origin.where((*path, *refusal.at)),
                    found=refusal.found,
                    allowed=refusal.allowed,
                    hint=refusal.hint,
                ),
            )
            for refusal in refusals_of(detail.get("ctx"))
        ]
    if detail["type"] == "extra_forbidden":
        section = _section_of(info) if info is not None else model
        found = f"the unknown key {str(path[-1])!r}"
        allowed = f"the keys {', '.join((section or model).model_fields)}"
        hint = unknown_key_hint(model, path)
    elif detail["type"] == "missing":
        found, allowed = "nothing", _allowed(info)
        hint = f"Add {dotted(path)}: {(info.description if info else None) or 'a value'}."
    elif info is not None and (section := _section_of(info)) is not None:
        found, allowed = _found(detail["input"]), f"a section with the keys {', '.join(section.model_fields)}"
        hint = "Write the keys below it, indented."
    else:
        found, allowed, hint = _found(detail["input"]), _allowed(info), _hint(detail, info)
    return [(path, Problem(where=origin.where(path), found=found, allowed=allowed, hint=hint))]


def problems_from(
    error: ValidationError, *, model: type[BaseModel], origin: TaskOrigin
) -> list[tuple[KeyPath, Problem]]:
    """Return every problem with the path it is about, in pydantic's order."""
    return [entry for detail in error.errors() for entry in _problem(detail, model=model, origin=origin)]
