"""MLflow, over a fake of its client."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cohort.integrations.trackers.mlflow_tracker import MlflowTracker
from tests.integrations.trackers.two_trials import settings_in, step_of, train_two


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

    return MlflowTracker(settings_in(tmp_path), client=client, metric=metric, param=lambda name, value: (name, value))


def test_mlflow_batches_and_finds_its_runs_again(tmp_path: Path) -> None:
    client = _MlflowClient()
    train_two(_mlflow(tmp_path, client))
    assert sorted(client.runs) == ["id-trial-0000", "id-trial-0001"]
    first = client.runs["id-trial-0000"]
    assert first["params"] == {"learning_rate": "0.0001", "r": "8", "target_modules": "['q', 'v']"}
    assert [metric for metric in first["metrics"] if metric[0] == "train/loss"][-1][2] == 3
    assert ("eval/loss", 1.5, 2) in first["metrics"]
    assert ("test/loss", 1.75, 3) in first["metrics"], "sent to the run that has ended"
    assert (first["status"], first["tags"]["cohort.decision"]) == ("FINISHED", "stop: overfitting")
    assert len(client.runs["id-trial-0001"]["metrics"]) == 6
    before = client.requests
    again = _mlflow(tmp_path, client)
    for step in range(4, 104):
        again.log_step(step_of(1, step))
    assert client.requests == before + 1
    again.close()
    assert len(client.runs) == 2
