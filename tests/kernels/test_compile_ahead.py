"""The file that says what has been compiled, and the GPU that workers compile for without having one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cohort.kernels.compile_ahead import _NamedGpu, cache_marker

pytest.importorskip("triton")


def test_it_lies_in_tritons_cache_and_depends_on_the_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    first = cache_marker("model", (16, 64))
    assert first is not None
    assert first.parent == tmp_path
    assert cache_marker("model", (16, 64)) == first
    assert cache_marker("model", (16, 32)) != first
    monkeypatch.delenv("TRITON_CACHE_DIR")
    at_home = cache_marker("model", (16, 64))
    assert at_home is not None
    assert at_home.parent == Path.home() / ".triton" / "cache"


def test_workers_name_the_gpu_they_compile_for() -> None:
    target = _NamedGpu((9, 0)).get_current_target()
    assert (target.backend, target.arch, target.warp_size) == ("cuda", 90, 32)


def test_workers_do_not_run_a_script_without_a_guard_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from cohort.kernels.compile_ahead import KernelCompiler, _import_triton\n"
        "print('the script runs', flush=True)\n"
        "with KernelCompiler(num_workers=1) as compiler:\n"
        "    print('a worker answers', compiler._submit(_import_triton).result(), flush=True)\n"
        "print(sys.modules['__main__'].__file__)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["the script runs", "a worker answers None", str(script)]
