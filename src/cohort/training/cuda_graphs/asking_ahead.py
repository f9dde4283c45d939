"""Asks the BLAS about the sizes that passes may come to have, in a thread, once the first one is recorded.

A warm-up that asks waits for each answer behind the step before it, and the device then has nothing to do until the
next step. With all answers there, a size is recorded in one step, and nothing waits.
"""

from __future__ import annotations

import contextlib
import threading

from cohort.kernels.exact_product import AgreedShapes, ask_ahead
from cohort.training.cuda_graphs.recorded_shapes import GRAPH_TOKENS, recorded_rows

__all__ = ["AskingAhead"]


class AskingAhead:
    """A thread that asks; whatever keeps it from that leaves the questions to the passes."""

    def __init__(self, agreed: AgreedShapes, *, room_bytes: int) -> None:
        """Begin to ask.

        Args:
            agreed: Of the linears, after a pass that trains.
            room_bytes: As of :func:`cohort.kernels.exact_product.ask_ahead`.
        """
        self._agreed, self._room_bytes = agreed, room_bytes
        self._is_ended = False
        # no daemon, which would use the device while the interpreter ends; it ends with its question
        self._thread = threading.Thread(target=self._ask, name="cohort-asking")
        self._thread.start()

    def end(self) -> None:
        """Ask nothing more, and wait for the answer to the last question."""
        self._is_ended = True
        self._thread.join()

    def _ask(self) -> None:
        # whatever is wrong: the pass that asks finds the answer, or raises by itself
        with contextlib.suppress(Exception):
            ask_ahead(
                self._agreed,
                row_counts=recorded_rows(GRAPH_TOKENS),
                room_bytes=self._room_bytes,
                is_enough=lambda: self._is_ended or not threading.main_thread().is_alive(),
            )
