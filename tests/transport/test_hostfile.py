"""The environment blocks and the hostfile, to the letter."""

import subprocess

from lab.topology import load_topology, parse_topology
from lab.transport.hostfile import render_env, render_hostfile

UNEVEN = """
name: uneven
nodes:
  - {name: a, address: 10.0.0.1, slots: 2, interface: ib0}
  - b
master: {port: 4711}
env: {WORDS: it's "$HOME" `x`, LR: 1e-4}
"""

FIRST = """\
# rank 0 on a
export TORCH_NCCL_ASYNC_ERROR_HANDLING="${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}"
export TORCHELASTIC_SIGNALS_TO_HANDLE="\
${TORCHELASTIC_SIGNALS_TO_HANDLE:-SIGTERM,SIGINT,SIGHUP,SIGQUIT}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export GLOO_SOCKET_IFNAME=ib0
export WORDS='it'"'"'s "$HOME" `x`'
export LR=1e-4
export RANK=0
export LOCAL_RANK=0
export WORLD_SIZE=3
export LOCAL_WORLD_SIZE=2
export GROUP_RANK=0
export GROUP_WORLD_SIZE=2
export ROLE_RANK=0
export ROLE_NAME=default
export ROLE_WORLD_SIZE=3
export MASTER_ADDR=10.0.0.1
export MASTER_PORT=4711
export TORCHELASTIC_RUN_ID=manual
export TORCHELASTIC_RESTART_COUNT=0
export TORCHELASTIC_MAX_RESTARTS=0
export TORCHELASTIC_USE_AGENT_STORE=False
export TORCHELASTIC_ERROR_FILE=runs/manual/a/rank0.error.json
export NODE_RANK=0
export NNODES=2
export LAB_RUN_ID=manual
export LAB_RUN_DIR=runs/manual
export LAB_NODE=a
export LAB_TOPOLOGY=uneven

"""


def test_hostfile() -> None:
    assert render_hostfile(parse_topology(UNEVEN)) == "10.0.0.1 slots=2\nb slots=1\n"
    assert render_hostfile(load_topology("quad2x2")) == "node0 slots=2\nnode1 slots=2\n"


def test_environment_of_every_rank() -> None:
    text = render_env(parse_topology(UNEVEN))
    assert text.startswith(FIRST)
    first, second, third = text.split("\n\n")
    changed = set(second.splitlines()) - set(first.splitlines())
    assert changed == {
        "# rank 1 on a",
        "export RANK=1",
        "export LOCAL_RANK=1",
        "export ROLE_RANK=1",
        "export TORCHELASTIC_ERROR_FILE=runs/manual/a/rank1.error.json",
    }
    # Alone on its node, it keeps its threads and has no interface to be told of.
    assert "OMP_NUM_THREADS" not in third
    assert "GLOO_SOCKET_IFNAME" not in third
    assert "\nexport LOCAL_RANK=0\n" in third
    assert "\nexport NODE_RANK=1\n" in third


def test_a_port_that_is_picked_later_is_said_to_be() -> None:
    note, first, *_ = render_env(load_topology("quad")).split("\n\n")
    assert note.startswith("# Each run of lab picks a free MASTER_PORT; 29500 stands for it here.")
    assert "export MASTER_ADDR=node0\nexport MASTER_PORT=29500\n" in first


def test_threads_that_the_topology_sets_stay() -> None:
    text = render_env(parse_topology("nodes: 1\nslots: 2\nenv: {OMP_NUM_THREADS: 3}"))
    assert text.count("OMP_NUM_THREADS=3\n") == 2
    assert "OMP_NUM_THREADS:-" not in text


def test_a_shell_reads_hostile_values_as_they_are() -> None:
    script = f"{render_env(parse_topology(UNEVEN))}printf '%s' \"$WORDS\""
    shell = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    assert shell.stdout == 'it\'s "$HOME" `x`'
