"""Jobs on a real Slurm cluster, in containers: both modes, failures, the end and a new beginning.

Where ranks need no torch they have none: to import it is what takes long.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.batch.cluster import LOGIN, SlurmLab
from lab.batch.script import render_sbatch
from lab.topology import load_topology
from lab.transport.labs import workdir_lock
from lab.zoo.registry import find_cases
from lab.zoo.runner import Outcome, Zoo
from lab.zoo.score import Score
from tests.batch.test_script import TOPOLOGIES
from tests.conftest import Lab
from tests.topology.test_node_lists import NODE_LISTS

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

PLACE = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "LAB_NODE")
names += ("OMP_NUM_THREADS",)
print(json.dumps([{name: os.environ[name] for name in names}, sys.argv[1:]]))
"""
SLOWLY = """
import os, runpy, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook
if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    register_optimizer_step_post_hook(lambda *_: time.sleep(0.1))
sys.argv = sys.argv[1:]
if sys.argv[0].endswith(".py"):
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a script or module so that there is time for a warning before it has ended by itself."""
WAITS_ONCE = """
import os, time
print("here", flush=True)
if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    time.sleep(600)
"""
WAITS = "import time; print('here', flush=True); time.sleep(600)"


class Cluster(SlurmLab):
    """The containers' cluster, and what an administrator does with it."""

    def slurm(self, *argv: str) -> str:
        """Run a command on the login node."""
        where = [f"--workdir={self.folder}", f"{self.lab_id}-login"]
        done = subprocess.run(
            ["docker", "exec", *where, *argv], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def configure(self, *lines: str) -> None:
        """Add to slurm.conf, on all of its hosts."""
        text = "".join(f"{line}\n" for line in lines)
        for host in (LOGIN, *self.hosts):
            argv = ["docker", "exec", "--interactive", f"{self.lab_id}-{host}"]
            append = [*argv, "sh", "-c", "cat >>/etc/slurm/slurm.conf"]
            subprocess.run(append, input=text, text=True, check=True)
        self.slurm("scontrol", "reconfigure")

    def begin_now(self, job: str, restarts: int) -> None:
        """Slurm lets a job that was put back wait for two minutes."""
        wait_until(lambda: f"Restarts={restarts} " in self.slurm("scontrol", "show", "job", job))
        wait_until(lambda: "PENDING" in self.slurm("squeue", "-h", "-j", job, "-o", "%T"))
        time.sleep(2)  # a host refuses a job that it was told to end in this very second
        self.slurm("scontrol", "update", f"JobId={job}", "StartTime=now")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests of the file; each has what it needs of it to itself."""
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        made.up(print)
        yield made
    finally:
        made.down(print)


class Patient(Lab):
    """Waits longer: a busy machine starts a job in minutes."""

    def __call__(
        self, *argv: str, timeout: float = 600, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        return super().__call__(*argv, timeout=timeout, **more)

    def submit(self, *argv: str) -> tuple[str, Path]:
        """A job's id and its run directory."""
        done = self("submit", "--json", *argv)
        assert done.returncode == 0, done.stderr
        ids = json.loads(done.stdout)
        return ids["job"], self.cwd / "runs" / ids["run"]

    def topology(self, *, nodes: str = "node[0-3]", **fields: Any) -> str:
        """The cluster's topology with other fields of its section `slurm`; its file."""
        text = (self.cwd / "slurm-lab.yaml").read_text()
        more = "".join(f", {key}: {json.dumps(value)}" for key, value in fields.items())
        text = text.replace(", time: 30}", f", time: 30{more}}}").replace("node[0-3]", nodes)
        return self.script(text, "other.yaml")


@pytest.fixture
def lab(cluster: Cluster) -> Iterator[Patient]:
    """`lab` in the folder of the cluster, and no job afterwards."""
    command = Patient(cluster.folder)
    try:
        yield command
    finally:
        command.end()
        cluster.slurm("scancel", "--user=root", "--full")
        wait_until(lambda: not cluster.slurm("squeue", "--noheader").strip())


def wait_until(holds: Callable[[], bool], timeout: float = 600) -> None:
    give_up = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.2)


def read(path: Path) -> str:
    """What a file holds by now."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def said(words: str, path: Path) -> bool:
    """Whether a file has that by now."""
    return words in read(path)


def verdict(run: Path) -> Mapping[str, Any]:
    data: dict[str, Any] = json.loads((run / "verdict.json").read_text())
    return data


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_ranks_are_those_of_the_topology(lab: Patient, launcher: str) -> None:
    file = lab.topology(launcher=launcher)
    hostile = ["it's", "$(id)", "a b", "*", "{node_rank}"]
    done = lab("run", "-t", file, "--nodes", "2", "--slots", "2", lab.script(PLACE), *hostile)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines()]
    for place, argv in sorted(found, key=lambda one: int(one[0]["RANK"])):
        rank = int(place["RANK"])
        assert place == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": str(rank // 2),
            "LAB_NODE": f"node{rank // 2}",
            "OMP_NUM_THREADS": "1",
        }
        assert argv == [*hostile[:-1], str(rank // 2)]
    assert len(found) == 4
    run = lab.runs()[-1]
    assert verdict(run)["kind"] == "ok"
    assert (run / "node1/rank3.out").read_text().count("\n") == 1
    assert "lab:   node 1 is node1: ranks 2-3" in (run / "slurm.out").read_text()


def test_mixed_slots_under_srun(lab: Patient) -> None:
    file = lab.topology(launcher="srun", nodes="[{name: a, slots: 2}, {name: b, slots: 1}]")
    done = lab("run", "-t", file, lab.script(PLACE))
    assert done.returncode == 0, done.stderr
    assert {line.partition("]")[0] for line in done.stdout.splitlines()} == {"[0 a", "[1 a", "[2 b"}


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_the_first_failure_wins(lab: Patient, launcher: str) -> None:
    script = lab.script("""
import os, pathlib, time
here = pathlib.Path("here")
while os.environ["RANK"] == "1":
    if here.exists(): raise ValueError("no luck")
    time.sleep(0.05)
here.touch(); time.sleep(600)
""")
    done = lab(
        "run",
        "-t",
        lab.topology(launcher=launcher),
        "--nodes",
        "2",
        script,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("lab: rank 1 on node1: ValueError: no luck (")
    told = verdict(lab.runs()[-1])
    assert (told["kind"], told["first"]["rank"], told["others"]) == ("exception", 1, [])
    assert (told["first"]["file"], told["first"]["line"]) == ("script.py", 5)
    ranks = json.loads(read(lab.runs()[-1] / "why.json"))["evidence"]["ranks"]
    assert ranks["0"]["threads"][0]["frames"][0]["line"] == 7, "what the other one did then"


ONE_SLEEPS = """
import os, signal, sys, time
import torch.distributed as dist
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    time.sleep(600)
dist.barrier()
"""


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_a_stall_is_judged_though_nobody_waits_for_the_job(lab: Patient, launcher: str) -> None:
    stall = ["--stall", "3s", "--on-stall", "stop"]
    file = lab.topology(launcher=launcher, nodes="2")
    _, run = lab.submit("-t", file, *stall, lab.script(ONE_SLEEPS))
    wait_until((run / "ended").exists)  # by itself
    lab("ps")
    told = verdict(run)
    assert (told["kind"], told["exit_code"]) == ("stalled", 75)
    why = told["why"]
    assert (why["kind"], why["ranks"], why["nodes"]) == ("busy-alone", [1], ["node1"])
    assert (why["file"], why["line"]) == ("script.py", 8)
    assert why["innocent"][0]["ranks"] == [0]


def test_a_job_that_hangs_is_asked_why(lab: Patient) -> None:
    file = lab.topology(launcher="srun", nodes="2")
    _, run = lab.submit("-t", file, "--stall", "0", lab.script(ONE_SLEEPS))

    def asked() -> Mapping[str, Any]:
        done = lab("why", "--json", run.name)
        finding = json.loads(done.stdout)["finding"] if done.returncode == 0 else None
        return finding or {"kind": None}

    wait_until(lambda: asked()["kind"] == "busy-alone")  # ranks wait for others in the beginning
    assert (asked()["ranks"], asked()["line"]) == ([1], 8)
    assert [path.name for path in (run / "why").iterdir()] == ["ask.json"]
    evidence = json.loads(read(run / "why.json"))["evidence"]
    peers = {name: node["peers"] for name, node in evidence["nodes"].items()}
    assert peers == {"node0": {"node1": "ok"}, "node1": {"node0": "ok"}}


@pytest.mark.parametrize(
    ("name", "launcher"),
    [
        ("skipped-collective", "srun"),  # they wait in it
        ("paused-rank", "torchrun"),  # it cannot answer
        ("uneven-shapes", "srun"),  # gloo aborts one, srun ends the others
    ],
)
def test_faults_of_the_zoo_are_named(lab: Patient, name: str, launcher: str) -> None:
    file = lab.cwd / lab.topology(launcher=launcher)
    (case,) = find_cases([name])
    with Zoo(lab.cwd / "outputs/zoo", "slurm", case.nodes, topology=str(file)) as zoo:
        outcome = zoo.run_case(case, "fault")
    assert Score(case, outcome, Outcome(None, {"kind": "ok"})).faults == []


def test_submit_ps_logs_stop_rm(lab: Patient) -> None:
    job, run = lab.submit("-t", lab.topology(launcher="srun", nodes="1"), lab.script(WAITS))
    wait_until(lambda: "here" in lab("logs", run.name).stdout)
    state = next(r for r in json.loads(lab("ps", "--json").stdout)["runs"] if r["id"] == run.name)
    assert (state["state"], state["slurm"]["job"]) == ("running", job)
    assert f"job {job} " in lab("ps").stdout
    assert lab("rm", run.name).returncode == 2
    stopped = lab("stop", run.name)
    assert stopped.returncode == 0, stopped.stderr
    assert "was cancelled" in stopped.stderr
    assert verdict(run)["kind"] == "interrupted"
    assert lab("rm", "--all-finished").returncode == 0
    assert list((lab.cwd / "runs").iterdir()) == [], "the code for the ranks goes with the last run"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_cancels_the_job(lab: Patient, number: signal.Signals, code: int) -> None:
    process = lab.start("run", "-t", "slurm-lab", "--nodes", "1", lab.script(WAITS))
    assert process.stdout is not None
    assert "here" in process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=600)
    assert process.returncode == code
    assert verdict(lab.runs()[-1])["kind"] == "interrupted"


def test_a_job_that_always_saves_is_not_begun_again_for_ever(lab: Patient) -> None:
    script = lab.script("import os, pathlib; pathlib.Path(os.environ['LAB_REQUEUE']).touch()")
    file = lab.topology(requeues=0, launcher="srun")
    done = lab("run", "-t", file, "--nodes", "1", script)
    assert done.returncode == 2
    assert "it saved, but has begun again 0 times (slurm.requeues)" in done.stderr


def test_what_sbatch_refuses(lab: Patient) -> None:
    script = lab.script("")
    before = lab.runs()
    text = (lab.cwd / "slurm-lab.yaml").read_text().replace("partition: lab", "partition: gpu")
    done = lab("submit", "-t", lab.script(text, "elsewhere.yaml"), script)
    assert done.returncode == 1
    assert "invalid partition specified: gpu" in done.stderr
    assert "the partitions are lab" in done.stderr
    assert lab.runs() == before


def test_a_job_that_waits_says_why(lab: Patient) -> None:
    later = lab.topology(extra=["--begin=now+1hour"])
    _, run = lab.submit("-t", later, lab.script(""))
    wait_until(lambda: "(PENDING BeginTime)" in lab("ps").stdout)
    assert "waits: it begins at a later time" in lab("show", run.name).stdout
    _, run = lab.submit("-t", "slurm-lab", "--nodes", "5", lab.script(""))
    wait_until(lambda: "(PENDING PartitionNodeLimit)" in lab("ps").stdout)
    assert "waits: it asks for more nodes than the partition has" in lab("show", run.name).stdout


def test_a_node_that_is_killed_is_named_and_the_job_goes_on_without_it(
    lab: Patient, cluster: Cluster
) -> None:
    script = lab.script(WAITS_ONCE)
    started: dict[int, tuple[str, Path]] = {}
    for requeues in (0, 1):
        file = lab.topology(requeues=requeues, launcher="srun", nodes="2")
        started[requeues] = lab.submit("-t", file, script)
        run = started[requeues][1]
        for rank in (0, 1):
            wait_until(partial(said, "here", run / f"node{rank}/rank{rank}.out"))
    container = f"{cluster.lab_id}-node1"
    with workdir_lock(cluster.folder, wait=True):  # else gc would take what lacks a part
        try:
            subprocess.run(["docker", "kill", container], check=True, capture_output=True)
            lab("logs", "-f", started[0][1].name)
            told = verdict(started[0][1])
            assert (told["kind"], told["first"]["node"]) == ("node-lost", "node1")

            job, run = started[1]
            cluster.begin_now(job, 1)
            lab("logs", "-f", run.name)
            assert verdict(run)["kind"] == "ok"
            events = [json.loads(line)["type"] for line in read(run / "events.jsonl").splitlines()]
            assert events.count("restart") == 1
        finally:
            subprocess.run(["docker", "start", container], check=True, capture_output=True)
            idle = ["idle", "4"]
            wait_until(lambda: cluster.slurm("sinfo", "-h", "-o", "%t %D").split() == idle)


STEPS = """
import os, signal, time
from pathlib import Path
import torch
import torch.distributed as dist
signal.signal(signal.SIGTERM, lambda *_: None)  # as a training that saves first
dist.init_process_group("gloo")
print("here", flush=True)
goes_on = torch.ones(1)
while goes_on:
    goes_on.fill_(not Path(os.environ["LAB_RUN_DIR"], "enough").exists())
    dist.all_reduce(goes_on, op=dist.ReduceOp.PRODUCT)
    time.sleep(0.05)
"""


@contextlib.contextmanager
def frozen(cluster: Cluster, host: str) -> Iterator[None]:
    """A host that does nothing meanwhile; afterwards all are idle again."""
    container = f"{cluster.lab_id}-{host}"
    with workdir_lock(cluster.folder, wait=True):  # else gc would take what lacks a part
        subprocess.run(["docker", "pause", container], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run(["docker", "unpause", container], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["node0", "node1"])  # srun is on the first
def test_a_host_that_is_frozen_is_named_and_its_job_ends(
    lab: Patient, cluster: Cluster, host: str
) -> None:
    cluster.configure("SlurmdTimeout=300")  # as Slurm has it by itself
    try:
        stall = ["--stall", "5s", "--on-stall", "stop"]
        file = lab.topology(launcher="srun", nodes="3")
        process = lab.start("run", "-t", file, *stall, lab.script(STEPS))
        assert process.stdout is not None
        for _ in range(3):
            assert "here" in process.stdout.readline()
        with frozen(cluster, host):
            process.communicate(timeout=600)
        assert process.returncode == 75
        why = verdict(lab.runs()[-1])["why"]
        assert (why["kind"], why["nodes"], why["ranks"]) == ("paused", [host], [int(host[-1])])
        innocent = {rank for one in why["innocent"] for rank in one["ranks"]}
        assert innocent == {0, 1, 2} - {int(host[-1])}
    finally:
        cluster.configure("SlurmdTimeout=10")


@pytest.mark.slow
def test_a_frozen_host_that_slurm_gives_up_is_named_and_harms_nobody_when_it_wakes(
    lab: Patient, cluster: Cluster
) -> None:
    started: dict[int, tuple[str, Path]] = {}
    for requeues in (0, 1):
        file = lab.topology(requeues=requeues, launcher="srun", nodes="3")
        started[requeues] = lab.submit("-t", file, "--stall", "0", lab.script(STEPS))
        for rank in range(3):
            output = started[requeues][1] / f"node{rank}/rank{rank}.out"
            wait_until(partial(said, "here", output))
    job, run = started[1]
    with frozen(cluster, "node1"):
        lab("logs", "-f", started[0][1].name)
        told = verdict(started[0][1])
        assert (told["kind"], told["first"]["node"]) == ("node-lost", "node1")
        cluster.begin_now(job, 1)
        wait_until(lambda: read(run / "node1/rank1.out").count("here") == 2)
    wait_until(lambda: "idle" in cluster.slurm("sinfo", "-h", "-n", "node1", "-o", "%t").split())
    (run / "enough").touch()
    lab("logs", "-f", run.name)
    assert verdict(run)["kind"] == "ok"


def test_a_job_that_is_preempted_without_a_warning_begins_again(
    lab: Patient, cluster: Cluster
) -> None:
    """Slurm gives it SIGTERM and ten minutes: its ranks end at once, and have not failed."""
    cluster.configure(
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=600",
        "PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF",
    )
    script = lab.script(WAITS_ONCE)
    file = lab.topology(launcher="srun", nodes="2", exclusive=True, extra=["--partition=low"])
    job, run = lab.submit("-t", file, script)
    for rank in (0, 1):
        wait_until(partial(said, "here", run / f"node{rank}/rank{rank}.out"))
    urgent = ["--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=true"]
    cluster.slurm("sbatch", *urgent)
    cluster.begin_now(job, 1)
    lab("logs", "-f", run.name)
    assert verdict(run)["kind"] == "ok"
    assert "lab: it is preempted" in read(run / "slurm.out")


def test_a_run_directory_that_not_all_hosts_see(lab: Patient, cluster: Cluster) -> None:
    file = lab.topology(launcher="srun", nodes="2")
    assert lab("run", "-t", file, lab.script(PLACE)).returncode == 0
    run = lab.runs()[-1]
    copy = ["docker", "exec", f"{cluster.lab_id}-node0", "cp", "-rL", str(run), "/private"]
    subprocess.run(copy, check=True)
    where = ["--export=ALL,LAB_RUN_DIR=/private", f"--output={run}/again.out", "--wait"]
    script = str(run / "job.sbatch")
    cluster.slurm("sh", "-c", f"sbatch {' '.join(where)} {script} || true")
    error = "lab: error: /private is not there on node1: all hosts must share it"
    assert error in (run / "again.out").read_text()


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_sbatch_would_take_the_golden_scripts(lab: Patient, cluster: Cluster, name: str) -> None:
    text = (Path(__file__).parent / f"golden/{name}.sbatch").read_text()
    text = text.replace("--partition=gpu", "--partition=lab")
    cluster.slurm("sbatch", "--test-only", lab.script(text, f"{name}.sbatch"), "train.py")


def test_test_only(lab: Patient) -> None:
    done = lab("submit", "--test-only", "-t", "slurm-lab", lab.script(""))
    assert done.returncode == 0
    assert "to start at" in done.stdout


WARNING = ("--batch", "--signal=USR2")
"""As before the time limit."""
GRACE = ("--signal=TERM",)
"""As where a job is preempted, and has a GraceTime to end."""


def preempted(
    lab: Patient,
    cluster: Cluster,
    file: str,
    *job: str,
    after: str,
    warning: Sequence[str] = WARNING,
    drain: str | None = None,
) -> Path:
    """Run a job that is warned once it has said `after`, and begins again; its directory."""
    number, run = lab.submit("-t", file, lab.script(SLOWLY, "slowly.py"), *job)
    wait_until(lambda: any(after in read(path) for path in run.glob("*/rank0.out")))
    cluster.slurm("scancel", *warning, number)
    if drain is not None:
        cluster.slurm("scontrol", "update", f"NodeName={drain}", "State=DRAIN", "Reason=test")
    cluster.begin_now(number, 1)
    followed = lab("logs", "-f", run.name)
    assert followed.returncode == 0
    assert verdict(run)["kind"] == "ok", followed.stdout + followed.stderr
    return run


def test_the_script_of_lab_new_goes_on_bitwise_after_a_warning(
    lab: Patient, cluster: Cluster
) -> None:
    """Under torchrun, and without a word of it changed; then from the start as tasks of srun."""
    assert lab("new", "train.py").returncode == 0

    def lines(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("step ")]

    def options(name: str) -> list[str]:
        sizes = ["--epochs", "20", "--log-every", "1", "--save-every", "1000"]
        return ["train.py", *sizes, "--checkpoint", f"checkpoints/{name}.pt"]

    local = lab("run", "-q", "-t", "pair", "--on", "local", *options("local"))
    assert local.returncode == 0, local.stderr
    expected = lines(read(lab.runs()[-1] / "node0/rank0.out"))
    assert len(expected) > 40
    file = lab.topology(launcher="torchrun", nodes="2")
    run = preempted(lab, cluster, file, *options("torchrun"), after="step     3 ")
    assert lines(read(run / "node0/rank0.out")) == expected, "none is missing, none repeated"

    done = lab("run", "-q", "-t", lab.topology(launcher="srun"), "--nodes", "2", *options("srun"))
    assert done.returncode == 0, done.stderr
    assert lines(read(lab.runs()[-1] / "node0/rank0.out")) == expected


def losses(run: Path) -> dict[int, float]:
    """By step, from the Trainer's events; a step that was repeated fails the test."""
    rows = [json.loads(line) for line in read(run / "training.jsonl").splitlines()]
    reports = [row for row in rows if row["event"] == "report"]
    found = {row["step"]: row["loss"] for row in reports}
    assert len(found) == len(reports)
    return found


@pytest.mark.parametrize(("launcher", "warning"), [("srun", WARNING), ("torchrun", GRACE)])
def test_a_training_of_ours_goes_on_bitwise_after_a_warning(
    lab: Patient, cluster: Cluster, launcher: str, warning: Sequence[str]
) -> None:
    job = ["lab.training.wine", "--steps", "600", "--save-every", "600", "--evaluate-every", "0"]
    assert lab("run", "-q", "-t", "pair", "--on", "local", "-m", *job).returncode == 0
    expected = losses(lab.runs()[-1])
    assert len(expected) == 600
    file = lab.topology(launcher=launcher, nodes="2")
    run = preempted(lab, cluster, file, *job, after="\n    3 ", warning=warning)
    assert losses(run) == expected


def test_an_elastic_job_goes_on_with_fewer_nodes(lab: Patient, cluster: Cluster) -> None:
    job = ["lab.training.wine", "--steps", "600", "--save-every", "600", "--evaluate-every", "0"]
    job += ["--batch-size", "16", "--global-batch", "32"]
    file = lab.topology(nodes="1-2")
    try:
        run = preempted(lab, cluster, file, *job, after="\n    3 ", drain="node[1-3]")
    finally:
        cluster.slurm("scontrol", "update", "NodeName=node[1-3]", "State=RESUME")
    assert list(losses(run)) == list(range(1, 601)), "none is missing, none repeated"
    rows = [json.loads(line) for line in read(run / "training.jsonl").splitlines()]
    assert [row["world_size"] for row in rows if row["event"] == "start"] == [2, 1]


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_the_proof_holds(lab: Patient, launcher: str) -> None:
    """It trains Wine, on the ranks and in one process, and compares all there is."""
    done = lab("prove", "-t", lab.topology(launcher=launcher), "--nodes", "2", "--steps", "5")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_doctor_on_the_hosts_of_a_job(lab: Patient) -> None:
    done = lab("doctor", "-t", "slurm-lab.yaml", "--json")

    report = json.loads(done.stdout)
    assert [check for check in report["checks"] if check["status"] != "pass"] == []
    found = {check["name"]: check["found"] for check in report["checks"]}
    assert found["slurm"] == "munge and slurmctld answer on every host"
    assert found["roll-call"].startswith("an all-reduce over 4 nodes (gloo)")
    assert len(report["links"]) == 12


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can call lab in the folder of others")
def test_in_another_users_folder_the_jobs_of_root_are_that_users(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 1234)
    own = Cluster(tmp_path)
    try:
        own.up(print)
        lab = Patient(tmp_path)
        script = lab.script("import os; print(os.getuid(), os.access('.', os.W_OK))")
        done = lab("run", "-t", lab.topology(launcher="srun"), "--nodes", "1", script)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "[0 node0] 1234 True\n"
    finally:
        own.down(print)


def test_the_cluster_is_found_again_and_its_topology_is_whole(cluster: Cluster) -> None:
    progress: list[str] = []
    cluster.up(progress.append)
    assert progress == []
    loaded = load_topology(str(cluster.folder / "slurm-lab.yaml"))
    assert (loaded.on, loaded.nnodes) == ("slurm", 4)
    assert "lab.training.wine" in render_sbatch(loaded)
    assert set(TOPOLOGIES) == {p.stem for p in (Path(__file__).parent / "golden").iterdir()}


def test_scontrol_and_lab_read_lists_of_hosts_alike(cluster: Cluster) -> None:
    for text, names in NODE_LISTS.items():
        assert cluster.slurm("scontrol", "show", "hostnames", text).split() == names.split()


def test_gc_leaves_the_cluster_and_down_leaves_nothing(cluster: Cluster) -> None:
    """The last test of the file: it takes the cluster away."""
    lab = Patient(cluster.folder)
    done = lab("gc", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert cluster.lab_id not in done.stdout
    assert lab("down", "-t", "slurm-lab").returncode == 0
    label = f"--filter=label=multinode-lab.lab={cluster.lab_id}"
    for command in (["ps", "--all"], ["network", "ls"]):
        argv = ["docker", *command, "--quiet", label]
        assert subprocess.run(argv, check=True, capture_output=True).stdout == b""
    assert not (cluster.folder / "slurm-lab.yaml").exists()
