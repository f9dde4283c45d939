"""``cohort chat`` through a pipe, on a terminal, and under Ctrl-C."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from cohort.adapter_files import chat as engine_chat
from cohort.cli.adapters import chat as chat_module
from tests.cli.command import cohort

Capture = pytest.CaptureFixture[str]


def generated(folder: Path, capsys: Capture, *words: str) -> str:
    code, out, _ = cohort(capsys, "generate", folder / "run", "--max-new-tokens", "5", "--prompt", *words)
    assert code == 0
    return out


def talked(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, text: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return cohort(capsys, "chat", folder / "run", "--max-new-tokens", "5")


def test_piped_lines_are_messages(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = generated(folder, capsys, "1+1="), generated(folder, capsys, "2+2=")
    base = generated(folder, capsys, "2+2=", "--base")
    code, out, err = talked(folder, capsys, monkeypatch, "1+1=\n\n2+2=\n/base\n/reset\n/quit\n3+3=\n")
    assert (code, out) == (0, first + second + base)
    assert "> " not in out
    assert err == "the conversation is forgotten\n"


def test_an_empty_answer_says_how_prompts_end(capsys: Capture) -> None:
    def pieces(*texts: str) -> Generator[str, None, None]:
        yield from texts

    chat_module._show(pieces("\n"))
    shown = capsys.readouterr()
    assert shown.out == "\n\n"
    assert "cohort generate RUN_DIR --prompt $'...\\n'" in shown.err
    chat_module._show(pieces("", "two"))
    assert capsys.readouterr().err == ""


def test_wrong_words_end_nothing(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    first = generated(folder, capsys, "1+1=")
    slash = generated(folder, capsys, "/x")
    long = "1" * 500
    code, out, err = talked(folder, capsys, monkeypatch, f"/base\n/rest\n/reset now\n{long}\n//x\n1+1=")
    assert (code, out) == (0, slash + first)
    assert "no question yet" in err
    assert "/rest is no command; there are /reset, /base, /help, /quit" in err
    assert "write /reset alone; a message that begins with / needs a second /" in err
    assert "the model's context is 128" in err
    assert "Traceback" not in err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_ctrl_c_stops_an_answer_and_not_the_program(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed: Iterator[str | type[BaseException]] = iter(["1+1=", KeyboardInterrupt, "2+2=", EOFError])

    def read(_prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    real, asked = engine_chat.Chat.ask, []

    def interrupted(self: engine_chat.Chat, text: str) -> Iterator[str]:
        asked.append(text)
        for piece in real(self, text):
            yield piece
            if text == "1+1=":
                raise KeyboardInterrupt

    monkeypatch.setattr(engine_chat.Chat, "ask", interrupted)
    monkeypatch.setattr(chat_module, "input", read, raising=False)
    monkeypatch.setattr("sys.stdin", Terminal())
    code, out, err = cohort(capsys, "chat", folder / "run", "--max-new-tokens", "5")
    assert (code, asked) == (0, ["1+1=", "2+2="])
    assert generated(folder, capsys, "2+2=") in out
    assert "stopped; the conversation continues" in err
    assert "each message is answered alone" in err
    assert "/quit or Ctrl-D leaves" in err


def test_a_system_message_for_a_run_on_text_is_refused(folder: Path, capsys: Capture) -> None:
    code, _, err = cohort(capsys, "chat", folder / "run", "--system", "Be brief.")
    assert code == 2
    assert "trained on text, not on conversations" in err
