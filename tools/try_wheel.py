"""Install the built wheel as a user does, in an empty environment outside of the repository, and run its demo there.

``make test-wheel`` runs it after ``make dist``. The environment takes as long as pip needs for torch; the demo about a
minute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
# of the 200 test prompts, in per cent: the base model answers none, the tuned one about 92
LEAST_TUNED = 80.0


def main() -> int:
    """Install, run, and say what is missing."""
    wheels = sorted((REPOSITORY / "dist").glob("*.whl"))
    if len(wheels) != 1:
        print(f"dist/ holds {len(wheels)} wheels, one is needed; run make dist")
        return 1
    with tempfile.TemporaryDirectory(prefix="cohort-wheel-") as name:
        folder = Path(name)
        venv.create(folder / "env", with_pip=True)
        commands = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        constraints = str(REPOSITORY / "constraints.txt")
        pip = [
            str(commands / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            constraints,
        ]
        # alone and first: left to a resolver that looks at ranges, pip may fetch a larger build
        subprocess.run([*pip, "torch"], check=True)
        subprocess.run([*pip, str(wheels[0])], check=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        shown = subprocess.run(
            [str(commands / "cohort"), "demo"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        print(shown)
        return _missing(shown, folder / "cohort-demo")


def _missing(shown: str, demo: Path) -> int:
    """Return 1 and say it if the demo has not left what it promises."""
    tuned = re.search(r"^  tuned +([\d.]+) %", shown, flags=re.MULTILINE)
    problems = [
        str(path)
        for path in (demo / "sweep" / "report.html", demo / "sweep" / "best" / "adapter_model.safetensors")
        if not path.is_file()
    ]
    if tuned is None or float(tuned[1]) < LEAST_TUNED:
        problems.append(f"a tuned adapter with at least {LEAST_TUNED} %")
    for problem in problems:
        print(f"missing: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
