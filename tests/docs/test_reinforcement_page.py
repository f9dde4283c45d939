"""The page on reinforcement learning names every reward, every loss and every key, with their defaults."""

from __future__ import annotations

import re
from pathlib import Path

from cohort.core.source_location import Place
from cohort.metrics.rewards.kinds import REWARD_KINDS
from cohort.tasks.sections.rewards_section import RewardsSection, parse_rewards
from cohort.tasks.yaml_lines import parse_yaml
from cohort.training.objectives.declaration import OBJECTIVE_DECLARATIONS
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs/how-to/reinforcement-learning.md").read_text(encoding="utf-8")


def _rows(head: str) -> dict[str, str]:
    """Return the rows of the table below a head by the names in their first cell."""
    lines = PAGE[PAGE.index(head) :].split("\n\n", 1)[0].splitlines()[2:]
    return {name: line for line in lines for name in re.findall(r"`(\w+)`", line.split(" | ")[0])}


def test_every_reward_is_there_with_its_keys() -> None:
    rows = _rows("| built in |")
    assert set(rows) == {kind.name for kind in REWARD_KINDS.built_in()}
    for kind in REWARD_KINDS.built_in():
        keys = re.findall(r"`(\w+)", rows[kind.name].rsplit(" | ", 1)[1])
        assert keys == list(kind.options), kind.name


def test_every_key_is_there_with_its_default() -> None:
    declared = OBJECTIVE_DECLARATIONS.find("grpo")
    assert declared is not None
    rows = _rows("| key | default |")
    assert set(rows) - {"batch", "none"} == set(declared.values)
    for name, value in declared.values.items():
        shown = str(value.setting.default).lower() if isinstance(value.setting.default, bool) else value.setting.default
        # 0 stands for another value where TRL has None
        assert name in ("epsilon_high", "delta") or str(shown) in rows[name].split(" | ")[1], name


def test_every_loss_is_there() -> None:
    declared = OBJECTIVE_DECLARATIONS.find("grpo")
    assert declared is not None
    assert set(_rows("| `loss_type` | importance ratio of |")) == set(declared.values["loss_type"].setting.options)


def test_the_section_is_valid_and_the_function_is_a_reward(tmp_path: Path) -> None:
    text, _, _ = [own for own in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL) if own.startswith("rewards:")]
    document = parse_yaml(text, where=Place(file="page"))
    assert document is not None
    assert RewardsSection(**document.data["rewards"]).plan().names == ("correct", "regex", "length")
    code = next(own for own in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "def correct" in own)
    namespace: dict[str, object] = {}
    exec(code, namespace)
    correct = namespace["correct"]
    assert callable(correct)
    assert correct(prompts=["a", "b"], completions=["is 4", "5"], answer=["4", None]) == [1.0, None]


def test_the_function_that_replies_plays_its_game() -> None:
    _, text, _ = [own for own in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL) if own.startswith("rewards:")]
    document = parse_yaml(text, where=Place(file="page"))
    assert document is not None
    section = parse_rewards(document.data["rewards"])
    assert isinstance(section, dict)
    assert RewardsSection(**section).plan().most_turns == 6
    code = next(own for own in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "def reply" in own)
    namespace: dict[str, object] = {}
    exec(code, namespace)
    reply = namespace["reply"]
    assert callable(reply)
    said = [{"role": "user", "content": "Guess."}, {"role": "assistant", "content": "3"}]
    assert reply(messages=said, answer="5", turn=1, is_last=False) == "Higher."
    assert reply(messages=said, answer="3", turn=2, is_last=False) == 0.9
    assert reply(messages=said, answer="5", turn=6, is_last=True) == 0.0


def test_the_section_of_an_environment_is_valid() -> None:
    *_, text = [own for own in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL) if own.startswith("rewards:")]
    document = parse_yaml(text, where=Place(file="page"))
    assert document is not None
    plan = RewardsSection(**document.data["rewards"]).plan()
    assert (plan.names, plan.most_turns, plan.environment) == (("verifiers",), 6, ("PATH", "HOME"))
