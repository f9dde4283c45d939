"""What workers are forks of starts before its caller imports torch, where there may be something to compile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

from cohort.machine.compile_ahead.fork_server import begin_fork_server, end_fork_server
from cohort.machine.compile_ahead.triton_cache import triton_cache

pytest.importorskip("triton")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let there be a GPU, and nothing compiled."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = tmp_path / "version"
    found.touch()
    return found


def test_it_starts_where_there_may_be_something_to_compile(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(forkserver, "ensure_running", lambda: started.append("started"))
    assert begin_fork_server(driver=driver)
    assert not begin_fork_server(driver=driver.with_name("none"))
    with monkeypatch.context() as hidden:
        hidden.setenv("CUDA_VISIBLE_DEVICES", "")
        assert not begin_fork_server(driver=driver)
    cache = triton_cache()
    assert cache is not None
    cache.mkdir()
    (cache / "cohort-0.compiled").touch()
    assert not begin_fork_server(driver=driver)
    assert started == ["started"]


def test_what_cannot_start_is_left_to_the_first_worker(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("too many processes")

    monkeypatch.setattr(forkserver, "ensure_running", refuse)
    assert not begin_fork_server(driver=driver)


def test_it_is_there_before_torch_serves_the_workers_and_ends_with_a_caller_that_is_killed(
    driver: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from multiprocessing import forkserver\n"
        "from pathlib import Path\n"
        "from cohort.machine.compile_ahead.fork_server import begin_fork_server\n"
        f"print(begin_fork_server(driver=Path({str(driver)!r})), 'torch' in sys.modules, flush=True)\n"
        "server = forkserver._forkserver._forkserver_pid\n"
        "from cohort.machine.compile_ahead.workers import KernelCompiler, _import_triton\n"
        "KernelCompiler(num_workers=1)._submit(_import_triton).result()\n"
        "print(server == forkserver._forkserver._forkserver_pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # the output ends once no process has it open
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.splitlines() == ["True False", "True"], done.stderr


def test_a_command_that_ends_early_does_not_leave_it_with_its_output(tmp_path: Path) -> None:
    (tmp_path / "version").touch()
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from cohort.machine.compile_ahead.fork_server import begin_fork_server, end_fork_server\n"
        "assert begin_fork_server(driver=Path(sys.argv[1]))\nend_fork_server()\nprint('ended')\n"
    )
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    # a reader of the output waits until every process has closed it
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "version")],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=60,
    )
    assert (ended.stdout, ended.stderr) == ("ended\n", "")
    # where none was started there is none to end
    end_fork_server()
