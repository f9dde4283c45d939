"""The training passes that the resident trials will make next, known because the order of their rows is.

They are what a recording is chosen for. Trials that leave earlier make fewer of them: nothing but time depends on that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cohort.data.packing import split_micro_batches
from cohort.data.tokenised import TokenisedRows
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.step_samples import Resident

__all__ = ["LOOKAHEAD", "UpcomingPasses"]

# steps that are looked at: a size that none of them pays for can be recorded later
LOOKAHEAD = 32

# per group of rows: tokens, tokens of the longest row, trained tokens; int64 [groups, 3]
_Groups = NDArray[np.int64]


class UpcomingPasses:
    """Looks ahead as far as :data:`LOOKAHEAD` steps, once for each pack and every half of that."""

    def __init__(self) -> None:
        # the rows themselves are kept, or another object could take their number
        self._groups: dict[tuple[int, int], tuple[TokenisedRows, _Groups]] = {}
        self._steps: tuple[tuple[int, int], ...] = ()
        self._passes: list[list[PassShape]] = []

    def after(self, residents: Sequence[Resident], *, token_budget: int) -> list[PassShape]:
        """Return the passes of the steps after the present one."""
        if not residents:
            return []
        steps = tuple((resident.spec.trial_id, resident.step) for resident in residents)
        ahead = steps[0][1] - self._steps[0][1] if self._steps else -1
        is_same_pack = steps == tuple((trial_id, step + ahead) for trial_id, step in self._steps)
        if not is_same_pack or not 0 <= ahead <= LOOKAHEAD // 2:
            self._passes = self._look_ahead(residents, token_budget=token_budget)
            self._steps, ahead = steps, 0
        return [shape for of_step in self._passes[ahead:] for shape in of_step]

    def _look_ahead(self, residents: Sequence[Resident], *, token_budget: int) -> list[list[PassShape]]:
        # rows of tasks that have left would stay in memory
        present = {id(resident.rows) for resident in residents}
        self._groups = {key: kept for key, kept in self._groups.items() if key[0] in present}
        found = []
        for ahead in range(1, LOOKAHEAD + 1):
            parts, sizes = [], []
            for resident in residents:
                if resident.step + ahead < resident.spec.num_steps:
                    size = resident.spec.objective.group_size
                    own = self._groups_of(resident.rows, size)[resident.order.batch(resident.step + ahead)]
                    parts.append(own)
                    sizes += [size] * len(own)
            if not parts:
                break
            found.append(_shapes(np.concatenate(parts), sizes, token_budget=token_budget))
        return found

    def _groups_of(self, rows: TokenisedRows, size: int) -> _Groups:
        key = (id(rows), size)
        if key not in self._groups:
            lengths = np.diff(rows.offsets)
            trained = np.add.reduceat(rows.trained_T.astype(np.int64), rows.offsets[:-1])
            num_groups = len(lengths) // size
            by_group = [values[: num_groups * size].reshape(num_groups, size) for values in (lengths, trained)]
            columns = (by_group[0].sum(1), by_group[0].max(1), by_group[1].sum(1))
            self._groups[key] = rows, np.stack(columns, axis=1)
        return self._groups[key][1]


def _shapes(groups: _Groups, sizes: Sequence[int], *, token_budget: int) -> list[PassShape]:
    """Return the shape of each pass that a step over ``groups`` is cut into."""
    return [
        PassShape(
            num_rows=int(groups[run.start : run.stop, 0].sum()) + 1,
            num_sequences=sum(sizes[run.start : run.stop]),
            length=int(groups[run.start : run.stop, 1].max()),
            num_trained=int(groups[run.start : run.stop, 2].sum()),
        )
        for run in split_micro_batches(groups[:, 0].tolist(), token_budget=token_budget)
    ]
