"""A task file is read as a whole; every mistake in it is named at once, with line, key, allowed values and hint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cohort.core.errors import InputError, Problem
from cohort.tasks.loading import TaskFile, load_task, task_from_mapping, task_json_schema
from cohort.tuning.parameters import Choice, Constant, MultipleOf, Range

BASE = "base_model: model\ndataset: {train: train.jsonl}\n"
ROWS = '{"prompt": "a", "completion": "b"}\n'

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
report_to: none
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.jsonl").write_text(ROWS)
    (tmp_path / "model").mkdir()
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "task.yaml"
    path.write_text(text)
    return path


def problems_of(folder: Path, text: str, *overrides: str) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        load_task(write(folder, text), overrides)
    return list(caught.value.problems)


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
    assert (task.early_exit.rule, task.early_exit.select_fraction) == ("patterns", 0.5)
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
    from cohort.tasks.problems import known_keys

    text = load_task(write(folder, "base_model: m\ndataset: {train: train.jsonl}\n")).resolved_yaml()
    written = {line.strip().partition(":")[0] for line in text.splitlines()}
    assert {key.rsplit(".", 1)[-1] for key in known_keys(TaskFile)} <= written


def test_yaml_is_1_2(folder: Path) -> None:
    text = BASE.replace("}", ", columns: {prompt: on, completion: no}}") + "training: {learning_rate: 1e-5}"
    task = load_task(write(folder, text))
    assert task.dataset.columns == {"prompt": "on", "completion": "no"}
    assert task.training.learning_rate == 1e-5


def test_early_exit_none_and_empty_sections(folder: Path) -> None:
    task = load_task(write(folder, "base_model: m\ndataset: {train: train.jsonl}\nearly_exit: none\nlora:\n"))
    assert task.early_exit.rule == "none"
    assert task.lora.r == 16


@pytest.mark.parametrize(
    ("addition", "where", "found", "hint"),
    [
        ("lora: {rr: 4}", ":3: lora.rr", "'rr'", "lora.r"),
        ("lora: {alpha: 4}", ":3: lora.alpha", "'alpha'", "lora.lora_alpha"),
        ("learning_rate: 1", ":3: learning_rate", "'learning_rate'", "training.learning_rate"),
        ("serch: {}", ":3: serch", "'serch'", "search"),
        ("training: {per_device_train_batch_size: 4}", ":3: training.per_dev", "'per_device", "training.batch_size"),
        ("training: {gradient_accumulation_steps: 4}", ":3: training.grad", "'gradient_acc", "batch_size is the whole"),
        ("lora: {r: 0}", ":3: lora.r", "0", "r: 16"),
        ("lora: {r: true}", ":3: lora.r", "True", "r: 16"),
        ("lora: {r: '8'}", ":3: lora.r", "'8'", "Remove the quotes"),
        ("lora: {lora_dropout: 1.0}", ":3: lora.lora_dropout", "1.0", "lora_dropout: 0.0"),
        ("lora: {target_modules: []}", ":3: lora.target_modules", "[]", "all-linear"),
        ("training: {learning_rate: .nan}", ":3: training.learning_rate", "nan", "0.0002"),
        ("training: {lr_scheduler_type: cosin}", ":3: training.lr_scheduler_type", "'cosin'", "cosine"),
        ("lora: {use_rslora: yes}", ":3: lora.use_rslora", "'yes'", "true or false"),
        ("evaluation: 3", ":3: evaluation", "3", "indented"),
        ("early_exit:", ":3: early_exit", "nothing", "early_exit: none"),
        ("early_exit: off", ":3: early_exit", "'off'", "early_exit: none"),
        ("early_exit: {rule: asa}", ":3: early_exit.rule", "'asa'", "asha"),
        ("search: {space: {r: []}}", ":3: search.space.r", "an empty list", "[8, 16]"),
        ("search: {space: {r: [8, 1.5]}}", ":3: search.space.r[1]", "1.5", "[8, 16]"),
        ("search: {space: {r: [8, 8]}}", ":3: search.space.r[1]", "8 twice", "seed"),
        ("search: {space: {lora_alpha: 0r}}", ":3: search.space.lora_alpha", "'0r'", "2r"),
        ("search: {space: {r: 2r}}", ":3: search.space.r", "'2r'", "[8, 16]"),
        ("search: {space: {rank: [8]}}", ":3: search.space.rank", "'rank'", "Did you mean search.space.r?"),
        ("search: {space: {r: {min: 8}}}", ":3: search.space.r", "without max", "Add max"),
        ("search: {space: {r: {min: 8, max: 4}}}", ":3: search.space.r", "min 8 and max 4", "Exchange"),
        ("search: {space: {weight_decay: {min: 0, max: 1}}}", ":3: search.space.weight_decay", "without step", "tpe"),
        ("search: {space: {seed: {min: 0, max: 1000000, step: 1}}}", ":3: search.space", "1,000,001 trials", "random"),
        ("search: {sampler: tpe, space: {use_rslora: {min: 0}}}", ":3: search.space.use_rslora", "a range", "[true"),
        ("num_gpus: -1", ":3: num_gpus", "-1", "auto"),
        ("report_to: [foo]", ":3: report_to", "'foo'", "Remove"),
        ("base_model: again", ":3", "'base_model' a second time", "Remove one"),
        ("model_name_or_path: x", ":1: base_model", "base_model and", "Remove base_model"),
        ("training: {max_steps: 3}\nsearch: {space: {num_train_epochs: 2}}", ":4: search.space.num", "max_", "Remove"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_mend(folder: Path, addition: str, where: str, found: str, hint: str) -> None:
    problems = problems_of(folder, BASE + addition)
    assert len(problems) == 1, problems
    assert str(problems[0].where).startswith(f"{folder / 'task.yaml'}{where}")
    assert found in problems[0].found
    assert hint in problems[0].hint
    assert problems[0].allowed


@pytest.mark.parametrize(
    ("dataset", "found", "hint"),
    [
        ("{train: trian.jsonl}", "'trian.jsonl', which does not exist", "'train.jsonl'"),
        ("{train: []}", "an empty list", "at least one"),
        ("{train: 3}", "3", "data/train.jsonl"),
        ("{validation: 0.1}", "nothing", "Add dataset.train"),
        ("{train: train.jsonl, validation: 1.0}", "1.0", "0.1"),
        ("{train: train.jsonl, validation: 0}", "0", "0.1"),
        ("{train: train.jsonl, validation: val.jsonl}", "'val.jsonl', which does not exist", "train.jsonl"),
        ("{train: train.jsonl, columns: {promt: x}}", "'promt'", "our name left"),
        ("{train: train.jsonl, columns: {prompt: 3}}", "3", "a column of the file"),
        ("{train: train.jsonl, prompt_template: 'a {b'}", "'a {b'", "Question"),
        ("{train: train.jsonl, prompt_template: 'a {b}', format: text}", "format: text", "prompt_completion"),
        ("{train: train.jsonl, max_length: 1}", "1", "max_length: 1024"),
        ("{train: train.jsonl, max_train_samples: 0}", "0", "allowed values"),
        ("3", "3", "indented"),
    ],
)
def test_a_mistake_in_the_data_section(folder: Path, dataset: str, found: str, hint: str) -> None:
    problems = problems_of(folder, f"base_model: model\ndataset: {dataset}\n")
    assert len(problems) == 1, problems
    assert str(problems[0].where).startswith(f"{folder / 'task.yaml'}:2: dataset")
    assert found in problems[0].found
    assert hint in problems[0].hint


@pytest.mark.parametrize(
    ("addition", "key"),
    [
        ("objective: dpo", "objective"),
        ("num_gpus: 2", "num_gpus"),
    ],
)
def test_what_is_documented_but_not_built_says_so(folder: Path, addition: str, key: str) -> None:
    problems = problems_of(folder, BASE + addition)
    assert [str(problem.where) for problem in problems] == [f"{folder / 'task.yaml'}:3: {key}"]
    assert "not built yet" in problems[0].found


def test_all_problems_come_at_once_in_the_order_of_the_lines(folder: Path) -> None:
    text = "base_model: ./nope\ndataset: {train: nope.jsonl, formt: x}\nobjective: dpo\nlora: {r: 0}\nlr: 3\n"
    problems = problems_of(folder, text)
    lines = [int(str(problem.where).split(":")[1]) for problem in problems]
    assert lines == [1, 2, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("", 1, "an empty file"),
        ("# only a comment\n", 1, "an empty file"),
        ("- a: 1\n- b: 2\n", 1, "a list of 2 entries"),
        ("just words\n", 1, "the text 'just words'"),
        ("a: [1\nb: 2\n", 2, "not YAML"),
        ("a: 1\n\tb: 2\n", 2, "not YAML"),
        ("a: b: c\n", 1, "not YAML"),
        ("a: !!python/object:os.system x\n", 1, "the tag"),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
    ],
)
def test_a_file_that_is_no_task(folder: Path, text: str, line: int, found: str) -> None:
    problems = problems_of(folder, text)
    assert str(problems[0].where) == f"{folder / 'task.yaml'}:{line}"
    assert found in problems[0].found


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    (folder / "task.yaml").write_text(BASE)
    with pytest.raises(InputError, match=r"no such file.*Did you mean task\.yaml"):
        load_task(folder / "taks.yaml")
    with pytest.raises(InputError, match="a directory"):
        load_task(folder)
    (folder / "latin.yaml").write_bytes(b"a: 1\nb: \xe4\n")
    with pytest.raises(InputError, match=r"not UTF-8 \(line 2\)"):
        load_task(folder / "latin.yaml")


def test_overrides(folder: Path) -> None:
    arguments = ["--training.seed", "3", "--max-steps=20", "--search.space.r", "[4, 8]", "--early_exit.rule", "median"]
    task = load_task(write(folder, BASE + "early_exit: none\n"), arguments)
    assert (task.training.seed, task.training.max_steps) == (3, 20)
    assert task.search.space == {"r": Choice(values=(4, 8))}
    assert task.early_exit.rule == "median"
    assert load_task(folder / "task.yaml", ["--base_model", "org/x"]).model_name_or_path == "org/x"
    assert load_task(folder / "task.yaml", ["--weight_decay", "1e-3"]).training.weight_decay == 1e-3


def test_paths_on_the_command_line_start_at_the_working_directory(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "other.jsonl").write_text(ROWS)
    monkeypatch.chdir(elsewhere)
    task = load_task(write(folder, BASE), ["--dataset.train", "other.jsonl"])
    assert task.dataset.train == (str(elsewhere / "other.jsonl"),)


@pytest.mark.parametrize(
    ("arguments", "where", "words"),
    [
        (["--training.sed", "3"], "command line", "training.seed"),
        (["--lr", "3"], "command line", "training.learning_rate"),
        (["--seed"], "command line", "without a value"),
        (["seed", "3"], "command line", "'seed'"),
        (["--training.seed", "x"], "command line --training.seed", "seed: 0"),
        (["--search.space.r", "[8, 0]"], "command line --search.space.r: [1]", "[8, 16]"),
        (["--seed", "[1"], "command line --seed:1", "not YAML"),
        (["--objective", "dpo"], "command line --objective", "not built yet"),
    ],
)
def test_a_mistake_in_an_override(folder: Path, arguments: list[str], where: str, words: str) -> None:
    problem = problems_of(folder, BASE, *arguments)[0]
    assert str(problem.where) == where
    assert words in str(problem)


def test_an_override_that_the_search_space_would_hide_is_refused(folder: Path) -> None:
    problems = problems_of(folder, BASE + "search: {space: {r: [4, 8]}}\n", "--lora.r", "2")
    assert "--search.space.r" in problems[0].hint


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
