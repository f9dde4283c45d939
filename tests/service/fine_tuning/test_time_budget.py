"""A job with a time budget ends when it is used up, with the best that it has by then."""

from __future__ import annotations

from tests.service.fine_tuning.test_journey import ended, upload
from tests.service.hosting.running_service import RunningService, chat_rows


def test_a_time_budget_ends_a_job_with_its_best(service: RunningService) -> None:
    client = service.client(service.tenant("hurrying"))
    job = client.fine_tuning.jobs.create(
        model="base",
        training_file=upload(client, chat_rows(24)),
        hyperparameters={"n_epochs": 400, "batch_size": 4, "learning_rate_multiplier": 5.0},
        extra_body={"cohort": {"time_budget_seconds": 1}},
    )
    done = ended(client, job.id)
    assert done.status == "succeeded", done.error
    told = [event.message for event in client.fine_tuning.jobs.list_events(job.id, limit=100)]
    assert sum("time budget of 1 seconds is used up" in text for text in told) == 1
    assert done.fine_tuned_model
    # of 400 epochs of six steps, those up to its best evaluation
    (checkpoint,) = client.fine_tuning.jobs.checkpoints.list(job.id).data
    assert checkpoint.step_number < 400 * 6
