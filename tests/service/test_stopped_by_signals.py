"""Ctrl-C, SIGTERM and the end of a terminal stop ``cohort serve`` in each phase; what was asked is still answered."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.end_to_end.stopped.forked_runs import ForkServer
from tests.service.running_server import write_served

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of a server: the function at whose ``call``-th call it is stopped.

    Attributes:
        is_loading: Whether there is no server yet that could end in its own way.
        again_at: The function at whose call the signal comes a second time.
    """

    name: str
    at: str
    call: int = 1
    is_loading: bool = False
    again_at: str | None = None


PHASES = (
    Phase(name="reading the tokenizer", at="cohort.service.opening:load_tokenizer", is_loading=True),
    Phase(name="loading the weights", at="cohort.service.opening:load_decoder", is_loading=True),
    Phase(name="starting", at="cohort.service.engine_thread:EngineThread.start"),
    Phase(name="saying that it is ready", at="cohort.cli.serve:_report"),
    Phase(name="idle", at="uvicorn.server:Server.on_tick", call=3),
    Phase(name="a request", at="cohort.service.engine_thread:EngineThread.submit"),
    Phase(
        name="ending",
        at="uvicorn.server:Server.on_tick",
        call=3,
        again_at="cohort.service.engine_thread:EngineThread.close",
    ),
)
ASKED = next(phase for phase in PHASES if phase.name == "a request")
# one signal in each phase by default, in turn
SAMPLE = [(phase, SIGNALS[(index + 1) % 3]) for index, phase in enumerate(PHASES) if phase is not ASKED]
REST = [(phase, number) for phase in PHASES for number in SIGNALS if (phase, number) not in SAMPLE and phase != ASKED]


def ids(values: list[tuple[Phase, signal.Signals]]) -> list[str]:
    return [f"{phase.name.replace(' ', '_')}-{number.name}" for phase, number in values]


class StoppingServer:
    """A model in a folder, served by a process that sends itself signals."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self._server, self.folder = server, folder
        write_served(folder)

    def serve(self, phase: Phase, number: signal.Signals) -> int:
        (self.folder / "stdout").write_text("")
        sent: dict[str, Any] = {"at": phase.at, "call": phase.call, "number": number, "again_at": phase.again_at}
        arguments = ["serve", "model", "--gpus", "0", "--port", "0", "--kv-cache-gib", "0.01"]
        command = {"act": "command", "folder": str(self.folder), "arguments": arguments, "signal": sent}
        # a server that has lost the signal would serve for ever
        return self._server.run(command, kill_after=60)

    def said(self, stream: str = "stderr") -> str:
        return (self.folder / stream).read_text()

    def last_line(self) -> str:
        return self.said().strip().rpartition("\n")[2]

    def address(self) -> str:
        """Return where it listens, once it does."""
        for _ in range(3000):
            if found := re.search(r"on (http://\S+)/v1", self.said("stdout")):
                return found[1]
            time.sleep(0.02)
        raise AssertionError(f"it never listened: {self.said()}")


@pytest.fixture(scope="module")
def stopping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoppingServer]:
    server = ForkServer()
    yield StoppingServer(server, tmp_path_factory.mktemp("serving"))
    server.close()


def check(stopping: StoppingServer, phase: Phase, number: signal.Signals) -> None:
    status = stopping.serve(phase, number)
    by = "Ctrl-C" if number is signal.SIGINT else number.name
    # once it serves it was asked to end and did, with nothing cut off
    expected = (128 + number, f"interrupted by {by}") if phase.is_loading else (0, "stopped")
    assert (status, stopping.last_line()) == expected
    assert "Traceback" not in stopping.said()


@pytest.mark.parametrize(("phase", "number"), SAMPLE, ids=ids(SAMPLE))
def test_a_signal_stops_a_server_in_each_phase(stopping: StoppingServer, phase: Phase, number: signal.Signals) -> None:
    check(stopping, phase, number)


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "number"), REST, ids=ids(REST))
def test_soak_a_signal_stops_a_server_in_each_phase(
    stopping: StoppingServer, phase: Phase, number: signal.Signals
) -> None:
    check(stopping, phase, number)


# that a request is answered is one way through the server, whichever of them came
@pytest.mark.parametrize("number", [SIGNALS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in SIGNALS[1:])])
def test_a_request_under_way_is_answered_first(stopping: StoppingServer, number: signal.Signals) -> None:
    answers: list[httpx.Response] = []

    def ask() -> None:
        body = {"model": "model", "prompt": "1", "max_tokens": 110, "ignore_eos": True, "seed": 1}
        answers.append(httpx.post(f"{stopping.address()}/v1/completions", json=body, timeout=120))

    (stopping.folder / "stdout").write_text("")
    asking = threading.Thread(target=ask)
    asking.start()
    status = stopping.serve(ASKED, number)
    asking.join(60)
    assert (status, stopping.last_line()) == (0, "stopped")
    assert answers[0].status_code == 200, answers[0].text
    assert answers[0].json()["usage"]["completion_tokens"] == 110
