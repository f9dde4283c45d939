"""What nothing reads is named: keys of other exit rules, of metrics that generate nothing, and their like."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cohort import EarlyExit, Task
from cohort.core.setting_fields import SettingField, setting_fields
from cohort.prepare.unread_keys import READ_WHEN, unread_warnings
from cohort.tasks.loading import load_task, task_from_mapping
from cohort.tasks.sections.dataset_section import DatasetSection
from cohort.tasks.sections.evaluation_section import EvaluationSection
from cohort.tasks.sections.memory_section import MemorySection
from cohort.tasks.sections.sections import LoraSection, SearchSection, TrainingSection
from cohort.tasks.task_file import TaskFile
from cohort.tuning.early_exit.lookup import EXIT_RULES, built_in_keys
from cohort.tuning.early_exit.rule import COMPARISON_KEYS, CommonSettings
from tests.end_to_end.tiny_tasks import tiny_data

RULES = [entry.name for entry in EXIT_RULES.built_in()]
# what every task reads, whatever else it says
READ_ALWAYS = {
    "evaluation": "max_examples warmup_evaluations every_fraction max_cost_fraction finalists metric metrics",
    "lora": "target_modules target_parameters modules_to_save exclude_modules layers_to_transform rank_pattern "
    "alpha_pattern r lora_alpha adapter_name_or_path",
    "training": "max_steps seed learning_rate batch_size max_grad_norm optim lr_scheduler_type",
    "search": "sampler space constraints",
    "memory": "limit margin profile gradient_checkpointing host_streamed_layers",
    "dataset": "train validation test format columns prompt_template on_long_rows on_bad_rows completion_only_loss "
    "max_length max_train_samples chat_template chat_template_kwargs trained_turns weights",
}
# what is refused, or warned of, where it is checked with what it depends on
CHECKED = {
    "evaluation": "normalize answer_pattern greater_is_better num_generations",
    "lora": "lora_dropout use_rslora init_lora_weights use_dora use_vera d_initial projection_prng_key save_projection "
    "use_bdlora",
    "training": "num_train_epochs warmup_ratio weight_decay adam_beta1 adam_beta2 adam_epsilon loraplus_lr_ratio "
    "lr_scheduler_kwargs",
    "search": "trials first_trials max_gpu_hours earlier_results",
    "dataset": "split_overlap",
}
SECTIONS: dict[str, Any] = {
    "evaluation": EvaluationSection,
    "lora": LoraSection,
    "training": TrainingSection,
    "search": SearchSection,
    "memory": MemorySection,
    "dataset": DatasetSection,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "train.jsonl").touch()
    return tmp_path


def warnings(folder: Path, **sections: Any) -> list[str]:
    return list(unread_warnings(written(folder, **sections)))


def written(folder: Path, **sections: Any) -> TaskFile:
    """Return a tiny task whose exit section is no other than the one given."""
    data = tiny_data(**sections)
    data["early_exit"] = sections.get("early_exit", {})
    return task_from_mapping(data, base_directory=folder)


def other_value(field: SettingField) -> Any:
    """Return a value that is not the default."""
    if field.kind is bool:
        return not field.default
    if field.options:
        return next(word for word in field.options if word != field.default)
    return field.default + 1 if field.kind is int else field.default / 2 or 0.25


@pytest.mark.parametrize("rule", RULES)
def test_a_key_of_another_rule_is_named_and_one_of_the_rule_is_not(folder: Path, rule: str) -> None:
    entry = EXIT_RULES.find(rule)
    assert entry is not None
    shared = [key for key in setting_fields(CommonSettings) if key not in COMPARISON_KEYS]
    own = {*setting_fields(entry.settings), *shared, *entry.comparison_keys}
    for name, field in built_in_keys().items():
        value = other_value(field)
        options = {"rule": rule, name: value}
        found = [line for line in warnings(folder, early_exit=options) if f"early_exit.{name} is" in line]
        is_read = name in own and name not in entry.settings(**_own(options, entry)).unread()
        assert bool(found) == (not is_read), (rule, name, found)


def _own(options: dict[str, Any], entry: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in setting_fields(entry.settings)}


def test_the_words_name_the_nearest_key_and_the_rule_that_reads(folder: Path) -> None:
    assert warnings(folder, early_exit={"rule": "patience", "reduction_factor": 9}) == [
        "early_exit.reduction_factor is 9, which rule: patience does not read; of its own keys patience is the "
        "nearest; remove it, or write rule: asha"
    ]
    assert warnings(folder, early_exit={"rule": "none", "select_fraction": 0.25}) == [
        "early_exit.select_fraction is 0.25, which rule: none does not read; remove it, or write rule: patterns"
    ]
    assert warnings(folder, early_exit={"rule": "patience", "risk": 0.5}) == [
        "early_exit.risk is 0.5, which rule: patience does not read; remove it, or write rule: patterns"
    ]
    assert warnings(folder, early_exit={"select_fraction": 1.0, "compare_after_steps": 9}) == [
        "early_exit.compare_after_steps is 9, which is not read with select_fraction: 1; remove one of the two"
    ]
    assert warnings(folder, early_exit={"window": 5}) == [
        "early_exit.window is 5, which is not read with divergence: rise; remove one of the two"
    ]
    slopes = {"divergence": "slopes", "rise_margin": 0.5, "select_fraction": 1.0, "reselect_at": 0.5}
    assert [line.split(";")[0] for line in warnings(folder, early_exit=slopes)] == [
        "early_exit.reselect_at is 0.5, which is not read with select_fraction: 1",
        "early_exit.rise_margin is 0.5, which is not read with divergence: slopes",
    ]


def test_settings_from_python_say_the_same(folder: Path) -> None:
    model, rows = str(folder / "model"), str(folder / "train.jsonl")
    keys: dict[str, Any] = {"rule": "patience", "reduction_factor": 9, "risk": 0.5, "patience": 4}
    expected = warnings(folder, early_exit=keys)
    assert len(expected) == 2
    settings = EarlyExit(**keys)
    own = Task(model=model, dataset=rows, early_exit=settings)
    # given to cohort.tune for all tasks that have none of their own
    shared = Task(model=model, dataset=rows).with_early_exit(settings)
    for file in (own.file, shared):
        assert list(unread_warnings(file)) == expected
    assert settings == EarlyExit(rule="patience", risk=0.5, patience=4), "what is not read makes no difference"
    assert settings.with_keys(rule="asha").reduction_factor == 9, "the rule can be changed alone"
    assert settings.with_keys(patience=5).others == settings.others == {"reduction_factor": 9}


@pytest.mark.parametrize(
    ("key", "unread", "read"),
    [
        ("evaluation.max_new_tokens", {"max_new_tokens": 9}, {"max_new_tokens": 9, "metrics": ["exact_match"]}),
        (
            "evaluation.finalists_cost_fraction",
            {"finalists": 0, "finalists_cost_fraction": 0.5},
            {"finalists_cost_fraction": 0.5},
        ),
        (
            "lora.layers_pattern",
            {"layers_pattern": "layers"},
            {"layers_pattern": "layers", "layers_to_transform": [0]},
        ),
    ],
)
def test_a_key_that_only_some_tasks_read(folder: Path, key: str, unread: dict[str, Any], read: dict[str, Any]) -> None:
    section, _, name = key.rpartition(".")
    (found,) = warnings(folder, **{section: unread})
    assert found.startswith(f"{key} is ")
    assert "which is not read with" in found
    assert "remove it" in found
    assert warnings(folder, **{section: read}) == []
    assert name in SECTIONS[section].model_fields


def test_every_such_key_is_tested() -> None:
    (mark,) = (mark for mark in test_a_key_that_only_some_tasks_read.pytestmark if mark.name == "parametrize")
    assert {entry[0] for entry in mark.args[1]} == set(READ_WHEN)


@pytest.mark.parametrize("section", SECTIONS)
def test_each_key_of_a_section_says_when_it_is_read(section: str) -> None:
    # a new key fails here until it is known who reads it, and what is said where it is not read
    conditional = {key.rpartition(".")[2] for key in READ_WHEN if key.startswith(f"{section}.")}
    known = conditional | set(READ_ALWAYS.get(section, "").split()) | set(CHECKED.get(section, "").split())
    assert set(SECTIONS[section].model_fields) == known


def test_a_resolved_task_has_no_such_warning(folder: Path) -> None:
    task = written(folder, early_exit={"rule": "patience"})
    (folder / "resolved.yaml").write_text(task.resolved_yaml())
    resolved: TaskFile = load_task(folder / "resolved.yaml")
    assert list(unread_warnings(resolved)) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_reads_each_setting_that_it_declares(rule: str) -> None:
    entry = EXIT_RULES.find(rule)
    assert entry is not None
    fields, read = setting_fields(entry.settings), set[str]()

    class Watched(entry.settings):  # type: ignore[name-defined]
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    class WatchedCommon(CommonSettings):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    ways = [{}] if "divergence" not in fields else [{"divergence": "rise"}, {"divergence": "slopes"}]
    made = [(Watched(**way), WatchedCommon()) for way in ways]
    # a class reads its fields when it checks them
    read.clear()
    for settings, common in made:
        entry.build(settings, common)
        entry.kept_share(settings, CommonSettings(), 60)
        if entry.milestones is not None:
            entry.milestones(settings, CommonSettings(), Fraction(0))
    assert set(fields) <= read
    assert read & set(COMPARISON_KEYS) == set(entry.comparison_keys)
