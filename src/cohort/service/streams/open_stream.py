"""One stream in the process that writes: its tokens become texts, events and bytes of its connection."""

from __future__ import annotations

import socket

from cohort.service.answers import AnswerFormat
from cohort.service.request_times import RequestTimes
from cohort.service.streamed_answer import StreamedAnswer
from cohort.service.streams.messages import Begin
from cohort.service.streams.sent_tokenizer import StreamTexts
from cohort.serving.step_output import StepOutput
from cohort.serving.text.text_stream import TextStream

__all__ = ["OpenStream"]


class OpenStream:
    """Hears outputs at any time, and writes what it can whenever it is asked to.

    What comes while the connection takes no more, or before there is one, becomes one event later.

    Attributes:
        begin: What it was opened with.
        connection: None until it is attached.
        is_whole: Whether all of its events have been written.
        is_broken: Whether the client has left.
    """

    def __init__(self, begin: Begin, *, texts: StreamTexts, times: RequestTimes) -> None:
        self.begin = begin
        self.connection: socket.socket | None = None
        self.is_whole = self.is_broken = False
        form = AnswerFormat(
            model=begin.model,
            is_chat=begin.is_chat,
            with_logprobs=begin.with_logprobs,
            token_text=texts.of_token,
        )
        self._answer = StreamedAnswer(
            form,
            num_choices=begin.num_choices,
            num_prompt_tokens=begin.num_prompt_tokens,
            with_usage=begin.with_usage,
        )
        self._texts = [TextStream(texts.decode) for _ in range(begin.num_choices)] if begin.makes_texts else []
        self._times = times
        self._arrived: list[tuple[int, StepOutput]] = []
        self._unsent = b""

    @property
    def waits_for_client(self) -> bool:
        """Whether the connection takes no more for now."""
        return bool(self._unsent) and not self.is_broken

    @property
    def is_over(self) -> bool:
        return self.is_whole or self.is_broken

    def attach(self, connection: socket.socket) -> None:
        """Write to a connection from now on."""
        self.connection = connection
        self._send(self._answer.opening())

    def hear(self, key: int, output: StepOutput) -> None:
        """Take an output of the choice with this key."""
        self._arrived.append((key - self.begin.first_key, output))

    def write(self) -> None:
        """Write what has come, as far as the connection takes it."""
        if self.connection is None or self.is_over:
            return
        self._send(b"")
        if self._arrived and not self._unsent and not self._answer.is_done:
            arrived, self._arrived = self._arrived, []
            self._add_texts(arrived)
            self._times.heard(arrived)
            self._send(self._answer.events(arrived))
        self.is_whole = self._answer.is_done and not self._unsent and not self.is_broken

    def close(self) -> None:
        """Leave the connection to the process that it came from."""
        if self.connection is not None:
            self.connection.close()

    def _add_texts(self, arrived: list[tuple[int, StepOutput]]) -> None:
        if not self._texts:
            return
        for place, output in arrived:
            text = self._texts[place]
            if output.token is not None:
                output.text = text.push(output.token)
            if output.finish is not None:
                output.text += text.end()

    def _send(self, events: bytes) -> None:
        """Send events as a chunk of HTTP/1.1, behind what is left of earlier ones."""
        assert self.connection is not None, "there is nothing to write to"
        if events:
            self._unsent += b"%x\r\n%b\r\n" % (len(events), events)
        if not self._unsent or self.is_broken:
            return
        try:
            sent = self.connection.send(self._unsent, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            self.is_broken, self._unsent = True, b""
            return
        self._unsent = self._unsent[sent:]
