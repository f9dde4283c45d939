"""Does a GPU find every kernel that was compiled for its kind without it, and what does a damaged cache cost?

``cohort doctor --warm`` four times, each a process: without a GPU, for the kind of this one, into empty caches; with
the GPU, which should have nothing to do; with the GPU once more after it was made to look up every kernel; and after
every third binary was cut in half and every third list of files damaged. Kernels in the cache are counted each time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu

QUESTION = "Does a GPU find the kernels that were compiled for its kind on a machine without one?"


def main() -> None:
    """Fill, look up, damage, fill again; print and write what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    example = REPOSITORY / "examples" / "quickstart" / "base_model"
    parser.add_argument("model", nargs="?", default=str(example), help="a base model's directory")
    parser.add_argument("--out", type=Path, default=RESULTS / "compiled_elsewhere.json")
    options = parser.parse_args()
    need_gpu()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="compiled-elsewhere-") as folder:
        triton = Path(folder) / "triton"
        name = torch.cuda.get_device_name()
        rows.append(_warm(options.model, triton, step="without the GPU", more=("--gpu", name)))
        rows.append(_warm(options.model, triton, step="with it"))
        for marker in triton.glob("*.compiled"):
            marker.unlink()
        rows.append(_warm(options.model, triton, step="every kernel looked up"))
        damaged = _damage(triton)
        rows.append(_warm(options.model, triton, step=f"{damaged} kernels damaged"))
        found = rows[0].pop("folders"), rows[1].pop("folders"), rows[2].pop("folders"), rows[3].pop("folders")
    headline = {
        "kernels_compiled_elsewhere": rows[0]["kernels"],
        "kernels_the_gpu_had_to_compile": float(len((found[1] | found[2]) - found[0])),
        "kernels_lost_by_damage": float(len(found[2] - found[3])),
        "seconds_without_the_gpu": rows[0]["seconds"],
        "seconds_with_it": rows[1]["seconds"],
    }
    write_result(options.out, question=QUESTION, headline=headline, rows=rows, notes={"damaged": damaged})
    print_table(rows, columns=["step", "seconds", "kernels", "said"])
    print(headline, flush=True)


def _warm(model: str, triton: Path, *, step: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(triton), "COHORT_CACHE_DIR": str(triton.parent / "cohort")}
    if more:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-m", "cohort", "doctor", "--warm", model, "--json", *more]
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    print(step, f"{seconds:.1f} s", done.stderr, flush=True)
    done.check_returncode()
    folders = {path.parent.name for path in triton.glob("*/*.cubin")}
    said = next((line for line in done.stderr.splitlines() if "cannot be loaded" in line), "")
    phases = dict(json.loads(done.stdout)["phases"])
    return {
        "step": step, "seconds": seconds, "kernels": len(folders), "said": said, "phases": phases, "folders": folders,
    }  # fmt: skip


def _damage(triton: Path) -> int:
    """Cut binaries and lists of files; return how many kernels that concerns."""
    cut = sorted(triton.glob("*/*.cubin"))[::3]
    for path in cut:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    spoilt = sorted(triton.glob("*/__grp__*.json"))[1::3]
    for path in spoilt:
        path.write_text("{", encoding="utf-8")
    return len({path.parent for path in (*cut, *spoilt)})


if __name__ == "__main__":
    main()
