"""Numbers of a service for Prometheus: answers, jobs, each base model's engine. No tenant is named in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

__all__ = ["ServiceMetrics", "merged"]


class ServiceMetrics:
    """Counts what a server does. Each server has a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter(
            "cohort_service:http_requests", "Answers by route and status.", ("route", "status"), registry=self._registry
        )
        self._waiting = Gauge("cohort_service:jobs_waiting", "Jobs that wait for a node.", registry=self._registry)
        self._held = Gauge("cohort_service:jobs_held", "Jobs that this node has.", registry=self._registry)
        self._leads = Gauge("cohort_service:runs_jobs", "Whether this process runs jobs.", registry=self._registry)

    def count_answer(self, route: str, status: int) -> None:
        self._answers.labels(route=route, status=str(status)).inc()

    def text(self, *, num_waiting: int, num_held: int, is_leading: bool, of_bases: Iterable[bytes]) -> bytes:
        """Return all numbers in Prometheus' text format."""
        self._waiting.set(num_waiting)
        self._held.set(num_held)
        self._leads.set(int(is_leading))
        return merged([generate_latest(self._registry), *of_bases])


def merged(texts: Sequence[bytes]) -> bytes:
    """Return texts of several registries as one: each metric once, with the samples of all."""
    families: dict[str, list[str]] = {}
    heads: dict[str, list[str]] = {}
    for text in texts:
        name = ""
        for line in text.decode().splitlines():
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                known = heads.setdefault(name, [])
                if line not in known:
                    known.append(line)
            elif line:
                families.setdefault(name, []).append(line)
    lines = [line for name, head in heads.items() for line in (*head, *families.get(name, ()))]
    return ("\n".join(lines) + "\n").encode()
