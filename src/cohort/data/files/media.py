"""Rows with images, sound or video: a model's text part alone is trained, so what such a row means would be lost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cohort.data.problems import BadRowError

__all__ = ["require_text"]

_MEDIA = {
    **dict.fromkeys(("image", "images", "pixel_values"), "images"),
    **dict.fromkeys(("audio", "audios"), "sound"),
    **dict.fromkeys(("video", "videos"), "videos"),
}
# a column of that name may be text, such as a container's name
_ENDS = "png|jpe?g|gif|webp|bmp|tiff?|wav|mp3|flac|ogg|m4a|mp4|webm|avi|mov"
_FILE = re.compile(rf"data:|.*[.]({_ENDS})([?#].*)?$", re.IGNORECASE | re.DOTALL)


def require_text(original: Mapping[str, Any]) -> None:
    """Check that a row of a file is text alone.

    Raises:
        BadRowError: a column of it holds images, sound or video.
    """
    for name, value in original.items():
        kind = _MEDIA.get(str(name).lower())
        if kind is None or value is None or not _is_medium(value):
            continue
        raise BadRowError(
            found=f"{kind} in the column {name}",
            allowed="rows of text: of a model with images or sound the text part is trained, on text alone",
            hint=f"Remove the column {name} from rows that mean the same without it, and the other rows.",
        )


def _is_medium(value: Any) -> bool:
    if isinstance(value, str):
        return _FILE.match(value) is not None
    if isinstance(value, list | tuple):
        return any(_is_medium(one) for one in value)
    return not isinstance(value, bool | int | float) and bool(value)
