"""Keys on the command line: by their full name or their last word, and named as options where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.tasks.loading import load_task
from cohort.tuning.parameters import Choice
from tests.tasks.task_files import BASE, ROWS, problems_of, write


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
        (["--seed", "1", "--training.seed=2"], "command line", "--training.seed after --seed; allowed: each key once"),
        (["--objective", "dpoo"], "command line --objective", "objective: dpo?"),
    ],
)
def test_a_mistake_in_an_override(folder: Path, arguments: list[str], where: str, words: str) -> None:
    problem = problems_of(folder, BASE, *arguments)[0]
    assert str(problem.where) == where
    assert words in str(problem)


def test_an_override_that_the_search_space_would_hide_is_refused(folder: Path) -> None:
    problems = problems_of(folder, BASE + "search: {space: {r: [4, 8]}}\n", "--lora.r", "2")
    assert "--search.space.r" in problems[0].hint
