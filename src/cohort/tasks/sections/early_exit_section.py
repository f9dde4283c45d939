"""The ``early_exit`` section, made from the exit rules: their names, settings and descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import GetJsonSchemaHandler, create_model
from pydantic_core import CoreSchema

from cohort.core.setting_fields import SettingField, setting_fields
from cohort.tasks.fields import Registered, Section, chosen, refuse_unknown, setting_of
from cohort.tuning.early_exit.lookup import EXIT_RULES, built_in_keys
from cohort.tuning.early_exit.rule import ExitRule
from cohort.tuning.early_exit.settings import EarlyExitSettings

__all__ = ["EarlyExitSection", "early_exit_section", "is_plugin_key"]


def _described(field: SettingField, *, rules: Sequence[str]) -> str:
    """Return the description of a rule's setting, after the rules that read it."""
    return f"{', '.join(rules)}: {field.description}" if rules else field.description


def _built_in_fields() -> dict[str, Any]:
    """Return the fields of all built-in rules, so that ``rule`` can be changed without removing keys."""
    fields = {}
    for name, field in built_in_keys().items():
        readers = [entry.name for entry in EXIT_RULES.built_in() if name in setting_fields(entry.settings)]
        fields[name] = setting_of(field, description=_described(field, rules=readers))
    return fields


class _RuleChoice(Section):
    rule: Annotated[str, Registered("rule", EXIT_RULES)] = chosen(
        EXIT_RULES, description="which trials end early, and why; a non-finite loss ends a trial under each rule"
    )


if TYPE_CHECKING:
    # made at run time, where a type checker cannot follow: keys of rules have any type
    class _RuleKeys(_RuleChoice):
        def __getattr__(self, name: str) -> Any: ...

else:
    _RuleKeys = create_model("_RuleKeys", __base__=_RuleChoice, **_built_in_fields())


class EarlyExitSection(_RuleKeys):
    """When trials end early; ``early_exit: none`` means ``rule: none``."""

    def settings(self) -> EarlyExitSettings:
        return EarlyExitSettings(**self.model_dump())

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema: dict[str, Any] = handler.resolve_ref_schema(handler(core_schema))
        # a plugin's section is a subclass, whose own schema needs no other plugins
        for entry in EXIT_RULES.plugins() if cls is EarlyExitSection else ():
            own = section_of(entry).model_json_schema()["properties"]
            schema["properties"] |= {name: own[name] for name in _own_fields(entry)}
        return schema


def early_exit_section(value: Mapping[Any, Any] | EarlyExitSection) -> EarlyExitSection:
    """Return the section of what a task file holds; a rule of another package has its keys in it as well.

    Raises:
        pydantic.ValidationError: keys or values that are not accepted; pydantic adds them to the whole task's.
        InputError: the package's rule cannot be used.
    """
    if isinstance(value, EarlyExitSection):
        return value
    # an unknown or mistyped rule gets the plain section, whose validator names the rules there are
    name = value.get("rule")
    entry = EXIT_RULES.find(name) if isinstance(name, str) else None
    section = EarlyExitSection if entry is None else section_of(entry)
    # pydantic's own answer to an unknown key knows the keys of Cohort's rules alone
    if entry is not None and _own_fields(entry):
        refuse_unknown(value, known=list(section.model_fields), section="early_exit")
    return section.model_validate(value)


def is_plugin_key(key: str | int) -> bool:
    """Return whether ``early_exit.KEY`` is a setting of another package's rule."""
    return any(key in setting_fields(entry.settings) for entry in EXIT_RULES.plugins())


def _own_fields(entry: ExitRule) -> dict[str, SettingField]:
    built_in = built_in_keys()
    return {name: field for name, field in setting_fields(entry.settings).items() if name not in built_in}


@cache
def section_of(entry: ExitRule) -> type[EarlyExitSection]:
    """Return the section's class where ``entry`` is the rule: with its keys, if Cohort's own rules lack them."""
    own = _own_fields(entry)
    if not own:
        return EarlyExitSection
    # Messages look keys up in EarlyExitSection, which lacks another package's: so its refusals bring their own words.
    fields: dict[str, Any] = {
        name: setting_of(replace(field, check=field.refusals), description=_described(field, rules=[entry.name]))
        for name, field in own.items()
    }
    return create_model("EarlyExitSection", __base__=EarlyExitSection, **fields)
