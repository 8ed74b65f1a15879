"""Job scripts: golden ones, clean for shellcheck, with each value where it belongs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.batch.script import render_sbatch, render_srun
from lab.errors import UsageError
from lab.topology import parse_topology

GOLDEN = Path(__file__).parent / "golden"
REGENERATE = "LAB_REGENERATE=1 pytest tests/batch/test_script.py"

TOPOLOGIES = {
    "gpu": """
        name: train
        on: slurm
        nodes: 4
        slots: 8
        env: {NCCL_DEBUG: WARN, NOTE: "it's"}
        slurm: {partition: gpu, time: "01:00:00", gpus_per_node: 8, modules: [cuda/12.4], venv: env}
        job: {script: -m lab.training.wine, args: [--epochs, 20]}
    """,
    "cpu-one-node": "{name: one, on: slurm, nodes: 1, slurm: {warn_before: 0, requeues: 0}}",
    "srun": """
        name: tasks
        on: slurm
        nodes: 2
        slots: 4
        backend: gloo
        master: {port: 29500}
        slurm: {launcher: srun, cpus_per_task: 2, mem: 16G, conda: train}
        job: {script: train.py}
    """,
    "srun-mixed": """
        name: mixed
        on: slurm
        nodes:
        - {name: large, slots: 4, interface: ib0}
        - {name: small, slots: 1}
        slurm: {launcher: srun}
    """,
    "elastic": "{name: elastic, on: slurm, nodes: 2-4, slots: 2, slurm: {time: 60}}",
    "pyxis": """
        name: boxed
        on: slurm
        nodes: 2
        slots: 8
        slurm:
          gpus_per_node: 8
          container: {image: "registry#team/torch:2", mounts: ["/data:/data"]}
    """,
    "apptainer": """
        name: boxed
        on: slurm
        nodes: 2
        slots: 2
        slurm:
          gpus_per_node: 2
          container: {image: /images/torch.sif, runtime: apptainer, mounts: ["/data:/data"]}
    """,
}


def rendered(name: str) -> str:
    return render_sbatch(parse_topology(TOPOLOGIES[name]))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.sbatch"
    if os.environ.get("LAB_REGENERATE"):
        path.write_text(rendered(name))
    assert rendered(name) == path.read_text(), f"if that is as it should be: {REGENERATE}"


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_shellcheck_finds_nothing(name: str) -> None:
    check = [str(Path(sys.executable).with_name("shellcheck")), "--shell=bash", "-"]
    done = subprocess.run(check, input=rendered(name), capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0
    # The part in single quotes is a script of its own, of which the rest is only a word.
    (inner,) = re.findall(r"bash -c '\n(.*?)\n' ", rendered(name), flags=re.DOTALL)
    done = subprocess.run(check, input=f"{inner}\n", capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("times", "code"),
    [
        ("PreemptEligibleTime=2026-02-03T10:00:00 PreemptTime=None", 1),
        ("PreemptEligibleTime=2026-02-03T10:00:00 PreemptTime=2026-02-03T09:59:59", 1),
        ("PreemptEligibleTime=2026-02-03T10:00:00 PreemptTime=2026-02-03T10:00:00", 0),
        ("PreemptEligibleTime=2026-02-03T10:00:00 PreemptTime=2026-02-03T11:00:00", 0),
    ],
)
def test_a_preemption_counts_for_the_beginning_that_it_ends(times: str, code: int) -> None:
    (function,) = re.findall(r"^preempted\(\) {.*?^}$", rendered("gpu"), re.DOTALL | re.MULTILINE)
    said = f"JobId=7\n   StartTime=2026-02-03T10:00:00 EndTime=Unknown Deadline=N/A\n   {times}\n"
    script = f"set -euo pipefail\nscontrol() {{ echo '{said}'; }}\n{function}\nif preempted; then"
    script += " exit 0; else exit 1; fi"
    done = subprocess.run(["bash", "-c", script], env={"SLURM_JOB_ID": "7"}, check=False)
    assert done.returncode == code


def options(text: str) -> list[str]:
    return re.findall(r"^#SBATCH --(.*)$", text, flags=re.MULTILINE)


def test_options_stand_before_all_else() -> None:
    """sbatch reads no further than to the first line that is neither empty nor a comment."""
    lines = rendered("gpu").splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[: last + 1])
    assert not any("$" in option for option in options(rendered("gpu")))


def test_every_field_becomes_an_option() -> None:
    text = """
nodes: 2
on: slurm
slurm:
  job_name: n
  partition: p
  account: a
  qos: q
  constraint: c
  reservation: r
  exclusive: true
  array: 0-1
  dependency: afterok:1
  time: 5
  mem: 1G
  cpus_per_task: 3
  gpus_per_node: 2
  gres: disk:1
  output: o-%j
  warn_before: 30
  extra: [--mail-type=END]
"""
    assert options(render_sbatch(parse_topology(text))) == [
        "job-name=n",
        "nodes=2",
        "ntasks-per-node=1",
        "cpus-per-task=3",
        "gpus-per-node=2",
        "gres=disk:1",
        "mem=1G",
        "time=5",
        "partition=p",
        "account=a",
        "qos=q",
        "constraint=c",
        "reservation=r",
        "array=0-1",
        "dependency=afterok:1",
        "output=o-%j",
        "open-mode=append",
        "signal=B:USR2@30",
        "exclusive",
        "requeue",
        "mail-type=END",
    ]


def test_a_container_is_entered_once() -> None:
    """torchrun starts its ranks where it is itself: in there is no apptainer."""
    topology = TOPOLOGIES["apptainer"]
    for launcher, rank in (("torchrun", "(python3 -u)"), ("srun", '("${python[@]}")')):
        text = topology.replace("slurm:\n", f"slurm:\n          launcher: {launcher}\n")
        lines = render_sbatch(parse_topology(text)).splitlines()
        assert len([line for line in lines if "apptainer exec" in line]) == 1
        assert [line.partition(" #")[0] for line in lines if line.startswith("rank=")] == [
            f"rank={rank}"
        ]


HOSTILE = ("it's", "a b", "$(touch x)", "`id`", "a;b", "new\nline", "-x", "*", "ünïcode", "")


def test_words_of_the_job_and_the_environment_stay_what_they_are() -> None:
    topology = parse_topology("nodes: 1\non: slurm")
    topology = topology.model_copy(update={"env": {f"V{i}": w for i, w in enumerate(HOSTILE)}})
    text = render_sbatch(topology, ("train.py", *HOSTILE))
    (job,) = re.findall(r"^job=\(.*?\)$", text, flags=re.MULTILINE | re.DOTALL)
    exports = "\n".join(
        re.findall(r"^export V\d=.*?(?=^export|^$)", text, re.MULTILINE | re.DOTALL)
    )
    show = 'printf "%s\\0" "${job[@]}" "$V0" "$V1" "$V2" "$V3" "$V4" "$V5" "$V6" "$V7" "$V8" "$V9"'
    done = subprocess.run(
        ["bash", "-c", f"{job}\n{exports}\n{show}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\0")[:-1] == ["train.py", *HOSTILE, *HOSTILE]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{on: slurm, nodes: 1-2, slurm: {launcher: srun}}", "only torchrun goes on with fewer"),
        ("{on: slurm, nodes: 2, slots: 8, slurm: {gpus_per_node: 4}}", "8 ranks on a node need 8"),
    ],
)
def test_what_cannot_be(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        render_sbatch(parse_topology(text))


def test_a_thousand_mixed_nodes_stay_readable() -> None:
    nodes = "".join(f"- {{name: n{i}, slots: {1 + i % 3}}}\n" for i in range(1000))
    text = render_sbatch(parse_topology(f"on: slurm\nnodes:\n{nodes}"))
    assert max(map(len, text.splitlines())) < 130
    assert sum(map(int, re.findall(r"slots=\(\n(.*?)\n\)", text, re.DOTALL)[0].split())) == 1999


def test_one_task_a_host_for_the_doctor() -> None:
    topology = parse_topology(TOPOLOGIES["gpu"])
    lines = render_srun(topology, 5, allocated=False).splitlines()
    assert 'module load cuda/12.4 || fail "there is no module cuda/12.4"' in lines
    assert "export NOTE='it'\"'\"'s'" in lines
    assert lines[-1] == (
        "exec srun --job-name=train --gpus-per-node=8 --partition=gpu --time=5 --nodes=4 "
        "--cpus-per-task=8 --ntasks-per-node=1 --kill-on-bad-exit=0 "
        'python3 -X utf8 -c "$1"'
    )


def test_the_doctor_in_an_allocation_asks_for_nothing_new() -> None:
    topology = parse_topology(TOPOLOGIES["srun"])
    last = render_srun(topology, 5, allocated=True).splitlines()[-1]
    assert last == (
        "exec srun --overlap --nodes=2 --cpus-per-task=8 --ntasks-per-node=1 "
        '--kill-on-bad-exit=0 python3 -X utf8 -c "$1"'
    )


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_script_for_the_doctor_is_clean(name: str) -> None:
    script = render_srun(parse_topology(TOPOLOGIES[name]), 5, allocated=False)
    check = [str(Path(sys.executable).with_name("shellcheck")), "--shell=bash", "-"]
    done = subprocess.run(check, input=script, capture_output=True, text=True, check=False)
    assert done.stdout == ""
