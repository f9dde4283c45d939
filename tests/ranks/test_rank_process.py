"""The process of a rank as rank 0 sees it: asked, answered, lost, ended. A script stands in for the rank."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.core.errors import RankLostError
from cohort.ranks import rank_process
from cohort.ranks.rank_process import RankProcess

# without torch, whose import takes seconds: messages are a list of buffer sizes, then what was pickled
SCRIPT = """#!{python}
import os, pickle, signal, sys, time
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[3]))

def receive():
    pickle.loads(connection.recv_bytes())
    return pickle.loads(connection.recv_bytes())

def answer(value):
    connection.send_bytes(pickle.dumps([]))
    connection.send_bytes(pickle.dumps(value))

setup = receive()
{body}
"""
SETUP: Any = SimpleNamespace(rank=3, rows=())
ECHO = "answer(setup.rank)\nwhile True:\n    answer(receive())"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    begun: list[RankProcess] = []

    def begin(body: str) -> RankProcess:
        script = tmp_path / "rank"
        script.write_text(SCRIPT.format(python=sys.executable, body=body))
        script.chmod(0o755)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(script))
            begun.append(RankProcess(SETUP))
        return begun[-1]

    yield begin
    for process in begun:
        process.close()


def test_answers_come_in_the_order_of_the_messages(start: Any) -> None:
    rank = start(ECHO)
    assert (rank.rank, rank.answer()) == (3, 3)
    for message in ("one", "two"):
        rank.send(message)
    assert [rank.answer(), rank.answer()] == ["one", "two"]


def test_the_rank_is_a_session_of_its_own_without_multicast(start: Any) -> None:
    names = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST")
    rank = start(f"answer((os.getsid(0), sys.argv[1:3], [os.environ[name] for name in {names}]))")
    session, module, values = rank.answer()
    # Ctrl-C in a terminal goes to the session of rank 0, which stops its ranks at a step boundary
    assert session == rank.process_id
    assert module == ["-m", "cohort.ranks.rank_program"]
    assert values == ["0", "1"]


@pytest.mark.parametrize(
    ("body", "how"),
    [("sys.exit(7)", "with exit code 7"), ("os.kill(os.getpid(), signal.SIGKILL)", "by SIGKILL")],
)
def test_a_rank_that_ended_is_named_with_how_and_what_to_do(start: Any, body: str, how: str) -> None:
    rank = start(body)
    with pytest.raises(RankLostError, match=rf"rank 3 \(process {rank.process_id}\) ended {how}; .*`cohort resume`"):
        rank.answer()
    with pytest.raises(RankLostError, match=how):
        rank.send("anything")


def test_a_rank_that_closed_its_connection_and_hangs_is_killed(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_process, "_PATIENCE_SECONDS", 0.1)
    rank = start("connection.close()\ntime.sleep(60)")
    with pytest.raises(RankLostError, match=r"rank 3 .* no longer answers; everything up to the last checkpoint"):
        rank.answer()
    assert rank._process.wait(60) == -9


def test_a_rank_ends_with_its_connection_and_is_killed_where_it_does_not(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    obedient = start("answer(0)\ntry:\n    receive()\nexcept EOFError:\n    sys.exit(0)")
    obedient.answer()
    obedient.close()
    assert obedient._process.returncode == 0
    monkeypatch.setattr(rank_process, "_PATIENCE_SECONDS", 0.1)
    hanging = start("answer(0)\ntime.sleep(60)")
    hanging.answer()
    hanging.close()
    assert hanging._process.returncode == -9
    # at the end of a run and in an error's handler
    hanging.close()
