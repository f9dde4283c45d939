"""A service whose files and adapters lie on S3 (moto's server), with the unmodified ``openai`` client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from cohort.core.errors import InputError
from tests.service.fine_tuning.test_journey import answer, blob_of, ended, upload
from tests.service.hosting.running_service import RunningService, chat_rows, running_service, wait_for
from tests.support.s3_server import S3Server, needs_s3, s3_server

_PROMPT = "Dora at table ten wants five jams with six teas.\n"
_SMALL = {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 15.0}

# a client whose server is gone leaves sockets to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    needs_s3()
    with s3_server() as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        found.make_bucket("bucket")
        yield found
        # it keeps its connection by its arguments, and another module has another server
        pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def on_s3(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("service")
    with running_service(folder, blobs="s3://bucket/cohort", share_base=True) as found:
        yield found


@pytest.fixture(autouse=True)
def _mended(server: S3Server) -> Iterator[None]:
    yield
    server.link.mend()
    server.refuse_keys(refuses=False)


def stored(service: RunningService) -> set[str]:
    return set(service.opened.store.blobs.folder.names())


def create(client: openai.OpenAI, rows: str) -> str:
    return client.fine_tuning.jobs.create(model="base", training_file=rows, hyperparameters=_SMALL, seed=1).id  # type: ignore[arg-type]


def test_from_a_file_to_a_served_model_and_back_to_nothing(on_s3: RunningService) -> None:
    client = on_s3.client(on_s3.tenant("journey"))
    rows = upload(client, chat_rows(24))
    assert client.files.content(rows).read() == chat_rows(24)
    job = ended(client, create(client, rows))
    assert job.status == "succeeded", job.error
    (results,) = job.result_files
    assert client.files.content(results).read().startswith(b"step,")
    model = job.fine_tuned_model or ""
    (checkpoint,) = client.fine_tuning.jobs.checkpoints.list(job.id).data
    tuned = answer(client, model, _PROMPT)
    assert tuned != answer(client, "base", _PROMPT)
    assert answer(client, checkpoint.fine_tuned_model_checkpoint, _PROMPT) == tuned
    # rows, results, the model and its checkpoint
    assert len(stored(on_s3)) == 4
    # nothing of it is on this machine but what is being served
    folder = Path(on_s3.opened.file.folder)
    assert not (folder / "blobs").exists()
    cached = folder / "nodes" / "node" / "adapters"
    assert len(list(cached.iterdir())) == 2
    assert client.models.delete(model).deleted
    assert len(list(cached.iterdir())) == 1
    assert client.files.delete(rows).deleted
    on_s3.opened.store.collect_blobs()
    assert len(stored(on_s3)) == 2
    with pytest.raises(openai.NotFoundError):
        client.files.content(rows)
    assert answer(client, checkpoint.fine_tuned_model_checkpoint, _PROMPT) == tuned


def test_a_file_that_expires_leaves_the_bucket(on_s3: RunningService) -> None:
    store, before = on_s3.opened.store, stored(on_s3)
    project = store.tenants.projects()[0].id
    file = store.project(project).files.add(
        [b"x"], filename="a", purpose="fine-tune", max_bytes=9, lifetime_seconds=0.2
    )
    assert stored(on_s3) == before | {file.blob}
    time.sleep(0.3)
    store.collect_blobs()
    assert stored(on_s3) == before


def test_a_network_that_is_lost_in_an_upload(on_s3: RunningService, server: S3Server) -> None:
    client = on_s3.client(on_s3.tenant("unlucky"))
    kept, before = upload(client, chat_rows(4)), stored(on_s3)
    server.link.cut(after_bytes=100_000)
    with pytest.raises(openai.InternalServerError) as refused:
        upload(client, chat_rows(960) * 4)
    assert (refused.value.status_code, refused.value.code) == (503, "store_unavailable")
    assert "acknowledged before is safe" in refused.value.message
    assert int(refused.value.response.headers["retry-after"]) >= 1
    with pytest.raises(openai.InternalServerError) as refused:
        client.files.content(kept)
    assert refused.value.code == "store_unavailable"
    assert httpx.get(f"{on_s3.url}/ready").status_code == 503
    assert httpx.get(f"{on_s3.url}/health").status_code == 200
    server.link.mend()
    assert [file.id for file in client.files.list()] == [kept]
    assert stored(on_s3) == before
    assert client.files.content(kept).read() == chat_rows(4)
    assert httpx.get(f"{on_s3.url}/ready").status_code == 200


def test_jobs_wait_for_a_bucket_that_is_away(on_s3: RunningService, server: S3Server) -> None:
    """Once before their rows were read, and once before their results are stored."""
    client = on_s3.client(on_s3.tenant("patient"))
    rows, jobs = upload(client, chat_rows(24)), client.fine_tuning.jobs
    server.link.cut()
    job_id = create(client, rows)
    time.sleep(1.0)
    assert jobs.retrieve(job_id).status == "validating_files"
    server.link.mend()
    # a small job may end before a test sees that it trains
    server.link.cut_at(b"PUT ")
    run = Path(on_s3.opened.file.folder) / "nodes" / "node" / "runs" / job_id
    wait_for((run / "best").exists)
    wait_for(lambda: server.link.is_cut)
    time.sleep(1.0)
    assert jobs.retrieve(job_id).status == "running"
    # others are served meanwhile
    assert client.completions.create(model="base", prompt="1", max_tokens=1).choices
    server.link.mend()
    job = ended(client, job_id)
    assert job.status == "succeeded", job.error
    assert len(job.result_files) == 1
    assert len(list(client.files.list(purpose="fine-tune-results"))) == 1
    assert answer(client, job.fine_tuned_model or "", _PROMPT)


def test_a_blob_that_somebody_removed_fails_its_job_alone(on_s3: RunningService) -> None:
    key = on_s3.tenant("robbed")
    client = on_s3.client(key)
    lost, rows = upload(client, chat_rows(24)), upload(client, chat_rows(25))
    on_s3.opened.store.blobs.folder.remove(blob_of(on_s3, lost, key=key))
    failed, other = create(client, lost), create(client, rows)
    assert ended(client, failed).status == "failed"
    error = client.fine_tuning.jobs.retrieve(failed).error
    assert error is not None
    assert (error.code, error.message) == ("server_error", "The server failed on this job; its log says why.")
    assert ended(client, other).status == "succeeded"


def test_keys_that_are_refused_are_told_as_a_server_that_is_away(on_s3: RunningService, server: S3Server) -> None:
    client = on_s3.client(on_s3.tenant("refused"))
    server.refuse_keys()
    with pytest.raises(openai.InternalServerError) as refused:
        upload(client, chat_rows(4))
    assert (refused.value.status_code, refused.value.code) == (503, "store_unavailable")
    # the answer does not name the server's own keys
    assert "Key" not in refused.value.message


@pytest.mark.parametrize(("bucket", "refuses"), [("nobody-made-this", False), ("bucket", True)])
def test_a_wrong_bucket_or_key_is_said_at_the_start(
    server: S3Server, tmp_path: Path, bucket: str, refuses: bool
) -> None:
    server.refuse_keys(refuses=refuses)
    with (
        pytest.raises(InputError, match=rf"service.yaml: blobs: found s3://{bucket}/x \(.*AWS_ACCESS_KEY_ID"),
        running_service(tmp_path, blobs=f"s3://{bucket}/x"),
    ):
        pass
