"""The task of a fine-tuning job: what a client wrote in OpenAI's words, as a task file has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.service.fine_tuning.schema import AUTO, CreateJob, DpoHyperparameters
from cohort.service.jobs.auto_search import BASE_RATES, auto_space, most_epochs
from cohort.service.jobs.client_limits import require_harmless

__all__ = ["BaseForJobs", "JobRows", "base_keys", "job_document", "require_usable_options", "share_aside"]

_EVALUATION_ROWS = 64
_SHARE_ASIDE = 0.1


@dataclass(frozen=True, kw_only=True)
class BaseForJobs:
    """A base model as jobs name and train it.

    Attributes:
        name: What clients call it.
        path: A hub id or a directory.
        max_length: Most tokens of a row; longer ones are cut.
        chat_template: A template by name; None: the tokenizer's.
        on_cpu: Whether its workers have no GPU.
        quantization: How its weights are kept; None: as they are.
    """

    name: str
    path: str
    max_length: int
    chat_template: str | None = None
    on_cpu: bool = False
    quantization: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobRows:
    """The files of a job's rows in its folder.

    Attributes:
        num_rows: How many training rows there are.
        is_chat: Whether they are conversations, which a chat template renders.
    """

    train: Path
    num_rows: int
    is_chat: bool = True
    validation: Path | None = None


def require_usable_options(asked: CreateJob) -> None:
    """Check Cohort's further options as far as that needs no rows.

    Raises:
        InputError: they name paths or functions, or what a server decides by itself.
    """
    options = asked.options
    sections = {
        "evaluation": {**options.evaluation, **({} if options.metric is None else {"metric": options.metric})},
        "lora": options.lora,
        "training": options.training,
        "dataset": options.dataset,
    }
    require_harmless(sections, where=("cohort",))


def job_document(asked: CreateJob, *, rows: JobRows, base: BaseForJobs, seed: int) -> dict[str, Any]:
    """Return the task of a job.

    What has a number is trained with it; what is ``auto`` is searched, in the client's own space where it gives one.
    """
    options, method, hyper = asked.options, asked.method_type, asked.asked
    space = auto_space(hyper, method=method, num_rows=rows.num_rows) | dict(options.search_space)
    training: dict[str, Any] = {"seed": seed}
    epochs = most_epochs(rows.num_rows) if hyper.n_epochs == AUTO else hyper.n_epochs
    if "num_train_epochs" not in space and "max_steps" not in options.training:
        training["num_train_epochs"] = epochs
    if hyper.batch_size != AUTO:
        training["batch_size"] = hyper.batch_size
    if not isinstance(hyper.learning_rate_multiplier, str):
        training["learning_rate"] = BASE_RATES[method] * hyper.learning_rate_multiplier
    training |= options.training
    # a value that the client wrote in `training` is no question any more
    searched = {name: values for name, values in space.items() if name not in options.training}
    objective: Any = "sft"
    if isinstance(hyper, DpoHyperparameters):
        objective = {"type": "dpo"} | ({} if isinstance(hyper.beta, str) else {"beta": hyper.beta})
    document: dict[str, Any] = {
        "dataset": {
            "train": str(rows.train),
            "validation": share_aside(asked) if rows.validation is None else str(rows.validation),
            "max_length": base.max_length,
            "on_long_rows": "truncate",
            **({"chat_template": base.chat_template} if base.chat_template is not None and rows.is_chat else {}),
            **{key: value for key, value in options.dataset.items() if key not in ("train", "validation", "test")},
        },
        "objective": objective,
        "training": training,
        "evaluation": _evaluation(options.evaluation, options.metric),
        "search": {"space": searched, **_sampling(options.sampler, options.trials)},
        **({"lora": dict(options.lora)} if options.lora else {}),
    }
    if options.early_exit is not None:
        document["early_exit"] = options.early_exit
    elif not searched:
        # one trial has no other to lose against
        document["early_exit"] = "none"
    return document | base_keys(base)


def base_keys(base: BaseForJobs) -> dict[str, Any]:
    """Return the keys of a task that the server decides."""
    own: dict[str, Any] = {"model_name_or_path": base.path, "num_gpus": 0 if base.on_cpu else "auto"}
    return own if base.quantization is None else {**own, "quantization": base.quantization}


def share_aside(asked: CreateJob) -> float:
    """Return the share of the training rows that is put aside to compare by, where there is no validation file."""
    share = asked.options.dataset.get("validation")
    return share if isinstance(share, float) else _SHARE_ASIDE


def _evaluation(written: Mapping[str, Any], metric: str | None) -> dict[str, Any]:
    return {"max_examples": _EVALUATION_ROWS, **written, **({} if metric is None else {"metric": metric})}


def _sampling(sampler: str | None, trials: int | None) -> dict[str, Any]:
    return {name: value for name, value in (("sampler", sampler), ("trials", trials)) if value is not None}
