"""What a command refuses in a process that torchrun has started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cohort.cli.launched_ranks import (
    code_digest,
    launched_ranks,
    numbers_of_processes,
    options_with,
    refuse_other_number,
    refuse_own_recovery,
    refuse_queue,
)
from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.ranks.launch.launch_place import LaunchPlace
from cohort.ranks.launch.launched import LaunchedRanks
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

TWO = LaunchedRanks(LaunchPlace(rank=0, num_ranks=2), [])


def test_an_ordinary_process_has_no_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with launched_ranks() as ranks:
        assert ranks is None
    assert options_with(None) is None
    refuse_own_recovery(None, "resume")
    refuse_queue(None, Path("runs"))


def test_a_task_for_another_number_of_gpus_is_refused(tmp_path: Path) -> None:
    folder = write_inputs(tmp_path / "in")
    for num_gpus in ("auto", 0, 2):
        refuse_other_number(tiny_task(folder, num_gpus=num_gpus), TWO)
    with pytest.raises(InputError, match="4, but torchrun has started 2 processes"):
        refuse_other_number(tiny_task(folder, num_gpus=4), TWO)


def test_what_torchrun_does_itself_is_refused() -> None:
    refuse_own_recovery(TWO, "stop")
    with pytest.raises(InputError, match="torchrun --max-restarts 3"):
        refuse_own_recovery(TWO, "resume")
    with pytest.raises(InputError, match=r"Leave torchrun out: cohort resume runs/team"):
        refuse_queue(TWO, Path("runs/team"))


def test_every_process_of_the_launch_trains() -> None:
    options = options_with(TWO)
    assert options is not None
    assert (options.num_ranks, options.launched) == (2, TWO)


def test_a_number_of_gpus_that_torchrun_decides_is_named_by_its_option(tmp_path: Path) -> None:
    problem = Problem(where=Place(key=("num_gpus",)), found="3 ranks", allowed="1, 2", hint="Write num_gpus: 2.")
    with pytest.raises(InputError) as caught, numbers_of_processes():
        raise InputError(problem)
    assert str(caught.value.problems[0].where) == "torchrun --nproc-per-node"
    assert caught.value.problems[0].hint == "Start as many processes as are allowed: torchrun --nproc-per-node N."
    other = tiny_task(write_inputs(tmp_path / "in"), num_gpus=4)
    with pytest.raises(InputError, match="num_gpus: found 4"), numbers_of_processes():
        refuse_other_number(other, TWO)


def test_the_same_code_has_the_same_digest() -> None:
    assert re.fullmatch("[0-9a-f]{12}", code_digest())
    assert code_digest() == code_digest()
