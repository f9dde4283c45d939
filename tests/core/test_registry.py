"""Cohort's own entries are found in their folder, those of packages by entry points; a bad one is named."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.core.registry import Registry
from cohort.core.setting_fields import whole
from cohort.training.optimizers.declaration import OPTIMIZER_DECLARATIONS
from cohort.tuning.decisions import Reason
from cohort.tuning.early_exit.lookup import EXIT_RULES
from cohort.tuning.early_exit.rule import ExitRule, RuleSettings
from cohort.tuning.samplers import SAMPLERS
from tests.core.plugin_packages import install


def _rule(name: str, **fields: Any) -> ExitRule:
    return ExitRule(name=name, summary="", build=lambda settings, common: (), **fields)


@dataclass(frozen=True, kw_only=True)
class OtherPatience(RuleSettings):
    """A key that the rule ``patience`` has, with another default."""

    patience: int = whole(9, "another thing")


GOOD = _rule("good", reasons=(Reason("good riddance", label="let go"),))
MISNAMED = _rule("other")
CLASHING = _rule("clashing", settings=OtherPatience)
NO_RULE = "a text"


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def _offer(name: str, value: str, package: str = "lucky-rules") -> None:
        install(monkeypatch, tmp_path / package, package=package, group="cohort.exit_rules", points={name: value})

    return _offer


@pytest.mark.parametrize(
    ("registry", "known"),
    [
        (EXIT_RULES, {"patterns", "asha", "halving", "hyperband", "median", "none", "patience"}),
        (SAMPLERS, {"grid", "random", "tpe"}),
    ],
)
def test_every_entry_of_a_folder_is_found_the_default_first(registry: Registry[Any], known: set[str]) -> None:
    found = [entry.name for entry in registry.built_in()]
    assert known <= set(found)
    folder = Path(import_module(registry.package).__file__ or "").parent
    offering = [path for path in folder.glob("*.py") if f"\n{registry.constant} = " in path.read_text("utf-8")]
    assert len(found) == len(set(found)) == len(offering)
    assert found == [registry.default, *sorted(set(found) - {registry.default})]
    assert registry.find("nothing of the kind") is None


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("gone", "no_such_module_anywhere:RULE", "cannot be imported (ModuleNotFoundError: No module named"),
        ("text", f"{__name__}:NO_RULE", f"{__name__}:NO_RULE is of type str, not ExitRule"),
        ("mine", f"{__name__}:MISNAMED", "names itself 'other'"),
        ("clashing", f"{__name__}:CLASHING", "its setting 'patience' means something else in Cohort"),
    ],
)
def test_a_package_whose_rule_cannot_be_used_is_named(offer: Any, name: str, value: str, why: str) -> None:
    offer(name, value)
    with pytest.raises(InputError) as caught:
        EXIT_RULES.find(name)
    (problem,) = caught.value.problems
    assert str(problem.where) == "the installed package lucky-rules"
    assert why in problem.found
    assert problem.hint == "Update lucky-rules, or uninstall it."
    assert EXIT_RULES.find("asha") is not None, "a rule of ours needs no other package"


def test_a_name_that_is_taken_is_refused_also_where_ours_is_asked_for(offer: Any) -> None:
    offer("asha", f"{__name__}:GOOD")
    refused = "lucky-rules: found its exit rule 'asha' cannot be used: Cohort already has one of that name"
    with pytest.raises(InputError, match=refused):
        EXIT_RULES.find("asha")


def test_two_packages_of_one_name_are_refused(offer: Any) -> None:
    offer("good", f"{__name__}:GOOD")
    offer("good", f"{__name__}:GOOD", package="more-rules")
    with pytest.raises(InputError, match=r"the package (lucky|more)-rules already has one of that name"):
        EXIT_RULES.names()


def test_a_declaration_that_cannot_be_read_is_named_and_stops_only_its_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = {
        "unread_one": "import torch\nDECLARATION = OptimizerDeclaration(name=torch.__version__)\n",
        "unread_two": "OPTIMIZER = 1\n",
        "unread_three": "from cohort.training.optimizers.declaration import OptimizerDeclaration\n"
        "DECLARATION = OptimizerDeclaration(name='unread_three', summary='x')\nraise ValueError('late')\n",
    }
    points = {name: f"{name}:OPTIMIZER" for name in texts}
    install(monkeypatch, tmp_path, package="own-steps", group="cohort.optimizers", points=points)
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    for name, why in (("unread_one", "line 2 uses torch"), ("unread_two", "unread_two has no DECLARATION = Optimizer")):
        with pytest.raises(InputError, match=f"the installed package own-steps: .*{name}.* cannot be used: .*{why}"):
            OPTIMIZER_DECLARATIONS.find(name)
        assert OPTIMIZER_DECLARATIONS.known(name) is None
    assert OPTIMIZER_DECLARATIONS.names()[-3:] == tuple(texts)
    assert OPTIMIZER_DECLARATIONS.usable()[-1] == OPTIMIZER_DECLARATIONS.find("unread_three")
    with pytest.raises(InputError, match=r"it cannot be imported \(ValueError: late\)"):
        OPTIMIZER_DECLARATIONS.load("unread_three")
    assert OPTIMIZER_DECLARATIONS.find("sgd") is not None, "an optimizer of ours needs no other package"


def test_an_optimizer_of_ours_is_loaded_and_one_whose_module_is_gone_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert OPTIMIZER_DECLARATIONS.load("sgd") is import_module("cohort.training.optimizers.kinds.sgd").OPTIMIZER
    with pytest.raises(KeyError):
        OPTIMIZER_DECLARATIONS.load("nothing of the kind")
    points = {"gone": "no_such_module_anywhere:OPTIMIZER"}
    install(monkeypatch, tmp_path, package="own-steps", group="cohort.optimizers", points=points)
    with pytest.raises(InputError, match="the text of no_such_module_anywhere is not to be found"):
        OPTIMIZER_DECLARATIONS.find("gone")
