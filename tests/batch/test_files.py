"""What ranks have written into the run directory, read while they write."""

import json
from pathlib import Path
from typing import Any

from lab.batch.files import JobFiles, nodes_of
from lab.topology import parse_topology


class Files:
    """Those of the ranks of a pair, and a reader that has seen so much of them."""

    def __init__(self, run: Path, topology: str = "{nodes: 2, on: slurm}") -> None:
        self.run = run
        self.job = JobFiles(run, nodes_of(parse_topology(topology)))
        self.logs: list[tuple[str, int, str, str]] = []
        self.events: list[tuple[str, int]] = []

    def write(self, name: str, data: bytes) -> None:
        path = self.run / name
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def tell(self, rank: int, type: str, at: float, *, world: int = 2, **more: Any) -> None:  # noqa: A002 - the field's name
        node = f"node{rank}"
        message = {"at": at, "type": type, "node": node, "rank": rank, **more}
        if type == "started":
            message["world"] = {"master": "node0:29500", "ranks": world}
        self.write(f"{node}/rank{rank}.events.jsonl", json.dumps(message).encode() + b"\n")

    def read(self) -> None:
        self.job.read(
            lambda *log: self.logs.append(log),
            lambda event: self.events.append((event["type"], event["rank"])),
        )


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.read()
    assert (files.logs, files.events, files.job.started) == ([], [], set())


def test_events_in_the_order_of_their_happening(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.tell(0, "started", 2.0, restart=0)
    files.tell(0, "exit", 5.0)
    files.tell(1, "started", 1.0, restart=0)
    files.read()
    assert files.events == [("started", 1), ("started", 0), ("exit", 0)]
    assert (files.job.started, files.job.silent) == ({0, 1}, {1: "node1"})
    files.read()
    assert len(files.events) == 3


def test_half_a_line_and_half_a_character_wait_for_the_rest(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write("node0/rank0.out", "grün".encode()[:3])
    files.write("node1/rank1.events.jsonl", b'{"at": 1, "type": "exit", "nod')
    files.read()
    assert files.logs == [("node0", 0, "out", "gr")]
    assert files.events == []
    files.write("node0/rank0.out", "grün".encode()[3:])
    files.write("node1/rank1.events.jsonl", b'e": "node1", "rank": 1}\n')
    files.read()
    assert files.logs[1:] == [("node0", 0, "out", "ün")]
    assert files.events == [("exit", 1)]


def test_after_a_requeue_only_what_came_since_counts(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for restart, at in ((0, 1.0), (1, 10.0)):
        for rank in (0, 1):
            files.tell(rank, "started", at + rank, restart=restart)
    files.tell(0, "exit", 20.0)
    files.read()
    assert files.job.restart == 1
    assert [event["at"] for event in files.job.events] == [10.0, 11.0, 20.0]
    assert len(files.events) == 5, "all are handed on"


def test_a_rank_that_a_host_still_has_from_before_does_not_count(tmp_path: Path) -> None:
    """It was frozen until Slurm had given it up, and comes back: the rank runs elsewhere."""
    files = Files(tmp_path)
    for restart in (0, 1):
        for rank in (0, 1):
            files.tell(rank, "started", 1.0 + restart, restart=restart)
    files.tell(1, "exception", 9.0, restart=0)
    files.tell(1, "exit", 10.0, restart=0)
    files.read()
    assert files.events == [("started", 0), ("started", 1)] * 2
    assert files.job.silent == {0: "node0", 1: "node1"}
    files.tell(1, "exit", 11.0, restart=1)
    files.read()
    assert files.job.silent == {0: "node0"}


def test_ranks_that_torchrun_has_started_anew_run(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for at in (1.0, 10.0):
        for rank in (0, 1):
            files.tell(rank, "started", at, restart=0)
        files.tell(1, "exit", at + 1)
        files.tell(0, "exit", at + 2)
    files.read()
    assert files.job.silent == {}
    for rank in (0, 1):
        files.tell(rank, "started", 20.0, restart=0)
    files.read()
    assert files.job.silent == {0: "node0", 1: "node1"}


def test_a_rank_that_goes_on_where_the_clock_is_behind_runs(tmp_path: Path) -> None:
    files = Files(tmp_path, "{nodes: 1-2, on: slurm}")
    files.tell(0, "started", 10.0, restart=0)
    files.tell(0, "exit", 20.0)
    files.tell(0, "started", 5.0, restart=0)  # of another host
    files.read()
    assert files.job.silent == {0: "node0"}


def test_ranks_of_a_larger_world_before_do_not_run(tmp_path: Path) -> None:
    files = Files(tmp_path, "{nodes: 2-3, on: slurm}")
    for rank in range(3):
        files.tell(rank, "started", 1.0, restart=0, world=3)
    for rank in (0, 1):  # rank 2's host went without a word
        files.tell(rank, "exit", 5.0)
        files.tell(rank, "started", 9.0 + rank, restart=0, world=2)
    files.read()
    assert files.job.silent == {0: "node0", 1: "node1"}
    files.tell(2, "started", 20.0, restart=0, world=3)  # another host has come
    files.read()
    assert files.job.silent == {0: "node0", 1: "node1", 2: "node2"}
