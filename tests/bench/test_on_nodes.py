"""Benchmarks on the nodes of a topology, from the command line to the JSON."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lab.bench import link
from lab.bench.on_nodes import with_rate
from lab.errors import UsageError
from lab.topology import parse_topology
from tests.conftest import Lab

TINY = ("--runs", "1", "--nodes", "2")


def tables(path: Path) -> list[dict[str, Any]]:
    report = json.loads(path.read_text())
    assert report["machine"]["cores"] >= 1
    found: list[dict[str, Any]] = report["tables"]
    return found


def test_a_table_and_the_json_on_local_nodes(lab: Lab) -> None:
    ended = lab("bench", "ddp", "--on", "local", *TINY, "--width", "8", "--only", "mean")
    assert ended.returncode == 0, ended.stderr
    assert "SUM, then divide" in ended.stdout
    assert "round 1 of 1" in ended.stderr
    (table,) = tables(lab.cwd / "outputs" / "bench-ddp-quad-mean.json")
    assert (table["on"], table["world"], table["rate"]) == ("local", 2, "none")
    assert (table["backend"], table["runs"]) == ("gloo", 1)
    assert [row["mean"] for row in table["rows"]] == ["SUM, then divide", "divide, then SUM", "AVG"]


def test_a_rank_that_fails_is_no_measurement(lab: Lab) -> None:
    """Its last words come along."""
    lab.script("raise RuntimeError('a torch of my own')", "torch.py")
    ended = lab("bench", "ddp", "--on", "local", *TINY, "--only", "mean")
    assert ended.returncode == 1
    assert "no measurement" in ended.stderr
    assert "a torch of my own" in ended.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--only", "speed"), "--only speed: the sections are step, buckets, overlap"),
        (("--rate", "1gbit"), "only links of containers can be limited"),
        (("--rate", "none,"), "--rate : "),
    ],
)
def test_what_cannot_be_measured_is_refused(lab: Lab, words: tuple[str, ...], message: str) -> None:
    ended = lab("bench", "ddp", "--on", "local", *TINY, *words)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert not lab.runs()


def test_only_the_rate_and_the_name_are_other_ones() -> None:
    topology = parse_topology("name: t\nnodes: 2\ndocker: {cpus: 1, link: {delay: 1ms}}\n")
    limited = with_rate(topology, "200mbit")
    assert limited.docker.link is not None
    assert (limited.docker.link.rate, limited.docker.link.delay) == ("200mbit", "1ms")
    assert limited.docker.cpus == 1
    # Nodes of another configuration would be replaced: each has its own.
    assert len({topology.name, limited.name, with_rate(topology, "none").name}) == 3
    with pytest.raises(UsageError, match="--rate fast: "):
        with_rate(topology, "fast")


@pytest.mark.docker
def test_bytes_on_the_wire_are_those_of_the_formulas(lab: Lab) -> None:
    """As the containers' kernels count them: FSDP2 4(N-1)/N of the model, ours 3(N-1)/N."""
    words = ("--width", "256", "--batch", "4", "--rate", "1gbit")
    ended = lab("bench", "fsdp", *TINY, *words, timeout=280)  # the image may have to be built
    assert ended.returncode == 0, ended.stderr
    (table,) = tables(lab.cwd / "outputs" / "bench-fsdp-quad.json")
    assert (table["on"], table["rate"]) == ("docker", "1gbit")
    sent = {row["step"]: row["of the model"] for row in table["rows"]}
    exact = {
        "FSDP2": 4 / 2,
        "ours": 3 / 2,
        "ours, no prefetch": 3 / 2,
        "ours, no reshard": 2 / 2,
        "torch DDP": 2 / 2,
    }
    for name, expected in exact.items():
        assert expected <= sent[name] < 1.05 * expected, name  # headers come on top


@pytest.mark.docker
def test_the_link_benchmark_has_a_row_for_each_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (row,) = link.bench_link(1, lambda step: None, rates=["50mbit"])
    assert row["rate asked for"] == "50mbit"
    assert 0 < row["min"] == row["Mbit/s"] == row["max"] < math.inf
