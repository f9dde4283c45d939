"""What the report shows of trials that train on their own answers."""

from __future__ import annotations

from cohort.core.events import ReadAnswer
from cohort.report.rollout_section import rollout_section
from cohort.runs.records import EvaluationRecord, StepRecord, TrialRecord
from cohort.tuning.trial_status import TrialStatus

TRIAL = TrialRecord(
    trial_id=0, parameters={}, planned_steps=20, seed=0, status=TrialStatus.COMPLETED, steps_done=20, tokens=1
)


def step(number: int, **metrics: float) -> StepRecord:
    return StepRecord(
        trial_id=0,
        step=number,
        loss=-0.5,
        grad_norm=1.0,
        learning_rate=1e-3,
        num_tokens=9,
        metrics=metrics,
        answers=(ReadAnswer(prompt="1+1=", text=f"<answer {number}>", reward=1.0),) if metrics else (),
        position=number,
        seconds=1.0,
    )


def test_rewards_numbers_that_are_not_zero_and_answers_from_the_first_step_to_the_last() -> None:
    steps = [
        step(n, reward=0.1 * n, entropy=0.4, clip_share=0.0, groups_alike=0.0, sampler_difference=2e-7)
        for n in range(1, 21)
    ]
    evaluations = [EvaluationRecord(trial_id=0, step=20, validation_loss=-0.75, position=21, seconds=1.0)]
    section = rollout_section([TRIAL], steps=steps, evaluations=evaluations, best_id=0)
    assert section is not None
    assert [caption for caption, _ in section.others] == ["Entropy"]
    (own,) = section.answers
    shown = [line["step"] for line in own["lines"]]
    assert (shown[0], shown[-1]) == (1, 20)
    assert len(shown) <= 7
    assert "2e-07 nats in 20 steps" in section.note
    assert "<svg" in section.train
    assert "<svg" in section.validation


def test_other_runs_have_no_such_section() -> None:
    assert rollout_section([TRIAL], steps=[step(1)], evaluations=[], best_id=None) is None
