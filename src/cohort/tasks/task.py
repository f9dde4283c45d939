"""A task in Python: the task file's keys as arguments."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.call_arguments import checks_arguments
from cohort.core.input_values.plain_values import plain_value
from cohort.core.source_location import Place
from cohort.data.files.given_rows import given_rows
from cohort.data.files.sources import SPLITS
from cohort.integrations.trl import trl_keys
from cohort.tasks.dataset_argument import Rows, dataset_section
from cohort.tasks.functions import name_functions
from cohort.tasks.hyperparameters import SECTION_OF
from cohort.tasks.loading import TaskFile, task_from_mapping
from cohort.tasks.other_names import NOT_NEEDED, OTHER_WORDS
from cohort.tasks.sections.early_exit_section import early_exit_section
from cohort.tuning.early_exit.settings import EarlyExitSettings

__all__ = ["Task", "elsewhere_of_task"]


def _section_with(key: str) -> str:
    """Return the section that has a key; nothing where none or several have it."""
    if key in SECTION_OF:
        return SECTION_OF[key]
    found = [
        name for name, info in TaskFile.model_fields.items() if key in getattr(info.annotation, "model_fields", ())
    ]
    return found[0] if len(found) == 1 else ""


def elsewhere_of_task(name: str) -> str | None:
    """Return the hint for an argument that is a key of a section, or what another tool calls one."""
    if name == "output_dir":
        return "Write name=... for runs/NAME, or cohort.run(task, run_directory=...)."
    if name in NOT_NEEDED:
        return f"Remove it: {NOT_NEEDED[name]}."
    section, _, key = OTHER_WORDS.get(name, f"{_section_with(name)}.{name}").rpartition(".")
    if section == "dataset" and key in SPLITS:
        return f'Write dataset={{"train": ..., "{key}": ...}}.' if key != "train" else "Write dataset=..."
    if section == "lora.use_bdlora":
        return f"Write lora={{'use_bdlora': {{{key!r}: ...}}}}; to search over it, search_space={{{key!r}: [...]}}."
    if section and name not in SECTION_OF and OTHER_WORDS.get(name, "").rpartition(".")[2] not in SECTION_OF:
        return f"Write {section}={{{key!r}: ...}}."
    if section:
        return f"Write {section}={{{key!r}: ...}}; to search over it, search_space={{{key!r}: [...]}}."
    return {"model_name_or_path": "Write model=...", "data": "Write dataset=..."}.get(key or name)


def _elsewhere_of_trl(name: str) -> str | None:
    """Return the hint for an argument of TRL's trainer, or for one that the configurations hold."""
    if name in ("training", "lora", "num_gpus", "report_to", "objective"):
        return "Set it in the SFTConfig or the LoraConfig."
    names = {"args": "sft_config", "config": "sft_config", "peft_config": "lora_config", "train_dataset": "dataset"}
    if name == "eval_dataset":
        return 'Write dataset={"train": ..., "validation": ...}.'
    return f"Write {names[name]}=..." if name in names else None


class Task:
    """What a user submits: base model, data and search space. Its result is the best adapter.

    The arguments are the keys of the task file, checked as it is; relative paths start at the working directory.
    numpy's numbers and arrays are accepted where numbers and lists are.

    Attributes:
        name: How messages and run directories name it.
        file: The validated task, every default filled in.

    Example:
        ```python
        import cohort

        rows = [{"prompt": f"{n} + 1 =", "completion": f" {n + 1}"} for n in range(40)]
        task = cohort.Task(model="model", dataset=rows, search_space={"learning_rate": [1e-4, 1e-3]}, name="adding")
        ```
    """

    @checks_arguments("Task", elsewhere=elsewhere_of_task)
    def __init__(
        self,
        *,
        model: str | os.PathLike[str],
        dataset: Rows | Mapping[str, Any],
        search_space: Mapping[str, Any] | None = None,
        name: str | None = None,
        quantization: str = "none",
        objective: str | Mapping[str, Any] | Callable[..., Any] = "sft",
        rewards: Any = None,
        lora: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        evaluation: Mapping[str, Any] | None = None,
        search: Mapping[str, Any] | None = None,
        memory: Mapping[str, Any] | None = None,
        early_exit: EarlyExitSettings | Mapping[str, Any] | Literal["none"] | None = None,
        priority: int = 0,
        num_gpus: int | Literal["auto"] = "auto",
        strategy: str | None = None,
        numerics: str = "auto",
        save_total_limit: int | None = None,
        report_to: str | Sequence[str] | None = None,
    ) -> None:
        """Check the task.

        Args:
            model: ``model_name_or_path``, a hub id or a local directory.
            dataset: ``dataset.train``: files, a directory or a hub id, several with weights as
                ``[{"path": "a.jsonl", "weight": 0.7}, ...]``; or rows: a list of dicts, a pandas DataFrame or a
                ``datasets.Dataset``. Or the whole section as a mapping, whose ``train``, ``validation`` and ``test``
                may be any of these. A run keeps its own copy of rows, in ``rows/`` of its directory.
            search_space: ``search.space``: a list, a range ``{"min": ..., "max": ..., "log": True}``, one value, or a
                multiple of r such as ``"2r"``, by hyperparameter.
            name: The name of the task and of its run directory; when None the stem of its first training file, or
                ``task`` if rows were given.
            quantization: How the frozen linears are kept: "none", or a format such as "fp8".
            strategy: ``auto``, ``replicas``, ``adapter_parallel``, ``tensor`` or ``pipeline``, as in the task file.
            numerics: ``"exact"``: on a GPU, too, a packed trial has the bits it would have alone. ``"auto"`` is exact
                where a step was measured to take at most 5 % longer, else ``"fast"``.
            objective: ``"dpo"``, or its section: ``{"type": "dpo", "beta": 0.1}``; or a function of a row's token
                log-probabilities and tokens, defined at the top level of a module, that returns a loss for each token.
            rewards: What rewards answers, with ``objective="grpo"``: a name, ``"module:function"`` or a function that a
                module or this script defines at its top level, or a list of them; or the section as a mapping.
            lora, training, evaluation, search, memory, early_exit, priority, num_gpus, save_total_limit, report_to: As
                in the task file, sections as mappings. A metric may be a function of a prediction and its row, which a
                module defines at its top level.

        Raises:
            InputError: every problem of the task there is.
        """
        # first, because the other problems are reported under this name
        if name is not None:
            _require_folder_name(name)
        shown = "Task" if name is None else f"Task {name!r}"
        section, given = dataset_section(dataset, where=Place(file=shown, key=("dataset",)))
        early = early_exit.as_given() if isinstance(early_exit, EarlyExitSettings) else early_exit
        sections = {"lora": lora, "training": training, "evaluation": evaluation, "search": search, "memory": memory}
        # left out rather than written as its default: whether the task chose its own early exit must stay visible
        optional: dict[str, Any] = {**sections, "early_exit": early, "strategy": strategy, "report_to": report_to}
        optional |= {"save_total_limit": save_total_limit, "rewards": rewards}
        data: dict[str, Any] = {
            "model_name_or_path": plain_value(model),
            "dataset": section,
            "quantization": plain_value(quantization),
            "numerics": plain_value(numerics),
            "objective": plain_value(objective),
            "priority": plain_value(priority),
            "num_gpus": plain_value(num_gpus),
            **{key: plain_value(value) for key, value in optional.items() if value is not None},
        }
        name_functions(data, shown=shown)
        if search_space is not None:
            data["search"] = _with_space(data.get("search", {}), search_space, shown=shown)
        self.file: TaskFile = task_from_mapping(data, base_directory=Path.cwd(), name=shown, given=given)
        # the data may be given as "..", whose stem says nothing: the normalised path has the directory's name
        first = "" if "train" in given else Path(os.path.normpath(self.file.dataset.train[0])).stem
        self.name = name or first or "task"

    @classmethod
    @checks_arguments("Task.from_trl", elsewhere=_elsewhere_of_trl)
    def from_trl(
        cls,
        sft_config: object,
        lora_config: object,
        search_space: Mapping[str, Any] | None = None,
        *,
        dataset: Rows | Mapping[str, Any],
        model: str | os.PathLike[str] | None = None,
        reward_funcs: Any = None,
        name: str | None = None,
        evaluation: Mapping[str, Any] | None = None,
        search: Mapping[str, Any] | None = None,
        memory: Mapping[str, Any] | None = None,
        early_exit: EarlyExitSettings | Mapping[str, Any] | Literal["none"] | None = None,
        priority: int = 0,
        num_gpus: int | Literal["auto"] | None = None,
        quantization: str = "none",
    ) -> Task:
        """Return the sweep of a TRL script: its ``SFTConfig`` (or that of DPO, ...) and ``LoraConfig``, with a space.

        What a configuration sets is what each trial has where ``search_space`` does not set it. A setting that cannot
        be honoured is refused with the reason; one that no task decides (``logging_steps``) is named in a warning.
        Values are those of one process: on several, TRL multiplies the batch size by their number.

        Args:
            sft_config: A ``trl.SFTConfig``, or a DPOConfig, ORPOConfig, CPOConfig, KTOConfig or GRPOConfig.
            lora_config: A ``peft.LoraConfig``, or a ``peft.VeraConfig``.
            search_space, evaluation, search, memory, early_exit, priority: As for :class:`Task`.
            dataset: The rows of the trainer's ``train_dataset``; with an ``eval_dataset``
                ``{"train": ..., "validation": ...}``.
            model: The base model's hub id or directory; ``base_model_name_or_path`` of ``lora_config`` when None.
            reward_funcs: The trainer's, with a GRPOConfig: a function, or a list of them.
            name: The name of the task; the last part of ``output_dir`` when None.
            quantization: As for :class:`Task`.
            num_gpus: As for :class:`Task`; 0 where ``sft_config`` asks for the CPU, else "auto", when None.

        Raises:
            InputError: every setting that cannot be honoured, and every problem of the task.

        Example:
            ```python
            # GPU and hub
            import cohort
            from datasets import load_dataset
            from peft import LoraConfig
            from trl import SFTConfig

            config = SFTConfig(output_dir="runs/trl", per_device_train_batch_size=4, learning_rate=2e-4)
            lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
            rows = load_dataset("trl-lib/Capybara", split="train")

            space = {"learning_rate": [5e-5, 2e-4, 5e-4], "r": [8, 16, 32], "lora_alpha": "2r"}
            task = cohort.Task.from_trl(config, lora, space, model="Qwen/Qwen3-0.6B", dataset=rows)
            result = cohort.run(task)
            ```
        """
        section = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
        where = Place(file="Task.from_trl", key=("dataset", "train"))
        rows = given_rows(section.get("train"), where=where)
        columns = None if rows is None else rows.columns
        keys = trl_keys(sft_config, lora_config, columns=columns, reward_funcs=reward_funcs)
        if keys.without_effect:
            text = f"set in the TRL script and without effect here: {', '.join(keys.without_effect)}"
            warnings.warn(text, stacklevel=3)
        sections = {**keys.sections, **({} if num_gpus is None else {"num_gpus": num_gpus})}
        return cls(
            model=_base_model(model, lora_config),
            # what is given here counts more than the script
            dataset={**sections.pop("dataset"), **section},
            search_space=search_space,
            name=keys.name if name is None else name,
            evaluation={**sections.pop("evaluation", {}), **(evaluation or {})},
            search=search,
            memory=memory,
            early_exit=early_exit,
            priority=priority,
            quantization=quantization,
            **sections,
        )

    def with_early_exit(self, settings: EarlyExitSettings) -> TaskFile:
        """Return the validated task with ``settings``, unless it has an ``early_exit`` of its own."""
        # the engine's early exit is a default for tasks that chose none
        if "early_exit" in self.file.model_fields_set:
            return self.file
        section = early_exit_section(settings.as_given())
        return self.file.model_copy(update={"early_exit": section})

    def __repr__(self) -> str:
        return f"Task(name={self.name!r}, model={self.file.model_name_or_path!r})"


def _with_space(search: Any, space: Mapping[str, Any], *, shown: str) -> Any:
    if not isinstance(search, Mapping):
        # validation reports it
        return search
    if "space" in search:
        where, found = Place(file=shown, key=("search_space",)), "search_space and search['space']"
        raise InputError(Problem(where=where, found=found, allowed="one of the two", hint="Remove one."))
    return {**search, "space": plain_value(space)}


def _base_model(model: str | os.PathLike[str] | None, lora_config: object) -> str | os.PathLike[str]:
    found: str | None = getattr(lora_config, "base_model_name_or_path", None)
    revision: str | None = getattr(lora_config, "revision", None)
    if model is None and found is None:
        hint = "Write model=..., as the trainer has it."
        allowed = "the base model's hub id or directory"
        raise InputError(Problem(where="Task.from_trl: model", found="nothing", allowed=allowed, hint=hint))
    if model is None and revision is not None:
        return f"{found}@{revision}"
    return found or "" if model is None else model


def _require_folder_name(name: object) -> None:
    """Refuse a name that would put the run directory somewhere else than directly in its parent."""
    is_plain = isinstance(name, str) and name not in ("", ".", "..") and name.isprintable() and name == name.strip()
    # 255 bytes are the most that file systems take
    if not isinstance(name, str) or not is_plain or set(name) & {"/", "\\"} or len(os.fsencode(name)) > 255:
        raise InputError(
            Problem(
                where=Place(file="Task", key=("name",)),
                found=repr(name)[:60],
                allowed="the name of a folder, in one line, without / and \\: it names the run directory",
                hint="Write a plain name, and choose the place with cohort.run(run_directory=...).",
            )
        )
