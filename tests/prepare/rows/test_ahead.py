"""Another process fills the caches of a first start, and nothing else changes: not by its failures, not by its end."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.core.process.cores import num_cores
from cohort.models import known_tokenizer
from cohort.prepare.inputs import TaskInputs, read_inputs
from cohort.prepare.rows import ahead as rows_ahead
from cohort.prepare.rows.ahead import begin_rows_ahead, end_rows_ahead, settle_rows_ahead
from cohort.prepare.rows.request import RowsRequest
from cohort.tasks.loading import load_task
from tests.end_to_end.tiny_tasks import tiny_data, write_inputs
from tests.support.process_states import is_gone, stop_process, wait_until_gone

Writing = Callable[..., Path]
# a tokenizer takes seconds for these
MANY_ROWS = 60_000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and two cores."""
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    yield tmp_path / "cache"
    end_rows_ahead()


@pytest.fixture
def write(tmp_path: Path) -> Writing:
    """Writes a task with its model and rows, and returns its file."""
    write_inputs(tmp_path)

    def write_task(rows: list[Any] | None = None, **sections: Any) -> Path:
        if rows is not None:
            (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "task.yaml").write_text(json.dumps(tiny_data(**sections)))
        return tmp_path / "task.yaml"

    return write_task


def chats() -> list[Any]:
    return [
        {"messages": [{"role": "user", "content": f"w{row}"}, {"role": "assistant", "content": "w1"}]}
        for row in range(24)
    ]


def many_rows() -> list[Any]:
    return [{"prompt": f"{row} " * 20, "completion": str(row)} for row in range(MANY_ROWS)]


def begin(task: Path, *overrides: str) -> bool:
    """Begin as a command does, which has not imported torch."""
    with pytest.MonkeyPatch.context() as command:
        command.delitem(sys.modules, "torch")
        return begin_rows_ahead(task, overrides)


def read(task: Path) -> TaskInputs:
    return read_inputs(load_task(task))


def error_of(task: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(task)
    return str(caught.value)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["prompts", "chats", "a tokenizer that the tables of transformers name"])
def test_it_leaves_the_caches_that_the_run_would_leave(
    write: Writing, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    task = write(chats(), dataset={"chat_template": "plain"}) if kind == "chats" else write()
    if kind.startswith("a tokenizer"):
        settings = tmp_path / "model" / "tokenizer_config.json"
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "tokenizer_class": "LlamaTokenizer"}))
    assert begin(task)
    settle_rows_ahead()
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "own"))
    RowsRequest.of(load_task(task)).keep()
    assert content(cache) == content(tmp_path / "own")
    folders = {Path(name).parts[0] for name in content(cache)}
    assert folders == {"tokenised", "tokenizers"} | ({"transformers"} if kind.startswith("a tokenizer") else set())


def test_a_run_takes_what_it_left_and_a_second_one_starts_none(write: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise AssertionError("the run loads the tokenizer itself")

    task = write(chats(), dataset={"chat_template": "plain"})
    assert begin(task)
    # of the run alone
    monkeypatch.setattr(known_tokenizer, "load_tokenizer", refuse)
    # waits for it
    inputs = read(task)
    assert inputs.data.cache_status == "hit"
    assert len(inputs.data.train) == 18
    assert not rows_ahead._RUNNING
    assert not begin(task)
    # other rows, which the same tokenizer is known for
    assert not begin(task, "--dataset.max_length", "32")
    assert begin(task, "--dataset.chat_template", "zephyr")


def test_a_first_command_imports_no_transformers_and_without_a_second_core_it_does(
    write: Writing, tmp_path: Path, cache: Path
) -> None:
    sections = {"training": {"max_steps": 2}, "search": {"space": {"r": [2]}}, "early_exit": "none"}
    task = write(chats(), dataset={"chat_template": "plain"}, **sections)
    program = (
        "import os, sys\ncores = set(range(int(sys.argv.pop())))\nos.sched_getaffinity = lambda _: cores\n"
        "from cohort.cli.main import main\ntry:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "print('transformers' in sys.modules)"
    )
    found = {}
    for cores in (2, 1):
        words = ["tune", str(task), "-o", str(tmp_path / f"run{cores}"), str(cores)]
        environment = {**os.environ, "COHORT_CACHE_DIR": str(cache / str(cores))}
        done = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        found[cores] = done.stdout.split()[-1]
    assert found == {2: "False", 1: "True"}
    best = [content(tmp_path / f"run{cores}" / "best") for cores in (2, 1)]
    for files in best:
        # it tells when it was made
        del files["README.md"]
    assert best[0] == best[1]


def test_it_starts_only_where_it_is_of_use(
    write: Writing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    task = write()
    assert not begin_rows_ahead(task), "this process has imported torch"
    assert not begin(tmp_path / "no-such-task.yaml")
    assert not begin(task, "--no.such.key", "3")
    assert not begin(task, "--model_name_or_path", str(tmp_path / "nowhere"))
    # the run asks for answers, so it loads the tokenizer itself
    assert not begin(task, "--evaluation.metric", "exact_match")
    assert not begin(task, "--dataset.train", "owner/rows-of-the-hub")
    with monkeypatch.context() as one:
        one.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
        assert not begin(task)
    with monkeypatch.context() as trusting:
        trusting.setenv("COHORT_TRUST_REMOTE_CODE", str(tmp_path / "model"))
        assert not begin(task)
    with monkeypatch.context() as unwritable:
        unwritable.setenv("COHORT_CACHE_DIR", str(task / "cache"))
        assert not begin(task)
    with monkeypatch.context() as full:
        full.setattr(subprocess, "Popen", lambda *_, **__: (_ for _ in ()).throw(OSError("too many processes")))
        assert not begin(task)
    assert not rows_ahead._RUNNING
    assert not cache.exists()
    assert begin(task)


def test_bad_rows_and_a_tokenizer_that_does_not_load_are_reported_as_without_it(
    write: Writing, tmp_path: Path, cache: Path
) -> None:
    task = write([{"prompt": "1+1="}, {"prompt": 3, "completion": "3"}, {"prompt": "1+1=", "completion": "2"}])
    without = error_of(task)
    assert begin(task)
    settle_rows_ahead()
    assert not content(cache)
    assert error_of(task) == without
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    without = error_of(task)
    assert "no tokenizer that loads" in without
    assert begin(task)
    assert error_of(task) == without


def test_one_that_is_killed_or_cannot_write_leaves_the_run_to_itself(write: Writing, cache: Path) -> None:
    task = write()
    assert begin(task)
    os.kill(rows_ahead._RUNNING[0].pid, signal.SIGKILL)
    inputs = read(task)
    assert inputs.data.cache_status == "written"
    cache.rename(cache.with_name("other"))
    cache.mkdir()
    for name in ("tokenised", "tokenizers"):
        (cache / name).write_text("no folder")
    assert begin(task)
    again = read(task)
    assert again.data.cache_status.startswith("not written")
    assert (again.data.train.tokens_T == inputs.data.train.tokens_T).all()


def test_a_command_that_ends_early_ends_it(write: Writing, cache: Path) -> None:
    assert begin(write(many_rows()))
    (process,) = rows_ahead._RUNNING
    wait_until(lambda: is_at_it(process.pid))
    end_rows_ahead()
    assert process.returncode
    assert not rows_ahead._RUNNING
    assert not content(cache)
    # where there is none
    end_rows_ahead()
    settle_rows_ahead()


def test_a_process_that_ignores_sigterm_is_killed(write: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_ahead, "_PATIENCE_SECONDS", 0.01)
    assert begin(write(many_rows()))
    (process,) = rows_ahead._RUNNING
    wait_until(lambda: is_at_it(process.pid))
    process.send_signal(signal.SIGSTOP)
    end_rows_ahead()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(num_cores() < 2, reason="a command with one core starts none")
@pytest.mark.parametrize(
    ("number", "waits"),
    [(signal.SIGKILL, False), (signal.SIGTERM, False), (signal.SIGINT, True)],
)
def test_it_ends_with_a_command_that_is_stopped(
    write: Writing, tmp_path: Path, cache: Path, number: signal.Signals, waits: bool
) -> None:
    """While it imports torch, and while it waits for the rows."""
    task = write(many_rows())
    # a terminal's Ctrl-C goes to all processes of the group
    command = [sys.executable, "-m", "cohort", "tune", str(task), "-o", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as process:
        wait_until(lambda: children_of(process.pid))
        started = children_of(process.pid)
        wait_until(lambda: is_at_it(started[0]))
        assert process.stdout is not None
        if waits:
            # it must not be done before the command waits for it, nor before the signal
            stop_process(started[0])
            next(line for line in process.stdout if b"tokenising" in line)
        os.killpg(process.pid, number)
        if waits:
            # the command kills one that does not end in half a second
            with contextlib.suppress(ProcessLookupError):
                os.kill(started[0], signal.SIGCONT)
        said = process.communicate(timeout=60)[0].decode()
    wait_until_gone(started[0])
    assert "Traceback" not in said
    assert process.returncode in (-number, 128 + number), said
    assert not [name for name in content(cache) if name.startswith("tokenised")], "it has gone on"


@pytest.mark.skipif(num_cores() < 2, reason="a command with one core starts none")
def test_another_signal_while_a_command_ends_it_changes_nothing(write: Writing, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cohort", "tune", str(write(many_rows())), "-o", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as process:
        wait_until(lambda: children_of(process.pid))
        (started,) = children_of(process.pid)
        # so that it does not end at once
        os.kill(started, signal.SIGSTOP)
        assert process.stdout is not None
        next(line for line in process.stdout if b"tokenising" in line)
        process.send_signal(signal.SIGINT)
        said = next(line for line in process.stdout if b"interrupted" in line).decode()
        for number in (signal.SIGINT, signal.SIGTERM):
            # into the half second in which the command waits for the process; a later one comes too late for both
            time.sleep(0.15)
            process.send_signal(number)
        said += process.communicate(timeout=60)[0].decode()
    wait_until_gone(started)
    assert "Traceback" not in said
    assert process.returncode == 128 + signal.SIGINT, said


def children_of(parent: int) -> list[int]:
    """Return the processes that tokenise for another one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            if rows_ahead._PROGRAM.encode() in words and int(status[1]) == parent:
                found.append(int(folder.name))
    return found


def is_at_it(process_id: int) -> bool:
    """Return whether a process has read its request, and imports or uses what tokenises."""
    assert not is_gone(process_id), "it has ended"
    return "tokenizers" in Path(f"/proc/{process_id}/maps").read_text()


def test_it_ends_with_its_input_where_no_kernel_ends_it(write: Writing, cache: Path) -> None:
    message = pickle.dumps((os.getpid(), RowsRequest.of(load_task(write(many_rows())))))
    ended = subprocess.run(
        [sys.executable, "-m", rows_ahead._PROGRAM], input=message, capture_output=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")
    assert not content(cache)
