"""The program that writes streams: ``python -m cohort.service.streams.writer_program DESCRIPTOR PARENT``.

It has one thread. The socket whose descriptor is its first argument brings it a tokenizer, then streams, their
connections and what passes gave them; what has come together is written together. It ends when that socket is closed,
and with the process PARENT.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from array import array
from collections import deque
from collections.abc import Sequence

from cohort.core.process.parent_death import die_with_parent
from cohort.service.request_times import IntervalCounts, RequestTimes
from cohort.service.streams.messages import Attach, Begin, Forget, Frames, Outputs, Report, framed
from cohort.service.streams.open_stream import OpenStream
from cohort.service.streams.sent_tokenizer import SentTokenizer, StreamTexts
from cohort.serving.step_output import StepOutput

__all__ = ["StreamWriting", "main"]

_READ_BYTES, _MOST_READS, _MOST_DESCRIPTORS = 1 << 18, 64, 64
_REPORT_SECONDS = 1.0


class StreamWriting:
    """All streams of one engine."""

    def __init__(self, link: socket.socket) -> None:
        """Serve the other end of ``link``."""
        self._link = link
        self._frames = Frames()
        self._descriptors: deque[int] = deque()
        self._texts: StreamTexts | None = None
        self._streams: dict[int, OpenStream] = {}
        self._by_key: dict[int, OpenStream] = {}
        self._touched: dict[int, OpenStream] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(link, selectors.EVENT_READ)
        self._is_closed = False
        self._times = _Times()
        self._ended: list[tuple[int, bool]] = []
        self._reported_at = time.monotonic()

    def run(self) -> None:
        """Write until the other end closes."""
        while not self._is_closed:
            for key, _ in self._selector.select(_REPORT_SECONDS if self._times.has_any else None):
                if key.data is None:
                    self._read()
                else:
                    self._touched[key.data.begin.number] = key.data
            touched, self._touched = self._touched, {}
            for stream in touched.values():
                self._write(stream)
            self._report()

    def _read(self) -> None:
        """Take what has come; a slow turn finds more and writes it together."""
        for _ in range(_MOST_READS):
            try:
                data = self._received()
            except BlockingIOError:
                return
            if not data:
                self._is_closed = True
                return
            for message in self._frames.read(data):
                self._take(message)

    def _received(self) -> bytes:
        """Return what has come, and keep the descriptors that came with it; nothing once the other end has closed.

        Raises:
            BlockingIOError: nothing has come.
            OSError: descriptors were lost.
        """
        # socket.recv_fds passes no flags on (Python 3.13 and before)
        room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array("i").itemsize)
        try:
            data, ancillary, flags, _ = self._link.recvmsg(_READ_BYTES, room, socket.MSG_DONTWAIT)
        except ConnectionError:
            return b""
        if flags & socket.MSG_CTRUNC:
            raise OSError("connections of streams were lost: this process may open too few files")
        for _, _, content in ancillary:
            descriptors = array("i")
            descriptors.frombytes(content)
            self._descriptors.extend(descriptors)
        return data

    def _take(self, message: object) -> None:
        if isinstance(message, Outputs):
            plain = message.plain
            for key, token in zip(plain[::2], plain[1::2], strict=True):
                self._hear(key, StepOutput(number=key, token=token))
            for key, output in message.others:
                self._hear(key, output)
        elif isinstance(message, Begin):
            assert self._texts is not None, "the tokenizer comes first"
            stream = OpenStream(message, texts=self._texts, times=self._times.of(message))
            self._streams[message.number] = stream
            self._by_key.update((message.first_key + place, stream) for place in range(message.num_choices))
        elif isinstance(message, Attach):
            connection = socket.socket(fileno=self._descriptors.popleft())
            if (found := self._streams.get(message.number)) is None:
                connection.close()
                return
            found.attach(connection)
            self._touched[message.number] = found
        elif isinstance(message, Forget):
            if (forgotten := self._streams.get(message.number)) is not None:
                self._close(forgotten)
        elif isinstance(message, SentTokenizer):
            self._texts = message.texts()
        else:
            raise TypeError(f"a message of an unknown kind: {type(message).__name__}")

    def _hear(self, key: int, output: StepOutput) -> None:
        stream = self._by_key.get(key)
        # the last tokens of a stream that was given up may still come
        if stream is not None:
            stream.hear(key, output)
            self._touched[stream.begin.number] = stream

    def _write(self, stream: OpenStream) -> None:
        if stream.begin.number not in self._streams:
            return
        waited = self._is_waiting(stream)
        try:
            stream.write()
        except Exception:  # one stream must not end the others
            traceback.print_exc()
            stream.is_broken = True
        if stream.is_over:
            # before the other process goes on: it may close the connection, or write to it
            self._close(stream)
            self._ended.append((stream.begin.number, stream.is_whole))
        elif stream.waits_for_client and not waited and stream.connection is not None:
            self._selector.register(stream.connection, selectors.EVENT_WRITE, stream)
        elif waited and not stream.waits_for_client and stream.connection is not None:
            self._selector.unregister(stream.connection)

    def _is_waiting(self, stream: OpenStream) -> bool:
        return stream.connection is not None and stream.connection in self._selector.get_map()

    def _close(self, stream: OpenStream) -> None:
        if stream.connection is not None and self._is_waiting(stream):
            self._selector.unregister(stream.connection)
        stream.close()
        del self._streams[stream.begin.number]
        for place in range(stream.begin.num_choices):
            del self._by_key[stream.begin.first_key + place]

    def _report(self) -> None:
        """Tell what has ended at once, and times at least every second."""
        now = time.monotonic()
        is_due = self._times.has_any and now >= self._reported_at + _REPORT_SECONDS
        if not self._ended and not is_due:
            return
        report = self._times.taken()
        report.ended, self._ended, self._reported_at = self._ended, [], now
        with contextlib.suppress(OSError):
            # it may be gone: the next read says so
            self._link.sendall(framed(report))


class _Times:
    """What is measured of all streams, until it is reported."""

    def __init__(self) -> None:
        self._first, self._whole, self._each = _Seconds(), _Seconds(), IntervalCounts()

    @property
    def has_any(self) -> bool:
        # a token has a time to the first one, or between two
        return bool(self._first.found or self._whole.found or any(self._each.counts))

    def of(self, begin: Begin) -> RequestTimes:
        return RequestTimes(self._first, self._each, self._whole, begun=begin.begun)

    def taken(self) -> Report:
        """Return what was measured since the last time."""
        report = Report(
            first=self._first.found,
            whole=self._whole.found,
            counts=list(self._each.counts),
            total_seconds=self._each.total_seconds,
        )
        # requests keep the counts that they add to
        self._first.found, self._whole.found = [], []
        self._each.counts[:] = [0] * len(self._each.counts)
        self._each.total_seconds = 0.0
        return report


class _Seconds:
    def __init__(self) -> None:
        self.found: list[float] = []

    def observe(self, amount: float) -> None:
        self.found.append(amount)


def _open_many_files() -> None:
    # as many connections as the server has, and the other process may have raised its own limit
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: Sequence[str]) -> None:
    """Write the streams that come over the descriptor that is the first argument."""
    # signals are for the server, which lets its streams finish
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(int(arguments[1]))
    _open_many_files()
    with socket.socket(fileno=int(arguments[0])) as link:
        StreamWriting(link).run()
    # nothing is left to be done, and libraries take long to end
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
