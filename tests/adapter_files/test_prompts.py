"""Prompts that are tried on an adapter look like the prompts it was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.adapter_files.base_model import RunBase
from cohort.adapter_files.prompts import PromptRenderer
from cohort.core.errors import InputError
from cohort.core.source_location import Place
from cohort.data.chat import RENDERING_DATE
from cohort.data.files.parsing import alpaca_prompt
from cohort.data.files.rows import RawRow
from cohort.data.problems import BadRowError
from cohort.runs.fact_groups import InputFacts
from cohort.runs.facts import RunFacts
from cohort.tasks.loading import task_from_mapping


class _DatedTokenizer:
    """Renders like a template that asks for the day, and refuses a conversation that begins with the system."""

    def apply_chat_template(self, messages: list[dict[str, str]], **settings: Any) -> str:
        assert settings["add_generation_prompt"] is True
        if messages[0]["role"] == "system":
            raise ValueError("no system messages")
        return f"{settings['strftime_now']('%d %b %Y')}: " + "|".join(message["content"] for message in messages)


def renderer(tmp_path: Path, *, data_format: str = "prompt_completion", is_chat: bool = False, is_raw: bool = False,
             **dataset: object) -> PromptRenderer:  # fmt: skip
    (tmp_path / "train.jsonl").touch()
    data = {"model_name_or_path": "owner/model", "dataset": {"train": "train.jsonl", **dataset}}
    base = RunBase(
        task=task_from_mapping(data, base_directory=tmp_path),
        directory=tmp_path,
        facts=RunFacts(inputs=InputFacts(data_format=data_format, is_chat=is_chat)),
    )
    return PromptRenderer(base=base, tokenizer=_DatedTokenizer(), is_raw=is_raw)


def row(**values: object) -> RawRow:
    return RawRow(where=Place(file="prompts.jsonl", line=1), values=values)


def test_a_chat_prompt_has_the_day_of_the_training_rows(tmp_path: Path) -> None:
    chat = renderer(tmp_path, data_format="messages", is_chat=True)
    assert chat.of_text("Hi") == f"{RENDERING_DATE:%d %b %Y}: Hi"
    asked = [{"role": "user", "content": "Hi"}]
    answered = [*asked, {"role": "assistant", "content": "Hello"}]
    for values in ({"messages": asked}, {"messages": answered}, {"prompt": "Hi"}, {"prompt": asked}):
        assert chat.of_row(row(**values)) == f"{RENDERING_DATE:%d %b %Y}: Hi"
    shared = renderer(tmp_path, data_format="sharegpt", is_chat=True)
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    assert shared.of_row(row(conversations=turns)).endswith(": Hi")
    assert renderer(tmp_path, data_format="messages", is_chat=True, is_raw=True).of_text("Hi") == "Hi"


def test_an_alpaca_prompt_is_an_instruction(tmp_path: Path) -> None:
    alpaca = renderer(tmp_path, data_format="alpaca")
    assert alpaca.of_text("Add 1 and 1.") == alpaca_prompt("Add 1 and 1.")
    assert alpaca.of_row(row(instruction="Add.", input="1 1")) == alpaca_prompt("Add.", given="1 1")
    assert alpaca.of_row(row(prompt="Add 1 and 1.")) == alpaca_prompt("Add 1 and 1.")


def test_a_template_of_one_field_is_filled_and_one_of_several_needs_all_columns(tmp_path: Path) -> None:
    one = renderer(tmp_path, prompt_template="Q: {question}\nA:")
    assert one.of_text("why?") == "Q: why?\nA:"
    assert one.of_row(row(question="why?")) == "Q: why?\nA:"
    assert one.of_row(row(prompt="why?")) == "Q: why?\nA:"
    two = renderer(tmp_path, prompt_template="{topic}: {question}")
    assert two.of_text("why?") == "why?"
    assert two.of_row(row(topic="sums", question="why?")) == "sums: why?"
    with pytest.raises(BadRowError, match="no 'topic'"):
        two.of_row(row(question="why?"))


def test_mapped_columns_and_plain_text_are_read(tmp_path: Path) -> None:
    mapped = renderer(tmp_path, columns={"prompt": "question", "completion": "answer"})
    assert mapped.of_row(row(question="1+1=")) == "1+1="
    assert renderer(tmp_path, data_format="text").of_row(row(text="Once")) == "Once"
    assert renderer(tmp_path, is_raw=True).of_row(row(prompt="1+1=")) == "1+1="


def test_a_row_that_asks_nothing_says_so(tmp_path: Path) -> None:
    chat, text = renderer(tmp_path, data_format="messages", is_chat=True), renderer(tmp_path)
    cases: list[tuple[PromptRenderer, dict[str, Any], str]] = [
        (chat, {"messages": [{"role": "assistant", "content": "Hello"}]}, "no message before the answer"),
        (chat, {"messages": [{"role": "system", "content": "Be kind."}]}, "chat template refuses"),
        (text, {"prompt": [{"role": "user", "content": "Hi"}]}, "messages, but the run was trained on text"),
        (text, {"question": "1+1="}, "no 'prompt'"),
        (text, {"prompt": " "}, "an empty 'prompt'"),
        (renderer(tmp_path, is_raw=True), {"prompt": ""}, "no text under 'prompt'"),
    ]
    for own, values, found in cases:
        with pytest.raises(BadRowError, match=found):
            own.of_row(row(**values))
    from cohort.data.examples import Message

    with pytest.raises(InputError, match="chat template refuses: no system messages"):
        chat.of_messages([Message(role="system", content="Be kind.", trained=False)])
