"""What was there before is left out of collections; what comes later is collected."""

from __future__ import annotations

import subprocess
import sys

# in an interpreter of its own: this one has left what it imported out of collections
_BLOCK = """
import gc, sys, weakref
from cohort.core.process.lasting_objects import lasting_objects_uncollected

class Cycle:
    def __init__(self):
        self.own = self

if sys.argv[1:] == ["frozen"]:
    gc.freeze()
num_before = gc.get_freeze_count()
early = Cycle()
seen_early = weakref.ref(early)
with lasting_objects_uncollected():
    num_frozen = gc.get_freeze_count()
    later = Cycle()
    seen_later = weakref.ref(later)
    del early, later
    gc.collect()
    assert num_frozen > max(1000, num_before)
    assert seen_early() is not None
    assert seen_later() is None
gc.collect()
print(seen_early() is None, gc.get_freeze_count() >= num_before, gc.get_freeze_count() > 0)
"""


def facts(*words: str) -> str:
    return subprocess.run([sys.executable, "-c", _BLOCK, *words], capture_output=True, text=True, check=True).stdout


def test_only_what_comes_later_is_collected_and_none_of_it_is_lost_for_good() -> None:
    assert facts() == "True True False\n"


def test_what_a_process_had_left_out_before_stays_left_out() -> None:
    assert facts("frozen") == "False True True\n"
