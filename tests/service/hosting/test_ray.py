"""A service whose jobs train on a Ray cluster of this machine: also when the node that trains is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.command import cohort
from tests.machine.cluster.ray_nodes import RayNodes, nodes
from tests.service.fine_tuning.test_journey import answer, ended, upload
from tests.service.hosting.running_service import chat_rows, wait_for
from tests.service.hosting.service_process import service_process
from tests.service.hosting.test_kills import adapter_digest, create

__all__ = ["nodes"]

_PROMPT = "Dora at table ten wants five jams with six teas.\n"


# ray itself leaves sockets and processes to the garbage collector
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_jobs_train_on_a_cluster_and_go_on_when_its_node_is_lost(nodes: RayNodes, tmp_path: Path) -> None:
    address = pytest.importorskip("ray").get_runtime_context().gcs_address
    folder = tmp_path / "service"
    with service_process(folder, options=("--ray", address, "--workers", "1")) as service:
        client = service.client(service.key)
        rows = upload(client, chat_rows(24))
        whole = create(client, rows)
        job = ended(client, whole)
        assert job.status == "succeeded", job.error
        model = job.fine_tuned_model or ""
        assert answer(client, model, _PROMPT) != answer(client, "quickstart", _PROMPT)
        cut = create(client, rows)
        events = client.fine_tuning.jobs.list_events
        wait_for(lambda: any(event.type == "metrics" for event in events(cut, limit=5).data))
        # its worker is on one of the two; only the new node is left
        nodes.add()
        nodes.lose(0)
        nodes.lose(1)
        job = ended(client, cut)
        assert job.status == "succeeded", job.error
        assert adapter_digest(folder, cut) == adapter_digest(folder, whole)
        service.process.terminate()
        assert service.process.wait(120) == 0


def test_without_ray_it_is_said_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # None in the list of modules is how Python marks one that cannot be imported
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    code, _, told = cohort(capsys, "service", "--ray", "auto")
    assert code == 2
    assert "found    no package ray" in told
    assert "pip install 'cohort-lora[ray]'" in told
