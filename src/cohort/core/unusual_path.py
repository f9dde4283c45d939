"""What stands at a path that is neither a file nor a folder: a link that leads nowhere, a pipe, a device.

``Path.exists`` and ``Path.is_file`` answer False for most of these, so that a message would deny what the user sees in
the folder; opening a pipe waits for a writer, and a device such as ``/dev/zero`` never ends.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["UnusualPath", "unusual_path"]

_SHOWN = 60
# of one part of a path, on the file systems of Linux and macOS
_MOST_NAME_BYTES = 255
_COPY = "Name a file or a folder; what comes through a pipe can be written to a file first."
_KINDS: tuple[tuple[Callable[[int], bool], str, str], ...] = (
    (stat.S_ISFIFO, "a pipe (FIFO)", _COPY),
    (stat.S_ISSOCK, "a socket", "Name another path."),
    (stat.S_ISCHR, "a device", "Name another path."),
    (stat.S_ISBLK, "a device", "Name another path."),
)


@dataclass(frozen=True, kw_only=True)
class UnusualPath:
    """What stands at a path, in words that complete "found ...", and what to do about it.

    Attributes:
        is_below_file: Only a folder of the path is none: a text such as ``owner/name`` may mean something else.
    """

    found: str
    hint: str
    is_below_file: bool = False


def unusual_path(path: Path) -> UnusualPath | None:
    """Return what stands at ``path``; None for a file, for a folder, and where nothing does."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return _unreachable(path, error)
    except ValueError:
        # no path of any system holds a null character
        return UnusualPath(found="a name with a null character", hint="Remove the character.")
    return next((UnusualPath(found=found, hint=hint) for is_kind, found, hint in _KINDS if is_kind(mode)), None)


def _unreachable(path: Path, error: OSError) -> UnusualPath | None:
    if error.errno == errno.ELOOP:
        link = next((part for part in (path, *path.parents) if part.is_symlink()), path)
        hint = "Remove the link, or let it lead to what you mean."
        return UnusualPath(found=f"a link that leads back to itself ({link} -> {os.readlink(link)})", hint=hint)
    if error.errno == errno.ENAMETOOLONG:
        return UnusualPath(found=_too_long(path), hint="Choose a shorter one.")
    if error.errno == errno.ENOTDIR:
        file = next((part for part in path.parents if part.exists()), path.parent)
        found = f"a path below {file}, which is {'a file' if file.is_file() else 'no directory'}"
        return UnusualPath(found=found, hint="Check the path.", is_below_file=True)
    if error.errno == errno.EACCES:
        found, hint = "a path in a folder that may not be entered", "Check the folder's permissions."
        return UnusualPath(found=found, hint=hint)
    if path.is_symlink():
        hint = "Let the link lead to what you mean, or name that itself."
        return UnusualPath(found=f"a link to {os.readlink(path)}, which does not exist", hint=hint)
    return None


def _too_long(path: Path) -> str:
    longest = max(path.parts, key=len, default="")
    if len(os.fsencode(longest)) > _MOST_NAME_BYTES:
        return f"a name of {len(longest):,} characters ({longest[:_SHOWN]}...), more than the file system allows"
    return f"a path of {len(str(path)):,} characters, more than the file system allows"
