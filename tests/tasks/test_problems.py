"""Every mistake in a task file is named with its line, its key, the allowed values and a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.task_files import BASE, problems_of


@pytest.mark.parametrize(
    ("addition", "where", "found", "hint"),
    [
        ("training: {max_steps: four}", ":3: training.max_steps", "'four'", "max_steps: 100"),
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
        ("{train: train.jsonl, validation: val.jsonl}", "'val.jsonl', which does not exist", "Check the path"),
        ("{train: train.jsonl, columns: {promt: x}}", "'promt'", "our name left"),
        ("{train: train.jsonl, columns: {prompt: 3}}", "3", "a column of the file"),
        ("{train: train.jsonl, prompt_template: 'a {b'}", "'a {b'", "Question"),
        ("{train: train.jsonl, prompt_template: 'a {b}', format: text}", "format: text", "prompt_completion"),
        ("{train: train.jsonl, max_length: 1}", "1", "max_length: 1024"),
        ("{train: train.jsonl, max_train_samples: 0}", "0", "max_train_samples: 100"),
        ("3", "3", "indented"),
    ],
)
def test_a_mistake_in_the_data_section(folder: Path, dataset: str, found: str, hint: str) -> None:
    problems = problems_of(folder, f"base_model: model\ndataset: {dataset}\n")
    assert len(problems) == 1, problems
    assert str(problems[0].where).startswith(f"{folder / 'task.yaml'}:2: dataset")
    assert found in problems[0].found
    assert hint in problems[0].hint


def test_all_problems_come_at_once_in_the_order_of_the_lines(folder: Path) -> None:
    text = "base_model: ./nope\ndataset: {train: nope.jsonl, formt: x}\nobjective: dpoo\nlora: {r: 0}\nlr: 3\n"
    problems = problems_of(folder, text)
    lines = [int(str(problem.where).split(":")[1]) for problem in problems]
    assert lines == [1, 2, 2, 3, 4, 5]


def test_a_misspelt_key_is_one_problem_though_what_it_stands_for_is_missing(folder: Path) -> None:
    (problem,) = problems_of(folder, BASE.replace("base_model:", "model:"))
    assert problem.hint == "Did you mean model_name_or_path? Rename it."
