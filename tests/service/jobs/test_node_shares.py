"""What tenants had of a node is known after a restart, and each second of a run is charged once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.scheduling.shares.jobs import WaitingJob
from cohort.service.jobs import node_shares
from cohort.service.jobs.node_shares import EXPECTED_SECONDS, NodeShares

WEIGHTS = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}


def waiting(*tenants: str) -> list[WaitingJob]:
    return [WaitingJob(job_id=f"{tenant}-next", tenant=tenant, gpu_seconds=EXPECTED_SECONDS) for tenant in tenants]


def lead(shares: NodeShares, tenant: str) -> float:
    return shares._shares.accounts.lead(tenant)


def test_a_node_that_starts_again_knows_what_tenants_had(tmp_path: Path) -> None:
    shares = NodeShares(tmp_path / "shares.json")
    shares.order(waiting("a", "b"))
    shares.started("long", tenant="a", run_seconds=0.0)
    shares.corrected("long", run_seconds=3600.0)
    shares.keep()
    # killed: the job goes on, and is charged with what it takes from then on
    again = NodeShares(tmp_path / "shares.json")
    again.started("long", tenant="a", run_seconds=3600.0)
    assert lead(again, "a") == 3600.0
    assert [job.tenant for job in again.order(waiting("a", "b"))] == ["b", "a"]
    again.ended("long", run_seconds=4000.0)
    assert lead(again, "a") == 4000.0


def test_what_a_paused_run_had_is_not_charged_again(tmp_path: Path) -> None:
    shares = NodeShares(tmp_path / "shares.json")
    shares.started("job", tenant="a", run_seconds=0.0)
    shares.ended("job", run_seconds=600.0)
    shares.started("job", tenant="a", run_seconds=600.0)
    shares.corrected("job", run_seconds=610.0)
    assert lead(shares, "a") == 600.0 + EXPECTED_SECONDS
    shares.ended("job", run_seconds=900.0)
    assert lead(shares, "a") == 900.0


def test_a_job_that_was_lost_meanwhile_stays_as_it_was_charged(tmp_path: Path) -> None:
    shares = NodeShares(tmp_path / "shares.json")
    shares.started("lost", tenant="a", run_seconds=0.0)
    shares.started("held", tenant="b", run_seconds=0.0)
    shares.keep()
    again = NodeShares(tmp_path / "shares.json")
    again.settle({"held"})
    assert set(again._shares.running) == {"held"}
    assert lead(again, "a") == EXPECTED_SECONDS
    again.ended("lost", run_seconds=1e9)
    assert lead(again, "a") == EXPECTED_SECONDS


def test_shares_are_those_of_the_weights_although_the_node_is_killed_all_the_time(tmp_path: Path) -> None:
    """Jobs of the heavier tenants are shorter, and a node lives for three jobs."""
    took = dict.fromkeys(WEIGHTS, 0.0)
    shares = NodeShares(tmp_path / "shares.json")
    for number in range(1200):
        for tenant, weight in WEIGHTS.items():
            shares.weigh(tenant, weight)
        tenant = shares.order(waiting(*WEIGHTS))[0].tenant
        seconds = {"a": 30.0, "b": 300.0, "c": 70.0, "d": 200.0}[tenant]
        took[tenant] += seconds
        shares.started(f"{number}", tenant=tenant, run_seconds=0.0)
        shares.keep()
        if number % 3 == 0:
            shares = NodeShares(tmp_path / "shares.json")
        shares.ended(f"{number}", run_seconds=seconds)
        shares.keep()
    for tenant, weight in WEIGHTS.items():
        assert took[tenant] / sum(took.values()) == pytest.approx(weight / 10, rel=0.02), tenant


def test_a_file_that_is_damaged_or_cannot_be_written_stops_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "shares.json"
    for text in ("{", "[]", '{"shares": {}}', '{"shares": {"virtual_seconds": "x"}, "before": {}}'):
        path.write_text(text)
        shares = NodeShares(path)
        assert "begin even" in caplog.text
        caplog.clear()

    def full(*_: object) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(node_shares, "write_text", full)
    shares.started("job", tenant="a", run_seconds=0.0)
    shares.keep()
    assert "could not be written" in caplog.text
    monkeypatch.undo()
    shares.keep()
    assert lead(NodeShares(path), "a") == EXPECTED_SECONDS
