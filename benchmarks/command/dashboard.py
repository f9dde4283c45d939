"""What do pages cost: the trainer that is watched, and the viewer who waits for the first curves?

Five viewers hear every event of the quickstart's sweep while it trains. Windows with and without them take turns, so
that other work of the machine falls on both. Seconds of the trainer's CPU for a step say what the viewers cost it, also
where other processes share the cores; seconds of the clock say what a user sees where they do not.

First curves are timed in a real Chromium, from an empty page to a drawn chart, for 60 and 1,000 trials of 200 steps and
for 1,000 trials with 2 million steps; the first time, when the server has not read the run yet, and later.

    python -m benchmarks.command.dashboard    # CPU, five minutes; needs playwright and Chromium
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from cohort.core.errors import CohortError
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.records import TrialRecord
from cohort.runs.store import RunStore
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run

VIEWERS = 5
COLUMNS = "position, seconds, trial_id, step, loss, grad_norm, learning_rate, num_tokens"
TASK = REPOSITORY / "examples" / "quickstart" / "task.yaml"


def main() -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=8, metavar="N", help="windows with viewers, and without")
    parser.add_argument("--window-seconds", type=float, default=8.0, metavar="SECONDS")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="times a page is opened")
    parser.add_argument("--output", type=Path, default=RESULTS / "dashboard.json", metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows, headline = _watched(folder, windows=arguments.windows, seconds=arguments.window_seconds)
        first, found = _first_curves(folder, repeats=arguments.repeats)
    rows += first
    headline |= found
    # above the number of cores, processes wait for others
    headline["load_average"] = round(os.getloadavg()[0], 1)
    print_table(rows, columns=["what", "median", "least", "most"])
    write_result(arguments.output, question=str(__doc__).partition("\n")[0], headline=headline, rows=rows)
    return 0


@contextmanager
def _started(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "cohort", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _dashboard(folder: Path) -> Iterator[tuple[str, int]]:
    """Run the dashboard over ``folder``; yield its address and process."""
    with _started("dashboard", str(folder), "--port", "0") as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[0], process.pid


def _steps(run: Path) -> int:
    with RunReader.open(run / "run.db") as reader:
        return sum(taken.done for taken in reader.steps_taken().values())


def _cpu_seconds(process: int) -> float:
    """Return the seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Viewer:
    """A page without its drawing: it loads the run and hears its events until it is closed."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=address, timeout=30)
        self.num_heard = 0
        self._is_over = False
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        run = self._client.get("api/run", params={"run": "mine"}).json()
        for part in ("curves", "evaluations"):
            self._client.get(f"api/run/{part}", params={"run": "mine"})
        after = f"{run['generation']}:{run['number']}:{run['position']}"
        query = {"run": "mine", "after": after}
        # the server may end first
        with suppress(httpx.HTTPError), self._client.stream("GET", "api/run/events", params=query) as answer:
            for line in answer.iter_lines():
                self.num_heard += line.startswith("data:")
                if self._is_over:
                    return

    def close(self) -> None:
        # it leaves at the next event, as a closed page does at once
        self._is_over = True


def _watched(folder: Path, *, windows: int, seconds: float) -> tuple[list[dict[str, Any]], dict[str, float]]:
    run = folder / "runs" / "mine"
    (folder / "runs").mkdir()
    without_end = ("--training.max_steps", "100000", "--early_exit", "none")
    costs: dict[int, list[tuple[float, float]]] = {0: [], VIEWERS: []}
    own: list[float] = []
    with _started("tune", str(TASK), "-o", str(run), *without_end) as trainer, _dashboard(run.parent) as (address, pid):
        _wait_for_steps(run, trainer)
        for window in range(2 * windows):
            num_viewers = VIEWERS if window % 2 else 0
            viewers = [_Viewer(address) for _ in range(num_viewers)]
            # opening pages is not watching them
            time.sleep(2)
            began, cpu, before, served = time.perf_counter(), _cpu_seconds(trainer.pid), _steps(run), _cpu_seconds(pid)
            time.sleep(seconds)
            taken = _steps(run) - before
            passed = time.perf_counter() - began
            costs[num_viewers].append(((_cpu_seconds(trainer.pid) - cpu) / taken, passed / taken))
            if viewers:
                own.append((_cpu_seconds(pid) - served) / passed)
                assert all(viewer.num_heard for viewer in viewers), "they hear what happens"
            for viewer in viewers:
                viewer.close()
    rows, medians = [], {}
    for place, kind in enumerate(("CPU", "clock")):
        for num_viewers, found in costs.items():
            values = [1000 * pair[place] for pair in found]
            medians[kind, num_viewers] = statistics.median(values)
            what = f"ms of the {kind} for a trial's step, {num_viewers} viewers"
            rows.append(_row(what, values))
    rows.append(_row("dashboard's share of a core with 5 viewers", own))
    changes = {kind: 100 * (medians[kind, VIEWERS] / medians[kind, 0] - 1) for kind in ("CPU", "clock")}
    return rows, {
        "five_viewers_step_cpu_percent": round(changes["CPU"], 2),
        "five_viewers_step_clock_percent": round(changes["clock"], 2),
        "five_viewers_core_share": round(statistics.median(own), 3),
    }


def _row(what: str, values: list[float]) -> dict[str, Any]:
    median, least, most = statistics.median(values), min(values), max(values)
    return {"what": what, "median": round(median, 4), "least": round(least, 4), "most": round(most, 4)}


def _wait_for_steps(run: Path, trainer: subprocess.Popen[str]) -> None:
    while True:
        assert trainer.poll() is None, "the sweep has ended"
        time.sleep(0.5)
        try:
            if _steps(run) > 100:
                return
        except CohortError:
            continue


def _write_large(root: Path, *, trials: int, steps: int) -> None:
    """Write a run of ``trials`` trials that all did ``steps`` steps."""
    directory = RunDirectory.create(root)
    store = RunStore.create(directory.database)
    plan = [
        TrialRecord(
            trial_id=number,
            parameters={"learning_rate": 1e-5 * 1.005**number, "r": 8 << number % 3, "batch_size": 1 + number % 4},
            planned_steps=steps,
            planned_tokens=100 * steps,
            seed=number,
        )
        for number in range(trials)
    ]
    first = store.add_trials(plan) + 1
    store.close()
    rows = (
        (
            first + step * trials + number,
            0.5 * step,
            number,
            step + 1,
            1 + math.exp(-6 * step / steps) + number / trials,
        )
        for step in range(steps)
        for number in range(trials)
    )
    with closing(sqlite3.connect(directory.database)) as connection, connection:
        connection.executemany(f"INSERT INTO steps ({COLUMNS}) VALUES (?, ?, ?, ?, ?, 0.5, 1e-4, 100)", rows)


def _first_curves(folder: Path, *, repeats: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    from playwright.sync_api import sync_playwright

    runs = folder / "shown"
    write_synthetic_run(RunDirectory.create(runs / "60 x 200").database, SyntheticRun())
    for steps in (200, 2000):
        _write_large(runs / f"1000 x {steps}", trials=1000, steps=steps)
    rows: list[dict[str, Any]] = []
    headline: dict[str, float] = {}
    with ExitStack() as stack:
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"]
        )
        for name in ("60 x 200", "1000 x 200", "1000 x 2000"):
            cold, warm = [], []
            for _ in range(repeats):
                # a server that has read nothing yet
                with _dashboard(runs) as (address, _):
                    cold.append(_opened(browser, address, name))
                    warm.append(_opened(browser, address, name))
            rows.append(_row(f"seconds to the curves of {name} steps, first time", cold))
            rows.append(_row(f"seconds to the curves of {name} steps, later", warm))
            key = name.replace(" ", "")
            headline |= {
                f"first_curves_{key}_seconds": round(statistics.median(cold), 3),
                f"first_curves_{key}_least_seconds": round(min(cold), 3),
                f"later_curves_{key}_seconds": round(statistics.median(warm), 3),
            }
        with _dashboard(runs) as (address, _):
            weight = _weight(browser, address)
        rows.append(_row("kB of a sweep's page", [weight]))
        headline["page_kilobytes"] = round(weight, 1)
        browser.close()
    return rows, headline


def _opened(browser: Any, address: str, name: str) -> float:
    page = browser.new_context().new_page()
    began = time.perf_counter()
    page.goto(f"{address}#/sweep?run={quote(name)}")
    page.locator(f"canvas[data-curves='{name.partition(' ')[0]}']").wait_for(timeout=60_000)
    taken = time.perf_counter() - began
    page.context.close()
    return taken


def _weight(browser: Any, address: str) -> float:
    page = browser.new_context().new_page()
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(len(answer.body())) if "/api/" not in answer.url else None)
    page.goto(f"{address}#/sweep?run={quote('60 x 200')}")
    page.locator("canvas[data-curves='60']").wait_for()
    page.wait_for_timeout(500)
    page.context.close()
    return sum(sizes) / 1000


if __name__ == "__main__":
    sys.exit(main())
