"""A place is kept in parts and shown as one text; a layer above adds the file and the line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.core.errors import Problem
from cohort.core.source_location import Place, dotted


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (Place(file="task.yaml", line=12, key=("search", "space", "r", 1)), "task.yaml:12: search.space.r[1]"),
        (Place(file="task.yaml", key=("lora",)), "task.yaml: lora"),
        (Place(file="task.yaml", line=3), "task.yaml:3"),
        (Place(key=("dataset", "train")), "dataset.train"),
        (Place(key=("dataset", "train"), text="rows.jsonl"), "dataset.train: rows.jsonl"),
        (Place(option="--gpus"), "--gpus"),
        (Place(option="command line --seed", line=1), "command line --seed:1"),
        (Place(option="command line --search.space.r", key=(1,)), "command line --search.space.r: [1]"),
        (Place(text="trial 3: r"), "trial 3: r"),
    ],
)
def test_how_a_place_is_shown(place: Place, shown: str) -> None:
    assert str(place) == shown


def test_a_key_moves_and_a_line_is_added() -> None:
    section = Place(file="task.yaml", key=("search", "space"))
    assert section.below("r", 0).key == ("search", "space", "r", 0)
    assert section.at_key("search", "constraints") == Place(file="task.yaml", key=("search", "constraints"))
    assert str(section.at_line(7)) == "task.yaml:7: search.space"


def test_a_file_is_put_in_front_once() -> None:
    key = Place(key=("num_gpus",))
    assert str(key.in_file("a.yaml")) == "a.yaml: num_gpus"
    assert key.in_file("a.yaml").in_file("a.yaml") == key.in_file("a.yaml")
    assert str(Place(file="rows.jsonl", line=2).in_file("a.yaml")) == "a.yaml: rows.jsonl:2"


def test_a_column_with_a_dot_stays_one_part() -> None:
    assert dotted(("dataset", "columns", "a.b")) == "dataset.columns.a.b"
    assert Place(key=("dataset", "columns")).below("a.b").key[-1] == "a.b"


def test_a_problem_takes_words_or_a_place() -> None:
    problem = Problem(where="--gpus", found="0", allowed="1", hint="Write 1.")
    assert problem.where == Place(text="--gpus")
    moved = replace(problem, where=Place(key=("num_gpus",)))
    assert str(moved) == "num_gpus: found 0; allowed: 1. Write 1."
    assert moved != problem
    assert len({problem, replace(problem)}) == 1
