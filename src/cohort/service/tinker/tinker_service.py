"""Opens the Tinker API next to what is served: one base model, whose passes train and decode in turns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError, InUseError, Problem
from cohort.core.fair_lock import FairLock
from cohort.core.place import Place
from cohort.engine.client_training.client_trainer import ClientTrainer
from cohort.models.decoder import Decoder
from cohort.runs.lock import RunLock
from cohort.service.engine_thread import EngineThread
from cohort.service.served_model import ServedModel
from cohort.service.settings import ServedSettings, ServerLimits
from cohort.service.tinker.checkpoint_calls import CheckpointCalls
from cohort.service.tinker.checkpoints import CheckpointStore
from cohort.service.tinker.client_sessions import ClientSessions
from cohort.service.tinker.journal.journal import Journal
from cohort.service.tinker.journal.snapshots import SnapshotStore
from cohort.service.tinker.model_calls import ModelCalls
from cohort.service.tinker.promises import Promises
from cohort.service.tinker.recovery import Recovery
from cohort.service.tinker.routes import TinkerRoutes
from cohort.service.tinker.sampler_versions import SamplerVersions
from cohort.service.tinker.sampling import SamplingCalls
from cohort.service.tinker.training_calls import TrainingCalls
from cohort.service.tinker.upkeep import Upkeep
from cohort.training.requests.request_executor import RequestExecutor

__all__ = ["TinkerService", "open_tinker", "require_trainable"]

TOKEN_BUDGET = 8192
JOURNAL = ".journal"
"""Folder of the journal among those of checkpoints."""


@dataclass(frozen=True, kw_only=True)
class TinkerService:
    """The API: its routes, and the thread that trains, not yet started.

    Attributes:
        lock: Held while the server writes to its folder.
    """

    routes: TinkerRoutes
    trainer: ClientTrainer
    lock: RunLock

    def close(self) -> None:
        """End the thread and let another server have the folder."""
        self.trainer.close()
        self.lock.release()


def require_trainable(settings: ServedSettings) -> None:
    """Check what is served against training on it, before anything is loaded.

    Raises:
        InputError: the model would be divided, or the folder of checkpoints is a file.
    """
    if settings.tinker is None:
        return
    if settings.tensor_parallel_size > 1:
        raise InputError(
            Problem(
                where=Place(option="command line --tinker"),
                found=f"--tinker with --tensor-parallel-size {settings.tensor_parallel_size}",
                allowed="--tinker with a model on one device",
                hint="Leave --tensor-parallel-size out.",
            )
        )
    if settings.tinker.exists() and not settings.tinker.is_dir():
        raise InputError(
            Problem(
                where=Place(option="command line --tinker"),
                found=f"{settings.tinker}, which is a file",
                allowed="a folder, which may be new",
                hint="Name a folder for the checkpoints of clients.",
            )
        )


def open_tinker(
    settings: ServedSettings,
    limits: ServerLimits,
    *,
    model: ServedModel,
    decoder: Decoder,
    thread: EngineThread,
    turn: FairLock,
) -> TinkerService:
    """Return the API for the model that ``thread`` serves.

    Args:
        turn: What the passes of ``thread`` hold.
    """
    assert settings.tinker is not None, "asked for by --tinker"
    layout = AdapterLayout(decoder.linears)
    executor = RequestExecutor(
        decoder,
        layout=layout,
        num_slots=settings.max_trained_models,
        num_rank_rows=settings.max_trained_models * aligned_rank(settings.pool.max_lora_rank),
        token_budget=TOKEN_BUDGET,
        compute_dtype=decoder.dtype,
    )
    trainer = ClientTrainer(executor, turn=turn)
    sessions, promises = ClientSessions(), Promises()
    store = CheckpointStore(settings.tinker, base_model=model.names[0], layout=layout)
    versions = SamplerVersions(trainer, model.pool, sessions)
    training = TrainingCalls(
        trainer,
        versions=versions,
        sessions=sessions,
        names=model.names,
        max_rank=settings.pool.max_lora_rank,
        vocab_size=decoder.config.vocab_size,
        context=model.max_model_len,
    )
    sampling = SamplingCalls(
        thread,
        trainer,
        vocab_size=decoder.config.vocab_size,
        eos_ids=model.stop_ids,
        most_tokens=model.max_model_len,
        most_samples=limits.max_prompts,
    )
    checkpoints = CheckpointCalls(training, versions=versions, sessions=sessions, store=store)
    lock = _locked(settings.tinker / JOURNAL)
    journal = Journal(settings.tinker / JOURNAL)
    snapshots = SnapshotStore(settings.tinker / JOURNAL / "models")
    upkeep = Upkeep(training=training, sessions=sessions, promises=promises, journal=journal, snapshots=snapshots)
    calls = ModelCalls(
        training=training,
        checkpoints=checkpoints,
        sessions=sessions,
        store=store,
        promises=promises,
        journal=journal,
        most_open=limits.max_waiting,
    )
    recovery = Recovery(
        journal=journal,
        snapshots=snapshots,
        training=training,
        versions=versions,
        sessions=sessions,
        store=store,
        promises=promises,
        upkeep=upkeep,
    )
    trainer.on_round, trainer.on_gap = journal.flush, calls.pass_gap
    training.on_drop, checkpoints.on_loaded, calls.on_ran = upkeep.dropped, upkeep.keep_loaded, upkeep.ran
    recovery.read({"name": model.names[0], "sha256": model.base.sha256, "dtype": str(decoder.dtype)})
    routes = TinkerRoutes(
        calls=calls,
        training=training,
        sampling=sampling,
        versions=versions,
        sessions=sessions,
        store=store,
        promises=promises,
        journal=journal,
        upkeep=upkeep,
        recovery=recovery,
        base_model=model.names[0],
        context=model.max_model_len,
    )
    return TinkerService(routes=routes, trainer=trainer, lock=lock)


def _locked(folder: Path) -> RunLock:
    folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(folder / "lock")
    try:
        lock.acquire()
    except InUseError:
        raise InputError(
            Problem(
                where=Place(option="command line --tinker"),
                found=f"{folder.parent}, in use by {lock.holder()}",
                allowed="a folder of one server",
                hint="Stop that server, or name another folder.",
            )
        ) from None
    return lock
