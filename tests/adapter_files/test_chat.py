"""A conversation is rendered turn by turn as the training rows are, and streams what would be generated at once."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from cohort.adapter_files.chat import Chat, open_chat
from cohort.adapter_files.generate import GenerationSettings, generate_from_run
from cohort.core.errors import InputError
from cohort.engine.tune import tune
from tests.end_to_end.test_formats import ROWS, TEMPLATE
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

SETTINGS = GenerationSettings(max_new_tokens=12)


@pytest.fixture(scope="module", params=["messages", "prompt_completion"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on conversations, and one on single prompts."""
    folder, name = write_inputs(tmp_path_factory.mktemp("talked")), str(request.param)
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    space, training = {"learning_rate": [3e-2]}, {"max_steps": 4}
    task = tiny_task(folder, dataset={"train": str(folder / "rows.jsonl")}, search={"space": space}, training=training)
    tune(task, folder / name)
    return folder / name


def talk(run: Path, *, system: str | None = None) -> Chat:
    return open_chat(run, settings=SETTINGS, system=system)


def test_an_answer_in_pieces_is_the_answer_at_once(run: Path) -> None:
    chat = talk(run)
    pieces = list(chat.ask("1+1"))
    assert "".join(pieces) == generate_from_run(run, ["1+1"], settings=SETTINGS).answers[0]
    base = GenerationSettings(max_new_tokens=12, use_base=True)
    assert "".join(chat.ask_base()) == generate_from_run(run, ["1+1"], settings=base).answers[0]


def test_turns_are_remembered_where_the_run_was_trained_on_conversations(run: Path) -> None:
    chat = talk(run)
    first = "".join(chat.ask("1+1"))
    then = "".join(chat.ask("2+2"))
    assert chat.remembers is (run.name == "messages")
    assert chat.num_turns == (4 if chat.remembers else 0)
    raw = GenerationSettings(max_new_tokens=12, is_raw=True)
    whole = f"<user>1+1</s><assistant>{first}</s><user>2+2</s><assistant>" if chat.remembers else "2+2"
    # special tokens stand in the text of a template; a plain prompt is tokenised as in training
    assert then == generate_from_run(run, [whole], settings=raw).answers[0]
    chat.reset()
    assert chat.num_turns == 0
    assert "".join(chat.ask("1+1")) == first
    with pytest.raises(InputError, match="no question yet"):
        list(talk(run).ask_base())


def test_an_answer_that_is_stopped_is_kept_as_far_as_it_came(run: Path) -> None:
    chat = talk(run)
    answer = chat.ask("1+1")
    said = "".join(islice(answer, 2))
    answer.close()
    assert chat.num_turns == (2 if chat.remembers else 0)
    raw = GenerationSettings(max_new_tokens=12, is_raw=True)
    whole = f"<user>1+1</s><assistant>{said}</s><user>2+2</s><assistant>" if chat.remembers else "2+2"
    assert "".join(chat.ask("2+2")) == generate_from_run(run, [whole], settings=raw).answers[0]


def test_the_earliest_turns_go_where_the_context_ends_and_a_long_message_is_refused(run: Path) -> None:
    chat = talk(run)
    for _ in range(6):
        list(chat.ask("1+1+1+1+1+1+1+1"))
    assert chat.num_turns < 12
    before = chat.num_turns
    for text, found in (("1" * 200, "the model's context is 128"), ("", "1 to 127 tokens")):
        if text or not chat.remembers:
            with pytest.raises(InputError, match=found):
                list(chat.ask(text))
    assert chat.num_turns == before


def test_a_system_message_needs_a_run_on_conversations(run: Path) -> None:
    if run.name == "messages":
        assert "".join(talk(run, system="Be brief.").ask("1+1")) is not None
    else:
        with pytest.raises(InputError, match="trained on text, not on conversations"):
            talk(run, system="Be brief.")
