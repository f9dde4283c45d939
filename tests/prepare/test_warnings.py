"""Warnings about tasks that are valid, but rarely meant: one for each, and none for a sound task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from cohort.planning.check import check_task
from tests.cli.tiny_task import write_rows
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

SOUND: dict[str, Any] = {
    "dataset": {"validation": 0.5},
    "training": {"max_steps": 400, "batch_size": 8},
    "early_exit": {"warmup_fraction": 0.1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("warnings"))
    write_rows(folder / "train.jsonl", count=80)
    long = [json.dumps({"prompt": f"{number:02d}" * 30, "completion": "1"}) for number in range(93)]
    short = [json.dumps({"prompt": f"{number}=", "completion": "2"}) for number in range(7)]
    (folder / "long.jsonl").write_text("\n".join([*long, *short]) + "\n")
    words = [json.dumps({"prompt": f"is {number} small? ", "completion": "yes"}) for number in range(80)]
    (folder / "words.jsonl").write_text("\n".join(words) + "\n")
    return folder


def test_a_sound_task_has_no_warning(folder: Path) -> None:
    assert check_task(tiny_task(folder, **SOUND)).warnings == ()


def test_a_short_warm_up_is_no_mistake_where_trials_are_compared_after_more_steps(folder: Path) -> None:
    """A floor of six steps holds for it, so a warning of the first step would be false."""
    early_exit = {"warmup_fraction": 0.05, "compare_after_steps": 6}
    short = {**SOUND, "training": {**SOUND["training"], "max_steps": 20}, "early_exit": early_exit}
    assert not [line for line in check_task(tiny_task(folder, **short)).warnings if "first compared" in line]


def test_a_key_that_some_trial_reads_is_no_mistake(folder: Path) -> None:
    betas = {"values": [0.9, 0.999], "when": {"optim": "adamw"}}
    space = {"optim": ["adamw", "sgd"], "adam_beta2": betas}
    training = {**SOUND["training"], "adam_beta1": 0.8}
    assert check_task(tiny_task(folder, **{**SOUND, "training": training, "search": {"space": space}})).warnings == ()


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"dataset": {"train": "long.jsonl", "max_length": 20}}, "93 % of the rows (93 of 100) are dropped"),
        (
            {"dataset": {"train": "long.jsonl", "max_length": 20, "on_long_rows": "truncate"}},
            "93 % of the rows (93 of 100) are cut",
        ),
        ({"dataset": {"validation": 0.05}}, "4 rows are left for validation"),
        (
            {"training": {"max_steps": 8}, "early_exit": {"warmup_fraction": 0.05, "compare_after_steps": 1}},
            "trials are first compared after one step",
        ),
        ({"search": {"space": {"r": [4, 64]}}}, "r 64 is above 32"),
        # a grid of 300 in place of 40 draws is noticed late
        ({"search": {"space": {"r": [4, 8]}, "trials": 1}}, "search.trials is 1, which sampler: grid does not read"),
        (
            {"search": {"space": {"r": [4, 8]}, "trials": 3, "sampler": "random"}},
            "search.trials is 3, but the space has only 2 configurations",
        ),
        (
            {"training": {"optim": "sgd", "adam_beta1": 0.8}},
            "training.adam_beta1 is 0.8, which optim: sgd does not read; remove it, or write optim: adamw",
        ),
        ({"training": {"optim": "lion", "adam_epsilon": 1e-6}}, "training.adam_epsilon is 1e-06, which optim: lion"),
        (
            {"search": {"space": {"optim": ["adamw", "lion"], "adam_beta2": [0.9, 0.999]}}},
            "search.space.adam_beta2 is searched, but optim: lion does not read it",
        ),
        ({"training": {"batch_size": 50}}, "batch_size 50 is more than the 40 rows to train on"),
        ({"training": {"max_steps": 10, "batch_size": 1}}, "evaluations cost more than training"),
        # a result on rows that were trained on is worth nothing, and is not seen in the result
        ({"dataset": {"test": "train.jsonl"}}, "80 of 80 test rows are also trained on or validated on"),
        ({"dataset": {"validation": "train.jsonl"}}, "80 of 80 validation rows are also trained on"),
        (
            {"evaluation": {"metric": "exact_match", "answer_pattern": "#### (.+)"}},
            "evaluation.answer_pattern '#### (.+)' is found in none of the 40 expected answers",
        ),
        (
            {"dataset": {"train": "words.jsonl"}, "evaluation": {"metric": "number_match"}},
            "none of the 40 expected answers (the first is 'yes') holds a number",
        ),
    ],
)
def test_what_is_rarely_meant_is_said(folder: Path, sections: dict[str, Any], expected: str) -> None:
    merged = {name: {**SOUND.get(name, {}), **section} for name, section in sections.items()}
    report = check_task(tiny_task(folder, **{**SOUND, **merged}))
    assert [text for text in report.warnings if text.startswith(expected)], report.warnings


def test_characters_that_the_tokenizer_does_not_know_are_named(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder / "model", model)
    saved = json.loads((model / "tokenizer.json").read_text())
    # "=" is no token of its own any more; "#" takes its place, so that there are as many
    saved["model"]["unk_token"] = "#"
    saved["model"]["vocab"] = {name: index for name, index in saved["model"]["vocab"].items() if name != "="}
    (model / "tokenizer.json").write_text(json.dumps(saved))
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "unk_token": "#"}))
    report = check_task(tiny_task(folder, model_name_or_path=str(model), **SOUND))
    (warning,) = report.warnings
    assert "are #, the token for what the tokenizer does not know, for '=': answers" in warning


def test_losses_of_different_scales_are_no_comparison(folder: Path) -> None:
    pairs = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": f"{n}!"} for n in range(200)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    sections = {**SOUND, "dataset": {"train": "pairs.jsonl", "validation": 0.5}, "objective": "dpo"}
    searched = {**sections, "search": {"space": {"beta": [0.1, 0.3], "loss_type": ["sigmoid", "ipo"]}}}
    (warning,) = check_task(tiny_task(folder, **searched)).warnings
    assert warning.startswith("trials that differ in beta and loss_type have losses of different scales")
    assert warning.endswith("write evaluation.metric: reward_accuracy")
    assert check_task(tiny_task(folder, **searched, evaluation={"metric": "reward_accuracy"})).warnings == ()
    assert check_task(tiny_task(folder, **sections)).warnings == ()


def test_what_to_do_follows_from_the_cause(folder: Path) -> None:
    answers = {"metric": "exact_match", "max_new_tokens": 5000, "max_examples": 4}
    (dear,) = check_task(tiny_task(folder, **{**SOUND, "evaluation": answers})).warnings
    assert "lower evaluation.max_new_tokens or evaluation.warmup_evaluations" in dear
    # no max_length above the context is allowed, so raising it is no way out
    rows = [json.dumps({"prompt": f"{number:03d}" * 50, "completion": "1"}) for number in range(40)]
    (folder / "longer.jsonl").write_text((folder / "train.jsonl").read_text() + "\n".join(rows) + "\n")
    dataset = {"train": "longer.jsonl", "validation": 0.5, "max_length": 128}
    (long,) = check_task(tiny_task(folder, **{**SOUND, "dataset": dataset})).warnings
    assert "the model's context is no longer, so shorten them" in long
    assert "raise max_length" not in long


def test_the_outlook_counts_what_trials_will_do(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # no run has measured a step here
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path))
    # 40 training rows: an epoch is 40 steps of one row, or 5 of eight
    search = {"space": {"batch_size": [1, 8], "learning_rate": [1e-3, 1e-2]}}
    sections: dict[str, Any] = {"dataset": {"validation": 0.5}, "training": {"max_steps": None}, "search": search}
    report = check_task(tiny_task(folder, **sections))
    outlook = report.outlook
    assert outlook.steps_per_trial == (15, 120)
    assert outlook.tokens_per_trial == (3 * report.data.train_lengths.num_tokens,) * 2
    assert outlook.evaluation_rows == 4
    assert 0 < outlook.evaluation_share < 1
    assert outlook.seconds is not None
    assert outlook.most_seconds is not None
    assert 0 < outlook.seconds < outlook.most_seconds
    assert outlook.source == "a guess: no step of such a task was measured here"
    # at least twelve go on after the first comparison and eight after the second: of four, none ends early
    floors = {"select_at_least": 12, "reselect_at_least": 8}
    few = check_task(tiny_task(folder, **sections, early_exit=floors)).outlook
    assert few.seconds is not None
    assert few.seconds == few.most_seconds


def test_an_end_token_that_was_never_learned_is_told_where_answers_are_generated(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "model", tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    # rows that stayed together, as in a vocabulary of which training used a part; 1 is the end token
    weights["lm_head.weight"][:20] = weights["lm_head.weight"][1]
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    base = {**SOUND, "model_name_or_path": str(tmp_path / "model")}
    found = check_task(tiny_task(folder, **base, evaluation={"metric": "exact_match", "max_new_tokens": 4})).warnings
    assert any(
        text.startswith("the base model seems never to have learned its end-of-sequence token </s>") for text in found
    )
    assert check_task(tiny_task(folder, **base)).warnings == (), "a loss needs no end"


def test_an_end_of_turn_that_is_no_token_is_told_with_what_to_choose(folder: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{number}+1="}, {"role": "assistant", "content": f"{number + 1}"}]}
        for number in range(80)
    ]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def warnings_with(template: str) -> list[str]:
        data = {**SOUND["dataset"], "max_length": 256, "train": str(tmp_path / "chat.jsonl"), "chat_template": template}
        found = check_task(tiny_task(folder, **{**SOUND, "dataset": data})).warnings
        return [text for text in found if text.startswith("the chat template ends an answer with ")]

    (told,) = warnings_with("chatml")
    assert "with <|im_end|>, which is no token of this tokenizer" in told
    assert "choose a template that ends answers with </s>" in told
    assert warnings_with("plain") == warnings_with("zephyr") == []


def test_a_prompt_template_without_a_column_is_told(folder: Path) -> None:
    """As a file's name in its place would be: the prompt of every row is that name."""

    def warnings_with(template: str) -> list[str]:
        data = {**SOUND["dataset"], "prompt_template": template}
        found = check_task(tiny_task(folder, **{**SOUND, "dataset": data})).warnings
        return [text for text in found if text.startswith("dataset.prompt_template has no {column} field")]

    assert warnings_with("{prompt}") == []
    assert len(warnings_with("template.txt")) == 1
