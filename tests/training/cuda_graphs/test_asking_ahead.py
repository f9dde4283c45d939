"""The BLAS is asked in a thread, which ends with its executor's recordings, or with the interpreter."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import pytest

from cohort.kernels.exact_product import AgreedShapes
from cohort.training.cuda_graphs import asking_ahead
from cohort.training.cuda_graphs.asking_ahead import AskingAhead, is_asking, settle_asking


def test_it_asks_until_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    agreed, begun, asked = AgreedShapes(), threading.Event(), list[tuple[AgreedShapes, list[int], int]]()

    def ask(
        agreed: AgreedShapes, *, row_counts: Sequence[int], room: Callable[[], int], is_enough: Callable[[], bool]
    ) -> None:
        assert threading.current_thread() is not threading.main_thread()
        asked.append((agreed, [*row_counts], room()))
        begun.set()
        while not is_enough():
            pass

    monkeypatch.setattr(asking_ahead, "ask_ahead", ask)
    asking = AskingAhead(agreed, room=lambda: 5)
    asking.start()
    assert begun.wait(timeout=10)
    assert is_asking()
    asking.end()
    assert not is_asking()
    [(of, rows, room)] = asked
    assert of is agreed
    assert room == 5
    assert rows[-1] == 128


def test_what_fails_leaves_the_questions_to_the_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(asking_ahead, "ask_ahead", fail)
    asking = AskingAhead(AgreedShapes(), room=lambda: 5)
    asking.start()
    asking.end()
    assert capsys.readouterr().err == ""
    [record] = caplog.records
    assert record.getMessage() == "sizes are asked about by the passes that need them: RuntimeError: CUDA error"


def test_a_question_that_waits_for_its_kernel_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = threading.Event()
    monkeypatch.setattr(asking_ahead, "MOST_SECONDS", 0.01)
    monkeypatch.setattr(asking_ahead, "ask_ahead", lambda *_, **__: compiled.wait(timeout=60))
    asking = AskingAhead(AgreedShapes(), room=lambda: 5)
    asking.start()
    asking.end()
    settle_asking()
    assert is_asking()
    compiled.set()
    monkeypatch.setattr(asking_ahead, "MOST_SECONDS", 60)
    settle_asking()
    assert not is_asking()


def test_the_interpreter_ends_it() -> None:
    code = """
from cohort.training.cuda_graphs import asking_ahead
def ask(agreed, *, is_enough, **_):
    while not is_enough():
        pass
    print("ended")
asking_ahead.ask_ahead = ask
asking_ahead.AskingAhead(None, room=lambda: 5).start()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "ended\n"
