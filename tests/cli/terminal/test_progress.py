"""Progress: live on a terminal, plain lines otherwise, never both."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.live import Live

from cohort.cli.terminal.progress import RUN_VIEW, LiveWatcher, PlainWatcher, progress_line, watching
from cohort.core.clock import ManualClock
from cohort.engine.train.watching.progress import RankProgress, RunProgress, SilentWatcher
from cohort.runs.records import TrialRecord
from cohort.tuning.objective_metric import ObjectiveMetric
from cohort.tuning.trial_status import TrialStatus


def trial(trial_id: int, status: TrialStatus, *, reason: str = "", value: float | None = None) -> TrialRecord:
    return TrialRecord(
        trial_id=trial_id,
        parameters={"learning_rate": 1e-4 * (trial_id + 1), "r": 8},
        status=status,
        steps_done=5,
        planned_steps=10,
        reason=reason,
        last_loss=2.0,
        best_value=value,
        best_step=None if value is None else 5,
        best_loss=value,
        seed=0,
    )


PROGRESS = RunProgress(
    phase="training",
    trials=(
        trial(0, TrialStatus.STOPPED, reason="diverging", value=3.0),
        trial(1, TrialStatus.STOPPED, reason="diverging"),
        trial(2, TrialStatus.STOPPED, reason="underperforming", value=2.5),
        trial(3, TrialStatus.RUNNING, value=1.25),
        trial(4, TrialStatus.WAITING),
    ),
    elapsed_seconds=65.0,
    tokens_per_second=12_345.0,
    seconds_left=125.0,
)


def test_a_line_says_everything() -> None:
    assert progress_line(PROGRESS) == (
        "[1m 05s] training | 1 running, 1 waiting, 3 stopped (2 diverging, 1 underperforming) | "
        "best validation loss 1.25 (trial 3) | 12.3k tokens/s | about 2m 05s left"
    )


def test_several_gpus_say_how_much_they_work_and_with_how_many_trials() -> None:
    ranks = (RankProgress(rank=0, num_trials=3, busy_share=0.97), RankProgress(rank=1, num_trials=2, busy_share=0.5))
    assert "| busy 97, 50 % (3 + 2 trials) |" in progress_line(replace(PROGRESS, ranks=ranks))
    # ranks that hold every trial together, and the moment before anything was measured
    together = tuple(replace(rank, num_trials=None) for rank in ranks)
    assert "| busy 97, 50 % |" in progress_line(replace(PROGRESS, ranks=together))
    unmeasured = tuple(replace(rank, busy_share=None) for rank in ranks)
    assert "GPUs" not in progress_line(replace(PROGRESS, ranks=unmeasured))


def test_the_best_is_the_first_in_the_study_s_order() -> None:
    assert PROGRESS.best is not None
    assert PROGRESS.best.trial_id == 3
    reached = ObjectiveMetric(name="exact_match", maximize=True)
    losses = (11.1, 4.6, 4.7)
    tied = [replace(trial(i, TrialStatus.RUNNING, value=0.0), best_loss=loss) for i, loss in enumerate(losses)]
    upward = RunProgress(phase="training", trials=tuple(tied), metric=reached)
    assert upward.best is not None
    assert upward.best.trial_id == 1
    assert RunProgress(phase="loading").best is None


def test_plain_lines_come_now_and_then() -> None:
    stream, clock = io.StringIO(), ManualClock()
    watcher = PlainWatcher(RUN_VIEW, stream, clock=clock)
    for _ in range(100):
        watcher.update(PROGRESS)
        clock.advance(0.25)
    watcher.note("trial 2 stopped")
    watcher.update(RunProgress(phase="writing the results"))
    lines = stream.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in lines] == [
        "[1m 05s] training",
        "[1m 05s] training",
        "[1m 05s] training",
        "trial 2 stopped",
        "[0s] writing the results",
    ]
    assert "\x1b" not in stream.getvalue()


def test_a_pipe_gets_plain_lines() -> None:
    with watching(RUN_VIEW, io.StringIO()) as watcher:
        assert isinstance(watcher, PlainWatcher)


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with watching(RUN_VIEW, io.StringIO()) as watcher:
        assert isinstance(watcher, LiveWatcher)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=160, height=50)
    with Live(console=console, auto_refresh=False) as live:
        LiveWatcher(RUN_VIEW, live).note("trial 2 stopped")
        LiveWatcher(RUN_VIEW, live).update(PROGRESS)
        live.refresh()
    shown = stream.getvalue()
    for words in (
        "trial 2 stopped",
        "underperforming",
        "3 *",
        "learning_rate 0.0004",
        "about 2m 05s left",
        "r 8 in every trial",
    ):
        assert words in shown


def test_many_trials_do_not_flood_the_screen() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=160, height=60)
    many = RunProgress(phase="training", trials=tuple(trial(i, TrialStatus.WAITING) for i in range(60)))
    with Live(console=console, auto_refresh=False) as live:
        LiveWatcher(RUN_VIEW, live).update(many)
        live.refresh()
    assert "and 44 more" in stream.getvalue()


def test_one_trial_shows_all_its_hyperparameters_below_the_table() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=160, height=60)
    with Live(console=console, auto_refresh=False) as live:
        LiveWatcher(RUN_VIEW, live).update(RunProgress(phase="training", trials=(trial(0, TrialStatus.RUNNING),)))
        live.refresh()
    assert "learning_rate 0.0001, r 8 in every trial" in stream.getvalue()


def test_silence() -> None:
    watcher = SilentWatcher()
    watcher.update(PROGRESS)
    watcher.note("nothing")


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("count", [1, 8, 60])
def test_a_narrow_terminal_keeps_every_number(width: int, count: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    statuses = list(TrialStatus)
    trials = tuple(
        replace(trial(n, statuses[n % 6], reason="underperforming", value=0.123456 + n), last_loss=1.23456)
        for n in range(count)
    )
    parts = RUN_VIEW.tables(RunProgress(phase="training", trials=trials), width, 50)
    for part in parts:
        console.print(part)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    numbers = {entry.trial_id: f"{entry.best_value:.4g}" for entry in trials}
    rows = [line.split() for line in lines if line[1:2].isdigit()]
    assert len(rows) == min(count, 16)
    assert all(numbers[int(row[0])] in row and "…" not in "".join(row) for row in rows)


def test_bars_say_how_trials_stand_without_colour() -> None:
    one_each = tuple(trial(n, status) for n, status in enumerate(TrialStatus))
    console = Console(width=160, record=True, file=io.StringIO(), color_system=None)
    console.print(RUN_VIEW.tables(RunProgress(phase="training", trials=one_each), 160, 50)[0])
    bars = [line.split()[1] for line in console.export_text().splitlines() if line[1:2].isdigit()]
    assert len({bar.strip("━·") for bar in bars}) == len(TrialStatus)
    assert {bar.count("·") for bar in bars} == {8}


def test_a_metric_is_shown_with_the_loss_it_rides_on() -> None:
    scored = [replace(entry, best_loss=entry.best_value and entry.best_value + 3) for entry in PROGRESS.trials]
    progress = replace(PROGRESS, trials=tuple(scored), metric=ObjectiveMetric(name="exact_match"))
    assert "best exact match 1.25, loss 4.25 (trial 3)" in progress_line(progress)
    console = Console(width=80, record=True, file=io.StringIO())
    for part in RUN_VIEW.tables(progress, 80, 50):
        console.print(part)
    shown = console.export_text()
    assert "loss" in shown
    assert "4.25" in shown


def test_a_screen_of_24_lines_shows_the_lines_below_the_table() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=24)
    many = replace(PROGRESS, trials=tuple(trial(i, TrialStatus.RUNNING, value=1.0 + i) for i in range(60)))
    with Live(console=console, auto_refresh=False) as live:
        LiveWatcher(RUN_VIEW, live).update(many)
        live.refresh()
    assert "and 47 more" in stream.getvalue()
    assert "r 8 in every trial" in stream.getvalue()
