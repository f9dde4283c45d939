"""The ``rewards`` section of a task file: which functions reward answers, how they add up, what they may use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from cohort.core.input_values.nearest_value import nearest_word
from cohort.core.setting_fields import MOST_NUMBER, Refusal, count_words, number_words
from cohort.core.units import format_bytes, parse_bytes
from cohort.metrics import function_path
from cohort.metrics.rewards.kinds import REWARD_KINDS
from cohort.metrics.rewards.plan import (
    DEFAULT_MEMORY_LIMIT,
    DEFAULT_TIME_LIMIT,
    DEFAULT_TURNS,
    PlannedReward,
    RewardPlan,
)
from cohort.metrics.rewards.reward import RewardKind
from cohort.metrics.rewards.script_functions import SCRIPT, script_source
from cohort.tasks.fields import SchemaOnDemand, Section, Whole, refuse, setting

__all__ = ["RewardsSection", "parse_rewards", "plain_rewards", "rewards_schema"]

_OWN_KEYS = ("function", "weight", "name", "cache", "turns")
_MOST_TURNS = 1000
# a reward's module is imported within it
_LEAST_MEMORY = 64 * 1024**2
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTIONS_ALLOWED = "a list of rewards: names, module:function, or sections with function and weight"


def _allowed_names() -> str:
    return f"{' | '.join(REWARD_KINDS.names())} | module:function"


def _functions(value: object) -> object:
    """Return the entries, which may be written as one name, a list of names, or sections."""
    if isinstance(value, tuple) and all(isinstance(entry, PlannedReward) for entry in value):
        return value
    entries = value if isinstance(value, list | tuple) else [value]
    if not entries or value is None:
        refuse(Refusal(found="nothing", allowed=_FUNCTIONS_ALLOWED, hint="Write rewards: [exact_match]."))
    refusals: list[Refusal] = []
    found: dict[int, PlannedReward] = {}
    for place, entry in enumerate(entries):
        own = list(_entry_refusals(entry))
        refusals += [replace(refusal, at=(place, *refusal.at)) for refusal in own]
        if not own:
            found[place] = _planned(entry)
    if (
        len(found) > 1
        and (conversing := next((place for place, own in found.items() if own.converses), None)) is not None
    ):
        refusals.append(
            Refusal(
                found=f"{found[conversing].name}, which has turns, next to other rewards",
                allowed="one function that replies, which gives the reward as well, or functions without turns",
                hint="Add the other rewards within the function.",
                at=(conversing,),
            )
        )
    refusals += [
        Refusal(
            found=f"{own.name} twice",
            allowed="each name once",
            hint="Give one of them a name: {function: ..., name: ...}.",
            at=(place,),
        )
        for place, own in found.items()
        if own.name in [other.name for earlier, other in found.items() if earlier < place]
    ]
    if refusals:
        refuse(*refusals)
    return tuple(found.values())


def _entry_refusals(entry: object) -> Iterator[Refusal]:
    if isinstance(entry, str):
        entry = {"function": entry}
    if not isinstance(entry, Mapping):
        yield Refusal(found=repr(entry)[:60], allowed=_allowed_names(), hint="Write a name, or {function: NAME}.")
        return
    function = entry.get("function")
    if not isinstance(function, str) or (function not in REWARD_KINDS.names() and function_path(function) is None):
        near = nearest_word(function, REWARD_KINDS.names()) if isinstance(function, str) else None
        hint = f"Did you mean {near}?" if near else "Write for example function: my_rewards:correct."
        found = "a reward without function" if "function" not in entry else repr(function)
        yield Refusal(found=found, allowed=_allowed_names(), hint=hint, at=("function",))
        return
    kind = REWARD_KINDS.find(function)
    yield from _key_refusals(entry, kind)
    weight, cache, name = entry.get("weight", 1.0), entry.get("cache", True), entry.get("name", "name")
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not -MOST_NUMBER <= weight <= MOST_NUMBER:
        allowed = f"a number from {-MOST_NUMBER:,.0f} to {MOST_NUMBER:,.0f}; 0 measures a reward only"
        yield Refusal(found=repr(weight), allowed=allowed, hint="Write for example weight: 0.5.", at=("weight",))
    if not isinstance(cache, bool):
        yield Refusal(found=repr(cache), allowed="true | false", hint="Write cache: true.", at=("cache",))
    turns = entry.get("turns", 1)
    if not isinstance(turns, int) or isinstance(turns, bool) or not 1 <= turns <= _MOST_TURNS:
        allowed = f"a whole number from 1 to {_MOST_TURNS:,}: most answers of a conversation"
        yield Refusal(found=repr(turns), allowed=allowed, hint="Write for example turns: 4.", at=("turns",))
    elif "turns" in entry and kind is not None and not kind.converses:
        hint = "Remove turns, or write a function that replies: module:function."
        yield Refusal(found=f"turns with {kind.name}", allowed="a function that replies", hint=hint, at=("turns",))
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        allowed = "a word of letters, digits, dots, dashes and underscores"
        yield Refusal(found=repr(name), allowed=allowed, hint="Write for example name: correct.", at=("name",))


def _key_refusals(entry: Mapping[Any, Any], kind: RewardKind | None) -> Iterator[Refusal]:
    """Yield what is wrong with the options of an entry."""
    options = {key: value for key, value in entry.items() if key not in _OWN_KEYS}
    known = (*_OWN_KEYS, *(() if kind is None else kind.options))
    wrong = False
    for key, value in options.items():
        if kind is None or key not in kind.options:
            # an option of a reward that has a name is no slip of the pen
            is_option = kind is None and any(str(key) in other.options for other in REWARD_KINDS.built_in())
            near = None if is_option else nearest_word(str(key), known)
            hint = f"Did you mean {near}? Rename it." if near else "Remove it."
            if kind is None and not near:
                hint = "Remove it: a function reads the columns of the rows, and its module may hold the rest."
            found = f"the unknown key {key!r} with function: {entry['function']}"
            yield Refusal(found=found, allowed=f"the keys {', '.join(known)}", hint=hint, at=(str(key),))
            wrong = True
            continue
        refusals = kind.options[key].refusals(value)
        yield from (replace(refusal, at=(str(key), *refusal.at)) for refusal in refusals)
        wrong = wrong or bool(refusals)
    if kind is None:
        return
    for key in kind.required:
        if options.get(key) is None:
            yield Refusal(
                found=f"{kind.name} without {key}",
                allowed=f"{key}: {kind.options[key].allowed}",
                hint=f"Write {{function: {kind.name}, {key}: ...}}.",
                at=(),
            )
            wrong = True
    if not wrong:
        yield from kind.together(kind.with_defaults(options))


def _planned(entry: Any) -> PlannedReward:
    own: dict[str, Any] = {"function": entry} if isinstance(entry, str) else dict(entry)
    function = str(own["function"])
    parts = function_path(function)
    kind = REWARD_KINDS.find(function)
    name = function if kind is not None or parts is None else parts[1]
    options = {key: value for key, value in own.items() if key not in _OWN_KEYS}
    return PlannedReward(
        name=own.get("name") or name,
        function=function,
        weight=float(own.get("weight", 1.0)),
        options=json.dumps(options, sort_keys=True),
        cache=own.get("cache", True),
        turns=own.get("turns", DEFAULT_TURNS if kind is not None and kind.converses else 0),
    )


def _with_source(own: PlannedReward) -> PlannedReward:
    parts = function_path(own.function)
    if parts is None or parts[0] != SCRIPT:
        return own
    # without its source the process says that it is not found, and what to do
    return replace(own, source=script_source(parts[1]) or "")


def _plain_function(own: PlannedReward) -> dict[str, Any]:
    return {
        "function": own.function,
        "name": own.name,
        "weight": own.weight,
        **({} if own.cache else {"cache": False}),
        **({"turns": own.turns} if own.converses else {}),
        **own.option_values(),
    }


def _functions_schema() -> dict[str, Any]:
    names = list(REWARD_KINDS.names())
    function = {"anyOf": [{"enum": names}, {"type": "string", "pattern": ":"}]}
    entry = {
        "type": "object",
        "required": ["function"],
        "properties": {
            "function": {**function, "description": "a reward's name, or module:function"},
            "name": {"type": "string", "description": "how records call it; default: the function's own name"},
            "weight": {
                "type": "number",
                "minimum": -MOST_NUMBER,
                "maximum": MOST_NUMBER,
                "description": "what its values are multiplied with; 0 measures it only",
            },
            "turns": {
                "type": "integer",
                "minimum": 1,
                "maximum": _MOST_TURNS,
                "description": "most answers of a conversation; the function replies to each of them",
            },
            "cache": {"type": "boolean", "description": "use a value again for the same row and answer"},
        },
    }
    one = {"anyOf": [function, entry]}
    return {"anyOf": [one, {"type": "array", "minItems": 1, "items": one}]}


def _memory_limit(value: object) -> object:
    try:
        found = parse_bytes(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, int) or isinstance(found, bool) or found < _LEAST_MEMORY:
        allowed = f"bytes with a unit, at least {format_bytes(_LEAST_MEMORY)}"
        refuse(Refusal(found=repr(value), allowed=allowed, hint="Write for example memory_limit: 2GiB."))
    return found


def _environment(value: object) -> object:
    names = [value] if isinstance(value, str) else value
    allowed = "a list of names of environment variables"
    if names is None:
        return ()
    if not isinstance(names, list | tuple):
        refuse(Refusal(found=repr(value), allowed=allowed, hint="Write for example [JUDGE_URL]."))
    bad = [
        Refusal(found=repr(name), allowed=allowed, hint="Write the name alone; its value stays outside.", at=(place,))
        for place, name in enumerate(names)
        if not isinstance(name, str) or _VARIABLE.fullmatch(name) is None
    ]
    if bad:
        refuse(*bad)
    return tuple(names)


class RewardsSection(Section):
    """What rewards answers. A list alone, or one name, is the ``functions``."""

    functions: Annotated[
        tuple[PlannedReward, ...],
        BeforeValidator(_functions),
        PlainSerializer(lambda functions: [_plain_function(own) for own in functions]),
        SchemaOnDemand(_functions_schema),
    ] = setting(allowed=_FUNCTIONS_ALLOWED, description="what rewards answers; the weighted values are added")
    time_limit: float = setting(
        DEFAULT_TIME_LIMIT,
        gt=0,
        le=86_400,
        allowed=number_words(minimum=None, most=86_400),
        description="seconds that one call of a function may take",
    )
    memory_limit: Annotated[int, BeforeValidator(_memory_limit), WithJsonSchema({"type": ["string", "integer"]})] = (
        setting(
            DEFAULT_MEMORY_LIMIT,
            allowed="bytes with a unit such as 2GiB",
            description="most memory that a process of rewards may allocate",
        )
    )
    workers: Whole = setting(
        2, ge=1, le=1024, allowed=count_words(most=1024), description="processes that compute rewards"
    )
    environment: Annotated[
        tuple[str, ...],
        BeforeValidator(_environment),
        PlainSerializer(list),
        WithJsonSchema({"type": "array", "items": {"type": "string"}}),
    ] = setting(
        (),
        allowed="a list of names of environment variables",
        description="variables that these processes inherit; all others stay outside",
    )

    python: str | None = setting(
        None,
        allowed="the path of a Python interpreter, 3.11 or later",
        description="interpreter of another environment that these processes run in",
    )

    def plan(self) -> RewardPlan:
        """Return what executors are sent."""
        return RewardPlan(
            functions=tuple(_with_source(own) for own in self.functions),
            time_limit=self.time_limit,
            memory_limit=self.memory_limit,
            workers=self.workers,
            environment=self.environment,
            python=self.python or "",
        )


def parse_rewards(value: object) -> object:
    """Return the section that the key's value means: functions alone are a section of them."""
    if value is None or isinstance(value, RewardsSection):
        return value
    # a mapping with a function is one reward written as a section
    if isinstance(value, Mapping) and "function" not in value:
        return value
    return {"functions": value}


def plain_rewards(section: RewardsSection | None) -> Any:
    """Return the key's value as a task file has it, with every default filled in."""
    return None if section is None else section.model_dump()


def rewards_schema() -> dict[str, Any]:
    """Return the JSON schema of the key."""
    section = RewardsSection.model_json_schema()
    return {"anyOf": [*_functions_schema()["anyOf"], section, {"type": "null"}]}
