"""Where the steps of ranks spend their time: kernels, copies from other GPUs under them or alone, and nothing at all.

Every rank profiles the same steps, replays of recorded passes included: the profiler sees their kernels one by one.
A kernel's mean is given alone and under copies, so that what copies cost the products stands next to what they hide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from cohort.core.memory_records import PassKind
from cohort.ranks.calls import Call
from cohort.ranks.grouped_executor import GroupedExecutor
from cohort.ranks.replicated_executor import ReplicatedExecutor
from cohort.ranks.training_executor import TrainingExecutor

__all__ = ["ProfiledRun", "Span", "profile_steps", "summarise"]

MOST_KERNELS, MOST_GAPS = 24, 8
# of a kernel's name: templates and signatures go on for lines
NAME = 90
# shorter gaps lie between any two kernels
LEAST_GAP_NS = 20_000


@dataclass(frozen=True, kw_only=True)
class Span:
    """One kernel or copy on the device, or one call of the host, in nanoseconds."""

    name: str
    begin: int
    end: int
    stream: int = 0

    @property
    def is_copy(self) -> bool:
        """Whether it moves bytes between GPUs, or within one."""
        return self.name.startswith("Memcpy")


@dataclass(frozen=True, kw_only=True)
class ProfiledRun(Call):
    """Asks a rank for some steps, the ``quotas`` of its arguments, under a profiler."""

    verb: str = "profiled_run"

    def carried_out_by(self, tenant: object) -> dict[str, Any]:
        """Return what :func:`summarise` says of them."""
        return _profiled(tenant, self.arguments["quotas"])


def profile_steps(executor: TrainingExecutor, quotas: Mapping[int, int]) -> list[dict[str, Any]]:
    """Run steps of resident trials under a profiler on every rank; return what each found, in their order.

    The trials are to be dropped afterwards: rank 0 has not counted these steps.
    """
    if isinstance(executor, GroupedExecutor):
        found: list[dict[str, Any]] = executor._ranks.ask(ProfiledRun(arguments={"quotas": dict(quotas)}))
        return found
    assert isinstance(executor, ReplicatedExecutor), "several ranks are profiled"
    shares = executor._shares(quotas)
    asked = {
        rank: ProfiledRun(arguments={"quotas": {key: quotas[key] for key in keys}}) for rank, keys in shares.items()
    }
    by_rank, error = executor._ranks.together(asked, PassKind.TRAIN)
    if error is not None:
        raise error
    return [by_rank[rank] for rank in sorted(by_rank)]


def _profiled(executor: Any, quotas: Mapping[int, int]) -> dict[str, Any]:
    on_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        executor.run(quotas)
        if on_gpu:
            torch.cuda.synchronize()
    assert profiler.profiler is not None, "it has run"
    events = profiler.profiler.kineto_results.events()
    device: list[Span] = []
    host: list[Span] = []
    for event in events:
        begin = int(event.start_ns())
        span = Span(
            name=event.name(), begin=begin, end=begin + int(event.duration_ns()), stream=event.device_resource_id()
        )
        (host if event.device_type() == DeviceType.CPU else device).append(span)
    return summarise(device, host, num_steps=max(quotas.values()))


def summarise(device: Sequence[Span], host: Sequence[Span], *, num_steps: int) -> dict[str, Any]:
    """Return milliseconds of a step: what the device does, its slowest kernels, its longest gaps and the host's calls.

    Args:
        device: Kernels, copies and fillings of memory.
        host: Calls of the driver, and on a CPU of operators.
    """
    per_step = 1e-6 / num_steps
    copies = _union((span.begin, span.end) for span in device if span.is_copy)
    kernels = _union((span.begin, span.end) for span in device if not span.is_copy)
    both = _union((*copies, *kernels))
    wall = (both[-1][1] - both[0][0]) if both else 0
    return {
        "steps": num_steps,
        "wall_ms": wall * per_step,
        "kernels_ms": _length(kernels) * per_step,
        "copies_ms": _length(copies) * per_step,
        "copies_alone_ms": (_length(both) - _length(kernels)) * per_step,
        "idle_ms": (wall - _length(both)) * per_step,
        "copies": [
            {"name": name[:NAME], "count": len(spans), "ms": _total(spans) * per_step, "mean_us": _mean_us(spans)}
            for name, spans in _by_name(span for span in device if span.is_copy)
        ][:MOST_GAPS],
        "kernels": [_kernel_row(name, spans, copies, per_step) for name, spans in _by_name(_no_copies(device))][
            :MOST_KERNELS
        ],
        "gaps": _gaps(_no_copies(device), copies),
        "host": [
            {"name": name[:NAME], "count": len(spans), "ms": _total(spans) * per_step} for name, spans in _by_name(host)
        ][:MOST_GAPS],
    }


def _kernel_row(name: str, spans: Sequence[Span], copies: Sequence[tuple[int, int]], per_step: float) -> dict[str, Any]:
    under, alone = [], []
    for span in spans:
        share = _overlap(span, copies) / max(1, span.end - span.begin)
        # those with a part of a copy are of neither kind
        if share > 0.9:
            under.append(span)
        elif share < 0.1:
            alone.append(span)
    row = {"name": name[:NAME], "count": len(spans), "ms": _total(spans) * per_step}
    if under and alone:
        row |= {"alone_us": _mean_us(alone), "under_copies_us": _mean_us(under), "under_copies": len(under)}
    return row


def _gaps(kernels: Sequence[Span], copies: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the longest times without a kernel, and what stands before and after each."""
    found: list[dict[str, Any]] = []
    last: Span | None = None
    for span in sorted(kernels, key=lambda span: span.begin):
        if last is not None and span.begin - last.end > LEAST_GAP_NS:
            gap = Span(name="", begin=last.end, end=span.begin)
            found.append(
                {
                    "ms": (gap.end - gap.begin) / 1e6,
                    "copies_ms": _overlap(gap, copies) / 1e6,
                    "before": last.name[:NAME],
                    "after": span.name[:NAME],
                }
            )
        last = span if last is None or span.end > last.end else last
    return sorted(found, key=lambda gap: -float(gap["ms"]))[:MOST_GAPS]


def _no_copies(device: Iterable[Span]) -> list[Span]:
    return [span for span in device if not span.is_copy]


def _by_name(spans: Iterable[Span]) -> list[tuple[str, list[Span]]]:
    """Return spans by name, those that take longest first."""
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(span.name, []).append(span)
    return sorted(found.items(), key=lambda item: -_total(item[1]))


def _total(spans: Sequence[Span]) -> int:
    return sum(span.end - span.begin for span in spans)


def _mean_us(spans: Sequence[Span]) -> float:
    return _total(spans) / len(spans) / 1e3


def _union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return disjoint intervals that cover the same time, in order."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _length(intervals: Sequence[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in intervals)


def _overlap(span: Span, intervals: Sequence[tuple[int, int]]) -> int:
    return sum(max(0, min(span.end, end) - max(span.begin, begin)) for begin, end in intervals)
