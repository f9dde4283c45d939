"""Bodies that are refused, each value once and in plain words."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
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
