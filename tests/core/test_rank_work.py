from cohort.core.rank_work import RankWork


def test_work_since_an_earlier_total() -> None:
    before = RankWork(rank=1, train_seconds=2.0, evaluate_seconds=0.5, num_tokens=100)
    now = RankWork(rank=1, train_seconds=5.0, evaluate_seconds=1.5, num_tokens=250)
    done = now.since(before)
    assert done == RankWork(rank=1, train_seconds=3.0, evaluate_seconds=1.0, num_tokens=150)
    assert done.busy_seconds == 4.0
