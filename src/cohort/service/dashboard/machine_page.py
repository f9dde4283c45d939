"""This machine as its page shows it: what ``cohort doctor`` finds, and the disk that the runs lie on."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from cohort.service.dashboard.plain_json import plain

__all__ = ["machine_page"]


@cache
def _examined() -> dict[str, Any]:
    # asks torch, which takes seconds to import: a page about runs alone needs none of it
    from cohort.machine.doctor import examine_machine

    return asdict(examine_machine())


def machine_page(root: Path) -> dict[str, Any]:
    """Return the machine's report, as it was when it was first asked for, with the room on the disk of ``root`` now."""
    disk = shutil.disk_usage(root)
    return dict(plain({**_examined(), "runs_disk": {"total_bytes": disk.total, "free_bytes": disk.free}}))
