"""Computes rewards in processes of their own, while training goes on.

A process has limits on time and memory and none of the program's secrets. What goes wrong in one call is a finding
about an answer and a function, never an exception: the answer has no reward, and the process is replaced.

Values are used again for the same function, row and answer: a reward is a function of these alone. Where a call for
many answers fails, they are tried one by one, so that only those that cannot be rewarded go without.
"""

from __future__ import annotations

import hashlib
import json
import math
import queue
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from cohort.core.setting_fields import Refusal
from cohort.metrics.rewards.plan import PlannedReward, RewardPlan
from cohort.metrics.rewards.worker_process import CallFailedError, RefusedError, WorkerProcess

__all__ = ["RewardFinding", "RewardRunner", "Rewards"]

Values = list[float | None]

# answers of a hundred steps of a large sweep
_MOST_CACHED = 200_000
# a function that hangs on every answer must not take its time limit for each of them
_MOST_HANGS = 2
# an answer without a value because of a failure, as opposed to None
_FAILED = math.nan


@dataclass(frozen=True, kw_only=True)
class RewardFinding:
    """What went wrong with an answer, or with all answers of a batch.

    Attributes:
        answer: Its place in the batch.
        where: File and line of its row.
        function: The name of the reward.
        what: What happened, a clause.
    """

    answer: int
    where: str
    function: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: the reward {self.function} {self.what}"


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """The rewards of one batch.

    Attributes:
        total: The weighted sum of each answer; NaN where no function gave a value, or one with a weight failed.
        by_function: The values by reward; NaN where there is none.
        findings: What went wrong.
    """

    total: tuple[float, ...]
    by_function: Mapping[str, tuple[float, ...]]
    findings: tuple[RewardFinding, ...] = ()


@dataclass(kw_only=True, eq=False)
class _Batch:
    """Answers that wait for rewards."""

    prompts: Sequence[Any]
    completions: Sequence[Any]
    columns: Sequence[Mapping[str, Any]]
    sources: Sequence[str]
    completion_ids: Sequence[Sequence[int]]
    values: dict[str, Values] = field(default_factory=dict)
    findings: list[RewardFinding] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.completions)

    def message(self, own: PlannedReward, places: Sequence[int]) -> dict[str, Any]:
        """Return the call of a function for some of the answers."""
        names = dict.fromkeys(name for place in places for name in self.columns[place])
        return {
            **own.call(),
            "prompts": [self.prompts[place] for place in places],
            "completions": [self.completions[place] for place in places],
            "completion_ids": [list(self.completion_ids[place]) for place in places],
            "columns": {name: [self.columns[place].get(name) for place in places] for name in names},
        }


class RewardRunner:
    """Owns the processes that compute the rewards of a plan."""

    def __init__(self, plan: RewardPlan) -> None:
        """Start nothing yet: processes start with the first batch."""
        self.plan = plan
        self._batches: dict[int, _Batch] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[tuple[int, PlannedReward] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._cache: OrderedDict[bytes, float | None] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._processes: list[WorkerProcess] = []
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self,
        *,
        prompts: Sequence[Any],
        completions: Sequence[str],
        columns: Sequence[Mapping[str, Any]],
        sources: Sequence[str],
        completion_ids: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """Begin to reward a batch of answers and return its number at once; each argument has an entry per answer.

        Args:
            prompts: Texts, or lists of messages.
            completions: The texts of the answers.
            columns: The row of each answer.
            sources: File and line of each row.
            completion_ids: The tokens of each answer; without them no reward may read them.
        """
        batch = _Batch(
            prompts=prompts,
            # as TRL gives them: an answer in a conversation is a message
            completions=[
                text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
                for prompt, text in zip(prompts, completions, strict=True)
            ],
            columns=columns,
            sources=sources,
            completion_ids=completion_ids if completion_ids is not None else [[] for _ in completions],
        )
        self._start()
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._batches[number] = batch
        for own in self.plan.functions:
            self._calls.put((number, own))
        return number

    def collect(self, timeout: float | None = None) -> dict[int, Rewards]:
        """Return the batches that are rewarded and were not returned before, by number.

        Args:
            timeout: Most seconds to wait for the first of them; None waits for it, 0 does not wait. Nothing is waited
                for where no batch is open.
        """
        found: dict[int, Rewards] = {}
        with self._lock:
            is_open = bool(self._batches)
        while is_open:
            try:
                number = self._done.get_nowait() if found or timeout == 0 else self._done.get(timeout=timeout)
            except queue.Empty:
                break
            with self._lock:
                batch = self._batches.pop(number)
                is_open = bool(self._batches)
            found[number] = self._rewards(batch)
        return found

    def problems(self) -> list[Refusal]:
        """Return what is wrong with the functions of the plan: each is imported in a process, and not called."""
        return self.looked_up()[1]

    def looked_up(self) -> tuple[dict[str, str], list[Refusal]]:
        """Import each function in a process; return a digest of each one's code by name, and what is wrong."""
        identities: dict[str, str] = {}
        found: list[Refusal] = []
        process = WorkerProcess(self.plan)
        try:
            for place, own in enumerate(self.plan.functions):
                try:
                    identities[own.name] = process.identity(own)
                except RefusedError as error:
                    found.append(_refusal(str(error), hint=error.hint, place=place))
                except CallFailedError as error:
                    found.append(_refusal(f"{own.name}, which {error}", hint="Correct the module.", place=place))
        finally:
            process.close()
        return identities, found

    def close(self) -> None:
        """End all processes, whatever they compute; open batches are never rewarded. A second call does nothing."""
        self._is_closed = True
        for process in self._processes:
            process.close()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._processes.clear()

    def _start(self) -> None:
        if self._threads:
            return
        for number in range(self.plan.workers):
            process = WorkerProcess(self.plan)
            self._processes.append(process)
            thread = threading.Thread(target=self._serve, args=(process,), name=f"rewards {number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, process: WorkerProcess) -> None:
        while not self._is_closed and (call := self._calls.get()) is not None:
            number, own = call
            with self._lock:
                batch = self._batches[number]
            try:
                values, findings = self._rewarded(batch, own, process)
            except Exception as error:  # a fault of ours must not leave the training program waiting
                values, findings = [_FAILED] * len(batch), [(0, f"could not be computed ({error!r:.200})")]
            with self._lock:
                batch.values[own.name] = values
                batch.findings += [
                    RewardFinding(answer=place, where=batch.sources[place], function=own.name, what=what)
                    for place, what in findings
                ]
                is_done = len(batch.values) == len(self.plan.functions)
            if is_done:
                self._done.put(number)

    def _rewarded(
        self, batch: _Batch, own: PlannedReward, process: WorkerProcess
    ) -> tuple[Values, list[tuple[int, str]]]:
        """Return the values of one function, and what went wrong with which answer."""
        try:
            identity = process.identity(own)
        except CallFailedError as error:
            return [_FAILED] * len(batch), [(0, str(error))] if len(batch) else []
        keys = [self._key(batch, own, place, identity=identity) for place in range(len(batch))] if own.cache else []
        with self._lock:
            known = {place: self._cache[key] for place, key in enumerate(keys) if key in self._cache}
        values: Values = [known.get(place) for place in range(len(batch))]
        places = [place for place in range(len(batch)) if place not in known]
        findings: list[tuple[int, str]] = []
        if not places:
            return values, findings
        try:
            found = process.call(batch.message(own, places))
            computed = dict(zip(places, found, strict=True))
        except CallFailedError as error:
            computed, findings = self._one_by_one(batch, own, places, error, process)
        for place, value in computed.items():
            values[place] = value
        if own.cache:
            with self._lock:
                self._cache.update(
                    {keys[place]: value for place, value in computed.items() if value is None or math.isfinite(value)}
                )
                while len(self._cache) > _MOST_CACHED:
                    self._cache.popitem(last=False)
        return values, findings

    def _one_by_one(
        self, batch: _Batch, own: PlannedReward, places: Sequence[int], error: CallFailedError, process: WorkerProcess
    ) -> tuple[dict[int, float | None], list[tuple[int, str]]]:
        """Return the values of those answers that can be rewarded alone, and why the others cannot."""
        if isinstance(error, RefusedError) or not own.cache or len(places) == 1:
            # nothing that depends on the answers, or a function that is given all of them together
            culprit = places[error.place if error.place is not None else 0]
            return dict.fromkeys(places, _FAILED), [(culprit, str(error))]
        computed: dict[int, float | None] = {}
        findings: list[tuple[int, str]] = []
        hangs = 0
        for place in places:
            if hangs == _MOST_HANGS:
                computed[place] = _FAILED
                continue
            try:
                (computed[place],) = process.call(batch.message(own, [place]))
            except CallFailedError as failure:
                computed[place] = _FAILED
                findings.append((place, str(failure)))
                hangs += failure.has_timed_out
        found = {place for place, _ in findings}
        left = [place for place in places if computed[place] is _FAILED and place not in found]
        findings += [(place, "was not called for it, since it hung for others") for place in left]
        if not findings:
            # each answer alone is rewarded, all together were not
            findings.append((places[0], f"{error}, called for {len(places)} answers; each alone was rewarded"))
        return computed, findings

    def _key(self, batch: _Batch, own: PlannedReward, place: int, *, identity: str) -> bytes:
        row = (batch.prompts[place], batch.completions[place], batch.columns[place], list(batch.completion_ids[place]))
        text = json.dumps([own.call(), identity, row], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).digest()

    def _rewards(self, batch: _Batch) -> Rewards:
        by_function = {
            own.name: tuple(math.nan if value is None else value for value in batch.values[own.name])
            for own in self.plan.functions
        }
        total = []
        for place in range(len(batch)):
            given = [
                own.weight * value
                for own in self.plan.functions
                if math.isfinite(value := by_function[own.name][place])
            ]
            # a failure is no None: the sum of the other functions would be another reward, unless it is measured only
            raw = (batch.values[own.name][place] for own in self.plan.functions if own.weight)
            is_whole = not any(value is not None and math.isnan(value) for value in raw)
            total.append(math.fsum(given) if given and is_whole else math.nan)
        order = sorted(batch.findings, key=lambda finding: (finding.answer, finding.function))
        return Rewards(total=tuple(total), by_function=by_function, findings=tuple(order))


def _refusal(found: str, *, hint: str, place: int) -> Refusal:
    return Refusal(
        found=found,
        allowed="a function of prompts, completions and columns that returns a number or None for each completion",
        hint=hint,
        at=("rewards", "functions", place),
    )
