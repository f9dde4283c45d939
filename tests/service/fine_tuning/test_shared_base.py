"""A service whose jobs train on the copy of the base that serves: the same journey, with the bits of a sweep alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.engine.tune import tune
from cohort.service.hosting.service_file import load_service_file
from cohort.tasks.loading import load_task
from tests.service.fine_tuning.test_journey import answer, ended, upload
from tests.service.hosting.running_service import chat_rows, running_service


def adapters_of(run: Path) -> set[str]:
    """Return the SHA-256 of each trial's adapter; their folders are left out."""
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in run.glob("**/adapter_model.safetensors")}


def test_jobs_of_two_tenants_train_on_the_base_that_answers(tmp_path: Path) -> None:
    explicit = {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 15.0}
    with running_service(tmp_path / "service", share_base=True) as service:
        assert any("memory: base model" in note for note in service.opened.notes)
        clients = [service.client(service.tenant(name)) for name in ("ants", "bees")]
        jobs = [
            client.fine_tuning.jobs.create(
                model="base",
                training_file=upload(client, chat_rows(24 + 8 * place)),
                seed=place,
                hyperparameters=explicit,  # type: ignore[arg-type]
            )
            for place, client in enumerate(clients)
        ]
        prompt = "Dora at table ten wants five jams with six teas.\n"
        plain = answer(clients[0], "base", prompt)
        models = []
        for client, job in zip(clients, jobs, strict=True):
            done = ended(client, job.id)
            assert done.status == "succeeded", done.error
            models.append(done.fine_tuned_model or "")
        tuned = [answer(client, model, prompt) for client, model in zip(clients, models, strict=True)]
        assert plain not in tuned
        assert answer(clients[0], "base", prompt) == plain
        usage = service.opened.runner._base.turns.usage()  # type: ignore[union-attr]
        assert len({tenant for tenant, _ in usage}) >= 2
    for place, job in enumerate(jobs):
        run = tmp_path / "service" / "nodes" / "node" / "runs" / job.id
        # the server keeps no rows of a job that has ended
        rows = tmp_path / f"rows-{place}.jsonl"
        rows.write_bytes(chat_rows(24 + 8 * place))
        tune(load_task(run / "task.yaml", ["--dataset.train", str(rows)]), tmp_path / job.id)
        assert adapters_of(run) == adapters_of(tmp_path / job.id)


def test_a_base_that_is_shared_is_one_on_one_device(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    for workers in ("cpu: 2", "ray: auto"):
        file.write_text(f"workers: {{share_base: true, {workers}}}\n")
        with pytest.raises(InputError, match="share_base with one base on one device"):
            load_service_file(file)
