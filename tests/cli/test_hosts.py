"""`lab hosts` on this machine; on docker: test_exec.py, on ssh: tests/deploy."""

import json
import sys

from tests.conftest import Lab


def test_a_row_for_every_node(lab: Lab) -> None:
    done = lab("hosts", "-t", "pair", "--on", "local")

    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split() == [
        *("NODE", "ADDRESS", "REACHABLE", "OS", "CORES", "MEMORY", "GPUS", "PYTHON", "TORCH"),
        *("LOAD", "CLOCK", "DISK", "FREE"),
    ]
    assert [row.split()[0] for row in rows] == ["node0", "node1"]
    assert all(" yes " in row and " ok " in row for row in rows)


def test_the_same_for_programs(lab: Lab) -> None:
    done = lab("hosts", "-t", "pair", "--on", "local", "--json")

    one, two = json.loads(done.stdout)
    assert (one["node"], two["node"]) == ("node0", "node1")
    assert one["reachable"] is True
    assert one["python"] == ".".join(map(str, sys.version_info[:3]))
    assert abs(one["clock_skew"]) <= one["clock_unsure"] + 0.001
