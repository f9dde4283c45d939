"""Pieces add up to the whole text, and nothing of a stop string or half a character is ever shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cohort.serving.text.text_stream import TextStream

PIECES = ["Hel", "lo", " wor", "ld", ".", "\n", "End", " of", " it"]


def decode(tokens: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


def run(tokens: Sequence[int], **settings: Sequence[str]) -> tuple[list[str], TextStream]:
    stream = TextStream(decode, **settings)
    shown = []
    for token in tokens:
        shown.append(stream.push(token))
        if stream.is_stopped:
            break
    return [*shown, stream.end()], stream


def test_pieces_add_up_to_the_text() -> None:
    shown, stream = run(range(9))
    assert shown == [*PIECES, ""]
    assert stream.text == decode(range(9))


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["\n"], "Hello world."),
        (["world"], "Hello "),
        (["ld.\nE"], "Hello wor"),
        (["d.X", "nd of"], "Hello world.\nE"),
        (["lo w", "o"], "Hell"),
        (["absent"], decode(range(9))),
        ([" itx"], decode(range(9))),
    ],
)
def test_the_text_ends_before_the_first_stop_string(stops: list[str], text: str) -> None:
    shown, stream = run(range(9), stop_strings=stops)
    assert "".join(shown) == stream.text == text
    assert stream.is_stopped == any(stop in decode(range(9)) for stop in stops)


def test_half_a_character_waits_for_the_rest() -> None:
    data = "aé€b".encode()

    def of_bytes(tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    stream = TextStream(of_bytes)
    shown = [stream.push(byte) for byte in data]
    assert shown == ["a", "", "é", "", "", "€", "b"]
    assert stream.end() == ""


def test_bytes_that_never_become_a_character_come_at_the_end() -> None:
    stream = TextStream(lambda tokens: bytes(tokens).decode(errors="replace"))
    assert stream.push(0xE2) == ""
    assert stream.end() == "\ufffd"
