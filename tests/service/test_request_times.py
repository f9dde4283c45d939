"""Seconds to the first token, between tokens and to the last one, without torch."""

from __future__ import annotations

import subprocess
import sys
import time

from cohort.service.request_times import BUCKET_SECONDS, IntervalCounts, RequestTimes
from cohort.serving.step_output import FinishReason, StepOutput


class Seconds(list[float]):
    def observe(self, amount: float) -> None:
        self.append(amount)


def test_each_sequence_has_a_first_token_intervals_and_an_end() -> None:
    first, each, whole = Seconds(), IntervalCounts(), Seconds()
    times = RequestTimes(first, each, whole, begun=time.perf_counter() - 3.0)
    token = StepOutput(number=0, token=1)
    times.heard([(0, token), (1, token), (0, token)])
    times.heard([(0, StepOutput(number=0, token=None, finish=FinishReason.STOP))])
    assert (len(first), sum(each.counts), len(whole)) == (2, 1, 1)
    assert min(*first, *whole) >= 3.0
    # tokens that came together have no time between them
    assert each.counts[0] == 1


def test_counts_of_others_are_added() -> None:
    own, other = IntervalCounts(), IntervalCounts()
    own.add(0.5)
    other.add(0.5)
    other.add(1000.0)
    own.add_counts(other.counts, other.total_seconds)
    assert own.counts[BUCKET_SECONDS.index(0.5)] == 2
    assert own.counts[-1] == 1
    assert own.total_seconds == 1001.0


def test_it_needs_neither_torch_nor_prometheus() -> None:
    code = "import sys, cohort.service.request_times; assert not {'torch', 'prometheus_client'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
