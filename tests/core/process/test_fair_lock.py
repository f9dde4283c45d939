"""A lock that is given in the order in which it was asked for."""

from __future__ import annotations

import threading
import time

import pytest

from cohort.core.process.fair_lock import FairLock


def test_waiting_threads_get_it_in_their_order() -> None:
    lock, order = FairLock(), list[int]()

    def take(number: int) -> None:
        with lock:
            order.append(number)

    with lock:
        threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(lock._waiting) < number:
                time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join(10)
    assert order == list(range(8))


def test_a_thread_that_takes_it_again_and_again_lets_another_in_between() -> None:
    lock, is_in = FairLock(), threading.Event()

    def other() -> None:
        with lock:
            is_in.set()

    with lock:
        thread = threading.Thread(target=other)
        thread.start()
        while not lock._waiting:
            time.sleep(0.001)
    with lock:
        # it was given away before this thread could take it again
        assert is_in.is_set()
    thread.join(10)


def test_an_error_inside_lets_go_of_it() -> None:
    lock = FairLock()
    with pytest.raises(ValueError, match="inside"), lock:
        raise ValueError("inside")
    with lock:
        assert lock._is_held
    assert not lock._is_held
