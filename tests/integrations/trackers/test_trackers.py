"""Trackers: TensorBoard for real, the others over fakes that behave as their modules do."""

from __future__ import annotations

import contextvars
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.core.events import Evaluated, StepDone
from cohort.integrations.trackers import Tracker, Trackers, TrackerSettings, open_trackers
from cohort.integrations.trackers.hosted_tracker import trackio_tracker, wandb_tracker
from cohort.integrations.trackers.mlflow_tracker import MlflowTracker
from cohort.tuning.decisions import Decision, DecisionKind, Reason

PARK = (DecisionKind.PARK, Reason("warmed up"))
STOP = (DecisionKind.STOP, Reason("overfitting"))


def _settings(tmp_path: Path) -> TrackerSettings:
    return TrackerSettings(task_name="gsm8k", run_id="abc", directory=tmp_path)


def _step(trial_id: int, step: int) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=2.0 / step, grad_norm=0.5, learning_rate=1e-4, num_tokens=10)


def _decision(trial_id: int, step: int, kind: DecisionKind, reason: Reason) -> Decision:
    return Decision(trial_id=trial_id, step=step, kind=kind, reason=reason, rule="patterns", numbers={"gap": 0.25})


def _train_two(tracker: Tracker) -> None:
    """Two trials side by side; trial 0 is parked, comes back and is stopped; trial 1 is left running."""
    for trial in range(2):
        tracker.start_trial(trial, parameters={"learning_rate": 1e-4, "r": 8, "target_modules": ["q", "v"]})
    for step in range(1, 3):
        for trial in range(2):
            tracker.log_step(_step(trial, step))
    tracker.log_evaluation(Evaluated(trial_id=0, step=2, validation_loss=1.5, metrics={"exact_match": 0.5}))
    tracker.log_decision(_decision(0, 2, DecisionKind.NEW_BEST, Reason("improved")))
    tracker.log_decision(_decision(0, 2, *PARK))
    tracker.log_step(_step(0, 3))
    tracker.log_decision(_decision(0, 3, *STOP))
    tracker.close()


# protobuf and the standard library deprecate what tensorboard still uses
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_files_can_be_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an optional package")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = open_trackers(["tensorboard"], settings=_settings(tmp_path))
    _train_two(tracker)
    # a resumed run sends step 3 again: the files of before are dropped from there on
    again = open_trackers(["tensorboard"], settings=_settings(tmp_path))
    again.log_step(_step(0, 3))
    again.log_step(_step(0, 4))
    again.close()
    folders = sorted(folder.name for folder in (tmp_path / "tensorboard").iterdir())
    assert folders == ["trial-0000", "trial-0001"]
    events = EventAccumulator(str(tmp_path / "tensorboard" / "trial-0000"))
    events.Reload()
    assert [(scalar.step, scalar.value) for scalar in events.Scalars("train/loss")] == [
        (1, 2.0),
        (2, 1.0),
        (3, pytest.approx(2 / 3)),
        (4, 0.5),
    ]
    assert [scalar.value for scalar in events.Scalars("eval/exact_match")] == [0.5]
    assert "_hparams_/session_start_info" in events.summary_metadata


class _HostedRun:
    def __init__(self, module: _Hosted, **options: Any) -> None:
        self.module, self.options = module, options
        self.finished = False

    def log(self, numbers: dict[str, Any], *, step: int) -> None:
        assert not self.finished, "a finished run cannot log"
        assert self.module.current.get() is self, "the wrong run is current"
        self.module.logged[self.options.get("id") or self.options["name"]].append((step, numbers))

    def finish(self) -> None:
        assert self.module.current.get() is self, "the wrong run is current"
        self.finished = True


class _Hosted:
    """wandb's and trackio's manner: beginning a run ends the one that is current in this context."""

    def __init__(self) -> None:
        self.current: contextvars.ContextVar[_HostedRun | None] = contextvars.ContextVar("current", default=None)
        self.runs: list[_HostedRun] = []
        self.logged: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)

    def init(self, **options: Any) -> _HostedRun:
        previous = self.current.get()
        if previous is not None:
            previous.finish()
        run = _HostedRun(self, **options)
        self.current.set(run)
        self.runs.append(run)
        return run


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_hosted_trackers_keep_one_run_a_trial(tmp_path: Path, name: str) -> None:
    hosted = _Hosted()
    settings = _settings(tmp_path)
    _train_two(wandb_tracker(settings, wandb=hosted) if name == "wandb" else trackio_tracker(settings, trackio=hosted))
    keys = [run.options.get("id") or run.options["name"] for run in hosted.runs]
    # trial 0 was parked, so its run was finished and continued
    assert keys == ["abc-0000", "abc-0001", "abc-0000"]
    assert all(run.finished for run in hosted.runs)
    assert all(run.options["group"] == "gsm8k" and run.options["resume"] == "allow" for run in hosted.runs)
    assert hosted.runs[0].options["config"]["r"] == 8
    losses = [(step, numbers["train/loss"]) for step, numbers in hosted.logged["abc-0000"] if "train/loss" in numbers]
    assert losses == [(1, 2.0), (2, 1.0), (3, pytest.approx(2 / 3))]
    assert (2, {"eval/loss": 1.5, "eval/exact_match": 0.5}) in hosted.logged["abc-0000"]
    assert hosted.logged["abc-0000"][-1] == (3, {"decision/kind": "stop", "decision/reason": "overfitting"})


class _MlflowClient:
    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.requests = 0

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"experiment-{name}"

    def search_runs(self, experiments: list[str], *, filter_string: str) -> list[Any]:
        key = filter_string.split("'")[1]
        return [run["info"] for run in self.runs.values() if run["tags"]["cohort.trial_key"] == key]

    def create_run(self, experiment: str, *, run_name: str, tags: dict[str, str]) -> Any:
        info = SimpleNamespace(info=SimpleNamespace(run_id=f"id-{run_name}"))
        self.runs[info.info.run_id] = {"info": info, "tags": dict(tags), "metrics": [], "params": {}, "status": ""}
        return info

    def log_batch(self, run_id: str, *, metrics: Any = (), params: Any = ()) -> None:
        self.requests += 1
        self.runs[run_id]["metrics"] += metrics
        self.runs[run_id]["params"].update(params)

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self.runs[run_id]["tags"][key] = value

    def set_terminated(self, run_id: str, *, status: str) -> None:
        self.runs[run_id]["status"] = status


def _mlflow(tmp_path: Path, client: _MlflowClient) -> MlflowTracker:
    def metric(name: str, value: float, timestamp: int, step: int) -> tuple[str, float, int]:
        return (name, value, step)

    return MlflowTracker(_settings(tmp_path), client=client, metric=metric, param=lambda name, value: (name, value))


def test_mlflow_batches_and_finds_its_runs_again(tmp_path: Path) -> None:
    client = _MlflowClient()
    _train_two(_mlflow(tmp_path, client))
    assert sorted(client.runs) == ["id-trial-0000", "id-trial-0001"]
    first = client.runs["id-trial-0000"]
    assert first["params"] == {"learning_rate": "0.0001", "r": "8", "target_modules": "['q', 'v']"}
    assert [metric for metric in first["metrics"] if metric[0] == "train/loss"][-1][2] == 3
    assert ("eval/loss", 1.5, 2) in first["metrics"]
    assert (first["status"], first["tags"]["cohort.decision"]) == ("FINISHED", "stop: overfitting")
    assert len(client.runs["id-trial-0001"]["metrics"]) == 6
    before = client.requests
    again = _mlflow(tmp_path, client)
    for step in range(4, 104):
        again.log_step(_step(1, step))
    assert client.requests == before + 1
    again.close()
    assert len(client.runs) == 2


def _installed(**modules: Any) -> Callable[[str], ModuleType]:
    def import_module(name: str) -> Any:
        if name not in modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return modules[name]

    return import_module


def test_what_is_missing_is_said_all_at_once_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_trackers(["wandb", "comet", "tensorboard"], settings=_settings(tmp_path), import_module=_installed())
    text = str(caught.value)
    assert len(caught.value.problems) == 3
    assert "pip install wandb" in text
    assert "pip install tensorboard" in text
    assert "'comet'; allowed: tensorboard, wandb, mlflow, trackio, none" in text


def test_a_package_s_own_missing_dependency_is_not_blamed_on_it(tmp_path: Path) -> None:
    def import_module(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'git'", name="git")

    with pytest.raises(ModuleNotFoundError, match="git"):
        open_trackers(["wandb"], settings=_settings(tmp_path), import_module=import_module)


def test_none_reports_to_nobody(tmp_path: Path) -> None:
    _train_two(open_trackers(["none"], settings=_settings(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_tensorboardx_will_do_and_several_trackers_hear_everything(tmp_path: Path) -> None:
    written: list[tuple[str, int]] = []

    class Writer:
        file_writer = SimpleNamespace(add_summary=lambda summary: None)

        def __init__(self, *, log_dir: str, purge_step: int) -> None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, step))

        def add_text(self, name: str, text: str, step: int) -> None:
            written.append((text, step))

        def close(self) -> None:
            pass

    hosted = _Hosted()
    modules = {
        "tensorboardX": SimpleNamespace(__name__="tensorboardX", SummaryWriter=Writer),
        "tensorboardX.summary": SimpleNamespace(hparams=lambda parameters, metrics: (1, 2, 3)),
        "wandb": hosted,
    }
    _train_two(
        open_trackers(["tensorboard", "wandb"], settings=_settings(tmp_path), import_module=_installed(**modules))
    )
    assert ("step 3: stop, overfitting (patterns) gap 0.25", 3) in written
    assert len(hosted.runs) == 3


def test_a_tracker_that_fails_is_dropped_and_the_others_go_on() -> None:
    class Recorder:
        def __init__(self, *, fails_at: int | None) -> None:
            self.steps: list[int] = []
            self.closed = False
            self.fails_at = fails_at

        def log_step(self, event: StepDone) -> None:
            if event.step == self.fails_at:
                raise ConnectionError("server gone")
            self.steps.append(event.step)

        def close(self) -> None:
            self.closed = True

    bad, good = Recorder(fails_at=2), Recorder(fails_at=None)
    recorders: Any = {"wandb": bad, "mlflow": good}
    trackers = Trackers(recorders)
    for step in range(1, 4):
        trackers.log_step(_step(0, step))
    trackers.close()
    assert (bad.steps, good.steps) == ([1], [1, 2, 3])
    assert good.closed
    assert trackers.failures == {"wandb": "ConnectionError: server gone"}
