"""The settings of early exit as a whole: which rule, its own settings, and those all rules share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, TypeVar

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.call_arguments import checks_arguments
from cohort.core.input_values.nearest_value import keys_text, nearest_word
from cohort.core.input_values.plain_values import plain_value
from cohort.core.setting_fields import SettingField, problems_of, setting_fields
from cohort.core.source_location import Place
from cohort.tuning.early_exit.collapse import CollapseRule
from cohort.tuning.early_exit.lookup import DEFAULT_RULE, EXIT_RULES, built_in_keys
from cohort.tuning.early_exit.non_finite import NonFiniteRule
from cohort.tuning.early_exit.overfitting import OverfittingRule
from cohort.tuning.early_exit.rule import CommonSettings, ExitRule, Rule, RuleSettings

__all__ = ["OTHER_WORDS", "EarlyExitSettings", "build_rules", "compares_to_the_end"]

SettingsT = TypeVar("SettingsT", bound=RuleSettings)

OTHER_WORDS: Mapping[str, str] = {
    "eta": "reduction_factor",
    "grace_period": "warmup_fraction",
    "min_resource": "warmup_fraction",
    "n_warmup_steps": "warmup_fraction",
    "n_startup_trials": "startup_trials",
    "early_stopping_patience": "patience",
    "early_stopping_threshold": "min_improvement",
    "min_delta": "min_improvement",
    "pruner": "rule",
}
"""Names of Optuna, Ray Tune and transformers, with our key. They are not accepted: there the value has another unit."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False)
class EarlyExitSettings:
    """When trials end early. Keys are flat, as in ``early_exit`` of the task file: ``EarlyExit(patience=5)``.

    Keys of built-in rules that are not active are checked and have no effect, so that ``rule`` can be changed alone; a
    task that is given such keys warns of them.

    Attributes:
        rule: Which trials end early, and why. A non-finite loss ends a trial under each rule.
        options: The rule's own settings. They can also be read from this object: ``settings.select_fraction``.
        others: Keys of other rules that were given another value than their default.

    Raises:
        InputError: there is no such rule or key, or a value is not accepted; all problems at once.
    """

    rule: str
    common: CommonSettings
    options: RuleSettings
    # what has no effect makes no difference
    others: Mapping[str, Any] = field(compare=False)

    @checks_arguments("EarlyExit")
    def __init__(self, *, rule: str = DEFAULT_RULE, **keys: float | str) -> None:
        """Set ``keys``, which are settings of the rule or common to all rules."""
        keys = plain_value(keys)
        entry = _entry(rule)
        known = {**built_in_keys(), **setting_fields(entry.settings)}
        problems = [_unknown(key, known) for key in keys if key not in known]
        section = Place(key=("early_exit",))
        problems += problems_of({key: keys[key] for key in keys if key in known}, known, where=section)
        if problems:
            raise InputError(problems)
        object.__setattr__(self, "rule", entry.name)
        object.__setattr__(self, "common", _made(CommonSettings, keys))
        object.__setattr__(self, "options", _made(entry.settings, keys))
        own = (*setting_fields(CommonSettings), *setting_fields(entry.settings))
        others = {key: value for key, value in keys.items() if key not in own and value != known[key].default}
        object.__setattr__(self, "others", others)

    def __getattr__(self, name: str) -> Any:
        # called only where there is no attribute of that name; a copy in the making has no parts to look into yet
        for part in ("options", "common"):
            if part in self.__dict__ and name in setting_fields(self.__dict__[part]):
                return getattr(self.__dict__[part], name)
        raise AttributeError(f"the rule {self.__dict__.get('rule')!r} has no setting {name!r}")

    def __repr__(self) -> str:
        # by its public name, as it can be written again
        return f"EarlyExit({', '.join(f'{name}={value!r}' for name, value in self.as_keys().items())})"

    # Flat, because the task file is: a key moves with its rule only inside the code.
    def as_keys(self) -> dict[str, Any]:
        """Return the rule and its settings as they stand in a task file."""
        return {"rule": self.rule, **asdict(self.common), **asdict(self.options)}

    def as_given(self) -> dict[str, Any]:
        """Return :meth:`as_keys` with ``others``, so that a task can say that nothing reads them."""
        return {**self.as_keys(), **self.others}

    def with_keys(self, **keys: Any) -> EarlyExitSettings:
        """Return the same settings with other values of some keys; ``rule`` is one of them."""
        # another rule has keys of its own, so what only this rule reads does not go with it
        own = self.as_keys() if keys.get("rule", self.rule) == self.rule else asdict(self.common)
        return EarlyExitSettings(**{**self.others, **own, **keys})

    def kept_share(self, num_trials: int | None = None) -> float:
        """Return the share of the work after warm-up that the rule leaves, for predictions of cost and time.

        Args:
            num_trials: Trials of the sweep: of few, a rule may leave a larger share. None: many.
        """
        return _entry(self.rule).kept_share(self.options, self.common, num_trials)

    @property
    def milestones(self) -> tuple[Fraction, ...] | None:
        """Shares of training at which the rule needs an evaluation (:attr:`ExitRule.milestones`); None for all."""
        found = _entry(self.rule).milestones
        return None if found is None else found(self.options, self.common, Fraction(0))

    def kept_at(self, share: float, *, num_trials: int | None = None) -> float:
        """Return the share of the trials that is expected to reach ``share`` of the planned steps.

        Args:
            share: From 0 to 1.
            num_trials: As :meth:`kept_share` takes it.

        Raises:
            InputError: it is no such number.
        """
        given: object = share
        if not isinstance(given, int | float) or not 0 <= given <= 1:
            hint = "Write for example 0.5, the middle of the training."
            raise InputError(Problem(where="EarlyExit.kept_at: share", found=repr(share), allowed="0 to 1", hint=hint))
        found = _entry(self.rule).kept_at
        if found is not None:
            return found(self.options, self.common, share, num_trials, Fraction(0))
        return 1.0 if share <= self.common.warmup_fraction else self.kept_share(num_trials)


def compares_to_the_end(settings: EarlyExitSettings) -> bool:
    """Return whether a trial may be compared with others at any of its evaluations, as with ``asha`` or ``median``."""
    # rules that meet at rungs have none before the first trial
    return any(rule.compares_again() for rule in build_rules(settings))


def build_rules(settings: EarlyExitSettings, *, are_rewards: bool = False) -> tuple[Rule, ...]:
    """Return fresh rules for one study, in the order in which they are asked.

    Args:
        are_rewards: Whether losses are rewards of the trials' own answers, with the other sign. Their distance from
            those of other prompts is not overfitting, and a trial may collapse.
    """
    rules = _entry(settings.rule).build(settings.options, settings.common)
    # Non-finite comes first, also under `none`: the other rules compare numbers, and NaN compares false with all.
    if not are_rewards or not rules:
        return (NonFiniteRule(), *rules)
    return (NonFiniteRule(), CollapseRule(), *(rule for rule in rules if not isinstance(rule, OverfittingRule)))


def _entry(rule: str) -> ExitRule:
    entry = EXIT_RULES.find(rule) if isinstance(rule, str) else None
    if entry is None:
        names = ", ".join(EXIT_RULES.names())
        near = nearest_word(rule, EXIT_RULES.names())
        raise InputError(
            Problem(
                where=Place(key=("early_exit", "rule")),
                found=repr(rule),
                allowed=names,
                hint=f"Did you mean {near}?" if near else "Choose one of these rules.",
            )
        )
    return entry


def _made(settings: type[SettingsT], keys: Mapping[str, Any]) -> SettingsT:
    return settings(**{name: keys[name] for name in setting_fields(settings) if name in keys})


def _unknown(key: str, known: Mapping[str, SettingField]) -> Problem:
    # another tool's word is known to mean our key; likeness of letters is a guess
    own = OTHER_WORDS.get(key.lower())
    near = [own] if own else get_close_matches(key.lower(), ("rule", *known), n=1, cutoff=0.6)
    return Problem(
        where=Place(key=("early_exit", key)),
        found="an unknown key",
        allowed=keys_text(key, ("rule", *known), meant=own),
        hint=f"Did you mean {near[0]}? Rename it, or remove it." if near else "Choose one of these or remove it.",
    )
