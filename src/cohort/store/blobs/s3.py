"""What S3 needs beyond what fsspec does for all storage: bounded patience, and an end of abandoned uploads."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from typing import Any

__all__ = ["bound_patience", "end_uploads", "s3_options"]

# botocore tries so often, and s3fs that so often again: 15 s for each time without an answer
_ATTEMPTS = 2
_ENVIRONMENT = {"AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"}


def s3_options(place: str) -> dict[str, Any]:
    """Return the arguments of a file system at ``place`` that keep it from waiting long; none where it is not S3.

    With the libraries' own numbers a network that swallows everything takes minutes, and each request a thread.
    What the user has set in the environment stays.
    """
    if not place.startswith(("s3://", "s3a://")):
        return {}
    try:
        # optional: fsspec says what is missing
        session = importlib.import_module("aiobotocore.session").AioSession()
        handlers = importlib.import_module("botocore.handlers")
    except ImportError:
        return {}
    # A write that asks for leave first waits for it without bounds: aiohttp counts the time of answers alone.
    session.unregister("before-call.s3", handlers.add_expect_header)
    if _ENVIRONMENT & os.environ.keys():
        return {"session": session}
    return {"session": session, "config_kwargs": {"retries": {"mode": "standard", "max_attempts": _ATTEMPTS}}}


def bound_patience(filesystem: Any) -> None:
    """Let s3fs try again as seldom as botocore does; other file systems are left alone."""
    if hasattr(filesystem, "abort_mpu"):
        filesystem.retries = _ATTEMPTS


def end_uploads(filesystem: Any, path: str) -> None:
    """End what a killed process was uploading below ``path``, where ``filesystem`` is that of s3fs; else nothing.

    No listing shows the parts of such an upload, and they cost money. Keys that may not list or end uploads are no
    reason to fail: a rule of the bucket can do the same.
    """
    if not (hasattr(filesystem, "abort_mpu") and hasattr(filesystem, "call_s3")):
        return
    bucket, key, _ = filesystem.split_path(path)
    with suppress(PermissionError, NotImplementedError):
        found = filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
        for upload in found.get("Uploads", ()):
            # another process may have ended it
            with suppress(FileNotFoundError):
                filesystem.abort_mpu(bucket, upload["Key"], upload["UploadId"])
