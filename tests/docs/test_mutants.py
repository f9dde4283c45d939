"""What the drawer of mutants leaves out, which tests a mutant meets, and what its page says."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from tools.drawn_mutants import Mutant
from tools.mutants import ROOMS, Verdict, mirrors_of, page, room_tests


def test_a_mutant_meets_the_tests_of_its_file_and_then_of_its_room() -> None:
    assert mirrors_of("src/cohort/tuning/study.py") == ("tests/tuning/test_study.py",)
    # without tests of its own: those beside which they would be
    assert "tests/scheduling/packing/test_planner.py" in mirrors_of("src/cohort/scheduling/packing/no_such_file.py")
    assert mirrors_of("src/cohort/core/no_such_room/file.py") == mirrors_of("src/cohort/core/no_such_file.py")
    assert room_tests("src/cohort/engine/train/session.py")[0] == "tests/engine"
    for room, tests in ROOMS.items():
        assert (REPOSITORY / "src/cohort" / room).is_dir()
        assert all((REPOSITORY / each).exists() for each in tests)


def mutant_of(code: str, after: str) -> Mutant:
    return Mutant(
        path="src/cohort/core/ages.py", operator="o", occurrence=0, line=2, code=code, changed=("a >= 1", after)
    )


def test_the_page_lists_the_survivors() -> None:
    verdicts = [
        Verdict(mutant=mutant_of("", "a > 1"), outcome="survived", seconds=1.0),
        Verdict(mutant=mutant_of("", "a | 1"), outcome="killed", seconds=1.0, is_slow=True),
        Verdict(mutant=mutant_of("", "a < 1"), outcome="late", seconds=1.0),
        Verdict(mutant=mutant_of("", "a | 1"), outcome="survived", seconds=1.0),
    ]
    text = page(verdicts, command="python -m tools.mutants")
    assert "mutants_killed = 0.50, which is 2 of 4. The tests that mirror its file noticed 1, others of its" in text
    assert "room 1; 1 were ended as they took too long" in text
    assert [line for line in text.splitlines() if line.startswith("| src")] == [
        "| src/cohort/core/ages.py:2 | `a >= 1` | `a > 1` |",
        "| src/cohort/core/ages.py:2 | `a >= 1` | `a \\| 1` |",
    ]


# in a process that has loaded nothing of the product, as the tool's own
JUDGE = """
import dataclasses, json, sys
from pathlib import Path
import tools.mutants
tools.mutants.LEAST_SECONDS, tools.mutants.PATIENCE = 3.0, 0.0
mutants = [
    tools.drawn_mutants.Mutant(
        path="src/cohort/core/ages.py", operator="o", occurrence=0, line=2, code=code, changed=("", "")
    )
    for code in json.loads(sys.argv[2])
]
print([(found.outcome, found.is_slow) for found in tools.mutants.judge(mutants, Path(sys.argv[1]))])
"""


def test_a_mutant_is_killed_noticed_late_too_slow_or_survives(tmp_path: Path) -> None:
    package, tests = tmp_path / "src/cohort/core", tmp_path / "tests/core"
    for folder in (package, tests):
        folder.mkdir(parents=True)
    (tmp_path / "src/cohort/__init__.py").touch()
    (package / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["src", "."]\n')
    code = "def grown(age, by=1):\n    return age + by\n"
    (package / "ages.py").write_text(code)
    test = "from cohort.core.ages import grown\n\ndef test_it():\n    assert grown({}) == {}\n"
    (tests / "test_ages.py").write_text(test.format("2", 3))
    (tests / "test_more.py").write_text(test.format("0, 2", 2))
    changed = [
        code.replace("+", "-"),
        code.replace("age + by", "3"),
        code.replace("return", "while age:\n        pass\n    return"),
        code.replace("age + by", "by + age"),
    ]
    command = [sys.executable, "-c", JUDGE, str(tmp_path), json.dumps(changed)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == [
        ("killed", False), ("late", False), ("killed", True), ("survived", False),
    ]  # fmt: skip
    assert (package / "ages.py").read_text() == code
