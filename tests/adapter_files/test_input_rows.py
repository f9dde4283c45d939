"""A file named on the command line: found, read, and every row that cannot be read named."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.adapter_files.input_rows import find_source, raise_problems, read_rows
from cohort.core.errors import InputError, Problem


def refused(path: Path) -> Problem:
    with pytest.raises(InputError) as caught:
        find_source(path, option="--data")
    (problem,) = caught.value.problems
    assert str(problem.where) == "command line --data"
    return problem


def test_what_is_no_file_of_rows_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    (tmp_path / "rows.txt").write_text("")
    assert refused(tmp_path).hint == "Name one file in it."
    assert refused(tmp_path / "row.jsonl").hint == "Did you mean 'rows.jsonl'?"
    assert refused(tmp_path / "nowhere" / "a.jsonl").hint == "Check the path."
    assert "name it .jsonl" in refused(tmp_path / "rows.txt").hint
    assert ".parquet" in refused(tmp_path / "rows.txt").allowed


def test_a_home_directory_and_capital_letters_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ROWS.JSONL").write_text('{"prompt": "1+1="}\n')
    source = find_source(Path("~/ROWS.JSONL"), option="--input")
    assert (source.path, source.shown) == (tmp_path / "ROWS.JSONL", "~/ROWS.JSONL")
    (row,) = read_rows(source, option="--input")
    assert row.values == {"prompt": "1+1="}


def test_all_rows_that_cannot_be_read_are_named_up_to_a_screen(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1"}\n{"prompt": \n[1]\n')
    source = find_source(file, option="--data")
    with pytest.raises(InputError) as caught:
        read_rows(source, option="--data")
    assert [str(problem.where) for problem in caught.value.problems] == [f"{file}:2", f"{file}:3"]


def test_a_file_without_rows_and_one_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n")
    source = find_source(file, option="--data")
    with pytest.raises(InputError, match="no rows"):
        read_rows(source, option="--data")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # root may read everything, so the system's answer is played
    monkeypatch.setattr("cohort.adapter_files.input_rows.read_source", refuse)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\).*Check its permissions"):
        read_rows(source, option="--data")


def test_many_problems_are_counted_and_no_command_is_named_that_lists_them() -> None:
    raise_problems([])
    problems = [Problem(where=f"rows.jsonl:{n}", found=f"bad {n}", allowed="good", hint="Fix.") for n in range(1, 31)]
    with pytest.raises(InputError) as caught:
        raise_problems(problems)
    shown = caught.value.problems
    assert shown[:20] == tuple(problems[:20])
    # the others are counted in a line of their own
    assert len(shown) == 21
    assert "10" in f"{shown[-1].where} {shown[-1].found}"
    assert shown[-1].hint == "Correct these, then try again."
