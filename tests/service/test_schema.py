"""Bodies that are refused, each value once and in plain words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.service.fine_tuning.schema import CreateJob
from cohort.service.schema import ChatRequest, CompletionRequest, parse_body


def test_every_wrong_value_is_told_once() -> None:
    body = b'{"model": "a", "prompt": ["a", 3], "max_tokens": "five", "stop": ["b", 5], "frequency_penalty": 0.5}'
    with pytest.raises(InputError) as caught:
        parse_body(CompletionRequest, body)
    found = {str(problem.where): (problem.found, problem.allowed) for problem in caught.value.problems}
    assert len(found) == len(caught.value.problems)
    assert found == {
        "frequency_penalty": ("0.5", "0: this server penalises no tokens"),
        "stop[1]": ("5", "text"),
        "prompt": ("['a', 3]", "text, a list of texts, token ids, or a list of lists of token ids"),
        "max_tokens": ("'five'", "a whole number"),
    }


def test_what_is_missing_is_to_be_added() -> None:
    with pytest.raises(InputError) as caught:
        parse_body(ChatRequest, b'{"model": "a", "messages": [{"content": "Q"}]}')
    (problem,) = caught.value.problems
    assert (str(problem.where), problem.found, problem.hint) == ("messages[0].role", "nothing", "Add role.")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("sead", "seed"),
        ("hyperparameters.n_epoch", "n_epochs"),
        ("hyperparameters.learning_rate", "learning_rate_multiplier"),
        ("method.dpo.hyperparameters.betta", "beta"),
        ("cohort.search_spase", "search_space"),
    ],
)
def test_a_misspelt_key_is_told_its_neighbour_at_any_depth(key: str, meant: str) -> None:
    body: dict[str, Any] = {"model": "a", "training_file": "b"}
    *outer, name = key.split(".")
    inner = body
    for part in outer:
        inner[part] = {"type": "dpo"} if part == "method" else {}
        inner = inner[part]
    inner[name] = 1
    with pytest.raises(InputError) as caught:
        parse_body(CreateJob, json.dumps(body).encode())
    (problem,) = caught.value.problems
    assert (str(problem.where), problem.found, problem.hint) == (key, "an unknown key", f"Did you mean {meant}?")
    assert meant in problem.allowed.split(", ")


def test_an_unknown_key_in_a_list_is_told_what_its_entries_have() -> None:
    with pytest.raises(InputError) as caught:
        parse_body(ChatRequest, b'{"model": "a", "messages": [{"role": "user", "content": "Q", "zzz": 1}]}')
    (problem,) = caught.value.problems
    assert (str(problem.where), problem.found) == ("messages[0].zzz", "an unknown key")
    assert {"role", "content"} <= set(problem.allowed.split(", "))
    assert problem.hint == "Leave it out: this server does not support it."
