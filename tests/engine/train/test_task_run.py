"""One task's run between two steps: callbacks and replays; whole runs are tested end to end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cohort.core.errors import InputError, RunStateError
from cohort.core.events import TrialFailed
from cohort.runs.requests.trial_requests import RequestKind
from cohort.training.evaluation_loss import EvaluationLoss
from tests.engine.train.begun_task import Begun


def test_another_process_replays_what_was_recorded(begun: Begun) -> None:
    begun.ask(RequestKind.ADD, values={"learning_rate": 0.5})
    begun.ask(RequestKind.STOP, 1)
    before = begun.task_run._study
    resumed = begun.again()
    assert 6 not in resumed._study.trial_ids
    resumed.replay()
    assert resumed._study.decisions == before.decisions
    assert resumed._study.trial_ids == before.trial_ids
    assert resumed._specs[6] == begun.task_run._specs[6]


def test_a_record_that_the_events_do_not_lead_to_is_refused(begun: Begun) -> None:
    failed = TrialFailed(trial_id=1, step=0, message="a bad row")
    decisions = begun.task_run._study.observe(failed)
    # recorded without the event it follows from
    begun.run.store.append([], decisions)
    with pytest.raises(RunStateError, match="was recorded as"):
        begun.again().replay()


def test_a_search_that_a_callback_ended_stays_ended_up_to_where_it_was_ended(begun: Begun) -> None:
    position = begun.run.store.reader.log.last_position()
    begun.run.store.set_facts(search_ended="stopped by on_step", search_ended_at=position)
    resumed = begun.again()
    resumed.replay()
    assert begun.run.store.reader.facts().search_ended == "stopped by on_step"
    # the steps that led to it come after the checkpoint, and are repeated
    begun.run.store.set_facts(search_ended_at=position + 5)
    begun.again().replay()
    facts = begun.run.store.reader.facts()
    assert (facts.search_ended, facts.search_ended_at) == (None, None)


def test_the_base_model_is_measured_once_and_refused_without_a_finite_loss(
    begun: Begun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = EvaluationLoss(loss=math.nan, num_tokens=8, terms=(math.nan,), divisors=(1,))
    monkeypatch.setattr(begun.task_run._share, "evaluate_base", lambda **_: broken)
    with pytest.raises(InputError, match=r"validation loss is nan .*all of its weights are finite, so .* float32"):
        begun.task_run.measure_base()
    weights = load_file(begun.folder / "model" / "model.safetensors")
    names = sorted(weights)[:5]
    for name in names:
        weights[name] = torch.full_like(weights[name], math.inf)
    save_file(weights, tmp_path / "model.safetensors")
    object.__setattr__(begun.preparation.inputs, "model_directory", tmp_path)
    with pytest.raises(InputError, match=r"NaN or infinite weights in .* and 2 more.*Fetch its files again"):
        begun.task_run.measure_base()
    assert begun.run.store.reader.facts().base_metrics is None
    measured: list[float] = []

    def evaluate_base(**_: Any) -> EvaluationLoss:
        measured.append(2.5)
        return EvaluationLoss(loss=2.5, num_tokens=8, terms=(2.5,), divisors=(1,))

    monkeypatch.setattr(begun.task_run._share, "evaluate_base", evaluate_base)
    for _ in range(2):
        begun.task_run.measure_base()
    assert measured == [2.5]
    base = begun.run.store.reader.facts().base_metrics
    assert base is not None
    assert base["loss"] == 2.5
