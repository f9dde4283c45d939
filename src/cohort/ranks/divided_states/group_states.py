"""States of a group's trials as the process that commands it has them: keys, under which each rank keeps its part."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.calls import Call
from cohort.ranks.divided_states.divided_rows import (
    GPU,
    HOST,
    DividedRows,
    PartKey,
    Placement,
    divided_rows_of,
)
from cohort.ranks.divided_states.part_keeper import PartKeeper
from cohort.ranks.divided_states.part_shelf import KeptParts
from cohort.ranks.rank_group import RankGroupPlan
from cohort.training.transfers.host_copies import HostCopies
from cohort.training.transfers.transfer_threads import ready_events
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["GroupStates"]


class GroupStates:
    """Has all ranks keep and load their parts; puts parts together where a state is written."""

    def __init__(
        self,
        plan: RankGroupPlan,
        layout: AdapterLayout,
        *,
        ask: Callable[[Call], list[Any]],
        ask_later: Callable[[Call], None],
    ) -> None:
        """Reach the ranks of a group.

        Args:
            plan: How they divide the model.
            layout: The adapted linears of the whole model.
            ask: Lets all ranks carry out a call, from any thread, and returns their answers in order.
            ask_later: Lets them carry out a call without an answer before the next one.
        """
        self._plan, self._layout, self._ask, self._ask_later = plan, layout, ask, ask_later
        self._numbers = itertools.count()
        self._copies = HostCopies()

    def state(self, spec: TrialSpec, *, on_gpu: bool) -> TrialState:
        """Have the ranks keep the state that a resident has now; return it in parts."""
        rows, step = self._keep(PartKeeper.keep_state, spec, on_gpu=on_gpu)
        return TrialState(adapter=AdapterState(weights=rows.pop("weights"), moments={**rows}), step=step)

    def weights(self, spec: TrialSpec, *, on_gpu: bool) -> Tensor:
        """Have the ranks keep the weights that a resident has now; return them in parts."""
        return self._keep(PartKeeper.keep_weights, spec, on_gpu=on_gpu)[0]["weights"]

    def load(self, spec: TrialSpec, state: TrialState, *, rows: TokenisedRows | None) -> int | None:
        """Make a trial resident from parts that the ranks have; return its slot, or None where they have none of it."""
        found = divided_rows_of(state)
        if not found or not all(self._divides_alike(spec, each) for each in found.values()):
            return None
        keys = {name: each.key for name, each in found.items()}
        slots: list[int] = self._ask(Call.of(PartKeeper.load_kept, spec, keys, state.step, rows))
        return slots[-1]

    def whole(self, rows: DividedRows) -> Tensor:
        """Return all parts together, [r, D] on the host."""
        parts: list[Tensor] = self._ask(Call.of(PartKeeper.part, rows.key))
        # of a GPU through pinned memory, in the thread that asks: several states are put together at the same time
        on_host = [
            self._copies.copied({"part": part}, ready_events([part]))["part"] if part.is_cuda else part
            for part in parts
        ]
        return self._plan.join(self._layout, rows.spec, on_host)

    def begin_leaving(self, keys: Sequence[PartKey]) -> None:
        self._ask(Call.of(PartKeeper.begin_leaving, keys))

    def have_left(self, keys: Sequence[PartKey]) -> bool:
        return all(self._ask(Call.of(PartKeeper.have_left, keys)))

    def wait_until_left(self, keys: Sequence[PartKey]) -> None:
        self._ask(Call.of(PartKeeper.wait_until_left, keys))

    def _divides_alike(self, spec: TrialSpec, rows: DividedRows) -> bool:
        """Return whether the ranks hold those parts that an adapter of ``spec`` has on them."""
        theirs, ours = rows.spec.adapter, spec.adapter
        return rows.source is self and (theirs.r, theirs.use_bdlora) == (ours.r, ours.use_bdlora)

    def _keep(
        self, method: Callable[[PartKeeper, int, int, bool], KeptParts], spec: TrialSpec, *, on_gpu: bool
    ) -> tuple[dict[str, DividedRows], int]:
        number = next(self._numbers)
        kept: list[KeptParts] = self._ask(Call.of(method, spec.trial_id, number, on_gpu))
        first, are_on_gpu = kept[0], all(each.are_on_gpu for each in kept)
        if not are_on_gpu and any(each.are_on_gpu for each in kept):
            # one GPU had no room: at one place on all ranks, as they are counted
            keys = [(number, name) for name in first.num_bytes]
            self.begin_leaving(keys)
            self.wait_until_left(keys)
        found = {
            name: DividedRows.kept(
                (number, name),
                shape=(spec.adapter.num_rows, self._layout.width),
                dtype=dtype,
                spec=spec,
                source=self,
                placement=Placement(
                    device=GPU if are_on_gpu else HOST,
                    gpu_bytes=max(each.num_bytes[name] for each in kept),
                    host_bytes=sum(each.num_bytes[name] for each in kept),
                ),
                let_go=self._let_go,
            )
            for name, dtype in first.dtypes.items()
        }
        return found, first.step

    def _let_go(self, key: PartKey) -> None:
        # wherever the last handle dies, which may be within a call
        self._ask_later(Call(verb="forget_parts", arguments={"keys": [key]}, is_answered=False))
