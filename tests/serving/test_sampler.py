"""Draws follow the distribution, cut where top_p says, and depend on seed and step alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cohort.serving import sampler
from cohort.serving.sampler import AskedLogprobs, Sampling, Scores, pick_tokens, pick_with_logprobs

LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.0, -30.0])
COUNT = 4000


def draw(sampling: Sampling, *, seed: int = 1) -> torch.Tensor:
    picked = pick_tokens(
        Scores.of(LOGITS.expand(COUNT, -1)), samplings=[sampling] * COUNT, seeds=[seed] * COUNT, steps=range(COUNT)
    )
    return torch.tensor([token for token in picked if token is not None])


def test_temperature_zero_takes_the_likeliest() -> None:
    assert pick_tokens(Scores.of(LOGITS[None]), samplings=[Sampling()], seeds=[0], steps=[0]) == [1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    frequencies = torch.bincount(draw(Sampling(temperature=temperature)), minlength=5) / COUNT
    # five standard deviations of a frequency from 4000 draws
    torch.testing.assert_close(frequencies, (LOGITS / temperature).softmax(0), rtol=0, atol=5 * 0.5 / COUNT**0.5)


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    # probabilities, sorted: 0.586 (1), 0.216 (3), 0.131 (0), 0.029 (2)
    assert set(draw(Sampling(temperature=1.0, top_p=0.5)).tolist()) == {1}
    assert set(draw(Sampling(temperature=1.0, top_p=0.7)).tolist()) == {1, 3}
    kept = draw(Sampling(temperature=1.0, top_p=0.7))
    ratio = (kept == 1).float().mean()
    expected = LOGITS[[1, 3]].softmax(0)[0]
    assert ratio == pytest.approx(expected.item(), abs=5 * 0.5 / COUNT**0.5)


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    sampling = Sampling(temperature=1.5)
    together = draw(sampling)
    for step in (0, 17, 399):
        alone = pick_tokens(Scores.of(LOGITS[None]), samplings=[sampling], seeds=[1], steps=[step])
        assert alone == [together[step].item()]
    assert not torch.equal(together, draw(sampling, seed=2))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_give_none(temperature: float, value: float) -> None:
    logits = LOGITS.repeat(3, 1)
    logits[1, 2] = value
    picked = pick_tokens(
        Scores.of(logits), samplings=[Sampling(temperature=temperature)] * 3, seeds=[1, 1, 1], steps=[0, 0, 0]
    )
    assert picked[1] is None
    assert picked[0] == picked[2] is not None


@pytest.mark.parametrize(
    "settings", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -1}]
)
def test_senseless_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Sampling(**settings)


def test_top_k_keeps_the_likeliest_and_top_p_is_a_share_of_them() -> None:
    assert set(draw(Sampling(temperature=1.0, top_k=1)).tolist()) == {1}
    assert set(draw(Sampling(temperature=1.0, top_k=3)).tolist()) == {0, 1, 3}
    # of tokens 1 and 3, the first has 0.73
    assert set(draw(Sampling(temperature=1.0, top_k=2, top_p=0.7)).tolist()) == {1}


def test_draws_and_logarithms_are_the_same_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [Sampling(temperature=1.0), Sampling(temperature=0.7, top_p=0.9)] * 4
    logits = torch.randn(8, 33, generator=torch.Generator().manual_seed(0))

    def found() -> tuple[object, object]:
        asked = AskedLogprobs(rows=range(8), counts=[0, 2] * 4, temperatures=[1.0, 0.7] * 4)
        return pick_with_logprobs(Scores.of(logits), samplings=ways, seeds=range(8), steps=[3] * 8, asked=asked)

    whole = found()
    monkeypatch.setattr(sampler, "_WORKING_BYTES", 3 * 8 * 33)
    assert found() == whole


def test_no_token_without_a_probability_is_drawn_at_the_end_of_the_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampler, "derive_seed", lambda *_: 2**63 - 1)
    logits = torch.tensor([[0.0, 0.0, 0.0, -2000.0, -2000.0]])
    (token,) = pick_tokens(Scores.of(logits), samplings=[Sampling(temperature=1.0)], seeds=[0], steps=[0])
    assert token == 2


def test_sequences_of_one_call_are_sampled_each_in_its_own_way() -> None:
    ways = [Sampling(), Sampling(temperature=1.5), Sampling(temperature=1.0, top_k=2), Sampling(temperature=0.3)]
    together = pick_tokens(Scores.of(LOGITS.expand(4, -1)), samplings=ways, seeds=[1, 2, 3, 4], steps=[0, 5, 6, 7])
    alone = [
        pick_tokens(Scores.of(LOGITS[None]), samplings=[way], seeds=[seed], steps=[step])[0]
        for way, seed, step in zip(ways, [1, 2, 3, 4], [0, 5, 6, 7], strict=True)
    ]
    assert together == alone


def test_logprobs_are_those_of_the_models_own_distribution() -> None:
    logits = LOGITS.repeat(3, 1)
    scores = Scores(logits, torch.tensor([[3, 1, 0], [1, 0, 1]]))
    asked = AskedLogprobs(rows=[0, 2], counts=[2, 0], temperatures=[1.0, 1.0])
    tokens, (first, second) = pick_with_logprobs(
        scores, samplings=[Sampling()] * 3, seeds=[0] * 3, steps=[0] * 3, asked=asked
    )
    assert tokens == [3, None, 0]
    expected = LOGITS.double().log_softmax(0).tolist()
    assert first.picked == pytest.approx(expected[3])
    assert [token for token, _ in first.top] == [1, 3]
    assert second.picked == pytest.approx(expected[0])
    assert second.top == ()
