"""``service.yaml``: everything that a service is started with. Without a file every key has its default."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ValidationError

from cohort.core.errors import InputError, Problem
from cohort.core.setting_fields import Refusal
from cohort.core.source_location import Place
from cohort.service.dashboard.gpu_price import PRICE_ALLOWED, read_price
from cohort.service.hosting.tls_files import tls_problems
from cohort.tasks.fields import Section, refuse, setting
from cohort.tasks.problems import problems_from
from cohort.tasks.yaml_lines import TaskOrigin, parse_yaml

__all__ = ["DATABASE_VARIABLE", "BaseSection", "ServiceFile", "default_service", "load_service_file"]

DATABASE_VARIABLE = "COHORT_DATABASE"
"""The environment variable that holds the database's URL where the file has none."""


def _price(text: str | None) -> str | None:
    try:
        if text is not None:
            read_price(text)
    except ValueError:
        refuse(Refusal(found=repr(text), allowed=PRICE_ALLOWED, hint="Write for example gpu_hour: 2.49 USD."))
    return text


def _count(default: int | None, *, allowed: str, description: str, least: int = 1) -> Any:
    return setting(default, ge=least, le=1 << 40, allowed=allowed, description=description)


class BaseSection(Section):
    """A base model."""

    name: str = setting(min_length=1, max_length=200, allowed="a name", description="what clients call it")
    model: str = setting(min_length=1, allowed="a hub id or a directory", description="where it is")
    chat_template: str | None = setting(
        None, allowed="a chat template by name, or null", description="replaces the tokenizer's chat template"
    )
    max_length: int = _count(
        2048, least=2, allowed="a whole number from 2 on", description="most tokens of a training row; the rest is cut"
    )
    quantization: str | None = setting(
        None, allowed="null | none | fp8 | int8 | nf4", description="how its frozen weights are kept"
    )


class WorkersSection(Section):
    """Where jobs train."""

    gpus: int | None = _count(None, allowed="null (all), or a number of GPUs", description="GPUs that train")
    cpu: int | None = _count(None, allowed="null, or a number of workers", description="workers on the CPU instead")
    ray: str | None = setting(None, allowed="null, or a Ray address", description="a Ray cluster instead")
    share_base: bool = setting(
        False,
        allowed="true | false",
        description="train in the server's process, on the copy of the base that serves",
    )
    jobs_at_once: int = _count(
        16,
        allowed="a whole number from 1 on",
        description="most jobs in this server's queue",
    )


class ServingSection(Section):
    """How models answer."""

    gpus: int | None = _count(
        None, least=0, allowed="null, 0 or 1", description="0 answers on the CPU; null on a GPU if there is one"
    )
    max_model_len: int | None = _count(
        None, least=2, allowed="null, or a whole number", description="most tokens of prompt and answer"
    )
    kv_cache_gib: float | None = setting(
        None, gt=0, le=1 << 20, allowed="null, or GiB", description="memory for keys and values of each base"
    )
    max_loras: int = _count(16, allowed="a whole number from 1 on", description="most adapters in a pass")
    max_lora_rank: int = _count(64, allowed="a whole number from 1 on", description="largest rank of an adapter")
    max_cpu_loras: int = _count(256, allowed="a whole number from 1 on", description="most adapters in host memory")
    max_waiting: int = _count(1024, allowed="a whole number from 1 on", description="most open requests of each base")


class TlsSection(Section):
    """The server's certificate."""

    certificate: str = setting(min_length=1, allowed="a PEM file", description="the certificate and its chain")
    key: str = setting(min_length=1, allowed="a PEM file", description="its private key")


class LimitsSection(Section):
    """What clients may send, and what the server keeps free."""

    max_file_mib: int = _count(200, allowed="MiB", description="most of one uploaded file")
    max_body_mib: int = _count(8, allowed="MiB", description="most of a request that is no upload")
    requests_per_minute_of_address: int = _count(
        6000,
        allowed="a whole number from 1 on",
        description="most requests of one address, with and without a key",
    )
    min_free_mib: int = _count(256, least=0, allowed="MiB", description="with less room on the disk jobs pause")
    check_memory_gib: float = setting(8.0, gt=0, le=1 << 20, allowed="GiB", description="memory to read one file")
    check_seconds: int = _count(300, allowed="seconds", description="time to read one file")
    lease_seconds: float = setting(
        30.0, gt=0, le=86400, allowed="seconds", description="after so long another server takes over a job"
    )
    database_grace_seconds: float = setting(
        300.0, gt=0, le=86400, allowed="seconds", description="jobs train on for so long while the database is away"
    )
    drain_seconds: float = setting(
        60.0, ge=0, le=86400, allowed="seconds", description="running requests have this long after SIGTERM"
    )


def _days(description: str) -> Any:
    return setting(None, gt=0, le=36500, allowed="null (for ever), or days", description=description)


class RetentionSection(Section):
    """How long what belongs to a job is kept after its end. Models and files stay until their owner deletes them."""

    events_days: float | None = _days("its events")
    jobs_days: float | None = _days("the job, with its events and checkpoints")
    runs_days: float | None = _days("its run directory on this server: trials, their adapters, the report")


class ServiceFile(Section):
    """A whole ``service.yaml``."""

    folder: str = setting("cohort-service", min_length=1, allowed="a directory", description="where everything lies")
    name: str | None = setting(
        None, allowed="null, or a name that no other server has", description="this server's name; null: the host's"
    )
    database: str | None = setting(
        None, allowed="null (SQLite in the folder), or postgresql://USER:PASSWORD@HOST/NAME", description="the database"
    )
    blobs: str | None = setting(
        None,
        allowed="null (the folder), a directory, or a URL such as s3://BUCKET/PREFIX",
        description="where files lie",
    )
    host: str = setting("127.0.0.1", min_length=1, allowed="an address", description="the address to listen on")
    port: int = setting(8000, ge=0, le=65535, allowed="0 to 65535 (0: a free one)", description="the port")
    dashboard: Literal["read", "change", "none"] = setting(
        "read",
        allowed="read | change | none",
        description="what administrators may do on the pages at /dashboard/ (none: no pages at all)",
    )
    gpu_hour: Annotated[str | None, AfterValidator(_price)] = setting(
        None, allowed=f"null, or {PRICE_ALLOWED}", description="what an hour of one GPU costs, for the pages"
    )
    tls: TlsSection | None = setting(None, allowed="a section", description="certificate and key, for https")
    bases: list[BaseSection] = setting(
        [], allowed="a list of sections with name and model", description="the base models; none: the quickstart's"
    )
    workers: WorkersSection = setting(WorkersSection(), allowed="a section", description="where jobs train")
    serving: ServingSection = setting(ServingSection(), allowed="a section", description="how models answer")
    limits: LimitsSection = setting(LimitsSection(), allowed="a section", description="what clients may send")
    retention: RetentionSection = setting(
        RetentionSection(), allowed="a section", description="how long what has ended is kept"
    )

    @property
    def node(self) -> str:
        """This server's name."""
        return self.name or socket.gethostname()


def load_service_file(path: Path) -> ServiceFile:
    """Read ``service.yaml``, with the files of ``tls``; relative paths start at its directory.

    Raises:
        InputError: every problem there is, with its line.
    """
    where = Place(file=str(path))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "no UTF-8 text"
        hint = "Check the path; or leave it out, and everything has its default."
        raise InputError(Problem(where=where, found=str(found), allowed="a YAML file", hint=hint)) from None
    document = parse_yaml(text, where=where)
    data = {} if document is None or document.data is None else document.data
    if not isinstance(data, dict):
        hint = "Write `key: value` lines, such as `port: 8000`."
        raise InputError(Problem(where=where, found="no mapping", allowed="keys and values", hint=hint))
    origin = TaskOrigin(name=str(path), lines={} if document is None else document.lines)
    try:
        found_file = ServiceFile.model_validate(data)
    except ValidationError as error:
        problems = [problem for _, problem in problems_from(error, model=ServiceFile, origin=origin)]
        raise InputError(problems) from None
    _require_fitting(found_file, origin)
    located = _located(found_file, path.absolute().parent)
    if located.tls is not None:
        problems = tls_problems(located.tls.certificate, located.tls.key, where=origin.where)
        if problems:
            raise InputError(problems)
    return located


def default_service() -> ServiceFile:
    """Return the service without a file: a folder here, SQLite, this machine."""
    return _located(ServiceFile(), Path.cwd())


def _require_fitting(file: ServiceFile, origin: TaskOrigin) -> None:
    problems = []
    names = [base.name for base in file.bases]
    for index, name in enumerate(names):
        if name in names[:index]:
            found, hint = f"a second base named {name!r}", "Give it another name."
            problems.append((f"bases[{index}].name", found, "one base for each name", hint))
    if file.database is not None and file.blobs is None:
        hint = "Write blobs: a folder that all servers see, or s3://BUCKET/PREFIX."
        problems.append(("blobs", "nothing, with a database at a URL", "a folder or a URL", hint))
    elsewhere = file.workers.ray is not None or (file.workers.cpu or 1) > 1 or (file.workers.gpus or 1) > 1
    if file.workers.share_base and (elsewhere or len(file.bases) > 1):
        hint = "Name one base and one device, or write share_base: false."
        problems.append(("workers", "share_base with more", "share_base with one base on one device", hint))
    if file.workers.gpus is not None and file.workers.cpu is not None:
        problems.append(("workers", "gpus and cpu", "one of the two", "Leave one out."))
    if problems:
        raise InputError(
            [
                Problem(where=origin.where(key.partition("[")[0]), found=found, allowed=allowed, hint=hint)
                for key, found, allowed, hint in problems
            ]
        )


def _located(file: ServiceFile, directory: Path) -> ServiceFile:
    def path_of(written: str | None) -> str | None:
        return written if written is None or "://" in written else str((directory / written).absolute())

    tls = file.tls
    if tls is not None:
        tls = tls.model_copy(update={"certificate": path_of(tls.certificate), "key": path_of(tls.key)})
    bases = [
        base.model_copy(update={"model": str(local)}) if (local := directory / base.model).is_dir() else base
        for base in file.bases
    ]
    # where passwords are not to be in files
    database = file.database or os.environ.get(DATABASE_VARIABLE)
    places = {"folder": path_of(file.folder), "database": database, "blobs": path_of(file.blobs)}
    return file.model_copy(update={**places, "tls": tls, "bases": bases})
