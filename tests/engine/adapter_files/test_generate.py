"""Prompts that are tried on an adapter look like the prompts it was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cohort.data.chat import RENDERING_DATE
from cohort.data.parsing import alpaca_prompt
from cohort.engine.adapter_files.generate import render_prompt
from cohort.tasks.loading import TaskFile, task_from_mapping


class _DatedTokenizer:
    """Renders like a template that asks for the day."""

    def apply_chat_template(self, messages: list[dict[str, str]], **settings: Any) -> str:
        assert settings["add_generation_prompt"] is True
        return f"{settings['strftime_now']('%d %b %Y')}: {messages[-1]['content']}"


def _task(tmp_path: Path, **dataset: object) -> TaskFile:
    (tmp_path / "train.jsonl").touch()
    data = {"model_name_or_path": "owner/model", "dataset": {"train": "train.jsonl", **dataset}}
    return task_from_mapping(data, base_directory=tmp_path)


def test_a_chat_prompt_has_the_day_of_the_training_rows(tmp_path: Path) -> None:
    text = render_prompt("Hi", task=_task(tmp_path), tokenizer=_DatedTokenizer(), is_chat=True)
    assert text == f"{RENDERING_DATE:%d %b %Y}: Hi"


def test_an_alpaca_prompt_is_an_instruction(tmp_path: Path) -> None:
    text = render_prompt("Add 1 and 1.", task=_task(tmp_path), tokenizer=None, is_chat=False, is_alpaca=True)
    assert text == alpaca_prompt("Add 1 and 1.")


def test_a_template_of_one_field_is_filled_and_one_of_several_is_not(tmp_path: Path) -> None:
    one = _task(tmp_path, prompt_template="Q: {question}\nA:")
    assert render_prompt("why?", task=one, tokenizer=None, is_chat=False, is_alpaca=True) == "Q: why?\nA:"
    two = _task(tmp_path, prompt_template="{topic}: {question}")
    assert render_prompt("why?", task=two, tokenizer=None, is_chat=False) == "why?"
