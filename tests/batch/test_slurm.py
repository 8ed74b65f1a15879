"""Slurm's commands as they answer from version 20 to 25, played by scripts on PATH."""

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.batch import run as batch_run
from lab.batch.job_state import JobState
from lab.batch.login import Container, Here, login_of
from lab.batch.slurm import Slurm, end_in_output, lost_in_output, starved_in_output
from lab.batch.states import ASK_EVERY, states
from lab.errors import LabError
from lab.runs.directory import RunDirectory
from lab.runs.job import Job
from lab.topology import parse_topology
from tests.conftest import Lab

Fake = Callable[..., None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """`fake(name, out, err, code)` puts a command on PATH, where no other of Slurm's is."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")

    def put(name: str, out: str = "", err: str = "", code: int = 0) -> None:
        script = bin_ / name
        script.write_text(
            f'#!/bin/sh\necho {name} "$@" >>{shlex.quote(str(tmp_path / "calls"))}\n'
            f"printf %s {shlex.quote(out)}\nprintf %s {shlex.quote(err)} >&2\nexit {code}\n"
        )
        script.chmod(0o755)

    return put


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(Here(), tmp_path)


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("out", "job"),
    [
        ("17\n", "17"),
        ("17;cluster\n", "17"),  # a federation
        ("sbatch: Submitting to the default account\n17\n", "17"),  # a site's own wrapper
    ],
)
def test_the_job_of_a_submission(
    fake: Fake, slurm: Slurm, tmp_path: Path, out: str, job: str
) -> None:
    fake("sbatch", out)
    script, output = tmp_path / "job.sbatch", tmp_path / "100%.out"
    assert slurm.submit(script, output, {"LAB_RUN_DIR": "/a b"}) == job
    assert calls(tmp_path) == [
        f"sbatch --parsable --export=ALL,LAB_RUN_DIR=/a b --output={tmp_path}/100%%.out {script}"
    ]


REFUSAL = "sbatch: error: Batch job submission failed: Invalid account\n"


def test_a_refusal_in_one_line(fake: Fake, slurm: Slurm, tmp_path: Path) -> None:
    fake("sbatch", err=f"sbatch: error: lua: no such account\n{REFUSAL}", code=1)
    with pytest.raises(LabError) as caught:
        slurm.submit(tmp_path / "x", tmp_path / "y", {})
    assert str(caught.value) == (
        "sbatch does not take the job: lua: no such account; "
        "Batch job submission failed: Invalid account"
    )


def test_a_partition_that_is_not_there(fake: Fake, slurm: Slurm, tmp_path: Path) -> None:
    fake("sbatch", err="sbatch: error: invalid partition specified: gpu\n", code=1)
    fake("sinfo", "cpu\nlong\ncpu\n")
    with pytest.raises(LabError, match=r"specified: gpu; the partitions are cpu, long$"):
        slurm.submit(tmp_path / "x", tmp_path / "y", {})


def test_a_folder_that_the_login_node_does_not_share(
    fake: Fake, slurm: Slurm, tmp_path: Path
) -> None:
    """From a laptop: there is none of that name, or another one."""
    fake("sbatch", err="sbatch: error: Unable to open file /w/runs/1/job.sbatch\n", code=1)
    with pytest.raises(LabError, match=r"Unable to open file .*; the folder that lab is called"):
        slurm.submit(tmp_path / "x", tmp_path / "y", {})
    for said in (
        f"bash: line 1: cd: {tmp_path}: No such file or directory",
        f"zsh:cd:1: no such file or directory: {tmp_path}",
        f"{tmp_path}: No such file or directory.",
    ):
        fake("ssh", err=f"{said}\n", code=1)
        with pytest.raises(LabError, match=f"{tmp_path} is not there on cluster: the folder that"):
            login_of("cluster").run(["sbatch", "x"], tmp_path)


def test_commands_that_ssh_does_not_find(fake: Fake, tmp_path: Path) -> None:
    fake("ssh", err="bash: line 1: exec: sbatch: not found\n", code=127)
    with pytest.raises(LabError, match=r"sbatch is not on PATH where ssh cluster runs commands"):
        login_of("cluster").run(["sbatch", "x"], tmp_path)


def test_a_comma_would_end_the_variable(fake: Fake, slurm: Slurm, tmp_path: Path) -> None:
    fake("sbatch", "1")
    with pytest.raises(LabError, match="no comma"):
        slurm.submit(tmp_path / "x", tmp_path / "y", {"LAB_RUN_DIR": "/a,b"})
    assert calls(tmp_path) == []


@pytest.mark.parametrize(
    ("out", "state"),
    [
        ("5|RUNNING|None|gpu[001-003,007]\n", JobState("RUNNING", "None", "gpu[001-003,007]")),
        ("5|PENDING|Resources|\n", JobState("PENDING", "Resources")),
        (
            "  5|PENDING|launch failed requeued held|\n",
            JobState("PENDING", "launch failed requeued held"),
        ),
        ("5|COMPLETED\n", JobState("COMPLETED")),  # less than was asked for
        ("warning: slurm.conf differs\n5|RUNNING|None|n1\n", JobState("RUNNING", "None", "n1")),
        ("5|NEW_STATE|None|n1|more\n", JobState("NEW_STATE", "None", "n1")),
    ],
)
def test_the_state_of_a_job(fake: Fake, slurm: Slurm, out: str, state: JobState) -> None:
    fake("squeue", out)
    assert slurm.states(["5"]) == {"5": state}


@pytest.mark.parametrize(
    ("out", "state"),
    [
        ("COMPLETED|n[1-2]\n", JobState("COMPLETED", hosts="n[1-2]")),
        ("CANCELLED by 1000|None assigned\n", JobState("CANCELLED", hosts="None assigned")),
        ("RUNNING|n1\nFAILED|n1\n", JobState("FAILED", hosts="n1")),  # requeued: the last counts
        ("", JobState("UNKNOWN")),
    ],
)
def test_accounting_knows_a_job_that_squeue_has_forgotten(
    fake: Fake, slurm: Slurm, out: str, state: JobState
) -> None:
    fake("squeue", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    fake("sacct", out)
    assert slurm.states(["5"]) == {"5": state}
    assert not state.active


@pytest.mark.parametrize(
    "err",
    ["Slurm accounting storage is disabled\n", "sacct: error: Sending PersistInit: timed out"],
)
def test_accounting_may_be_off(fake: Fake, slurm: Slurm, err: str) -> None:
    fake("squeue")
    fake("sacct", err=err, code=1)
    assert slurm.states(["5"]) == {"5": JobState("UNKNOWN")}


def test_accounting_may_be_missing(fake: Fake, slurm: Slurm) -> None:
    fake("squeue")
    assert slurm.states(["5"]) == {"5": JobState("UNKNOWN")}


def test_squeue_that_is_missing_or_broken(fake: Fake, slurm: Slurm) -> None:
    with pytest.raises(LabError, match="squeue is not on PATH: call lab on a login node"):
        slurm.states(["5"])
    fake("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(LabError, match=r"squeue fails: .*Unable to contact slurm controller"):
        slurm.states(["5"])


SHOWN = "JobId=5 JobName=x JobState=RUNNING Reason=None NodeList=n1 BatchHost=n1\n"
RUNS = JobState("RUNNING", "None", "n1")


def test_scontrol_is_asked_where_there_is_no_squeue(
    fake: Fake, slurm: Slurm, tmp_path: Path
) -> None:
    fake("scontrol", SHOWN)
    assert slurm.states(["5"]) == {"5": RUNS}
    assert calls(tmp_path) == ["scontrol --oneliner show job 5"]
    fake("scontrol", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    fake("sacct", "FAILED|n1\n")
    assert slurm.states(["5"]) == {"5": JobState("FAILED", hosts="n1")}


def test_an_squeue_with_columns_of_its_own(fake: Fake, slurm: Slurm, tmp_path: Path) -> None:
    """A running job must not count as over because a site's wrapper does not heed --format."""
    fake("squeue", "JOBID STATE\n5 RUNNING\n")
    with pytest.raises(LabError, match="squeue says what cannot be read: JOBID STATE"):
        slurm.states(["5"])
    fake("scontrol", SHOWN)
    assert slurm.states(["5"]) == {"5": RUNS}
    job = '{"job_id": 5, "job_state": ["RUNNING"], "state_reason": "None", "nodes": "n1"}'
    script = tmp_path / "bin/squeue"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *--json*) echo \'{{"jobs": [{job}]}}\';; *) echo 5 R;; esac\n'
    )
    (tmp_path / "bin/scontrol").unlink()
    assert slurm.states(["5"]) == {"5": RUNS}


def test_an_squeue_in_json_that_has_forgotten_one_of_two(fake: Fake, slurm: Slurm) -> None:
    fake("squeue", '{"jobs": [{"job_id": 5, "job_state": ["RUNNING"], "nodes": "n1"}]}')
    fake("sacct", "FAILED|n2\n")
    assert slurm.states(["5", "6"]) == {
        "5": JobState("RUNNING", hosts="n1"),
        "6": JobState("FAILED", hosts="n2"),
    }


def test_accounting_that_answers_in_json(fake: Fake, slurm: Slurm) -> None:
    fake("squeue")
    fake("sacct", '{"jobs": [{"job_id": 5, "state": {"current": ["TIMEOUT"]}, "nodes": "n1"}]}')
    assert slurm.states(["5"]) == {"5": JobState("TIMEOUT", hosts="n1")}


def test_one_unknown_job_does_not_hide_the_others(fake: Fake, slurm: Slurm, tmp_path: Path) -> None:
    fake("sacct", "FAILED|n1\n")
    script = tmp_path / "bin/squeue"
    script.write_text(
        '#!/bin/sh\ncase "$*" in *--jobs=5\\ *) echo "5|RUNNING|None|n1" && exit;; esac\n'
        'echo "slurm_load_jobs error: Invalid job id specified" >&2\nexit 1\n'
    )
    script.chmod(0o755)
    assert slurm.states(["5", "6"]) == {
        "5": JobState("RUNNING", "None", "n1"),
        "6": JobState("FAILED", hosts="n1"),
    }


def test_to_cancel_what_is_over_is_fine(fake: Fake, slurm: Slurm) -> None:
    fake(
        "scancel",
        err="scancel: error: Kill job error on job id 5: Invalid job id specified",
        code=1,
    )
    slurm.cancel("5")
    fake("scancel", err="scancel: error: Kill job error on job id 5: Access denied", code=1)
    with pytest.raises(LabError, match=r"job 5 cannot be cancelled: .*Access denied"):
        slurm.cancel("5")


def test_requeue(fake: Fake, slurm: Slurm, tmp_path: Path) -> None:
    fake("scontrol")
    slurm.requeue("5")
    assert calls(tmp_path) == ["scontrol requeue 5"]
    fake("scontrol", err="Requested operation is presently disabled for job 5\n", code=1)
    with pytest.raises(LabError, match="job 5 cannot be put back into the queue: Requested"):
        slurm.requeue("5")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (JobState("PENDING", "Resources"), "waits: not enough nodes are free (PENDING Resources)"),
        (JobState("PENDING", "None"), "waits (PENDING)"),
        (
            JobState("PENDING", "ReqNodeNotAvail, UnavailableNodes:n1"),
            "waits: nodes that it needs are down, drained or reserved "
            "(PENDING ReqNodeNotAvail, UnavailableNodes:n1)",
        ),
        (JobState("PENDING", "SomethingNew"), "waits (PENDING SomethingNew)"),
        (JobState("FAILED", "NonZeroExitCode"), "failed (FAILED NonZeroExitCode)"),
        (
            JobState("PENDING", "Nodes required for job are DOWN, DRAINED or reserved for jobs in"),
            "waits: nodes that it needs are down, drained or reserved "
            "(PENDING Nodes required for job are DOWN, DRAINED or reserved for jobs in)",
        ),
        (
            JobState("PENDING", "AssocGrpGRES"),
            "waits: a limit of its account is reached (PENDING AssocGrpGRES)",
        ),
        (JobState("NEW"), "is in a state that lab does not know (NEW)"),
    ],
)
def test_in_words(state: JobState, words: str) -> None:
    assert str(state) == words


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("*** JOB 7 ON node0 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***", "TIMEOUT"),
        ("*** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***", "PREEMPTED"),
        (
            "*** JOB 7 ON node0 CANCELLED AT 2026-01-02T03:04:05 DUE TO NODE FAILURE, SEE LOG ***",
            "NODE_FAIL",
        ),
        ("*** JOB 7 ON node0 CANCELLED AT 2026-01-02T03:04:05 ***", "CANCELLED"),
        # srun ends the others' step when a rank fails: the job goes on to its own end.
        ("*** STEP 7.0 ON node0 CANCELLED AT 2026-01-02T03:04:05 ***", None),
        ("srun: error: node1: task 1: Exited with exit code 3", None),
    ],
)
def test_the_end_of_a_job_that_slurm_has_forgotten(line: str, state: str | None) -> None:
    begins = "lab: job 7, restart 0: 2 ranks, node0:29500"
    expected = None if state is None else JobState(state)
    line = f"slurmstepd: error: {line}"
    assert end_in_output([begins, line, "srun: Job step aborted", ""]) == expected
    again = begins.replace("restart 0", "restart 1")
    assert end_in_output([begins, line, again, "lab:   node 0 is host0"]) is None


HEARD = "slurmstepd-n0: error: Exceeded job memory limit"
OVER_LIMIT = "StepId=7.0 exceeded memory limit (497938432 > 419430400), being killed"


@pytest.mark.parametrize(
    ("lines", "host"),
    [
        # The host that is not to blame has heard it first.
        (
            [HEARD, f"slurmstepd-n1: error: {OVER_LIMIT}"],
            "n1",
        ),
        ([HEARD], "n0"),
        (["slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step"], ""),
        (
            [
                "slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=7.0 cgroup. Some of "
                "your processes may have been killed by the cgroup out-of-memory handler."
            ],
            "n1",
        ),
        (["srun: error: n1: task 1: Killed"], None),
    ],
)
def test_a_limit_of_memory_in_the_output(lines: list[str], host: str | None) -> None:
    begins = "lab: job 7, restart 0: 2 ranks, node0:29500"
    assert starved_in_output([begins, *lines]) == host
    assert starved_in_output([*lines, begins.replace("restart 0", "restart 1")]) is None


def test_the_host_that_a_job_has_lost() -> None:
    begins = "lab: job 4, restart 0: 3 ranks, node0:20004"
    lost = [
        "slurmstepd-node0: error: *** JOB 4 ON node0 CANCELLED AT 2026-11-30T11:45:40 DUE TO NODE "
        "FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        "srun: error: Node failure on node1",
        "srun: error: Node failure on rack[2-3]",
        "srun: error: node0: task 0: Killed",
    ]
    assert lost_in_output([begins, *lost]) == "node1,rack[2-3]"
    assert lost_in_output([begins, *lost, begins.replace("restart 0", "restart 1")]) == ""


def test_a_state_of_a_later_slurm_is_not_taken_for_the_end() -> None:
    assert JobState("EXPEDITING").active
    assert not JobState("OUT_OF_MEMORY").active


def submitted(folder: Path, job: str) -> RunDirectory:
    """A run whose job has that number."""
    topology = parse_topology("nodes: 1\non: slurm")
    (folder / "x.py").touch()
    run = RunDirectory.create(topology, Job(command=("x.py",), cwd=folder))
    run.note(slurm={"job": job}, controller=None)
    return run


def test_squeue_is_asked_once_for_all_and_not_again_within_seconds(
    fake: Fake, slurm: Slurm, tmp_path: Path
) -> None:
    fake("squeue", "5|RUNNING|None|n1\n6|PENDING|Priority|\n")
    runs = [submitted(tmp_path, "5"), submitted(tmp_path, "6")]
    expected = [JobState("RUNNING", "None", "n1"), JobState("PENDING", "Priority")]
    for _ in range(3):
        again = [RunDirectory(run.path) for run in runs]  # as another command would
        assert states(slurm, again) == expected
    assert [call.split()[3] for call in calls(tmp_path)] == ["--jobs=5,6"]

    for asked_before in (ASK_EVERY + 1, -3600):  # also where the clock has been put back
        runs[0].note(slurm={**runs[0].info()["slurm"], "asked": _now(runs[1]) - asked_before})
        assert states(slurm, runs) == expected
    assert [call.split()[3] for call in calls(tmp_path)] == ["--jobs=5,6", "--jobs=5", "--jobs=5"]


def _now(run: RunDirectory) -> float:
    asked: float = run.info()["slurm"]["asked"]
    return asked


def test_a_job_is_followed_through_an_outage(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "ASK_EVERY", 0.0)
    run = submitted(tmp_path, "5")
    script = tmp_path / "bin/squeue"
    script.write_text(
        f"#!/bin/sh\necho squeue >>{tmp_path}/calls\n"
        f'[ $(wc -l <{tmp_path}/calls) -gt 3 ] && echo "5|CANCELLED|None|" && exit\n'
        "echo Socket timed out >&2\nexit 1\n"
    )
    script.chmod(0o755)
    assert batch_run.BatchRun(run).follow().kind == "interrupted"
    assert len(calls(tmp_path)) == 4
    assert run.state == "finished"


def test_a_job_that_ends_while_slurm_is_asked(fake: Fake, tmp_path: Path) -> None:
    run = submitted(tmp_path, "5")
    script = tmp_path / "bin/squeue"
    script.write_text(f"#!/bin/sh\necho 3 >{run.path}/ended\necho '5|FAILED|NonZeroExitCode|n1'\n")
    script.chmod(0o755)
    assert batch_run.BatchRun(run).follow().exit_code == 3


def test_a_job_of_which_nothing_arrives(fake: Fake, tmp_path: Path) -> None:
    """Its hosts do not see the folder, so that Slurm cannot even open the file for its output."""
    run = submitted(tmp_path, "5")
    fake("squeue", "5|FAILED|NonZeroExitCode|n1\n")
    verdict = batch_run.BatchRun(run).follow()
    assert (verdict.kind, verdict.exit_code) == ("not-started", 1)
    assert verdict.summary.startswith(
        f"no rank has begun: what it said has not arrived in {run.path}: the folder that"
    )


def test_what_was_heard_before_a_requeue_is_past(fake: Fake, tmp_path: Path) -> None:
    run = submitted(tmp_path, "5")
    (run.path / "ended").write_text("1")
    run.note(slurm={"job": "5", "asked": time.time(), "state": "FAILED", "reason": "", "hosts": ""})
    fake("scontrol")
    fake("squeue", "5|PENDING|BeginTime|\n")
    job = batch_run.BatchRun(run)
    job.requeue()
    assert (job.has_ended, job.state().active) == (False, True)


def test_where_commands_run(fake: Fake, tmp_path: Path) -> None:
    fake("ssh", "out\n")
    login = login_of("cluster")
    assert login.run(["scancel", "a b"], tmp_path / "c d").out == "out\n"
    (call,) = calls(tmp_path)
    assert call.endswith(f"-- cluster cd '{tmp_path}/c d' && exec scancel 'a b'")
    fake("ssh", err="ssh: Could not resolve hostname cluster\n", code=255)
    with pytest.raises(LabError, match=r"slurm.login: ssh cluster fails: .*Could not resolve"):
        login.run(["squeue"], tmp_path)


def test_a_login_container_that_has_gone(fake: Fake, tmp_path: Path) -> None:
    fake("docker", err="Error: No such container: gone\n", code=1)
    with pytest.raises(LabError, match="the container gone is not there: make slurm-lab"):
        Container("gone").run(["squeue"], tmp_path)


def test_without_slurm_on_path(lab: Lab) -> None:
    lab.script("nodes: 1\non: slurm\nname: x", "x.yaml")
    for argv in (("submit", "-t", "x.yaml"), ("run", "-t", "x.yaml")):
        done = lab(*argv, lab.script(""), env={"PATH": "/nowhere"})
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            "lab: error: sbatch is not on PATH: call lab on a login node of the cluster, "
            "or name one in the topology: slurm.login"
        )
        assert list((lab.cwd / "runs").glob("[!.]*")) == []


@pytest.mark.parametrize(
    ("option", "cure"),
    [
        (["--engine", "torchrun"], "slurm.launcher"),
        (["--no-python"], "leave --no-python"),
        (["--collect", "*.pt"], "leave --engine, --min-nodes and --collect out"),
        (["--timeout", "5m"], "slurm.time in place of a timeout"),
        (["--max-restarts", "1"], "slurm.requeues in place of restarts"),
    ],
)
def test_what_a_run_on_slurm_has_not(lab: Lab, option: list[str], cure: str) -> None:
    lab.script("nodes: 1\non: slurm\nname: x", "x.yaml")
    script = lab.cwd / lab.script("", "x.py")
    script.chmod(0o755)
    done = lab("run", "-t", "x.yaml", *option, "./x.py")
    assert done.returncode == 2
    assert cure in done.stderr
    assert not (lab.cwd / "runs").exists()
