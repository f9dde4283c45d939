"""Opens the Tinker API next to what is served: one base model, whose passes train and decode in turns."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.engine.client_training.client_trainer import ClientTrainer
from cohort.engine.turns.base_turns import BaseTurns
from cohort.models.decoder import Decoder
from cohort.runs.lock import RunLock
from cohort.service.engine_thread import EngineThread
from cohort.service.served_model import ServedModel
from cohort.service.settings import ServedSettings, ServerLimits
from cohort.service.tinker.checkpoint_calls import CheckpointCalls
from cohort.service.tinker.checkpoints import CheckpointStore
from cohort.service.tinker.client_sessions import ClientSessions
from cohort.service.tinker.durability import open_keeping
from cohort.service.tinker.sampler_versions import SamplerVersions
from cohort.service.tinker.sampling import SamplingCalls
from cohort.service.tinker.tinker_routes import TinkerRoutes
from cohort.service.tinker.training_calls import TrainingCalls
from cohort.training.client_training.request_executor import RequestExecutor

__all__ = ["TinkerService", "open_tinker", "require_trainable"]

TOKEN_BUDGET = 8192


@dataclass(frozen=True, kw_only=True)
class TinkerService:
    """The API: its routes, and the thread that trains, not yet started.

    Attributes:
        lock: Held while the server writes to its folder.
        num_restored: Models in training that were there before.
    """

    routes: TinkerRoutes
    trainer: ClientTrainer
    lock: RunLock
    num_restored: int

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
    turns: BaseTurns,
) -> TinkerService:
    """Return the API for the model that ``thread`` serves.

    Args:
        turns: Those of ``thread``.
    """
    assert settings.tinker is not None, "asked for by --tinker"
    executor = _executor(settings, decoder)
    trainer = ClientTrainer(executor, turns=turns)
    sessions = ClientSessions()
    store = CheckpointStore(settings.tinker, base_model=model.names[0], layout=executor.layout)
    # whose key made them may use them, and knows their names
    model.is_private = lambda name: name in sessions.samplers
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
    keeping = open_keeping(
        settings.tinker,
        training=training,
        checkpoints=checkpoints,
        versions=versions,
        sessions=sessions,
        store=store,
        most_open=limits.max_waiting,
        base={"name": model.names[0], "sha256": model.base.sha256, "dtype": str(decoder.dtype)},
    )
    routes = TinkerRoutes(
        training=training,
        sampling=sampling,
        versions=versions,
        sessions=sessions,
        store=store,
        keeping=keeping,
        base_model=model.names[0],
        context=model.max_model_len,
    )
    return TinkerService(routes=routes, trainer=trainer, lock=keeping.lock, num_restored=keeping.recovery.num_models)


def _executor(settings: ServedSettings, decoder: Decoder) -> RequestExecutor:
    return RequestExecutor(
        decoder,
        layout=AdapterLayout(decoder.linears),
        num_slots=settings.max_trained_models,
        num_rank_rows=settings.max_trained_models * aligned_rank(settings.pool.max_lora_rank),
        token_budget=TOKEN_BUDGET,
        compute_dtype=decoder.dtype,
    )
