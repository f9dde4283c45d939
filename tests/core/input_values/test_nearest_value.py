"""What other tools call a thing is found before what is spelled like it."""

from __future__ import annotations

import pytest

from cohort.core.input_values.nearest_value import keys_text, nearest_file, nearest_word

SAMPLERS = ("grid", "random", "tpe")
FORMATS = ("auto", "messages", "sharegpt", "alpaca", "prompt_completion", "text", "preference")
METRICS = ("loss", "contains", "exact_match", "number_match", "rouge_l", "token_f1", "choice_accuracy")


@pytest.mark.parametrize(
    ("word", "options", "meant"),
    [
        ("bayes", SAMPLERS, "tpe"),
        ("Grid-Search", SAMPLERS, "grid"),
        ("chat", FORMATS, "messages"),
        ("conversations", FORMATS, "sharegpt"),
        ("mesages", FORMATS, "messages"),
        ("accuracy", METRICS, "exact_match"),
        ("drop", ("error", "skip"), "skip"),
        ("skip", ("drop", "truncate", "error", "split"), "drop"),
        ("cma", SAMPLERS, None),
        ("grpo", ("sft", "dpo", "orpo"), None),
        (3, SAMPLERS, None),
    ],
)
def test_the_word_that_was_meant(word: object, options: tuple[str, ...], meant: str | None) -> None:
    assert nearest_word(word, options) == meant


def test_a_file_is_near_by_its_name_and_not_by_its_ending() -> None:
    assert nearest_file("trian.jsonl", ["train.jsonl", "one.jsonl"]) == "train.jsonl"
    assert nearest_file("nofile.jsonl", ["one.jsonl", "two.jsonl"]) is None
    assert nearest_file("nope.yaml", ["dupkey.yaml"]) is None
    assert nearest_file("train.json", ["train.jsonl"]) == "train.jsonl"


MANY = ("learning_rate", "r", "lora_alpha", "lora_dropout", *(f"other_{number:02}" for number in range(16)))


@pytest.mark.parametrize(
    ("unknown", "known", "meant", "text"),
    [
        ("trails", ("sampler", "trials", "space"), None, "trials, sampler, space"),
        ("rank", ("alpha", "r", "space"), "r", "r, alpha, space"),
        ("zzz", ("alpha", "r"), "lora.r", "alpha, r"),
        ("lora-alhpa", MANY, None, "lora_alpha and 19 others (`cohort check --schema` lists all)"),
        ("rank", MANY, "r", "r and 19 others (`cohort check --schema` lists all)"),
        ("zzz", MANY, None, f"{', '.join(MANY[:12])} and 8 others (`cohort check --schema` lists all)"),
    ],
)
def test_the_nearest_keys_come_first_and_many_others_are_counted(
    unknown: str, known: tuple[str, ...], meant: str | None, text: str
) -> None:
    assert keys_text(unknown, known, meant=meant) == text
