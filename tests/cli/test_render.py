"""`lab render` prints what the pure functions give, and nothing else."""

from lab.batch.script import render_sbatch
from lab.topology import load_topology
from lab.transport.hostfile import render_env, render_hostfile
from tests.conftest import Lab


def test_env(lab: Lab) -> None:
    expected = render_env(load_topology("pair", slots=2))
    assert lab("render", "pair", "--slots", "2", "--as", "env").stdout == expected


def test_hostfile(lab: Lab) -> None:
    lab.script("nodes: [b, {name: a, slots: 3}]\n", "lab.yaml")
    done = lab("render", "--as", "hostfile")
    assert done.stdout == "b slots=1\na slots=3\n"
    assert done.stdout == render_hostfile(load_topology(str(lab.cwd / "lab.yaml")))


def test_a_form_that_is_none(lab: Lab) -> None:
    done = lab("render", "quad", "--as", "poster")
    assert done.returncode == 2
    assert "hostfile" in done.stderr


def test_sbatch(lab: Lab) -> None:
    expected = render_sbatch(load_topology("pair", slots=2))
    assert lab("render", "pair", "--slots", "2", "--as", "sbatch").stdout == expected
