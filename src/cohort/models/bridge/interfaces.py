"""Our ragged attention under a name of its own, for models of transformers that compute a whole stream as one row.

Shapes:  T rows of the stream · H query heads · G key-value heads · E head width
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cohort.models.attention import masked_attention
from cohort.models.bridge.pass_state import current_pass
from cohort.models.config import AttentionRule

__all__ = ["ATTENTION", "attend", "register_attention"]

ATTENTION = "cohort_packed"


def register_attention() -> None:
    """Let models be told to attend as :func:`attend` does; doing so again changes nothing."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(ATTENTION, attend)
    # which rows see each other follows from the pass, not from a mask
    AttentionMaskInterface.register(ATTENTION, _no_mask)


def _no_mask(*_arguments: object, **_options: object) -> None:
    return None


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return o [1, T, H, E] of query [1, H, T, E], key and value [1, G, T, E], each row within its own sequence.

    The signature is transformers'. Whatever a model gives besides and nothing here computes makes the probe fail.

    Where the pass has no stream, the one query is the newest row of a sequence and sees all keys of its cache.

    Raises:
        ValueError: the model brings a mask of its own, or drops weights.
    """
    now = current_pass()
    assert now is not None, "modules run in passes alone"
    if attention_mask is not None or dropout != 0.0:
        raise ValueError("attention with a mask of the model's own, or with dropout")
    q_THE, k_TGE, v_TGE = (x[0].transpose(0, 1) for x in (query, key, value))
    # a layer without a window says so, or has nothing to say
    window = options["sliding_window"] if "sliding_window" in options else getattr(module, "sliding_window", None)
    plain = scaling is None or scaling == query.shape[-1] ** -0.5
    rule = AttentionRule(window=window, scale=None if plain else scaling, cap=softcap)
    if now.attention is None:
        return _of_newest(q_THE, k_TGE, v_TGE, rule=rule, sinks_H=s_aux), None
    return now.attention.attend(0, q_THE, k_TGE, v_TGE, rule=rule, sinks_H=s_aux)[None], None


def _of_newest(q_THE: Tensor, k_LGE: Tensor, v_LGE: Tensor, *, rule: AttentionRule, sinks_H: Tensor | None) -> Tensor:
    """Return o [1, 1, H, E] of one query that sees the last keys, as many as the rule's window has."""
    assert len(q_THE) == 1, "rows behind a cache come one by one"
    if rule.window is not None:
        k_LGE, v_LGE = k_LGE[-rule.window :], v_LGE[-rule.window :]
    visible = q_THE.new_zeros(q_THE.shape[1], 1, len(k_LGE))
    if rule.cap is not None:
        visible = torch.ones(1, len(k_LGE), dtype=torch.bool, device=q_THE.device)
    if sinks_H is not None:
        k_LGE, v_LGE = (F.pad(x, (0, 0, 0, 0, 0, 1)) for x in (k_LGE, v_LGE))
        visible = torch.cat([visible, sinks_H[:, None, None].to(q_THE.dtype)], dim=2)
    return masked_attention(q_THE[None], k_LGE[None], v_LGE[None], visible=visible, rule=rule)
