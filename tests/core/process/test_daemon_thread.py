"""A function in a thread of its own gives its result or its error."""

from __future__ import annotations

import threading

import pytest

from cohort.core.process.daemon_thread import begin_in_thread


def test_the_result_or_the_error_comes_from_a_daemon_thread() -> None:
    def found(number: int, *, factor: int) -> tuple[int, str, bool]:
        thread = threading.current_thread()
        return number * factor, thread.name, thread.daemon

    assert begin_in_thread("digests", found, 3, factor=4).result() == (12, "digests", True)

    def refuse() -> None:
        raise KeyError("no such file")

    with pytest.raises(KeyError, match="no such file"):
        begin_in_thread("digests", refuse).result()
