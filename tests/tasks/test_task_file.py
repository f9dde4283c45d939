"""A task file is read as a whole and gives the layers below their settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.tasks.loading import TaskFile, load_task, task_from_mapping, task_json_schema
from cohort.tuning.parameters import Choice, Constant, MultipleOf, Range
from tests.tasks.task_files import BASE, write

FULL = """
base_model: model
dataset:
  train: train.jsonl
  validation: 0.2
  format: prompt_completion
  columns: {prompt: question, completion: answer}
  prompt_template: "Question: {question}\\nAnswer:\\n"
  on_long_rows: truncate
  on_bad_rows: skip
  completion_only_loss: false
  max_length: 512
objective: sft
lora: {target_modules: [q_proj, v_proj], lora_dropout: 0.1, use_rslora: true, r: 8, lora_alpha: 2r}
training:
  num_train_epochs: 2
  lr_scheduler_type: cosine
  warmup_ratio: 0.1
  weight_decay: 0
  max_grad_norm: 0
  seed: 7
  learning_rate: 1e-4
  batch_size: 4
evaluation: {max_examples: 16, warmup_evaluations: 2, every_fraction: 0.1, metric: exact_match, max_new_tokens: 8}
search:
  sampler: tpe
  trials: 1e2
  space:
    learning_rate: {min: 1e-5, max: 5e-4, log: true}
    r: [16, 32, 64]
    lora_alpha: [16, r, 2r]
    batch_size: {min: 2, max: 8, step: 2}
    lr_scheduler_type: [constant, linear]
    use_rslora: [true, false]
    seed: 3
early_exit: {warmup_fraction: 0.1, rule: asha}
priority: 0
num_gpus: auto
save_total_limit: 3
report_to: none
"""


def test_every_key_is_read(folder: Path) -> None:
    task = load_task(write(folder, FULL))
    assert task.model_name_or_path == str(folder / "model")
    assert task.dataset.train == (str(folder / "train.jsonl"),)
    assert task.dataset.validation == 0.2
    assert task.lora.target_modules == ("q_proj", "v_proj")
    assert task.lora.lora_alpha == MultipleOf(parameter="r", factor=2)
    assert task.training.learning_rate == 1e-4
    assert task.search.trials == 100
    assert task.search.space == {
        "learning_rate": Range(min=1e-5, max=5e-4, log=True),
        "r": Choice(values=(16, 32, 64)),
        "lora_alpha": Choice(values=(16.0, MultipleOf(parameter="r", factor=1), MultipleOf(parameter="r", factor=2))),
        "batch_size": Range(min=2, max=8, integer=True, step=2),
        "lr_scheduler_type": Choice(values=("constant", "linear")),
        "use_rslora": Choice(values=(True, False)),
        "seed": Constant(value=3),
    }
    assert task.early_exit_settings().rule == "asha"
    assert task.evaluation_settings().every_fraction == 0.1
    assert task.dataset_settings().seed == 7
    assert str(task.where("search.space.r")) == f"{folder / 'task.yaml'}:30: search.space.r"


def test_the_smallest_task_has_the_documented_defaults(folder: Path) -> None:
    task = load_task(write(folder, "model_name_or_path: org/name\ndataset: {train: train.jsonl}\n"))
    assert task.model_name_or_path == "org/name"
    assert (task.lora.r, task.lora.lora_alpha, task.lora.target_modules) == (16, 32, "all-linear")
    assert (task.training.learning_rate, task.training.batch_size, task.training.num_train_epochs) == (2e-4, 8, 3)
    assert (task.search.sampler, task.search.trials, task.search.space) == ("grid", 60, {})
    assert (task.early_exit.rule, task.early_exit.select_fraction) == ("patterns", 0.4)
    assert task.searchable_defaults()["weight_decay"] == 0.01


def test_the_defaults_of_early_exit_are_those_of_the_decisions(folder: Path) -> None:
    from cohort.tuning.early_exit.settings import EarlyExitSettings
    from cohort.tuning.evaluation_times import EvaluationSettings

    task = load_task(write(folder, "base_model: model\ndataset: {train: train.jsonl}\n"))
    assert task.early_exit_settings() == EarlyExitSettings()
    assert task.evaluation_settings() == EvaluationSettings()


def test_the_resolved_file_is_the_same_task(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    task = load_task(write(folder, FULL))
    other = tmp_path_factory.mktemp("run") / "task.yaml"
    other.write_text(task.resolved_yaml())
    again = load_task(other)
    assert again.model_dump() == task.model_dump()
    assert (
        "prompt_template: null"
        in load_task(write(folder, "base_model: m\ndataset: {train: train.jsonl}")).resolved_yaml()
    )


def test_every_default_is_written_out(folder: Path) -> None:
    from cohort.tasks.unknown_keys import known_keys

    # a section that is null has no keys to write: this one is there
    blocks = "lora: {use_bdlora: {nblocks: 2}}"
    text = load_task(write(folder, f"base_model: m\ndataset: {{train: train.jsonl}}\n{blocks}\n")).resolved_yaml()
    written = {line.strip().partition(":")[0] for line in text.splitlines()}
    # sft reads no key of its section and no rewards, and a constant rate none of its options
    unread = ("objective.", "rewards.", "training.lr_scheduler_kwargs.")
    keys = {key.rsplit(".", 1)[-1] for key in known_keys(TaskFile) if not key.startswith(unread)}
    assert keys <= written


def test_early_exit_none_and_empty_sections(folder: Path) -> None:
    task = load_task(write(folder, "base_model: m\ndataset: {train: train.jsonl}\nearly_exit: none\nlora:\n"))
    assert task.early_exit.rule == "none"
    assert task.lora.r == 16


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    (folder / "task.yaml").write_text(BASE)
    with pytest.raises(InputError, match=r"no such file.*Did you mean task\.yaml"):
        load_task(folder / "taks.yaml")
    with pytest.raises(InputError, match="a directory"):
        load_task(folder)
    (folder / "latin.yaml").write_bytes(b"a: 1\nb: \xe4\n")
    with pytest.raises(InputError, match=r"not UTF-8 \(line 2\)"):
        load_task(folder / "latin.yaml")


def test_the_search_space_gives_whole_configurations(folder: Path) -> None:
    text = BASE + "lora: {lora_alpha: 2r}\nsearch: {space: {r: [4, 8], weight_decay: {min: 0, max: 0.2, num: 3}}}\n"
    task = load_task(write(folder, text))
    configurations = list(task.search_space().configurations())
    assert [(c["r"], c["lora_alpha"]) for c in configurations[::3]] == [(4, 8), (8, 16)]
    assert [c["weight_decay"] for c in configurations[:3]] == pytest.approx([0.0, 0.1, 0.2])
    assert set(configurations[0]) == set(task.searchable_defaults())
    assert len(configurations) == 6


def test_no_space_is_one_trial(folder: Path) -> None:
    task = load_task(write(folder, BASE))
    assert list(task.search_space().configurations()) == [task.searchable_defaults()]


def test_notes_name_what_is_void(folder: Path) -> None:
    text = (
        BASE
        + "lora: {r: 4}\ntraining: {max_steps: 3, num_train_epochs: 1}\nsearch: {space: {r: [4, 8], seed: [1, 2]}}\n"
    )
    assert load_task(write(folder, text)).notes() == [
        "search.space.r overrides lora.r",
        "training.max_steps overrides training.num_train_epochs",
    ]


def test_a_mapping_makes_the_same_task(folder: Path) -> None:
    data = {"model_name_or_path": "model", "dataset": {"train": "train.jsonl"}, "training": {"seed": 5}}
    task = task_from_mapping(data, base_directory=folder, name="Task")
    assert task.training.seed == 5
    with pytest.raises(InputError, match=r"^Task: lora\.r: found 0"):
        task_from_mapping({**data, "lora": {"r": 0}}, base_directory=folder, name="Task")


def test_the_json_schema_has_every_key() -> None:
    schema = task_json_schema()
    json.dumps(schema)
    assert set(TaskFile.model_fields) | {"base_model"} == set(schema["properties"])
    assert "learning_rate" in schema["$defs"]["SearchSection"]["properties"]["space"]["properties"]


def test_a_task_cannot_be_changed(folder: Path) -> None:
    task = load_task(write(folder, BASE))
    with pytest.raises(ValueError, match="frozen"):
        task.lora.r = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (Place(key=("search", "space", "r")), "{file}:3: lora.r"),
        (Place(key=("search", "space", "seed")), "{file}:4: search.space.seed"),
        (Place(key=("dataset", "max_length")), "{file}:2: dataset.max_length"),
        (Place(file="{file}", key=("dataset",)), "{file}:2: dataset"),
        (Place(key=("dataset", "train"), text="rows"), "{file}:2: dataset.train: rows"),
        (Place(file="rows.jsonl", line=7), "rows.jsonl:7"),
        (Place(option="--gpus"), "--gpus"),
        (Place(text="trial 3"), "trial 3"),
    ],
)
def test_keys_of_the_layers_below_get_their_line(folder: Path, place: Place, shown: str) -> None:
    task = load_task(write(folder, BASE + "lora: {r: 4}\nsearch: {space: {seed: [1, 2]}}\n"))
    file = str(folder / "task.yaml")
    problem = Problem(where=replace(place, file=place.file.format(file=file)), found="", allowed="", hint="")
    assert str(task.located(problem).where) == shown.format(file=file)


@pytest.mark.parametrize(
    ("value", "hint"), [("true", "rows are always packed"), ("plan", "Did you mean packing: planned?")]
)
def test_packing_is_about_trials_and_not_about_rows(folder: Path, value: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        load_task(write(folder, f"{BASE}packing: {value}\n"))
    (problem,) = caught.value.problems
    assert problem.where.key == ("packing",)
    assert problem.allowed.startswith("auto | planned | refill")
    assert hint in (problem.hint or "")
