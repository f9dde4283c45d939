"""Bodies of the Tinker client's JSON calls."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place

__all__ = [
    "CreateModel",
    "CreateSamplingSession",
    "LoadWeights",
    "ModelCall",
    "OptimStep",
    "RetrieveFuture",
    "Sample",
    "SaveForSampler",
    "SaveWeights",
    "SessionCall",
    "parse",
]


class _Body(BaseModel):
    """Keys that later clients add are passed over, as the client passes over ours."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), allow_inf_nan=False)


B = TypeVar("B", bound=_Body)


class SessionCall(_Body):
    """A call within a session."""

    session_id: str = ""


class LoraConfig(_Body):
    """The adapter of a new model."""

    rank: Annotated[int, Field(ge=1)]
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfig(_Body):
    """The optimizer of a new model."""

    type: str = "adamw"


class CreateModel(SessionCall):
    """``create_model``."""

    model_seq_id: int
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()


class ModelCall(_Body):
    """A call of a model."""

    model_id: str


class _NumberedCall(ModelCall):
    seq_id: Annotated[int, Field(ge=1)]


# far above what trains. A number that overflows float32 fails the launch, in which the models of other clients step too
_MOST = 1e6


class AdamParams(_Body):
    """The numbers of one step."""

    learning_rate: Annotated[float, Field(ge=0.0, le=_MOST)] = 1e-4
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    eps: Annotated[float, Field(ge=0.0, le=_MOST)] = 1e-12
    weight_decay: Annotated[float, Field(ge=0.0, le=_MOST)] = 0.0
    # a huge norm is how some clients say that nothing is clipped
    grad_clip_norm: Annotated[float, Field(ge=0.0, le=1e30)] = 0.0


class OptimStep(_NumberedCall):
    """``optim_step``."""

    adam_params: AdamParams | None = None
    optimizer_params: dict[str, Any] | None = None


class SaveWeights(_NumberedCall):
    """``save_weights``."""

    path: str | None = None
    ttl_seconds: Annotated[int, Field(ge=1)] | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveForSampler(SaveWeights):
    """``save_weights_for_sampler``."""

    sampling_session_seq_id: int | None = None


class LoadWeights(_Body):
    """``load_weights``: into a new model of a session, or into one that exists."""

    path: str
    optimizer: bool = False
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None


class CreateSamplingSession(SessionCall):
    """``create_sampling_session``."""

    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class Chunk(_Body):
    """Tokens of a prompt."""

    type: str = "encoded_text"
    tokens: list[int] = []


class Prompt(_Body):
    """What is continued."""

    chunks: list[Chunk]


class SamplingParams(_Body):
    """How tokens are picked."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: Annotated[float, Field(ge=0.0)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0


class Sample(_Body):
    """``asample``."""

    sampling_session_id: str
    seq_id: int
    prompt: Prompt
    sampling_params: SamplingParams = SamplingParams()
    num_samples: Annotated[int, Field(ge=1)] = 1
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool | None = None


class RetrieveFuture(_Body):
    """``retrieve_future``."""

    request_id: str


def parse(kind: type[B], body: bytes) -> B:
    """Return the body of a call.

    Raises:
        InputError: it is no JSON object of this kind; all problems at once.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problems = [
            Problem(
                where=Place(key=tuple(each["loc"])) if each["loc"] else Place(text="body"),
                found="nothing" if each["type"] == "missing" else repr(each["input"])[:80],
                allowed=each["msg"][0].lower() + each["msg"][1:],
                hint="Send what the tinker client sends.",
            )
            for each in error.errors()[:20]
        ]
        raise InputError(problems) from None
