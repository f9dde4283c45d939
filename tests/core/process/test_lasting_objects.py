"""What was there before is left out of collections; what comes later is collected."""

from __future__ import annotations

import gc
import weakref

from cohort.core.process.lasting_objects import lasting_objects_uncollected


class Cycle:
    def __init__(self) -> None:
        self.own = self


def test_only_what_comes_later_is_collected() -> None:
    early = Cycle()
    seen_early = weakref.ref(early)
    with lasting_objects_uncollected():
        num_frozen = gc.get_freeze_count()
        assert num_frozen > 1000
        later = Cycle()
        seen_later = weakref.ref(later)
        del early, later
        gc.collect()
        assert seen_early() is not None
        assert seen_later() is None
    # none of it is lost for good
    gc.collect()
    assert seen_early() is None
    assert gc.get_freeze_count() == 0
