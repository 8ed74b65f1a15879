"""Lists of hosts as clusters write them; tests/batch/test_jobs.py asks scontrol for the same."""

import json
from pathlib import Path

import pytest

from lab.topology.nodeset import expand_names

NODE_LISTS: dict[str, str] = json.loads(Path(__file__).with_name("node_lists.json").read_text())


@pytest.mark.parametrize("text", NODE_LISTS)
def test_the_names_of_a_list(text: str) -> None:
    assert expand_names(text) == NODE_LISTS[text].split()
