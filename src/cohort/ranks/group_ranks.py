"""All ranks of a group, asked together: every one carries out every call, and no call begins before all answered.

Any thread may ask; calls of several come one after the other.

An error that all ranks raise leaves the group as it was. After any other, ranks may have passed each other what others
never took: the group is ended.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from cohort.core.errors import CohortError, RankLostError
from cohort.core.memory_records import PassKind
from cohort.core.rank_work import RankWork
from cohort.ranks.calls import Call, Reply
from cohort.ranks.rank_link import GO_ON, RankLink
from cohort.ranks.step_window import StepWindow
from cohort.ranks.work_meter import WorkMeter

__all__ = ["GroupRanks"]

# an error that all ranks share, such as a row that cannot be read, reaches all of them within this time
_GRACE_SECONDS = 5.0


class GroupRanks:
    """The processes of a group.

    Attributes:
        num_recomputed: Training passes that used gradient checkpointing, of the rank with the most.
    """

    def __init__(
        self, links: Sequence[RankLink], *, failed: Callable[[Iterable[BaseException], PassKind], object]
    ) -> None:
        """Take ranks that were started, in their order.

        Args:
            failed: Gets what ranks raised that others did not, and in which kind of pass, before the group ends.
        """
        self._links, self._failed = tuple(links), failed
        self._meter = WorkMeter(len(links))
        self.num_recomputed = 0
        self._asking = threading.RLock()
        self._later = deque[Call]()

    @property
    def work(self) -> tuple[RankWork, ...]:
        return self._meter.totals

    def wait_until_ready(self) -> None:
        """Take the first answer of each rank.

        Raises:
            RankLostError: a rank ended.
            Exception: a rank could not build its executor; no resume would help, and all are ended.
        """
        replies = self._replies()
        failed = [error for rank in sorted(replies) if (error := _error_of(replies[rank])) is not None]
        if failed:
            self._end()
            # others may have failed because of the one that knows why
            raise next((error for error in failed if isinstance(error, CohortError)), failed[0])

    def ask(self, call: Call, passes: PassKind | None = None) -> list[Any]:
        """Let all ranks carry out a call; return what each returned, in their order.

        Args:
            passes: The kind of its passes; None where it runs none.

        Raises:
            RankLostError: a rank ended, or raised what the others did not.
            Exception: what all ranks raised.
        """
        with self._asking:
            while self._later:
                self._send(self._later.popleft())
            self._send(call)
            return self._answers(during=call.verb, passes=passes)

    def ask_later(self, call: Call) -> None:
        """Let all ranks carry out a call that has no answer, before the next one that has."""
        self._later.append(call)

    def _send(self, call: Call) -> None:
        for link in self._links:
            try:
                link.ask(call)
            except RankLostError:
                self._end()
                raise

    def close(self) -> None:
        for link in self._links:
            link.close()

    def _answers(self, *, during: str, passes: PassKind | None) -> list[Any]:
        replies = self._replies()
        failed = {rank: error for rank, reply in replies.items() if (error := _error_of(reply)) is not None}
        if failed and len(failed) < len(self._links):
            self._end()
            self._failed(failed.values(), passes or PassKind.EVALUATE)
            rank, error = min(failed.items())
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise RankLostError(f"rank {rank} failed alone in {during} ({text}); {GO_ON}") from error
        ordered = [replies[rank] for rank in sorted(replies)]
        if passes is not None:
            # what a rank waits for another within a call counts: it can do nothing else
            self._meter.took(passes, {rank: reply.seconds for rank, reply in replies.items()}, {})
        self.num_recomputed = max((reply.standing.num_recomputed for reply in ordered), default=0)
        if failed and (raised := ordered[-1].error) is not None:
            raise raised from ordered[-1].cause
        return [reply.value for reply in ordered]

    def _replies(self) -> dict[int, Reply]:
        """Return the answers of all ranks; without those that stay silent after one failed."""
        pending = {link.fileno(): link for link in self._links}
        replies: dict[int, Reply] = {}
        deadline: float | None = None
        while pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait(list(pending), left)
            if not ready:
                break
            for each in ready:
                assert isinstance(each, int), "descriptors were waited for"
                link = pending.pop(each)
                try:
                    reply = replies[link.rank] = link.answer()
                except RankLostError as lost:
                    self._end()
                    raise lost from _first_error(replies)
                if _error_of(reply) is not None and deadline is None:
                    deadline = time.monotonic() + _GRACE_SECONDS
        return replies

    def _end(self) -> None:
        """End all ranks at once: some may wait for ever for one that is lost."""
        for link in self._links:
            link.kill()


def _error_of(reply: Reply) -> BaseException | None:
    if reply.error is not None:
        return reply.error
    return reply.value.error if isinstance(reply.value, StepWindow) else None


def _first_error(replies: Mapping[int, Reply]) -> BaseException | None:
    return next((error for rank in sorted(replies) if (error := _error_of(replies[rank])) is not None), None)
