"""Asks the BLAS about the sizes that passes may come to have, in a thread, once the first one is recorded.

A warm-up that asks waits for each answer behind the step before it, and the device then has nothing to do until the
next step. With all answers there, a size is recorded behind one step, and no warm-up waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from cohort.kernels.exact_product import AgreedShapes, ask_ahead
from cohort.training.cuda_graphs.recorded_shapes import GRAPH_TOKENS, recorded_rows

__all__ = ["AskingAhead", "is_asking", "settle_asking"]

_log = logging.getLogger(__name__)

# a question whose kernel is still being compiled waits for it
MOST_SECONDS = 5.0


class AskingAhead(threading.Thread):
    """A thread that asks; whatever keeps it from that leaves the questions to the passes."""

    def __init__(self, agreed: AgreedShapes, *, room: Callable[[], int]) -> None:
        """Prepare to ask.

        Args:
            agreed: Of the linears, after a pass that trains.
            room: As of :func:`cohort.kernels.exact_product.ask_ahead`.
        """
        # not a daemon: one would use the device while the interpreter ends; this one ends with its question
        super().__init__(name="cohort-asking", daemon=False)
        self._agreed, self._room = agreed, room
        self._is_ended = False

    def end(self) -> None:
        """Ask nothing more, and wait for the answer to the last question, some seconds at most."""
        self._is_ended = True
        self.join(MOST_SECONDS)

    def run(self) -> None:
        """Ask; :meth:`start` calls it in the thread."""
        try:
            ask_ahead(
                self._agreed,
                row_counts=recorded_rows(GRAPH_TOKENS),
                room=self._room,
                is_enough=lambda: self._is_ended or not threading.main_thread().is_alive(),
            )
        except Exception as error:  # whatever it is, the pass that asks finds the answer, or raises by itself
            _log.warning("sizes are asked about by the passes that need them: %s: %s", type(error).__name__, error)


def is_asking() -> bool:
    """Return whether the BLAS is being asked: what is allocated meanwhile is not a pass's alone."""
    return any(isinstance(thread, AskingAhead) for thread in threading.enumerate())


def settle_asking() -> None:
    """Wait until the BLAS is asked nothing, some seconds at most: what is measured next is to be a pass's alone."""
    for thread in threading.enumerate():
        if isinstance(thread, AskingAhead):
            thread.join(MOST_SECONDS)
