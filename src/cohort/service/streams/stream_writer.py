"""The process that writes the streams of an engine, seen from the engine's process.

An engine's thread hands on what a pass gave with one message for all streams. Nothing waits for the other process: a
thread sends, another one hears what has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from cohort.service.request_times import IntervalCounts
from cohort.service.streams.messages import Attach, Begin, Forget, Frames, Outputs, Report, framed
from cohort.service.streams.sent_tokenizer import SentTokenizer
from cohort.serving.step_output import StepOutput

__all__ = ["StreamWriter", "WrittenStream"]

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 5.0
_READ_BYTES = 1 << 18

TimesListener = Callable[[list[float], list[float], IntervalCounts], None]
"""Hears seconds to first tokens, to last tokens, and between tokens."""


class WrittenStream:
    """One request's stream: an engine's thread tells it of outputs as it tells a
    :class:`~cohort.service.subscription.Subscription`.

    Attributes:
        loop: Of the request.
        numbers, is_cancelled: See :class:`~cohort.service.subscription.Listener`.
        num_tokens: Tokens handed on so far.
        ended: Has whether all events were written, once nothing more will be.
    """

    def __init__(self, outputs: Outputs, *, number: int, first_key: int, loop: asyncio.AbstractEventLoop) -> None:
        """Add outputs to ``outputs``, which is emptied whenever it is sent."""
        self._outputs = outputs
        self.number, self._first_key, self.loop = number, first_key, loop
        self.numbers: set[int] = set()
        self.is_cancelled = False
        self.num_tokens = 0
        self.ended: asyncio.Future[bool] = loop.create_future()

    def put(self, place: int, output: StepOutput) -> bool:
        """Hand an output on, with the others of its pass; nothing waits for it here."""
        key, token = self._first_key + place, output.token
        if token is not None:
            self.num_tokens += 1
            if output.finish is None and output.logprobs is None and not output.text:
                self._outputs.plain.extend((key, token))
                return False
        self._outputs.others.append((key, output))
        return False

    def wake(self) -> None:
        """Do nothing: it never waits."""

    def end(self, *, is_whole: bool) -> None:
        """Tell the request that nothing more is written; in its event loop."""
        if not self.ended.done():
            self.ended.set_result(is_whole)


class StreamWriter:
    """Owns the process. Requests begin, attach and forget streams in their event loops; one thread puts outputs.

    Attributes:
        on_times: Hears the times of tokens, in a thread of the writer's.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Start the process, which ends with this one and with the thread that started it."""
        sent = SentTokenizer.of(tokenizer)
        self._link, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "cohort.service.streams.writer_program",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # a terminal's Ctrl-C is for the server, which lets streams finish
                start_new_session=True,
            )
        self._sent: queue.SimpleQueue[tuple[bytes, int | None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._streams: dict[int, WrittenStream] = {}
        self._next_number = self._next_key = 0
        self._outputs = Outputs(plain=[], others=[])
        self._is_alive, self._is_closing = True, False
        self.on_times: TimesListener = lambda *_: None
        self._send(sent)
        self._threads = [
            threading.Thread(target=target, name=f"cohort-streams-{name}", daemon=True)
            for name, target in (("send", self._send_all), ("hear", self._hear_all))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def process_id(self) -> int:
        return self._process.pid

    def begin(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        num_choices: int,
        makes_texts: bool,
        model: str,
        is_chat: bool,
        with_logprobs: bool,
        num_prompt_tokens: int,
        with_usage: bool,
    ) -> WrittenStream | None:
        """Return a stream whose outputs may come from now on; None where the process has ended.

        Args:
            makes_texts: Whether its outputs come without texts.
        """
        with self._lock:
            if not self._is_alive:
                return None
            number, first_key = self._next_number, self._next_key
            self._next_number += 1
            self._next_key += num_choices
            stream = WrittenStream(self._outputs, number=number, first_key=first_key, loop=loop)
            self._streams[number] = stream
        self._send(
            Begin(
                number=number,
                first_key=first_key,
                num_choices=num_choices,
                makes_texts=makes_texts,
                model=model,
                is_chat=is_chat,
                with_logprobs=with_logprobs,
                num_prompt_tokens=num_prompt_tokens,
                with_usage=with_usage,
                begun=time.perf_counter(),
            )
        )
        return stream

    def attach(self, stream: WrittenStream, descriptor: int) -> None:
        """Have a stream written to a connection until it ends; the head of its answer is out.

        Args:
            descriptor: Of the connection; it stays the caller's, who writes nothing meanwhile.

        Raises:
            OSError: it is closed, or this process may open no more files.
        """
        self._send(Attach(number=stream.number), descriptor=os.dup(descriptor))

    def forget(self, stream: WrittenStream) -> None:
        """Write nothing more of a stream, and let its connection go."""
        with self._lock:
            is_known = self._streams.pop(stream.number, None) is not None
        # the other process forgets by itself what it has ended
        if is_known and not stream.ended.done():
            self._send(Forget(number=stream.number))

    def flush(self) -> None:
        """Send what was put since the last time; called by the thread that puts."""
        outputs = self._outputs
        if outputs.plain or outputs.others:
            self._send(outputs)
            # its bytes are on their way, and streams keep the lists
            outputs.plain.clear()
            outputs.others.clear()

    def close(self) -> None:
        """End the process; streams that are open are cut off."""
        self._is_closing = True
        self._sent.put(None)
        for thread in self._threads:
            thread.join(_PATIENCE_SECONDS)
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._link.close()

    def _send(self, message: object, *, descriptor: int | None = None) -> None:
        self._sent.put((framed(message), descriptor))

    def _send_all(self) -> None:
        while (item := self._sent.get()) is not None:
            data, descriptor = item
            # once the process is gone, the thread that hears tells the requests
            with contextlib.suppress(OSError):
                if descriptor is None:
                    self._link.sendall(data)
                else:
                    sent = socket.send_fds(self._link, [data], [descriptor])
                    self._link.sendall(data[sent:])
            if descriptor is not None:
                os.close(descriptor)
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)

    def _hear_all(self) -> None:
        frames = Frames()
        while True:
            try:
                data = self._link.recv(_READ_BYTES)
            except OSError:
                data = b""
            if not data:
                break
            for report in frames.read(data):
                self._hear(report)
        with self._lock:
            self._is_alive = False
            left = list(self._streams.items())
        if not self._is_closing:
            _log.error(
                "the process that writes streams has ended: %d are cut off, and this one writes further ones", len(left)
            )
        for number, _ in left:
            self._end(number, is_whole=False)

    def _hear(self, report: Report) -> None:
        # before the ends: a client that has its whole answer finds its times counted
        each = IntervalCounts()
        each.add_counts(report.counts, report.total_seconds)
        self.on_times(report.first, report.whole, each)
        for number, is_whole in report.ended:
            self._end(number, is_whole=is_whole)

    def _end(self, number: int, *, is_whole: bool) -> None:
        with self._lock:
            stream = self._streams.get(number)
        # a loop that has ended has no client either
        if stream is not None:
            with contextlib.suppress(RuntimeError):
                stream.loop.call_soon_threadsafe(functools.partial(stream.end, is_whole=is_whole))
