"""The dry run, held by a file. GOLDEN=write pytest tests/deploy/test_render.py writes it anew."""

import hashlib
import os
from pathlib import Path

import pytest

from lab.deploy.layout import Layout
from lab.deploy.plan import Plan
from lab.deploy.program import BOOTSTRAP, OLDEST_PYTHON, program
from lab.deploy.requirements import Requirements
from lab.deploy.tree import in_words, read_tree
from lab.deploy.visit import MODULES
from lab.topology import Topology
from lab.transport.ssh_bundle import bundle
from lab.transport.ssh_render import render_ssh
from tests.conftest import Lab

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "sub/run me.sh").write_text("#!/bin/sh\n")
    (folder / "sub/run me.sh").chmod(0o755)
    (folder / "odd\nname").write_text("")
    (folder / "data").symlink_to("/mnt/data")
    requirements = Requirements(Path("requirements.txt"), ("einops>=0.8",))
    topology = Topology.model_validate(
        {"name": "two", "on": "ssh", "nodes": 2, "ssh": {"python": "python3.11"}}
    )
    read = Plan.of(topology, folder, requirements)
    return Plan(topology, Layout("~/lab", "project-1a2b3c4d"), read.tree, read.packages)


def test_all_that_would_be_done(plan: Plan) -> None:
    places = {"node0": "trainer@10.0.0.1:22", "node1": "trainer@10.0.0.2:2222"}
    text = render_ssh(plan, places)
    # These change with lab's own code and pins, which have tests of their own.
    carried = hashlib.sha256(program(MODULES, OLDEST_PYTHON)).hexdigest()[:12]
    text = text.replace(carried, "<program>").replace(BOOTSTRAP, "<bootstrap>\n")
    text = text.replace(bundle().name, "<lab>")
    text = text.replace(in_words(len(bundle().data)), "<size>")
    pins = "\n".join(plan.packages.lines[:-1])
    assert plan.packages.lines[-1] == "einops>=0.8"
    text = text.replace(pins, "<torch and lab's own packages>")

    golden = GOLDEN / "two.txt"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text(), "GOLDEN=write pytest tests/deploy/test_render.py"


def test_the_command_shows_this_folder_and_touches_nothing(lab: Lab) -> None:
    lab.script("on: ssh\nnodes: a,b\nssh: {user: me, port: 2200, config: none}\n", "lab.yaml")
    lab.script("", "none")
    before = read_tree(lab.cwd)

    done = lab("render", "--as", "ssh")

    assert done.returncode == 0, done.stderr
    assert "a = me@a:2200\nb = me@b:2200\n" in done.stdout
    assert f"version {before.content[:12]}" in done.stdout
    assert read_tree(lab.cwd).content == before.content
