"""The quickstart's files are small, come from its own scripts, and describe a task of the promised size."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cohort.tasks.loading import TaskFile, load_task
from cohort.tuning.parameters import Choice

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "quickstart"
SPLITS = ("train", "validation", "test")
MIB = 1024 * 1024
TICKET = r"Table \d+: \d \w+ \+ \d \w+ = \d+"


def rows_of(split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (FOLDER / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def import_script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports one of the folder's scripts, which stand beside each other as a user runs them."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER / "base_model")


@pytest.fixture(scope="module")
def task() -> TaskFile:
    return load_task(FOLDER / "task.yaml")


def test_the_folder_stays_small() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= 8 * MIB


def test_splits_share_no_row() -> None:
    seen: dict[str, str] = {}
    for split in SPLITS:
        for row in rows_of(split):
            for text in (row["prompt"], f"{row['prompt']}{row['completion']}"):
                assert seen.setdefault(text, split) == split, f"{split} and {seen[text]} share {text!r}"


def test_rows_are_prompts_that_end_in_a_newline_and_one_line_completions() -> None:
    assert {split: len(rows_of(split)) for split in SPLITS} == {"train": 960, "validation": 64, "test": 200}
    for split in SPLITS:
        for row in rows_of(split):
            assert set(row) == {"prompt", "completion"}
            assert row["prompt"].endswith(".\n") or row["prompt"].endswith("?\n"), row
            assert row["completion"] == row["completion"].strip()
            assert re.fullmatch(TICKET, row["completion"]), row


def test_tickets_are_right(import_script: Any) -> None:
    """Read note and ticket back with code that shares nothing with the generator."""
    words = {word: value for value, word in enumerate(import_script("cafe").NUMBER_WORDS)}
    for row in rows_of("test"):
        text = row["prompt"].replace(",", " ").replace(".", " ").replace("?", " ").split()
        table = words[text[text.index("table") + 1]]
        counted = [
            (words[word], following.removesuffix("s"))
            for previous, word, following in zip(["", *text], text, [*text[1:], ""], strict=False)
            if word in words and previous != "table"
        ]
        lines = " + ".join(f"{count} {item}" for count, item in counted)
        assert row["completion"] == f"Table {table}: {lines} = {sum(count for count, _ in counted)}"


def test_the_script_regenerates_the_data_byte_for_byte(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "make_task.py"), "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    for split in SPLITS:
        assert (tmp_path / f"{split}.jsonl").read_bytes() == (FOLDER / f"{split}.jsonl").read_bytes(), split


def test_another_seed_gives_other_data(import_script: Any) -> None:
    make_task = import_script("make_task")
    assert make_task.task_rows(seed=0) == make_task.task_rows(seed=0)
    assert make_task.task_rows(seed=0) != make_task.task_rows(seed=1)


def test_the_corpus_is_deterministic_and_holds_no_ticket(import_script: Any) -> None:
    make_corpus = import_script("make_corpus")
    texts = list(make_corpus.documents(3_000, seed=0))
    assert texts == list(make_corpus.documents(3_000, seed=0))
    assert texts[:50] != list(make_corpus.documents(50, seed=1))
    assert not any(re.search(rf"^{TICKET}", text, flags=re.MULTILINE) for text in texts)


def test_the_corpus_still_gives_the_stored_tokenizer(import_script: Any) -> None:
    """A change of the corpus that leaves the stored base model behind shows here."""
    recipe = import_script("make_base_model")
    rebuilt = json.loads(recipe.build_tokenizer(recipe.BaseModelRecipe()).to_str())
    assert rebuilt == json.loads((FOLDER / "base_model" / "tokenizer.json").read_text(encoding="utf-8"))


def test_the_base_model_loads_and_has_the_promised_size() -> None:
    import torch
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(FOLDER / "base_model")
    assert config.model_type == "llama"
    assert config.head_dim % 8 == 0
    assert config.hidden_size % 16 == 0
    with safe_open(FOLDER / "base_model" / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118 (not a mapping)
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "base_model", dtype=torch.float32)
    assert 1_000_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 4_000_000


def test_the_base_model_knows_its_corpus_but_not_the_ticket(tokenizer: Any) -> None:
    """Greedy answers: what pretraining taught is there, the task's format is not."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(FOLDER / "base_model", dtype=torch.float32)

    def answer(text: str) -> str:
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
        return str(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))

    rows = rows_of("test")[:24]
    tables = [row["completion"].split()[1].removesuffix(":") for row in rows]
    answers = [answer(row["prompt"] + "Table in digits:").split("\n")[0].strip() for row in rows]
    # nearly all are right; half would still be far from chance, which is one in twenty
    assert sum(given == table for given, table in zip(answers, tables, strict=True)) >= len(rows) // 2
    assert not any(answer(row["prompt"]) == row["completion"] for row in rows)


def test_any_text_survives_the_tokenizer(tokenizer: Any) -> None:
    text = "".join(map(chr, range(32, 127))) + "\n\tcafé 0123456789 — ✓ 日本"
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:]) == text


def test_one_trial_and_one_answer_are_short(tokenizer: Any, task: TaskFile) -> None:
    lengths = []
    for row in rows_of("train"):
        whole = tokenizer(row["prompt"] + row["completion"])["input_ids"] + [tokenizer.eos_token_id]
        prompt = tokenizer(row["prompt"])["input_ids"]
        assert whole[: len(prompt)] == prompt
        assert len(whole) - len(prompt) <= 12
        lengths.append(len(whole))
    assert max(lengths) <= task.dataset.max_length
    assert sum(lengths) * task.training.num_train_epochs <= 60_000


def test_the_task_is_a_grid_of_at_least_24_trials_around_the_defaults(task: TaskFile) -> None:
    assert task.search.sampler == "grid"
    sizes = []
    for name, dimension in task.search.space.items():
        if name != "lora_alpha":
            assert isinstance(dimension, Choice), name
            sizes.append(len(dimension.values))
    assert math.prod(sizes) >= 24
    for name, default in {"learning_rate": 2e-4, "r": 16, "batch_size": 8}.items():
        values = task.search.space[name]
        assert isinstance(values, Choice)
        assert default in values.values, f"the default {name} is not in the grid, so no trial shows what it gives"
