"""Uploads to S3 that were begun and never completed: no listing shows their parts, and they cost money."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

__all__ = ["end_uploads"]


def end_uploads(filesystem: Any, path: str) -> None:
    """End what a killed process was uploading below ``path``, where ``filesystem`` is that of s3fs; else nothing.

    Keys that may not list or end uploads are no reason to fail: a rule of the bucket can do the same.
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
