"""Opens what a service needs: its store with a first key, its base models, its runner of jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from cohort.core.errors import InputError, Problem
from cohort.engine.resident.resident_base import ResidentBase
from cohort.models.config_file import read_config
from cohort.models.source import find_model
from cohort.models.tokenizer import load_tokenizer
from cohort.service.completion_answers import CompletionAnswers
from cohort.service.hosting.service_file import BaseSection, ServiceFile
from cohort.service.jobs.job_task import BaseForJobs
from cohort.service.jobs.row_checks import CheckLimits
from cohort.service.jobs.runner import JobRunner
from cohort.service.jobs.runner_settings import RunnerSettings
from cohort.service.metrics import ServerMetrics
from cohort.service.opening import open_served
from cohort.service.served_models import ServedBaseModel, ServedModels
from cohort.service.settings import ServedSettings, ServerLimits
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from cohort.serving.scheduler import SchedulerSettings
from cohort.store.enums import KeyScope
from cohort.store.errors import NameTakenError, StorageFull, StoreUnavailable
from cohort.store.named_leases import take_lease
from cohort.store.retention import Retention
from cohort.store.store import Store, open_store
from cohort.task_queue.workers.pool import PoolRequest

__all__ = ["SCRATCH", "UPLOADS", "OpenService", "first_key", "open_service"]

UPLOADS, SCRATCH = "uploads", "scratch"
"""In the service's folder: where files are that are being uploaded, and those of other requests."""

_FIRST, _FIRST_KEY_SECONDS = "default", 5.0
# a model without a template of its own is rendered with this one, in training and in answers
_FALLBACK_TEMPLATE = "plain"
# workers train on the same GPU: serving takes a share for keys and values, not all that is free
_KV_SHARE_OF_GPU = 0.1
_MIB = 1 << 20
_DAY_SECONDS = 86400.0


@dataclass(frozen=True, kw_only=True)
class OpenService:
    """A service that is ready to start.

    Attributes:
        served: The base models, and the way to tenants' adapters.
        bases: The base models as jobs train them.
        settings: How this node runs jobs.
        metrics: Of each base's engine, by its name.
        notes: For the user.
    """

    file: ServiceFile
    store: Store
    served: ServedModels
    runner: JobRunner
    bases: dict[str, BaseForJobs]
    settings: RunnerSettings
    metrics: dict[str, ServerMetrics]
    notes: tuple[str, ...]


def first_key(store: Store, *, owner: str) -> str | None:
    """Make a key with all scopes for a store without keys; None where there are some, or tenants of another name.

    Where a start was killed before it had made the key, the next one makes it.

    Args:
        owner: The process; of several that start at the same time, one makes the key.
    """
    end = time.monotonic() + 2 * _FIRST_KEY_SECONDS
    while not store.keys.list() and time.monotonic() < end:
        if take_lease(store.database, "first key", owner, seconds=_FIRST_KEY_SECONDS) is not None:
            return _first_key(store)
        # another process makes it, or was killed as it did
        time.sleep(_FIRST_KEY_SECONDS / 10)
    return None


def _first_key(store: Store) -> str | None:
    found = store.tenants.organisations()
    if [organisation.name for organisation in found] not in ([], [_FIRST]) or store.keys.list():
        return None
    try:
        organisation = found[0] if found else store.tenants.add_organisation(_FIRST, actor="cohort service")
        projects = store.tenants.projects(organisation_id=organisation.id)
        project = (
            projects[0] if projects else store.tenants.add_project(organisation.id, _FIRST, actor="cohort service")
        )
    except NameTakenError:
        # another server process was faster
        return None
    return store.keys.create(project.id, actor="cohort service", name="first key", scopes=frozenset(KeyScope)).text


def open_service(file: ServiceFile, *, bases: tuple[BaseSection, ...]) -> OpenService:
    """Open the store, load the base models and make a runner; nothing has begun yet.

    Args:
        bases: The base models; at least one.

    Raises:
        InputError: a model cannot be used, or a place is none.
        StoreError: the store cannot be used.
    """
    folder = Path(file.folder)
    _make_folder(folder)
    _require_gpus(file)
    store = open_store(file.database or folder, blobs=file.blobs)
    _require_blobs(store, file)
    on_cpu = file.workers.cpu is not None or (file.workers.ray is None and not torch.cuda.is_available())
    opened, for_jobs, notes = {}, {}, []
    metrics: dict[str, ServerMetrics] = {}
    for base in bases:
        base = _with_template(base)
        found = open_served(_served(base, file), ServerLimits(max_waiting=file.serving.max_waiting))
        numbers = metrics[base.name] = ServerMetrics(base.name)
        found.thread.on_step = numbers.count_step
        answers = CompletionAnswers(found.model, found.thread, numbers)
        opened[base.name] = ServedBaseModel(name=base.name, opened=found, answers=answers)
        for_jobs[base.name] = _for_jobs(base, on_cpu=on_cpu)
        notes += [f"{base.name}: {note}" for note in found.notes]
    settings = _runner_settings(file)
    runner = JobRunner(
        store,
        folder=folder / "nodes" / file.node,
        name=file.node,
        bases=for_jobs,
        places=PoolRequest(gpus=file.workers.gpus, workers=_cpu_workers(file, on_cpu=on_cpu), ray=file.workers.ray),
        settings=settings,
        base=_shared_base(file, bases, opened),
        scratch=(folder / UPLOADS, folder / SCRATCH),
    )
    served = ServedModels(opened, store, cache=folder / "nodes" / file.node / "adapters")
    return OpenService(
        file=file,
        store=store,
        served=served,
        runner=runner,
        bases=for_jobs,
        settings=settings,
        metrics=metrics,
        notes=tuple(notes),
    )


def _make_folder(folder: Path) -> None:
    """Make the service's folder.

    Raises:
        InputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            Problem(
                where="folder",
                found=f"{folder} ({error.strerror})",
                allowed="a folder that is there, or that can be made, and that this server may write",
                hint="Choose another one: --folder DIR, or the key folder of the service's file.",
            )
        ) from None


def _require_gpus(file: ServiceFile) -> None:
    """Find out before models are loaded that there are not the GPUs that shall train; on a cluster others know.

    Raises:
        InputError: there are fewer.
    """
    asked, there = file.workers.gpus, torch.cuda.device_count()
    if asked is not None and file.workers.ray is None and asked > there:
        raise InputError(
            Problem(
                where="service.yaml: workers.gpus",
                found=f"{asked}, but torch can use {there or 'none'} here",
                allowed=f"null (all), or at most {there}" if there else "null, with cpu: N to train on the CPU",
                hint="Correct the number, or write workers: {cpu: 1}.",
            )
        )


def _require_blobs(store: Store, file: ServiceFile) -> None:
    """Write a few bytes before the models are loaded: names and keys are tried while somebody looks.

    Raises:
        InputError: the place is not there, or refuses us.
        StoreUnavailable: it cannot be reached now.
    """
    try:
        store.blobs.folder.check()
    except StorageFull:
        # what is there can be served; uploads are told
        return
    except StoreUnavailable as error:
        if isinstance(error.__cause__, FileNotFoundError | PermissionError):
            raise InputError(
                Problem(
                    where="service.yaml: blobs" if file.blobs else "folder",
                    found=f"{file.blobs or file.folder} ({error.__cause__})",
                    allowed="a folder or a bucket that is there, and that this server may read, write and list",
                    hint="Make it, or give this server keys for it (S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY).",
                )
            ) from None
        raise


def _shared_base(
    file: ServiceFile, bases: tuple[BaseSection, ...], opened: Mapping[str, ServedBaseModel]
) -> ResidentBase | None:
    """Return the base that serves and trains; None where jobs train elsewhere.

    Raises:
        InputError: there are several bases.
    """
    if not file.workers.share_base:
        return None
    if len(bases) > 1:
        raise InputError(
            Problem(
                where="service.yaml: workers.share_base",
                found=f"true with {len(bases)} base models",
                allowed="true with one base model",
                hint="Serve one base, or write share_base: false.",
            )
        )
    return opened[bases[0].name].opened.base


def _cpu_workers(file: ServiceFile, *, on_cpu: bool) -> int | None:
    if file.workers.cpu is not None:
        return file.workers.cpu
    return 1 if on_cpu and file.workers.gpus is None else None


def _with_template(base: BaseSection) -> BaseSection:
    if base.chat_template is not None or load_tokenizer(find_model(base.model)).chat_template:
        return base
    return base.model_copy(update={"chat_template": _FALLBACK_TEMPLATE})


def _for_jobs(base: BaseSection, *, on_cpu: bool) -> BaseForJobs:
    context = read_config(find_model(base.model)).max_position_embeddings
    return BaseForJobs(
        name=base.name,
        path=base.model,
        max_length=min(base.max_length, context),
        chat_template=base.chat_template,
        on_cpu=on_cpu,
        quantization=base.quantization,
    )


def _served(base: BaseSection, file: ServiceFile) -> ServedSettings:
    serving = file.serving
    cache = None if serving.kv_cache_gib is None else int(serving.kv_cache_gib * 2**30)
    on_gpu = serving.gpus != 0 and torch.cuda.is_available()
    if cache is None and on_gpu and not file.workers.share_base:
        cache = int(_KV_SHARE_OF_GPU * torch.cuda.get_device_properties(0).total_memory)
    return ServedSettings(
        model=base.model,
        names=(base.name,),
        trains_tasks=file.workers.share_base,
        chat_template=base.chat_template,
        max_model_len=serving.max_model_len,
        cache_bytes=cache,
        gpus="auto" if serving.gpus is None else serving.gpus,
        quantization=base.quantization,
        pool=AdapterPoolSettings(
            max_loras=serving.max_loras, max_lora_rank=serving.max_lora_rank, max_cpu_loras=serving.max_cpu_loras
        ),
        scheduler=SchedulerSettings(),
    )


def _runner_settings(file: ServiceFile) -> RunnerSettings:
    limits = file.limits
    check = CheckLimits(memory_bytes=int(limits.check_memory_gib * 2**30), seconds=limits.check_seconds)
    return replace(
        RunnerSettings(),
        lease_seconds=limits.lease_seconds,
        most_jobs=file.workers.jobs_at_once,
        min_free_bytes=limits.min_free_mib * _MIB,
        grace_seconds=limits.database_grace_seconds,
        check=check,
        retention=_retention(file),
    )


def _retention(file: ServiceFile) -> Retention:
    def seconds(days: float | None) -> float | None:
        return None if days is None else days * _DAY_SECONDS

    kept = file.retention
    return Retention(
        event_seconds=seconds(kept.events_days),
        job_seconds=seconds(kept.jobs_days),
        run_seconds=seconds(kept.runs_days),
    )
