"""Jobs on a real Slurm cluster, in containers: both modes, failures, the end and a new beginning."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.batch.cluster import SlurmLab
from lab.batch.script import render_sbatch
from lab.topology import load_topology
from tests.batch.test_script import TOPOLOGIES
from tests.conftest import Lab

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

FACTS = """
import json, os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "LAB_NODE")
print(json.dumps([{name: os.environ[name] for name in names}, total.item(), sys.argv[1:]]))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """One for all tests of the file; each has what it needs of it to itself."""
    made = SlurmLab(tmp_path_factory.mktemp("slurm"))
    try:
        made.up(print)
        yield made
    finally:
        made.down(print)


@pytest.fixture
def lab(cluster: SlurmLab) -> Iterator[Lab]:
    """`lab` in the folder of the cluster, and no job afterwards."""
    command = Lab(cluster.folder)
    try:
        yield command
    finally:
        command.end()
        slurm(cluster, "scancel", "--user=root", "--full")
        wait_until(lambda: not slurm(cluster, "squeue", "--noheader").strip())


def slurm(cluster: SlurmLab, *argv: str) -> str:
    """Run a command on the login node."""
    where = [f"--workdir={cluster.folder}", f"{cluster.lab_id}-login"]
    done = subprocess.run(
        ["docker", "exec", *where, *argv], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until(holds: Any, timeout: float = 240) -> None:
    give_up = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.2)


def topology(lab: Lab, name: str, **fields: Any) -> str:
    """The cluster's topology with other fields of its section `slurm`; its file."""
    text = (lab.cwd / "slurm-lab.yaml").read_text()
    more = "".join(f", {key}: {json.dumps(value)}" for key, value in fields.items())
    return lab.script(text.replace(", time: 30}", f", time: 30{more}}}"), f"{name}.yaml")


def verdict(lab: Lab) -> dict[str, Any]:
    """Of the latest run."""
    data: dict[str, Any] = json.loads((lab.runs()[-1] / "verdict.json").read_text())
    return data


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_ranks_are_those_of_the_topology(lab: Lab, launcher: str) -> None:
    file = topology(lab, launcher, launcher=launcher)
    hostile = ["it's", "$(id)", "a b", "*", "{node_rank}"]
    done = lab("run", "-t", file, "--nodes", "2", "--slots", "2", lab.script(FACTS), *hostile)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines()]
    for place, total, argv in sorted(found, key=lambda one: int(one[0]["RANK"])):
        rank = int(place["RANK"])
        assert place == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": str(rank // 2),
            "LAB_NODE": f"node{rank // 2}",
        }
        assert total == 10
        assert argv == [*hostile[:-1], str(rank // 2)]
    assert len(found) == 4
    assert verdict(lab)["kind"] == "ok"
    run = lab.runs()[-1]
    assert (run / "node1/rank3.out").read_text().count("\n") == 1
    said = (run / "slurm.out").read_text()
    assert "lab:   node 1 is node1: ranks 2-3" in said


def test_mixed_slots_under_srun(lab: Lab) -> None:
    nodes = "nodes: [{name: a, slots: 2}, {name: b, slots: 1}]"
    file = topology(lab, "mixed", launcher="srun")
    text = (lab.cwd / file).read_text().replace("nodes: node[0-3]", nodes)
    done = lab("run", "-t", lab.script(text, "mixed.yaml"), lab.script(FACTS))
    assert done.returncode == 0, done.stderr
    places = {line.partition("]")[0] for line in done.stdout.splitlines()}
    assert places == {"[0 a", "[1 a", "[2 b"}


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_the_first_failure_wins(lab: Lab, launcher: str) -> None:
    script = FACTS.replace(
        "dist.destroy",
        "if dist.get_rank() == 1: raise ValueError('no luck')\ndist.barrier()\ndist.destroy",
    )
    file = topology(lab, launcher, launcher=launcher)
    done = lab("run", "-t", file, "--nodes", "2", lab.script(script))
    assert done.returncode == 1
    assert "rank 1 on node1: ValueError: no luck (script.py:" in done.stderr.splitlines()[-1]
    told = verdict(lab)
    assert (told["kind"], told["first"]["rank"], told["others"]) == ("exception", 1, [])


def test_submit_ps_logs_stop(lab: Lab) -> None:
    script = lab.script("import time; print('here', flush=True); time.sleep(600)")
    submitted = lab("submit", "-t", "slurm-lab", "--nodes", "1", "--json", script)
    assert submitted.returncode == 0, submitted.stderr
    ids = json.loads(submitted.stdout)
    run = lab.cwd / "runs" / ids["run"]
    wait_until(lambda: "here" in lab("logs", ids["run"]).stdout)
    state = next(r for r in json.loads(lab("ps", "--json").stdout)["runs"] if r["id"] == ids["run"])
    assert (state["state"], state["slurm"]["job"]) == ("running", ids["job"])
    assert f"job {ids['job']} " in lab("ps").stdout
    assert lab("rm", ids["run"]).returncode == 2
    stopped = lab("stop", ids["run"])
    assert stopped.returncode == 0, stopped.stderr
    assert "was cancelled" in stopped.stderr
    assert json.loads((run / "verdict.json").read_text())["kind"] == "interrupted"
    assert lab("rm", ids["run"]).returncode == 0


def test_ctrl_c_cancels_the_job(lab: Lab, cluster: SlurmLab) -> None:
    script = lab.script("import time; print('here', flush=True); time.sleep(600)")
    process = lab.start("run", "-t", "slurm-lab", "--nodes", "2", script)
    assert process.stdout is not None
    assert "here" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert verdict(lab)["kind"] == "interrupted"


STEPS = """
import os, pathlib, signal, time
import torch, torch.distributed as dist
warned = []
signal.signal(signal.SIGUSR2, lambda *_: warned.append(True))
dist.init_process_group("gloo")
rank, saved = dist.get_rank(), pathlib.Path("saved")
step = int(saved.read_text()) if saved.exists() else 0
while step < 100000:
    step += 1
    print("step", step, flush=True)
    time.sleep(0.1)
    any_warned = torch.tensor([float(len(warned))])
    dist.all_reduce(any_warned)
    if any_warned.item():
        if rank == 0:
            saved.write_text(str(step))
            pathlib.Path(os.environ["LAB_REQUEUE"]).touch()
        break
    if saved.exists() and step >= int(saved.read_text()) + 3:
        break
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_a_warned_job_saves_and_goes_on_where_it_was(
    lab: Lab, cluster: SlurmLab, launcher: str
) -> None:
    (lab.cwd / "saved").unlink(missing_ok=True)
    file = topology(lab, launcher, launcher=launcher)
    ids = json.loads(lab("submit", "-t", file, "--nodes", "2", "--json", lab.script(STEPS)).stdout)
    out = lab.cwd / "runs" / ids["run"] / "node0/rank0.out"
    wait_until(lambda: out.exists() and "step 3\n" in out.read_text())
    slurm(cluster, "scancel", "--batch", "--signal=USR2", ids["job"])  # as before the time limit
    wait_until(lambda: "Restarts=1" in slurm(cluster, "scontrol", "show", "job", "-o", ids["job"]))
    # Slurm lets a job that was put back wait for two minutes.
    slurm(cluster, "scontrol", "update", f"JobId={ids['job']}", "StartTime=now")
    followed = lab("logs", "-f", ids["run"], "--rank", "0", timeout=400)
    assert followed.returncode == 0
    told = json.loads((lab.cwd / "runs" / ids["run"] / "verdict.json").read_text())
    assert told["kind"] == "ok", told
    steps = [int(step) for step in re.findall(r"step (\d+)", out.read_text())]
    saved = int((lab.cwd / "saved").read_text())
    assert steps == list(range(1, saved + 4)), "none is missing, none is repeated"


def test_a_job_that_always_saves_is_not_begun_again_for_ever(lab: Lab) -> None:
    script = lab.script("import os, pathlib; pathlib.Path(os.environ['LAB_REQUEUE']).touch()")
    done = lab("run", "-t", topology(lab, "never", requeues=0), "--nodes", "1", script)
    assert done.returncode != 0
    assert "begun again 0 times already" in (lab.runs()[-1] / "slurm.out").read_text()


def test_what_sbatch_refuses(lab: Lab) -> None:
    script = lab.script("")
    before = lab.runs()
    file = topology(lab, "elsewhere").replace(".yaml", "")
    text = (lab.cwd / f"{file}.yaml").read_text().replace("partition: lab", "partition: gpu")
    done = lab("submit", "-t", lab.script(text, "elsewhere.yaml"), script)
    assert done.returncode == 1
    assert "invalid partition specified: gpu" in done.stderr
    assert "the partitions are lab" in done.stderr
    done = lab("submit", "-t", "slurm-lab", "--nodes", "5", script)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "sbatch does not take the job" in done.stderr
    assert lab.runs() == before


def test_a_job_that_waits_says_why(lab: Lab, cluster: SlurmLab) -> None:
    ids = json.loads(
        lab(
            "submit",
            "-t",
            topology(lab, "later", extra=["--begin=now+1hour"]),
            "--json",
            lab.script(""),
        ).stdout
    )
    wait_until(lambda: "(PENDING BeginTime)" in lab("ps").stdout)
    assert "waits: it begins at a later time" in lab("show", ids["run"]).stdout


def test_a_node_that_is_killed_is_named(lab: Lab, cluster: SlurmLab) -> None:
    script = lab.script("import time; print('here', flush=True); time.sleep(600)")
    file = topology(lab, "once", requeues=0, launcher="srun")
    process = lab.start("run", "-t", file, "--nodes", "2", script)
    assert process.stdout is not None
    assert {process.stdout.readline(), process.stdout.readline()} == {
        "[0 node0] here\n",
        "[1 node1] here\n",
    }
    container = f"{cluster.lab_id}-node1"
    try:
        subprocess.run(["docker", "kill", container], check=True, capture_output=True)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 1
        told = verdict(lab)
        assert (told["kind"], told["first"]["node"]) == ("node-lost", "node1"), err
    finally:
        subprocess.run(["docker", "start", container], check=True, capture_output=True)
        wait_until(lambda: slurm(cluster, "sinfo", "-h", "-o", "%t %D").split() == ["idle", "4"])


@pytest.mark.parametrize("name", ["cpu-one-node", "srun", "srun-mixed", "elastic"])
def test_sbatch_would_take_the_golden_scripts(lab: Lab, cluster: SlurmLab, name: str) -> None:
    text = (Path(__file__).parent / f"golden/{name}.sbatch").read_text()
    text = text.replace("--mem=16G", "--mem=1G")  # which the hosts do not have
    script = lab.script(text, f"{name}.sbatch")
    slurm(cluster, "sbatch", "--test-only", script, "train.py")


def test_test_only(lab: Lab) -> None:
    done = lab("submit", "--test-only", "-t", "slurm-lab", lab.script(""))
    assert done.returncode == 0
    assert "to start at" in done.stdout


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_wine_trains_as_on_local_nodes(lab: Lab, launcher: str) -> None:
    def table(*where: str) -> list[str]:
        options = ["--epochs", "2", "--save-every", "0"]
        done = lab("run", *where, "--nodes", "2", "-m", "lab.training.wine", *options, timeout=400)
        assert done.returncode == 0, done.stderr
        rows = [line.split() for line in done.stdout.splitlines() if line.startswith("[0 ")]
        return [" ".join(row[2:5]) for row in rows if row[2:3] in (["1"], ["2"])]

    expected = table("-t", "pair", "--on", "local")
    assert len(expected) == 2
    assert table("-t", topology(lab, launcher, launcher=launcher)) == expected


def test_the_proof_holds(lab: Lab) -> None:
    done = lab("prove", "-t", "slurm-lab", "--nodes", "2", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_cluster_is_found_again_and_its_topology_is_whole(cluster: SlurmLab) -> None:
    said: list[str] = []
    cluster.up(said.append)
    assert said == []
    loaded = load_topology(str(cluster.folder / "slurm-lab.yaml"))
    assert (loaded.on, loaded.nnodes) == ("slurm", 4)
    assert "lab.training.wine" in render_sbatch(loaded)
    assert set(TOPOLOGIES) == {p.stem for p in (Path(__file__).parent / "golden").iterdir()}
    assert os.access(cluster.folder / "slurm-lab.yaml", os.R_OK)
