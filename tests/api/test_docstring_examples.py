"""The examples in the docstrings of the public modules do what they show, in their order."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from tests.end_to_end.tiny_tasks import write_inputs

# the first one leaves the run that the others look at
MODULES = ("cohort", "cohort.api.runs", "cohort.api.engine")
LEAST_EXAMPLES = 3


def test_the_examples_of_public_modules_do_what_they_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in MODULES:
        module = importlib.import_module(name)
        (found,) = (test for test in doctest.DocTestFinder(recurse=False).find(module, name) if test.examples)
        assert sum(bool(example.want) for example in found.examples) >= LEAST_EXAMPLES
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.REPORT_NDIFF)
        lines: list[str] = []
        runner.run(found, out=lines.append, clear_globs=False)
        assert not runner.failures, "".join(lines)
