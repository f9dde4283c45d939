"""Goes on by itself after the process of a GPU was lost: from the last checkpoint, with as many processes or fewer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from cohort.core.errors import RankLostError
from cohort.core.units import counted
from cohort.engine.train.open_run import RunOptions
from cohort.engine.train.watching.progress import ProgressWatcher
from cohort.engine.tune import resume
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.training.device_memory import release_cached

__all__ = ["MOST_LOSSES", "train_despite_losses"]

# losses in a row without a step in between: what kills processes at once would go on for ever
MOST_LOSSES = 3


def train_despite_losses(
    begin: Callable[[], None],
    run_directory: Path,
    *,
    watcher: ProgressWatcher,
    options: RunOptions | None = None,
    most_losses: int = MOST_LOSSES,
) -> None:
    """Carry out ``begin``, and resume the run as often as a rank is lost.

    The first resume starts as many processes as before, since most lose their process and not their GPU; each further
    one that follows without progress starts one fewer.

    Args:
        begin: Trains the run in ``run_directory``, from its start or from where it stands.
        most_losses: Losses in a row, without a step in between, that end the run; 1: the first one.

    Raises:
        RankLostError: that many ranks were lost.
    """
    options = options or RunOptions()
    act, losses, before = begin, 0, 0
    while True:
        lost: RankLostError | None = None
        try:
            act()
        except RankLostError as error:
            lost = error
        if lost is None:
            return
        if most_losses == 1:
            raise lost
        steps, num_ranks, rank_group = _recorded(run_directory)
        losses, before = (1 if steps > before else losses + 1), max(steps, before)
        # before the first step nothing was saved
        if losses >= most_losses or num_ranks is None:
            raise lost
        if losses > 1:
            options = replace(options, num_ranks=_fewer(options.num_ranks or num_ranks, rank_group=rank_group))
        with_ranks = counted(options.num_ranks or num_ranks, "rank")
        watcher.note(f"warning: {str(lost).partition(';')[0]}; going on with {with_ranks} from the last checkpoint")
        # its frames hold the model, which the resumed run loads again
        del lost
        release_cached(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        act = partial(resume, run_directory, watcher=watcher, options=options)


def _fewer(num_ranks: int, *, rank_group: str | None) -> int:
    """Return the next lower number of ranks: what divides a model into shards divides it into half as many as well."""
    return max(1, num_ranks // 2 if rank_group == "tensor" else num_ranks - 1)


def _recorded(run_directory: Path) -> tuple[int, int | None, str | None]:
    """Return the steps that all trials have done, and the ranks that the run began with; None before it has begun.

    The last is the strategy of ranks that held one model together.
    """
    database = RunDirectory(run_directory).database
    if not database.exists():
        return 0, None, None
    with RunReader.open(database) as reader:
        steps = sum(len(reader.log.steps(trial.trial_id)) for trial in reader.trials())
        sizes = reader.facts().sizes
        return steps, sizes.num_ranks if reader.checkpoints() else None, sizes.rank_group
