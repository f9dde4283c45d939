"""A run that trains nothing and gives one answer to whatever it is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cohort.runs.directory import RunDirectory
from cohort.runs.requests.trial_requests import Answer, RequestSpool, TrialRequest

__all__ = ["answering"]


@contextmanager
def answering(run: RunDirectory, answer: Answer) -> Iterator[list[TrialRequest]]:
    """Train nothing, hold the run's lock and answer what is asked; yield what was."""
    spool, asked, is_over = RequestSpool(run.requests), list[TrialRequest](), threading.Event()

    def work() -> None:
        while not is_over.wait(0.01):
            for name in spool.waiting():
                found = spool.read(name)
                assert found is not None
                asked.append(found)
                spool.answer(name, answer)

    thread = threading.Thread(target=work)
    with run.lock():
        thread.start()
        try:
            yield asked
        finally:
            is_over.set()
            thread.join()
