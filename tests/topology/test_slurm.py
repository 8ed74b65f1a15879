"""The section `slurm`: what may stand there, and that nothing can become another option."""

import pytest

from lab.topology import TopologyError, parse_topology

EVERYTHING = """
nodes: 2
on: slurm
slurm:
  launcher: srun
  job_name: my-job
  partition: gpu,gpu-long
  account: a1
  qos: high
  constraint: "[rack1|rack2]&a100"
  reservation: course_2026
  exclusive: true
  array: 0-7%2
  dependency: afterok:1234:1235,singleton
  time: 1-12
  mem: 64G
  cpus_per_task: 16
  gpus_per_node: 8
  gres: gpu:a100:4
  output: logs/%x-%j.out
  modules: [cuda/12.4, gcc/13.2.0+x]
  conda: train
  python: python3.12
  container: {image: "registry#team/torch:2", runtime: pyxis}
  extra: [--mail-type=END, --no-kill]
"""


def test_everything_it_can_say() -> None:
    slurm = parse_topology(EVERYTHING).slurm
    assert (slurm.launcher, slurm.exclusive, slurm.array) == ("srun", True, "0-7%2")
    assert slurm.container is not None
    assert slurm.modules == ("cuda/12.4", "gcc/13.2.0+x")


def test_conda_and_venv_are_not_for_one_job() -> None:
    with pytest.raises(TopologyError, match="conda or venv, not both"):
        parse_topology("nodes: 1\non: slurm\nslurm: {conda: a, venv: b}")


WORDS = ("job_name", "partition", "account", "qos", "constraint", "reservation", "array", "gres")
MORE = ("dependency", "mem", "output", "conda", "venv", "python", "time")
HOSTILE = (
    "a b",
    "a#b",
    "a\nb",
    "a\n#SBATCH --uid=0",
    "-x",
    "--x",
    "",
    "a'b",
    'a"b',
    "$(id)",
    "`id`",
)


@pytest.mark.parametrize("field", [*WORDS, *MORE])
@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_cannot_become_another_option(field: str, value: str) -> None:
    quoted = value.replace("'", "''").replace(
        "\n", "\n\n  "
    )  # YAML folds one line end into a space
    with pytest.raises(TopologyError, match=rf"slurm\.{field}: found"):
        parse_topology(f"nodes: 1\non: slurm\nslurm:\n  {field}: '{quoted}'\n")


NO_OPTION = ("qos=high", "-x", "--qos=a b", "--x=a#b", "--x=a\nb", "--Wrap=a", "--x=$(id)", "")
LABS = ("--array=0-3", "--arr=0-3", "--nodes=8", "--no-requeue", "--export=NONE", "--wait")
"""Options that lab sets by itself, or does without: several jobs would write into one run."""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("extra", value) for value in (*NO_OPTION, *LABS)),
        *(("modules", value) for value in HOSTILE),
    ],
)
def test_nor_can_one_of_a_list(field: str, value: str) -> None:
    quoted = value.replace("'", "''").replace("\n", "\n\n    ")
    with pytest.raises(TopologyError, match=rf"slurm\.{field}\[0\]: found"):
        parse_topology(f"nodes: 1\non: slurm\nslurm:\n  {field}:\n    - '{quoted}'\n")
