"""A dumped topology loads back to an equal one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.topology import PRESETS, Topology, dump_topology, load_topology, parse_topology
from tests.topology.test_models import WHOLE


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_come_back(preset: str) -> None:
    topology = load_topology(preset)
    assert parse_topology(dump_topology(topology)) == topology


def test_everything_comes_back() -> None:
    topology = parse_topology(WHOLE)
    assert parse_topology(dump_topology(topology)) == topology


def test_it_reads_well() -> None:
    text = """\
name: small
on: slurm
nodes:
- {name: node0, slots: 1}
- {name: node1, slots: 1}
slots: 1
backend: auto
min_nodes: 1
env:
  NUMBER: '20'
  WORD: yes
"""
    topology = parse_topology("name: small\non: slurm\nnodes: 1-2\nenv: {NUMBER: 20, WORD: yes}")
    assert dump_topology(topology) == text


VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.dictionaries(st.from_regex(r"[A-KM-QS-Z]{1,8}", fullmatch=True), VALUES, max_size=4))
def test_any_text_comes_back(env: dict[str, str]) -> None:
    env = {f"X{name}": value for name, value in env.items()}
    job = {"script": "a.py", "args": list(env.values())}
    topology = Topology.model_validate({"nodes": 1, "env": env, "job": job})
    assert parse_topology(dump_topology(topology)) == topology
