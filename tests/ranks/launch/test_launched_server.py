"""A rank that serves: what it tells of a model that is not there. Its other side is in test_launched.py."""

from __future__ import annotations

import threading
from multiprocessing import Pipe
from types import SimpleNamespace

from cohort.ranks.launch.launch_place import LaunchPlace
from cohort.ranks.launch.launched_server import serve_first
from cohort.ranks.transport import Channel


def test_a_rank_whose_host_has_no_model_says_so_and_waits_until_rank_0_is_gone() -> None:
    ours, theirs = Pipe()
    first, place = Channel(ours), LaunchPlace(rank=3, num_ranks=4, node=1)
    ended: list[bool] = []
    server = threading.Thread(target=lambda: ended.append(serve_first(Channel(theirs), place)))
    server.start()
    first.send(SimpleNamespace(model_directory="/no/such/model"))
    assert "rank 3 (host 1) finds no base model" in str(first.receive().error)
    first.close()
    server.join(120)
    assert ended == [False]
