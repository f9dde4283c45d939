"""What an administrator may change from a page: said in words before it is done, then done as ``cohort tenants`` does.

Nothing here is without a way back but a key that is revoked. Tenants are removed, and keys with the scope ``admin`` are
made, on the server's machine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.units import format_bytes
from cohort.store.enums import KeyScope
from cohort.store.errors import NameTakenError
from cohort.store.store import Store
from cohort.store.tenants.keys import TENANT_SCOPES, read_scopes
from cohort.store.tenants.tenants import DEFAULT_PROJECT, Quotas, check_name

__all__ = ["Change", "read_change"]

_SECONDS_OF_DAY = 86400.0
_LONGEST_NAME = 200
_QUOTAS = ("max_stored_bytes", "max_open_jobs", "max_tokens_per_day", "max_requests_per_minute")
_MOST = 1 << 53
_MADE_HERE = TENANT_SCOPES | {KeyScope.METRICS}


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change that was read and checked against the store.

    Attributes:
        does: What it will do.
        undo: How it is taken back.
        when: When it holds.
        act: Does it in the name of an administrator; returns what the page says then, with a new key in ``secret``.
    """

    does: str
    undo: str
    when: str
    act: Callable[[str], dict[str, str]]

    @property
    def preview(self) -> dict[str, str]:
        return {"does": self.does, "undo": self.undo, "when": self.when}


def read_change(store: Store, body: Mapping[str, Any]) -> Change:
    """Return the change that a page sends; nothing is done yet.

    Raises:
        InputError: it is none, or a value is wrong.
        UnknownIdError: there is no such project or key.
    """
    kinds: dict[str, Callable[[Store, Mapping[str, Any]], Change]] = {
        "add": _add,
        "weight": _weight,
        "quotas": _quotas,
        "create-key": _create_key,
        "revoke-key": _revoke_key,
    }
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise _wrong("kind", kind, ", ".join(kinds), "Load the page again.")
    return kinds[kind](store, body)


def _add(store: Store, body: Mapping[str, Any]) -> Change:
    name, weight = _text(body, "name"), _positive(body, "weight")
    organisation, _, project = name.partition("/")
    project = project or DEFAULT_PROJECT
    # before anything is made: an organisation of its own would be left behind
    check_name(organisation)
    check_name(project)
    known = {each.name: each for each in store.tenants.organisations()}
    owner_id = known[organisation].id if organisation in known else None
    if owner_id and any(own.name == project for own in store.tenants.projects(organisation_id=owner_id)):
        raise NameTakenError(f"the organisation has a project {project!r} already; choose another name")

    def act(actor: str) -> dict[str, str]:
        owner = known.get(organisation) or store.tenants.add_organisation(organisation, actor=actor)
        made = store.tenants.add_project(owner.id, project, actor=actor, weight=weight)
        return {"text": f"added {owner.name}/{made.name}", "project": made.id}

    where = f"the new organisation {organisation}" if owner_id is None else f"the organisation {organisation}"
    return Change(
        does=f"The project {project} of {where} may use the service, with weight {weight:g} and no quotas.",
        undo=f"`cohort tenants remove {organisation}/{project}` on the server.",
        when="At once. It needs a key before it can send anything.",
        act=act,
    )


def _weight(store: Store, body: Mapping[str, Any]) -> Change:
    project, weight = store.tenants.project(_text(body, "project")), _positive(body, "weight")

    def act(actor: str) -> dict[str, str]:
        store.tenants.set_weight(project.id, weight, actor=actor)
        return {"text": f"weight {weight:g}", "project": project.id}

    return Change(
        does=f"While others have work too, {project.name} gets GPU time in the proportion {weight:g} to their weights; "
        f"so far {project.weight:g}.",
        undo=f"Set the weight {project.weight:g} again.",
        when="From the next decision of the scheduler on.",
        act=act,
    )


def _quotas(store: Store, body: Mapping[str, Any]) -> Change:
    project = store.tenants.project(_text(body, "project"))
    given = body.get("quotas")
    if not isinstance(given, dict) or not set(given) <= set(_QUOTAS):
        raise _wrong("quotas", given, f"an object with {', '.join(_QUOTAS)}", "Load the page again.")
    values = {name: _bound(name, given[name]) if name in given else getattr(project, name) for name in _QUOTAS}
    changed = [name for name in _QUOTAS if values[name] != getattr(project, name)]
    if not changed:
        raise _wrong("quotas", "those that it has", "at least one other number", "Change one.")

    def act(actor: str) -> dict[str, str]:
        store.tenants.set_quotas(project.id, Quotas(**values), actor=actor)
        return {"text": "quotas set", "project": project.id}

    def shown(of: Mapping[str, int | None]) -> str:
        return ", ".join(f"{_label(name)} {_shown(name, of[name])}" for name in changed)

    return Change(
        does=f"{project.name} may have at most: {shown(values)}. What it has already stays, also above that.",
        undo=f"Set again: {shown({name: getattr(project, name) for name in changed})}.",
        when="From the next request on.",
        act=act,
    )


def _create_key(store: Store, body: Mapping[str, Any]) -> Change:
    project = store.tenants.project(_text(body, "project"))
    words = body.get("scopes", sorted(TENANT_SCOPES))
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise _wrong("scopes", words, "a list of scopes", "Load the page again.")
    scopes = read_scopes(words)
    if KeyScope.ADMIN in scopes:
        hint = f"Run `cohort keys create {project.id} --scope admin` on the server."
        raise _wrong("scopes", "admin", ", ".join(sorted(_MADE_HERE)), hint)
    if not scopes:
        raise _wrong("scopes", "none", ", ".join(sorted(_MADE_HERE)), "Choose at least one.")
    name = body.get("name") or ""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise _wrong("name", name, f"a text of at most {_LONGEST_NAME} characters", "Shorten it.")
    days = body.get("days")
    lifetime = None if days in (None, "") else _positive(body, "days") * _SECONDS_OF_DAY

    def act(actor: str) -> dict[str, str]:
        made = store.keys.create(project.id, actor=actor, name=name, scopes=scopes, lifetime_seconds=lifetime)
        return {"text": f"made {made.key.id}; the key is shown this once", "secret": made.text, "project": project.id}

    ends = "It has no end." if lifetime is None else f"It ends after {lifetime / _SECONDS_OF_DAY:g} days."
    return Change(
        does=f"A new key opens {', '.join(sorted(scopes))} for {project.name}. {ends} "
        "Its text is shown once; only its SHA-256 is kept.",
        undo="Revoke it.",
        when="At once.",
        act=act,
    )


def _revoke_key(store: Store, body: Mapping[str, Any]) -> Change:
    project = store.tenants.project(_text(body, "project"))
    key_id = _text(body, "key")
    found = next((key for key in store.keys.list(project.id) if key.id == key_id), None)
    if found is None or found.revoked_at is not None:
        raise _wrong("key", key_id, "a key of the project that is not revoked yet", "Load the page again.")

    def act(actor: str) -> dict[str, str]:
        store.keys.revoke(key_id, actor=actor, project_id=project.id)
        return {"text": f"revoked {key_id}", "project": project.id}

    return Change(
        does=f"The key {found.prefix}… opens nothing any more. Jobs that it began go on.",
        undo="There is none: make a new key, and give it to those who used this one.",
        when="Within a few seconds, on every server.",
        act=act,
    )


def _wrong(where: str, found: object, allowed: str, hint: str) -> InputError:
    return InputError(Problem(where=where, found=repr(found)[:80], allowed=allowed, hint=hint))


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise _wrong(name, value, "a text of 1 to 200 letters", "Write one.")
    return value


def _positive(body: Mapping[str, Any], name: str) -> float:
    value = body.get(name)
    # NaN is above nothing
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
        raise _wrong(name, value, "a number above 0", "Write one.")
    return float(value)


def _bound(name: str, value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise _wrong(name, value, "a whole number from 0 on, or nothing for no bound", "Write one.")
    return value


def _label(name: str) -> str:
    return name.removeprefix("max_").replace("_", " ")


def _shown(name: str, value: int | None) -> str:
    if value is None:
        return "without bound"
    return format_bytes(value) if name == "max_stored_bytes" else f"{value:,}"
