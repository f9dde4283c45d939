"""Writes docs/api/ from the docstrings of the public names: ``python tools/api_pages.py``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cohort

__all__ = ["FOLDER", "PAGES", "api_pages"]

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "api"
_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example")
# what a user calls an object of a class
_OBJECTS = {
    "StepReport": "report",
    "EvaluationReport": "report",
    "TrialEndReport": "report",
    "TaskResult": "result",
    "TaskFile": "task",
    "ServiceClient": "service",
    "EarlyExit": "early_exit",
}
_HEADINGS = {"Args": "Arguments", "Example": "Example"}


@dataclass(frozen=True, kw_only=True)
class _Page:
    title: str
    intro: str
    names: tuple[str, ...]


PAGES = {
    "running.md": _Page(
        title="Run, resume, load",
        intro="[From Python](../how-to/python.md) shows them at work.",
        names=("run", "resume", "load", "load_run", "tune", "Engine", "RunOptions"),
    ),
    "task.md": _Page(
        title="Tasks",
        intro="Keys and their meaning are those of the task file; `cohort check --schema` prints them.",
        names=("Task", "load_task", "TaskFile"),
    ),
    "early-exit.md": _Page(
        title="Early exit",
        intro="[Exit rules](../exit-rules.md) lists the rules and all their keys.",
        names=("EarlyExit",),
    ),
    "callbacks.md": _Page(
        title="Callbacks",
        intro="What `on_step`, `on_evaluation` and `on_trial_end` are called with.",
        names=("StepReport", "EvaluationReport", "TrialEndReport"),
    ),
    "service.md": _Page(
        title="A service's client",
        intro="[A fine-tuning service](../how-to/service.md) says how one is started.",
        names=("ServiceClient",),
    ),
    "results.md": _Page(title="Results", intro="", names=("TaskResult",)),
    "errors.md": _Page(
        title="Errors",
        intro="Every error that a user can cause is a `CohortError`; wrong input is an `InputError` with all problems.",
        names=("CohortError", "InputError", "Problem", "TasksFailedError", "CallbackError"),
    ),
}


def api_pages() -> dict[str, str]:
    """Return the pages by file name."""
    index = [
        "# Python API",
        "",
        "`python tools/api_pages.py` writes these pages from the docstrings of what `import cohort` offers.",
        "",
        "| page | names |",
        "|---|---|",
        *(
            f"| [{page.title}]({file}) | {', '.join(f'`{name}`' for name in page.names)} |"
            for file, page in PAGES.items()
        ),
        "",
    ]
    return {"README.md": "\n".join(index), **{file: _page(page) for file, page in PAGES.items()}}


def _page(page: _Page) -> str:
    lines = [f"# {page.title}", "", *([page.intro, ""] if page.intro else [])]
    for name in page.names:
        thing = getattr(cohort, name)
        lines += [f"## cohort.{name}", ""]
        lines += _class(name, thing) if inspect.isclass(thing) else _function(f"cohort.{name}", thing)
    return "\n".join(lines)


def _class(name: str, kind: type[Any]) -> Iterator[str]:
    # errors and records of ours are made by Cohort; a user calls the constructors that have a docstring
    if inspect.getdoc(kind.__init__) and "__init__" in vars(kind) and kind.__init__.__doc__:
        yield from _signature(f"cohort.{name}", kind)
    yield from _text(inspect.getdoc(kind) or "")
    own = kind.__init__.__doc__ if "__init__" in vars(kind) else None
    if own:
        yield from _text(_without_summary(inspect.cleandoc(own)))
    # a private base has the methods that its classes share
    shared = [base for base in kind.__mro__[1:] if base.__module__ == kind.__module__ and base.__name__.startswith("_")]
    for method, value in [entry for base in (kind, *shared) for entry in vars(base).items()]:
        plain = value.__func__ if isinstance(value, classmethod) else value
        if method.startswith("_") or not inspect.isfunction(plain) or not plain.__doc__ or _is_pydantic(kind, method):
            continue
        prefix = f"cohort.{name}" if isinstance(value, classmethod) else _OBJECTS.get(name, name.lower())
        yield from (f"### {name}.{method}", "")
        yield from _function(f"{prefix}.{method}", plain)


def _is_pydantic(kind: type[Any], method: str) -> bool:
    # what the layers below read of a task is no part of the API
    return hasattr(kind, "model_fields") and method not in ("resolved_yaml",)


def _function(shown: str, function: Any) -> Iterator[str]:
    yield from _signature(shown, function)
    yield from _text(inspect.getdoc(function) or "")


def _signature(shown: str, thing: Any) -> Iterator[str]:
    signature = inspect.signature(thing)
    parameters = [entry for name, entry in signature.parameters.items() if name not in ("self", "cls")]
    listed, is_keyword_only = [], False
    for entry in parameters:
        if entry.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            listed.append("*")
        listed.append(_parameter(entry))
    returns = signature.return_annotation
    arrow = "" if inspect.isclass(thing) or returns in (inspect.Signature.empty, "None") else f" -> {returns}"
    one = f"{shown}({', '.join(listed)}){arrow}"
    one, listed = _public(one), [_public(entry) for entry in listed]
    lines = [one] if len(one) <= 110 else [f"{shown}(", *(f"    {entry}," for entry in listed), _public(f"){arrow}")]
    yield from ("```text", *lines, "```", "")


def _parameter(entry: inspect.Parameter) -> str:
    stars = "**" if entry.kind is inspect.Parameter.VAR_KEYWORD else ""
    annotation = "" if entry.annotation is inspect.Parameter.empty else f": {entry.annotation}"
    default = "" if entry.default is inspect.Parameter.empty else f" = {entry.default!r}"
    return f"{stars}{entry.name}{annotation}{default}"


def _public(text: str) -> str:
    """Return a signature with the names that ``import cohort`` offers."""
    return text.replace("EarlyExitSettings", "EarlyExit")


def _without_summary(doc: str) -> str:
    # the class says it already
    return doc.partition("\n\n")[2]


def _text(doc: str) -> Iterator[str]:
    """Turn a docstring of Google's style into Markdown."""
    body: list[str] = []
    section = ""
    for line in [*doc.splitlines(), "End:"]:
        head = line[:-1] if re.fullmatch(rf"({'|'.join((*_SECTIONS, 'End'))}):", line) else None
        if head is None:
            body.append(line)
            continue
        yield from _section(section, body)
        section, body = head, []


def _section(name: str, body: Sequence[str]) -> Iterator[str]:
    lines = "\n".join(body).strip("\n").splitlines()
    if not lines:
        return
    if not name:
        yield from (*(_inline(line) for line in lines), "")
        return
    lines = inspect.cleandoc("\n" + "\n".join(lines)).splitlines()
    yield from (f"**{_HEADINGS.get(name, name)}**", "")
    if name in ("Example", "Returns", "Yields"):
        yield from (*(lines if name == "Example" else map(_inline, lines)), "")
        return
    for line in lines:
        if line.startswith(" "):
            yield f"  {_inline(line.strip())}"
        else:
            term, colon, meaning = line.partition(": ")
            yield f"- {', '.join(f'`{part}`' for part in term.split(', '))}{colon}{_inline(meaning)}"
    yield ""


def _inline(line: str) -> str:
    """Turn the roles and double quotation marks of reStructuredText into Markdown's."""
    line = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", line)
    return _public(line.replace("``", "`"))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in api_pages().items():
        (FOLDER / name).write_text(page, encoding="utf-8")
