"""A declaration is read from a file's text: nothing else of the file runs, and what it may not use is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cohort.core.declarations import UnreadableDeclarationError, declaration_in

WORDS = {"made": lambda **values: values}


def test_the_assignment_alone_is_evaluated() -> None:
    source = (
        'import nothing_of_this_name\n\nDECLARATION = made(\n    name="own", reads=("a", "b"), least=-1\n)\n1 / 0\n'
    )
    assert declaration_in(source, words=WORDS) == {"name": "own", "reads": ("a", "b"), "least": -1}


@pytest.mark.parametrize("written", ["DECLARATION=made(a=1)", "DECLARATION: Mapping[str, int] = made(a=1)"])
def test_other_ways_to_write_it_are_read(written: str) -> None:
    assert declaration_in(f"import nothing\n\n{written}\n", words=WORDS) == {"a": 1}


@pytest.mark.parametrize(
    "source", ["", "DECLARATION: int\n", "x = 1\n", "def f():\n    DECLARATION = 1\n", "# DECLARATION = 1\n"]
)
def test_a_file_without_one_declares_nothing(source: str) -> None:
    assert declaration_in(source, words=WORDS) is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("made(width=torch.float32, name=open)", "line 3 uses open, torch; a DECLARATION may use literals and made"),
        ("made(1)", "line 3 raised TypeError"),
    ],
)
def test_what_it_may_not_use_is_named(value: str, why: str) -> None:
    with pytest.raises(UnreadableDeclarationError, match=why):
        declaration_in(f"import torch\n\nDECLARATION = {value}\n", words=WORDS)


def test_declarations_of_cohort_are_read_without_torch() -> None:
    code = (
        "import sys; from cohort.training.optimizers.declaration import OPTIMIZER_DECLARATIONS as found;"
        "assert 'muon' in found.names(); assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
