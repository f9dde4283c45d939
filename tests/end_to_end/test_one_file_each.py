"""What extends Cohort is one file of a package: a task file names it, a sweep runs with it, messages list it."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.engine.tune import resume, tune
from tests.core.plugin_packages import install
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

Add = Callable[[str, str, str], None]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Return what installs a package of one file, with its entry point."""

    def _add(group: str, name: str, text: str) -> None:
        module, kind = f"own_{name}", group.rpartition(".")[2].removesuffix("s").rpartition("_")[2].upper()
        site = tmp_path / module
        install(monkeypatch, site, package=module, group=group, points={name: f"{module}:{kind}"})
        (site / f"{module}.py").write_text(text)
        # another test's file may have the same name
        monkeypatch.delitem(sys.modules, module, raising=False)

    return _add


def results(run: Path) -> list[dict[str, str]]:
    with (run / "results.csv").open() as file:
        return list(csv.DictReader(file))


SIGN_SGD = """
from cohort.training.optimizers.declaration import OptimizerDeclaration
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.optimizers.slot_step import step_slots
from cohort.adapters.bank import Moment

DECLARATION = OptimizerDeclaration(
    name="sign_momentum",
    summary="steps by the sign of a momentum",
    reads=("adam_beta1",),
    has_own_states=True,
    not_with={"use_dora": "which knows no magnitudes"},
)


class SignMomentum(Optimizer):
    moments = (Moment("momentum"),)

    def update(self, bank, residents):
        return step_slots(bank, residents, _step)


def _step(own):
    momentum = own.moments["momentum"].mul_(own.spec.beta1).add_(own.grads_RD)
    own.params_RD.sub_(own.rate * momentum.sign())


OPTIMIZER = SignMomentum()
"""


def test_an_optimizer(add: Add, inputs: Path, tmp_path: Path) -> None:
    add("cohort.optimizers", "sign_momentum", SIGN_SGD)
    assert "own_sign_momentum" not in sys.modules
    space = {"optim": ["adamw", "sign_momentum"], "adam_beta1": [0.5]}
    task = tiny_task(inputs, search={"sampler": "grid", "space": space}, training={"max_steps": 3})
    assert "own_sign_momentum" not in sys.modules, "a task is checked without the optimizer's torch"
    run = tmp_path / "run"
    tune(task, run)
    assert {row["optim"] for row in results(run)} == {"adamw", "sign_momentum"}
    assert len({row["last_loss"] for row in results(run)}) == 2
    resume(run)
    with pytest.raises(InputError, match=r"sign_momentam'; allowed: .*sgd.*sign_momentum.*mean optim: sign_momentum"):
        tiny_task(inputs, training={"optim": "sign_momentam"})
    with pytest.raises(InputError, match=r"sign_momentum, which knows no magnitudes, with use_dora"):
        tune(tiny_task(inputs, lora={"use_dora": True}, training={"optim": "sign_momentum"}), tmp_path / "other")
