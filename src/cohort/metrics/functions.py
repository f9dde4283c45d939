"""Metric functions of the user: found by ``module:function`` or ``path/file.py:function``, checked, and called."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import math
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, SupportsFloat, SupportsIndex

from cohort.metrics.metric import Metric, MetricFailedError, Row

__all__ = [
    "FunctionRefusedError",
    "UserFunction",
    "code_identity",
    "find_function",
    "function_path",
    "load_function",
    "raised_text",
    "spelled_function",
]


class FunctionRefusedError(Exception):
    """A function cannot be a metric; the message says why, the hint what to do."""

    def __init__(self, why: str, *, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


@dataclass(frozen=True, kw_only=True)
class UserFunction:
    """A function of the user, found by its name.

    Attributes:
        identity: SHA-256 (hex) of the code that its values come from.
    """

    name: str
    function: Callable[..., Any]
    identity: str


_WRITE_ONE = "Write def NAME(prediction, row): return a number; at the top level of a module."


def function_path(name: str) -> tuple[str, str] | None:
    """Return the two parts of ``module:function``; None for a name that has not this form."""
    # from the right, since a path may hold a colon of its own
    module, colon, function = name.rpartition(":")
    return (module, function) if colon and module and function.isidentifier() else None


def spelled_function(function: Callable[..., Any]) -> str:
    """Return the ``module:function`` that finds ``function`` again, which a run records.

    Raises:
        FunctionRefusedError: it has no such name: a lambda, a function within another, an instance of a class.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or not str(name).isidentifier():
        raise FunctionRefusedError(
            f"{function!r}, which cannot be found again by a name", hint="Define it with def at the top of a module."
        )
    return f"{module}:{name}"


def load_function(spelled: str) -> Metric:
    """Return the metric of ``module:function`` or ``/path/file.py:function``.

    Raises:
        FunctionRefusedError: there is no such module or function, or it does not take a prediction and a row.
    """
    found = find_function(spelled, arguments=("", {}), write_one=_WRITE_ONE)
    score = _checked(found.function, name=found.name)
    return Metric(name=found.name, score=score, identity=found.identity, shown=f"{found.name} ({spelled})")


def find_function(spelled: str, *, arguments: tuple[object, object] | None, write_one: str) -> UserFunction:
    """Return the function of ``module:function`` or ``/path/file.py:function``.

    Args:
        arguments: What it is called with, to compare with its signature; it is not called. None where any function
            will do.
        write_one: The hint for one that cannot be called so.

    Raises:
        FunctionRefusedError: there is no such module or function, or it does not take ``arguments``.
    """
    parts = function_path(spelled)
    if parts is None:
        raise FunctionRefusedError(f"{spelled!r}, which is not module:function", hint="Write module:function.")
    module_name, name = parts
    module = _module(module_name, function=name)
    function = getattr(module, name, None)
    if function is None:
        raise FunctionRefusedError(f"no {name} in {_shown(module_name)}", hint=_missing_hint(module_name))
    if arguments is not None or not callable(function):
        _require_arguments(function, arguments or (), name=name, write_one=write_one)
    return UserFunction(name=name, function=function, identity=_identity(module, function, spelled))


def _missing_hint(module_name: str) -> str:
    if module_name == "__main__":
        return "It was defined in a script or notebook: put it into a module, or resume in Python where it is defined."
    return "Check the name."


def _shown(module_name: str) -> str:
    return Path(module_name).name if module_name.endswith(".py") else module_name


def _module(name: str, *, function: str) -> ModuleType:
    try:
        # a file is loaded under a name of its own: two tasks may both have a metrics.py
        return _module_of_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except ModuleNotFoundError as error:
        # the module is there, but what it imports is not
        if error.name is not None and error.name not in (name, name.partition(".")[0]):
            raise _unimportable(name, error) from error
        raise FunctionRefusedError(
            f"no module {name!r} for {function}",
            hint=f"Put {name.partition('.')[0]}.py into the folder of the task file, or install its package.",
        ) from error
    # whatever a user's module raises while it is imported
    except (Exception, SystemExit) as error:
        raise _unimportable(name, error) from error


def _unimportable(name: str, error: BaseException) -> FunctionRefusedError:
    return FunctionRefusedError(
        f"{_shown(name)}, which cannot be imported ({type(error).__name__}: {error})",
        hint="Correct the module.",
    )


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles the file as it is: Python takes old bytecode where size and second of the last change are the same."""

    def get_code(self, fullname: str) -> CodeType:
        del fullname
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FunctionRefusedError(f"no file {str(path)!r}", hint="Restore it, or give its new path.")
    root, dotted = path.parent, path.stem
    # a module of a package may import its siblings by relative names
    while (root / "__init__.py").is_file():
        root, dotted = root.parent, f"{root.name}.{dotted}"
    with _first_on_path(root):
        if root != path.parent:
            return importlib.import_module(dotted)
        # by its content too: a notebook that edits the file and runs a cell again gets what it wrote
        content = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:12]
        unique = f"_cohort_metric_{content}_{path.stem}"
        if (loaded := sys.modules.get(unique)) is not None:
            return loaded
        spec = importlib.util.spec_from_file_location(unique, path, loader=_SourceLoader(unique, str(path)))
        assert spec is not None, "a .py file has a spec"
        assert spec.loader is not None, "a .py file has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules[unique] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[unique]
            raise
    return module


@contextlib.contextmanager
def _first_on_path(root: Path) -> Iterator[None]:
    # the module may import modules of the same folder
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(root))


def _require_arguments(function: object, arguments: tuple[object, ...], *, name: str, write_one: str) -> None:
    if not callable(function):
        raise FunctionRefusedError(f"{name}, which is {function!r:.60}, not a function", hint=write_one)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise FunctionRefusedError(f"{name}, which does not return a number when it is called", hint=write_one)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # some functions written in C tell nothing: their first call will
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise FunctionRefusedError(f"{name}{signature}, which does not take two arguments", hint=write_one) from None


def _checked(function: Callable[[str, Row], Any], *, name: str) -> Callable[[str, Row], float]:
    def score(prediction: str, row: Row) -> float:
        try:
            value = function(prediction, row)
        except Exception as error:
            raise MetricFailedError(raised_text(error, of=function)) from error
        return _finite(value)

    score.__name__ = name
    return score


def raised_text(error: Exception, *, of: Callable[..., Any]) -> str:
    """Return what a function of the user raised, with its own line where it did."""
    return f"raised {type(error).__name__}: {error}{_line_of(error, file=_file_of(of))}"


def _file_of(function: Callable[..., Any]) -> str | None:
    try:
        return inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        # written in C
        return None


def _line_of(error: Exception, *, file: str | None) -> str:
    """Return the last line of the user's ``file`` before ``error`` was raised, there or in what it called."""
    own = [entry for entry in traceback.extract_tb(error.__traceback__) if entry.filename == file]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def _finite(value: object) -> float:
    """Return a score as a float; numbers of numpy and torch are numbers too.

    Raises:
        MetricFailedError: it is no finite number.
    """
    if isinstance(value, SupportsFloat | SupportsIndex) and not isinstance(value, str):
        with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):
            number = float(value)
            if math.isfinite(number):
                return number
    raise MetricFailedError(f"returned {value!r:.80}, which is no finite number")


def _identity(module: ModuleType, function: Callable[..., Any], spelled: str) -> str:
    """Return the SHA-256 of the code that a score comes from; comments and layout are no part of it."""
    source = _source(function if module.__name__ == "__main__" else module) or _source(function)
    if source is not None:
        with contextlib.suppress(SyntaxError, ValueError):
            # helpers in the same file count as well as the function itself
            source = ast.unparse(ast.parse(textwrap.dedent(source)))
    # a function written in C has no source: its name is all there is to compare
    return hashlib.sha256((source or spelled).encode()).hexdigest()


def code_identity(function: Callable[..., Any]) -> str:
    """Return the SHA-256 of the code that the scores of a package's metric come from."""
    module, name = sys.modules[function.__module__], getattr(function, "__qualname__", "")
    return _identity(module, function, f"{function.__module__}:{name}")


def _source(of: object) -> str | None:
    file = getattr(of, "__file__", None)
    try:
        if isinstance(of, ModuleType) and file is not None and file.endswith(".py"):
            # not from the cache of lines, which may be older than the file
            return Path(file).read_text(encoding="utf-8")
        return inspect.getsource(of)  # type: ignore[arg-type]
    except (OSError, TypeError, UnicodeDecodeError):
        return None
