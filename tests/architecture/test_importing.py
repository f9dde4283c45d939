"""Importing does nothing: no GPU query, no output, and no heavy library before it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

IMPORT_EVERYTHING = """
import importlib, os, pkgutil, sys, threading
before_environment, before_threads = dict(os.environ), threading.active_count()
import torch  # its own import may set variables; ours may not
environment = dict(os.environ)
import cohort
skipped = []
for module in pkgutil.walk_packages(cohort.__path__, "cohort."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        if (error.name or "").split(".")[0] not in {"triton"}:
            raise
assert not torch.cuda.is_initialized(), "CUDA was initialised by an import"
assert torch.get_default_dtype() == torch.float32
changed = {name for name in set(os.environ) | set(environment)
           if os.environ.get(name) != environment.get(name) and not name.startswith(("TRANSFORMERS_", "KMP_", "OMP_"))}
assert not changed, f"imports changed the environment: {changed}"
"""

FIRST_IMPORT = """
import sys
before = len(sys.modules)
import cohort
count = len(sys.modules) - before
import json
heavy = [name for name in ("torch", "transformers", "numpy", "pydantic", "optuna", "ortools", "typer", "rich")
         if name in sys.modules]
print(json.dumps({"count": count, "heavy": heavy}))
"""

CLI_IMPORT = """
import sys
import cohort.cli.main
print([name for name in ("torch", "transformers", "optuna", "ortools", "pandas") if name in sys.modules])
"""

STATUS_IMPORT = """
import sys
import cohort.cli.tables.queue_table, cohort.cli.tables.run_results, cohort.task_queue.status
heavy = ("torch", "transformers", "optuna", "ortools", "pandas", "jinja2", "scipy", "pydantic", "numpy")
print([name for name in heavy if name in sys.modules])
"""

# rows are tokenised ahead of the imports of a command, by a process that imports as little as that takes
ROWS_AHEAD_IMPORT = """
import sys
import cohort.prepare.rows.ahead_program
print([name for name in ("torch", "transformers", "pydantic", "ruamel") if name in sys.modules])
import cohort.prepare.rows.ahead
print([name for name in ("torch", "transformers") if name in sys.modules])
"""

# what a verb imports decides how soon it answers; torch alone takes seconds
VERB_IMPORTS = """
import sys
import cohort.cli.main
try:
    cohort.cli.main.main(sys.argv[1:])
except SystemExit as caught:
    assert not caught.code, caught.code
heavy = ("torch", "transformers", "optuna", "ortools", "pandas", "scipy", "jinja2", "datasets", "sklearn", "numpy")
print([name for name in heavy if name in sys.modules], file=sys.stderr)
"""

# torch and the tokenizers of transformers are three quarters of what a check takes; the rest stays at home. Then, in
# the same process, a worker's warm-up loads the tokenizers without their models, which take as long as all else.
CHECK_AND_WORKER_IMPORT = """
import sys
import cohort.cli.main
try:
    cohort.cli.main.main(sys.argv[1:])
except SystemExit as caught:
    assert not caught.code, caught.code
heavy = ("scipy", "optuna", "ortools", "pandas", "cohort.ranks.training_executor", "cohort.serving", "cohort.engine",
         "transformers.models.auto.modeling_auto")
print("check", [name for name in heavy if name in sys.modules], file=sys.stderr)
import cohort.engine.tune
from cohort.task_queue.workers.worker import _warm_up
_warm_up()
heavy = ("scipy.optimize", "ortools", "pandas", "optuna", "transformers.models.auto.modeling_auto")
print("worker", [name for name in heavy if name in sys.modules], file=sys.stderr)
"""


def _python(code: str, *arguments: str) -> str:
    return _run(code, *arguments).stdout


def _run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": ""}
    # no import makes garbage, and looking for some takes a quarter of the time
    command = [sys.executable, "-c", f"import gc; gc.disable()\n{code}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_importing_every_module_does_nothing() -> None:
    assert _python(IMPORT_EVERYTHING) == "", "an import printed something"


def test_import_cohort_is_light() -> None:
    found = json.loads(_python(FIRST_IMPORT))
    assert found["heavy"] == []
    # modules, not seconds: 31 are imported, most of them Python's own
    assert found["count"] < 100


def test_the_command_line_loads_its_layers_lazily() -> None:
    assert _python(CLI_IMPORT).strip() == "[]"


def test_a_look_at_a_run_or_a_queue_loads_no_training() -> None:
    assert _python(STATUS_IMPORT).strip() == "[]"


def test_rows_are_tokenised_ahead_of_torch() -> None:
    assert _python(ROWS_AHEAD_IMPORT).split() == ["[]", "[]"]


def test_a_check_and_a_worker_load_no_solver_and_no_model_classes(repository: Path) -> None:
    """Nor does a check load ranks, serving or the engine."""
    task = str(repository / "examples" / "quickstart" / "task.yaml")
    assert _run(CHECK_AND_WORKER_IMPORT, "check", task).stderr.splitlines()[-2:] == ["check []", "worker []"]


@pytest.mark.parametrize("words", ["--help", "check --help", "check --schema", "tune --help", "run --help"])
def test_help_and_schema_load_no_training(words: str) -> None:
    assert _run(VERB_IMPORTS, *words.split()).stderr.strip() == "[]"
