"""Run the tests marked ``gpu`` side by side within a limit of time, what matters most first, and say what came out.

    python tools/gpu_tests.py --report FOLDER [--seconds 540] [--workers 14] [--first WORD,WORD] [PATH ...]

Tests of one GPU leave most of it idle: a dozen processes share it. Tests that look at times, or at what workers
compile, run in one process of their own afterwards, and every test that failed next to others is tried once more
alone, since a failed launch spoils its whole process. FOLDER/gpu_tests.json holds the outcome; FOLDER/reports.jsonl
has each test as it ends, so that a run which is cut off has said what it found.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
# what looks at times, or at what the workers of this process compile
ALONE = ("test_absent_gpu", "compile_ahead/test_launches", "choice/test_measuring", "test_no_waiting")
# the longest, so that they do not begin last
LONG = ("test_random_packs", "test_exact_numerics", "test_kill_and_resume", "test_tune_gpu", "test_table_gpu")
# seconds kept for tests that run alone, and for the outcome
KEPT = 100.0
TAIL = 1500


# --- within pytest: this file is its plugin ---------------------------------------------------------------------------


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Put what ``COHORT_GPU_TESTS_FIRST`` names in front, word by word."""
    words = os.environ.get("COHORT_GPU_TESTS_FIRST", "").split()
    items.sort(key=lambda item: next((place for place, word in enumerate(words) if word in item.nodeid), len(words)))


def pytest_xdist_node_collection_finished(ids: Sequence[str]) -> None:
    """Note what there is to run; every process says the same."""
    folder = os.environ.get("COHORT_GPU_TESTS_REPORT")
    if folder:
        (Path(folder) / "collected.json").write_text(json.dumps(list(ids)))


def pytest_runtest_logreport(report: Any) -> None:
    """Note how a test ended, in the process that hears of all of them."""
    folder = os.environ.get("COHORT_GPU_TESTS_REPORT")
    if not folder or "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.outcome == "passed"):
        return
    entry = {
        "id": report.nodeid,
        "when": report.when,
        "outcome": report.outcome,
        "seconds": round(report.duration, 2),
        "stage": os.environ.get("COHORT_GPU_TESTS_STAGE", ""),
        "said": "" if report.outcome == "passed" else _reason(report),
    }
    with (Path(folder) / "reports.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


def _reason(report: Any) -> str:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return str(report.longreprtext)[-TAIL:]


# --- around pytest ----------------------------------------------------------------------------------------------------


def files_with_gpu_tests(paths: Sequence[str]) -> list[str]:
    """Return the files under ``paths`` that name the mark or the fixture, so that nothing else is imported."""
    found = []
    for path in map(Path, paths):
        files = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
        for file in files:
            text = file.read_text(encoding="utf-8")
            if "mark.gpu" in text or "triton_device" in text:
                found.append(str(file))
    return found


def run_pytest(arguments: Sequence[str], *, stage: str, folder: Path, first: Sequence[str], until: float) -> None:
    """Run pytest with this file as its plugin; it is interrupted at ``until``, and killed 15 s later."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "COHORT_GPU_TESTS_REPORT": str(folder),
        "COHORT_GPU_TESTS_STAGE": stage,
        "COHORT_GPU_TESTS_FIRST": " ".join(first),
    }
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "tools.gpu_tests", "-p", "no:cacheprovider"]
    with (folder / f"pytest-{stage}.log").open("a") as log:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=REPOSITORY,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """Return what tests said so far."""
    file = folder / "reports.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def failed_ids(folder: Path) -> list[str]:
    """Return the tests that failed and did not pass since."""
    passed_later = {entry["id"] for entry in read_reports(folder) if entry["outcome"] == "passed"}
    return list(
        dict.fromkeys(
            entry["id"]
            for entry in read_reports(folder)
            if entry["outcome"] == "failed" and entry["id"] not in passed_later
        )
    )


def outcome(folder: Path, *, seconds: float) -> dict[str, Any]:
    """Return the outcome of all stages."""
    reports = read_reports(folder)
    collected: list[str] = json.loads(file.read_text()) if (file := folder / "collected.json").exists() else []
    failures = [entry for entry in reports if entry["outcome"] == "failed"]
    alone = {entry["id"] for entry in reports if entry["stage"] != "together" and entry["outcome"] == "passed"}
    ended = {entry["id"] for entry in reports}
    return {
        "machine": machine(),
        "seconds": round(seconds),
        "passed": len({entry["id"] for entry in reports if entry["outcome"] == "passed"}),
        "failed": [entry for entry in failures if entry["id"] not in alone],
        "failed_next_to_others_and_passed_alone": [entry for entry in failures if entry["id"] in alone],
        "skipped": dict(Counter(entry["said"] for entry in reports if entry["outcome"] == "skipped")),
        "not_run": [own for own in collected if own not in ended],
        "slowest": sorted(
            ([entry["seconds"], entry["id"]] for entry in reports if entry["outcome"] != "skipped"), reverse=True
        )[:25],
    }


def machine() -> dict[str, str]:
    """Return what the tests ran on."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"device": device, "torch": str(torch.__version__), "commit": commit.stdout.strip()}


def main(words: Sequence[str] | None = None) -> int:
    """Run, write, print; return 1 where a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["tests"], metavar="PATH")
    parser.add_argument("--report", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=540.0, help="for everything")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--test-seconds", type=int, default=150, help="for one test")
    parser.add_argument("--first", default="", metavar="WORD,WORD", help="tests whose names hold one begin first")
    parser.add_argument("--mark", default="gpu")
    arguments = parser.parse_args(words)
    began = time.monotonic()
    folder: Path = arguments.report.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    files = files_with_gpu_tests(arguments.paths)
    alone = [file for file in files if any(word in file for word in ALONE)]
    together = [file for file in files if file not in alone]
    common = ["-m", arguments.mark, f"--timeout={arguments.test_seconds}"]
    side_by_side = [
        "-n",
        str(arguments.workers),
        "--dist",
        "load",
        "--maxschedchunk",
        "1",
        "--max-worker-restart",
        "40",
    ]
    until, first = began + arguments.seconds, [*filter(None, arguments.first.split(",")), *LONG]
    if together:
        run_pytest(
            [*common, *side_by_side, *together], stage="together", folder=folder, first=first, until=until - KEPT
        )
    if alone:
        run_pytest([*common, *alone], stage="alone", folder=folder, first=(), until=until - 15)
    for failed in failed_ids(folder):
        if time.monotonic() < until - 25:
            run_pytest([*common, failed], stage="again", folder=folder, first=(), until=until - 15)
    found = outcome(folder, seconds=time.monotonic() - began)
    (folder / "gpu_tests.json").write_text(json.dumps(found, indent=1))
    for entry in found["failed"]:
        print(f"FAILED ({entry['stage']}) {entry['id']}\n{entry['said'][-700:]}\n")
    print(
        f"{found['passed']} passed, {len({own['id'] for own in found['failed']})} failed, "
        f"{len(found['failed_next_to_others_and_passed_alone'])} passed only alone, "
        f"{sum(found['skipped'].values())} skipped, {len(found['not_run'])} not run, {found['seconds']} s "
        f"on {found['machine']['device']}"
    )
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
