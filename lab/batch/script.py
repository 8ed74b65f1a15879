"""A topology as an sbatch script: pure text, from the templates in `slurm/`.

What `lab render --as sbatch` prints is what `lab submit` submits. The script works without lab,
too: with LAB_RUN_DIR unset it starts the ranks as anybody would.
"""

import shlex
from typing import Any

import jinja2

from lab.errors import UsageError
from lab.packaged import packaged
from lab.topology import Topology

TEMPLATE = "job.sbatch.j2"
DOCTOR = "doctor.j2"
WIDTH = 96


def render_sbatch(topology: Topology, command: tuple[str, ...] | None = None) -> str:
    """The script of a job on this topology's nodes.

    Args:
        topology: its section `slurm` says what is asked for.
        command: as after `python`; None: the topology's job, else what follows the script's name on
            sbatch's command line.

    Raises:
        UsageError: the topology cannot be had on Slurm.
    """
    _check(topology)
    slurm = topology.slurm
    if command is None and topology.job is not None:
        command = topology.job.argv
    slots = [node.slots for node in topology.nodes]
    counts = sorted(set(slots))
    interfaces = [node.interface or "" for node in topology.nodes]
    return (
        _environment()
        .get_template(TEMPLATE)
        .render(
            name=topology.name,
            nodes=_nodes(topology),
            world_size=topology.world_size,
            backend=topology.resolved_backend(),
            launcher=slurm.launcher,
            slurm=slurm,
            options=options(topology),
            min_nodes=topology.min_nodes or topology.nnodes,
            elastic=topology.is_elastic,
            slots=counts[0] if len(counts) == 1 else None,
            all_slots=_array(map(str, slots)),
            interface=interfaces[0] if len(set(interfaces)) == 1 else None,
            all_interfaces=_array(f'"{name}"' for name in interfaces),
            master=topology.master,
            env=topology.env,
            job=None if command is None else shlex.join(command),
            srun=_srun(topology),
            inside=inside(topology),
        )
    )


def render_srun(topology: Topology, minutes: int, *, allocated: bool) -> str:
    """A script that has srun start one Python on each host, with the first argument as its code.

    Args:
        topology: its section `slurm` says what is asked for.
        minutes: how long a job of its own may take.
        allocated: whether this is in an allocation already.
    """
    kept = {
        *("job-name", "gpus-per-node", "gres", "mem", "partition", "account", "qos"),
        *("constraint", "reservation", "exclusive"),
    }
    asked = [one for one in options(topology) if one.partition("=")[0] in kept]
    words = [*(f"--{one}" for one in asked), f"--time={minutes}"]
    if allocated:
        words = ["--overlap"]  # beside what may run there
    most = max(node.slots for node in topology.nodes)
    words += [f"--nodes={topology.nnodes}", f"--cpus-per-task={_cpus_of_a_node(topology, most)}"]
    words += ["--ntasks-per-node=1", "--kill-on-bad-exit=0"]
    return (
        _environment()
        .get_template(DOCTOR)
        .render(
            slurm=topology.slurm,
            env=topology.env,
            options=" ".join([*map(shlex.quote, words), *container_options(topology)]),
            inside=inside(topology),
        )
    )


def _check(topology: Topology) -> None:
    slurm = topology.slurm
    if topology.is_elastic and slurm.launcher == "srun":
        raise UsageError(
            f"nodes: {_nodes(topology)}: only torchrun goes on with fewer nodes: take "
            "slurm.launcher: torchrun, or say one number"
        )
    if topology.is_elastic and len({node.slots for node in topology.nodes}) > 1:
        raise UsageError("nodes that may be missing must all have the same slots")
    gpus = slurm.gpus_per_node
    most = max(node.slots for node in topology.nodes)
    if gpus is not None and gpus < most and topology.resolved_backend() == "nccl":
        raise UsageError(
            f"slots: {most} ranks on a node need {most} GPUs, and slurm.gpus_per_node is {gpus}"
        )


def _nodes(topology: Topology) -> str:
    fewest = topology.min_nodes or topology.nnodes
    return str(fewest) if fewest == topology.nnodes else f"{fewest}-{topology.nnodes}"


def options(topology: Topology) -> list[str]:
    """What stands after `#SBATCH --`, one item a line."""
    slurm = topology.slurm
    most = max(node.slots for node in topology.nodes)
    each_rank = slurm.launcher == "srun"
    cpus = slurm.cpus_per_task
    if cpus is None and not each_rank and most > 1:
        cpus = _cpus_of_a_node(topology, most)
    values: dict[str, Any] = {
        "job-name": slurm.job_name or topology.name,
        "nodes": _nodes(topology),
        # Of a range of nodes Slurm would give the fewest, enough for these tasks: srun says it.
        "ntasks-per-node": None if topology.is_elastic else most if each_rank else 1,
        "cpus-per-task": cpus,
        "gpus-per-node": slurm.gpus_per_node,
        "gres": slurm.gres,
        "mem": slurm.mem,
        "time": slurm.time,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "array": slurm.array,
        "dependency": slurm.dependency,
        "output": slurm.output,
        "open-mode": "append",
        "signal": f"B:USR2@{slurm.warn_before}" if slurm.warn_before else None,
    }
    flags = {
        "exclusive": slurm.exclusive,
        "requeue": slurm.requeues > 0,
        "no-requeue": slurm.requeues == 0,
        "no-kill": topology.is_elastic,
    }
    return [
        *(f"{name}={value}" for name, value in values.items() if value is not None),
        *(name for name, wanted in flags.items() if wanted),
        *(option.removeprefix("--") for option in slurm.extra),
    ]


def _cpus_of_a_node(topology: Topology, most: int) -> int:
    """Cores of one task that has a node's `most` ranks: one each, unless the topology says."""
    cpus = topology.slurm.cpus_per_task
    if topology.slurm.launcher == "srun":
        return most * (cpus or 1)
    return cpus or most


def _srun(topology: Topology) -> str:
    """The options of srun. A rank that fails ends the others, but where they can do without it."""
    slurm = topology.slurm
    words = ["--kill-on-bad-exit=1", "--wait=0"]
    if topology.is_elastic:
        words = ["--no-kill", "--ntasks-per-node=1"]
    if slurm.launcher == "srun":
        mixed = len({node.slots for node in topology.nodes}) > 1
        words.append(f"--distribution={'arbitrary' if mixed else 'block'}")
    return " ".join([*words, *container_options(topology)])


def container_options(topology: Topology) -> list[str]:
    """The options of srun, quoted for a shell, that have pyxis start the topology's container."""
    container = topology.slurm.container
    if container is None or container.runtime != "pyxis":
        return []
    mounts = "".join(f",{mount}" for mount in container.mounts)
    return [
        f"--container-image={shlex.quote(container.image)}",
        f'--container-mounts="$PWD:$PWD{mounts}"',
        '--container-workdir="$PWD"',
    ]


def inside(topology: Topology) -> str:
    """What a command is put behind so that it runs in the container; with a space at its end."""
    slurm = topology.slurm
    if slurm.container is None or slurm.container.runtime != "apptainer":
        return ""
    gpus = ["--nv"] if topology.resolved_backend() == "nccl" else []
    binds = [word for mount in slurm.container.mounts for word in ("--bind", mount)]
    words = ["apptainer", "exec", *gpus, *binds]
    return f'{shlex.join(words)} --bind "$PWD" --pwd "$PWD" {slurm.container.image} '


def _array(words: Any) -> str:
    """The items of a bash array, in lines that can be read."""
    lines, line = [], ""
    for word in words:
        if len(line) + len(word) + 1 > WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
    return "\n  ".join([*lines, line])


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(packaged("slurm")),
        undefined=jinja2.StrictUndefined,
        comment_start_string="{--",  # `{#` is bash's for the length of an array
        comment_end_string="--}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - it is a shell script, whose words `sh` quotes
    )
    environment.filters["sh"] = shlex.quote
    return environment
