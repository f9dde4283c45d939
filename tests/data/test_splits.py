from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cohort.data.splits import choose_rows, duplicates_of_earlier, split_off_share

# few letters and short words, so that equal rows are common
CONTENTS = st.lists(st.text(alphabet="ab", max_size=3).map(str.encode), max_size=40)


@given(contents=CONTENTS, share=st.floats(0.01, 0.99), seed=st.integers(0, 100))
def test_the_split_is_complete_and_disjoint_by_content(contents: list[bytes], share: float, seed: int) -> None:
    train, validation = split_off_share(contents, share=share, seed=seed)
    assert sorted(train + validation) == list(range(len(contents)))
    assert train == sorted(train)
    assert validation == sorted(validation)
    assert not {contents[index] for index in train} & {contents[index] for index in validation}
    assert len(validation) <= round(share * len(contents))


@given(num_rows=st.integers(0, 60), share=st.floats(0.01, 0.99), seed=st.integers(0, 100))
def test_different_rows_give_the_share_exactly(num_rows: int, share: float, seed: int) -> None:
    contents = [str(index).encode() for index in range(num_rows)]
    assert len(split_off_share(contents, share=share, seed=seed)[1]) == round(share * num_rows)


@given(order=st.permutations(range(20)), seed=st.integers(0, 100))
def test_the_split_does_not_depend_on_the_order_of_rows(order: list[int], seed: int) -> None:
    contents = [str(index).encode() for index in range(20)]
    moved = [contents[index] for index in order]
    chosen = {contents[index] for index in split_off_share(contents, share=0.3, seed=seed)[1]}
    assert {moved[index] for index in split_off_share(moved, share=0.3, seed=seed)[1]} == chosen


def test_the_seed_chooses() -> None:
    contents = [str(index).encode() for index in range(100)]
    picks = {tuple(split_off_share(contents, share=0.1, seed=seed)[1]) for seed in range(5)}
    assert len(picks) == 5
    assert len({tuple(choose_rows(contents, limit=10, seed=seed)) for seed in range(5)}) == 5


@given(contents=CONTENTS, limit=st.one_of(st.none(), st.integers(1, 50)), seed=st.integers(0, 9))
def test_chosen_rows_are_as_many_as_asked_in_order(contents: list[bytes], limit: int | None, seed: int) -> None:
    chosen = choose_rows(contents, limit=limit, seed=seed)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == (len(contents) if limit is None else min(limit, len(contents)))


def test_duplicates_point_to_the_first() -> None:
    assert duplicates_of_earlier(["a", "b", "a", "c", "a", "b"]) == [(2, 0), (4, 0), (5, 1)]
