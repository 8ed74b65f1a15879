"""`make slurm-lab`: a Slurm cluster of the lab's own, in containers, to rehearse on.

A login node with slurmctld and four hosts with slurmd, from Debian's packages; not privileged, no
accounting. They see the folder that this was called in, under the same path, as the hosts of a
cluster see a shared file system; torch is there, and lab is not. The topology `slurm-lab.yaml` is
written into that folder.
"""

import hashlib
import platform
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import interrupts
from lab.channel import Progress
from lab.errors import LabError
from lab.packaged import packaged
from lab.topology import SLURM_LAB, Topology, load_topology
from lab.transport.container_config import archive_of
from lab.transport.containers import LABEL, check_workdir
from lab.transport.engine import api_errors, connect
from lab.transport.image_build import build_image
from lab.transport.image_context import DOCKERFILE, staged_context
from lab.transport.labs import find_labs, remove_lab, workdir_lock
from lab.transport.making import at_once, whole_or_nothing

if TYPE_CHECKING:
    from docker import DockerClient

TOPOLOGY_FILE = f"{SLURM_LAB}.yaml"
REPOSITORY = "multinode-lab/slurm"
LOGIN = "login"
HOSTS = 4
CPUS = 8
"""What each host says it has: ranks of a rehearsal share the cores of this machine anyway."""
MEMORY_MB = 16_384
GPUS = 8
"""Plain files in place of devices: enough for Slurm to take scripts that ask for GPUs."""
HEALTHY_WITHIN = 60.0
"""Seconds for all hosts to be idle, once they have been started."""
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SYS_NICE")
"""What the daemons need: to start jobs as their users, and to end them."""
PARTS = (DOCKERFILE, "docker/install-torch", "docker/requirements.txt", "docker/with-local")

SLURM_CONF = """\
ClusterName={cluster}
SlurmctldHost={login}
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=10
UnkillableStepTimeout=30
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
NodeName={hosts} CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
GRES_CONF = "Name=gpu File=/etc/slurm/gpu[1-{gpus}]\n"
CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
TOPOLOGY = """\
# Written by `make {name}`; `lab down -t {name}` removes it, and the containers.
name: {name}
on: slurm
nodes: {nodes}
slurm: {{login: "docker:{login}", python: /opt/venv/bin/python, partition: lab, time: 30}}
job: {{script: -m lab.training.wine, args: [--epochs, 20]}}
"""


def slurm_conf(hosts: list[str]) -> str:
    """The configuration of a cluster with these hosts."""
    has = {"cpus": CPUS, "memory": MEMORY_MB, "gpus": GPUS}
    return SLURM_CONF.format(cluster=SLURM_LAB, login=LOGIN, hosts=",".join(hosts), **has)


class SlurmLab:
    """The cluster of one folder."""

    def __init__(self, folder: Path) -> None:
        """Connect to the Docker engine.

        Raises:
            LabError: none answers.
            UsageError: the folder cannot be mounted.
        """
        self.folder = folder.resolve()
        check_workdir(self.folder)
        self.lab_id = f"{SLURM_LAB}-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:6]}"
        self.hosts = [f"node{index}" for index in range(HOSTS)]
        self._client: DockerClient = connect(None)

    def up(self, progress: Progress) -> Topology:
        """Bring the cluster up, unless it is; its topology.

        Raises:
            LabError: it cannot be; nothing is left of it.
        """
        image = self._image(progress)
        config = self._config(image)
        with workdir_lock(self.folder, wait=True):
            labs = find_labs(self._client, self.lab_id)
            if [lab.complete and lab.nodes[0].config == config for lab in labs] != [True]:
                self._remove()
                progress(f"starting a Slurm cluster of {HOSTS} hosts ({self.lab_id})")

                def make(check: Callable[[], None]) -> None:
                    self._make(image, config, check)
                    self._wait(progress, check)

                whole_or_nothing(make, self._remove)
            login = f"{self.lab_id}-{LOGIN}"
            text = TOPOLOGY.format(name=SLURM_LAB, nodes=f"node[0-{HOSTS - 1}]", login=login)
            (self.folder / TOPOLOGY_FILE).write_text(text)
        return load_topology(str(self.folder / TOPOLOGY_FILE))

    def down(self, progress: Progress) -> None:
        """Remove the cluster and its topology."""
        with workdir_lock(self.folder, wait=True):
            progress(f"removing {HOSTS + 1} containers ({self.lab_id})")
            with interrupts.deferred():
                self._remove()
                (self.folder / TOPOLOGY_FILE).unlink(missing_ok=True)

    def _remove(self) -> None:
        for lab in find_labs(self._client, self.lab_id):
            remove_lab(self._client, lab)

    def _image(self, progress: Progress) -> str:
        digest = hashlib.sha256()
        for name in (*PARTS, "docker/slurm-entrypoint"):
            digest.update(packaged(name).read_bytes())
        tag = f"{REPOSITORY}:{digest.hexdigest()[:12]}"
        if not self._client.images.list(name=tag):
            with staged_context() as context:
                build_image(
                    context, tag, {f"{LABEL}.slurm": SLURM_LAB}, None, progress, target="slurm"
                )
        return tag

    def _config(self, image: str) -> str:
        what = repr((image, slurm_conf(self.hosts), GRES_CONF, CGROUP_CONF, CAPABILITIES))
        return hashlib.sha256(what.encode()).hexdigest()[:16]

    def _make(self, image: str, config: str, check: Callable[[], None]) -> None:
        labels = {
            f"{LABEL}.lab": self.lab_id,
            f"{LABEL}.topology": SLURM_LAB,
            f"{LABEL}.nodes": str(HOSTS + 1),
            f"{LABEL}.workdir": str(self.folder),
            f"{LABEL}.host": platform.node(),
            f"{LABEL}.config": config,
        }
        # In a package of Debian's the key would be made when it is installed: the same for all.
        files = {
            "etc/munge/munge.key": secrets.token_bytes(1024),
            "etc/slurm/slurm.conf": slurm_conf(self.hosts).encode(),
            "etc/slurm/cgroup.conf": CGROUP_CONF.encode(),
            "etc/slurm/gres.conf": GRES_CONF.format(gpus=GPUS).encode(),
            **{f"etc/slurm/gpu{number}": b"" for number in range(1, GPUS + 1)},
        }
        with api_errors("the Slurm cluster cannot be made"):
            self._client.networks.create(self.lab_id, driver="bridge", labels=labels)
            hosts = (LOGIN, *self.hosts)
            at_once([partial(self._start, name, image, labels, files) for name in hosts], check)

    def _start(
        self, name: str, image: str, labels: Mapping[str, str], files: Mapping[str, bytes]
    ) -> None:
        from docker.types import Mount

        api: Any = self._client.api
        rank = str((LOGIN, *self.hosts).index(name))
        made = api.create_container(
            image,
            command=["login" if name == LOGIN else "node"],
            name=f"{self.lab_id}-{name}",
            hostname=name,
            environment={"LAB_WORKDIR": str(self.folder)},
            working_dir=str(self.folder),
            labels={**labels, f"{LABEL}.node": name, f"{LABEL}.node-rank": rank},
            networking_config=api.create_networking_config(
                {self.lab_id: api.create_endpoint_config(aliases=[name])}
            ),
            host_config=api.create_host_config(
                network_mode=self.lab_id,
                mounts=[Mount(str(self.folder), str(self.folder), type="bind")],
                init=True,
                shm_size="256m",  # the engine's 64m are too few for workers of a DataLoader
                cap_drop=["ALL"],
                cap_add=list(CAPABILITIES),
                security_opt=["no-new-privileges", "label:disable"],
            ),
        )["Id"]
        for name, data in files.items():
            mode = 0o600 if name.endswith(".key") else 0o644
            api.put_archive(made, "/", archive_of({name: data}, mode=mode))
        api.start(made)

    def _wait(self, progress: Progress, check: Callable[[], None]) -> None:
        """Until all hosts are idle.

        Raises:
            LabError: they are not in time; with the last words of slurmctld.
        """
        login: Any = self._client.containers.get(f"{self.lab_id}-{LOGIN}")
        give_up = time.monotonic() + HEALTHY_WITHIN
        progress("waiting for its hosts to be idle")
        while time.monotonic() < give_up:
            check()
            login.reload()
            if login.status != "running":
                break
            code, out = login.exec_run(["sinfo", "--noheader", "--format=%t %D"])
            if code == 0 and out.decode().split() == ["idle", str(HOSTS)]:
                return
            time.sleep(0.2)
        words = login.logs(tail=3).decode(errors="replace").strip().splitlines()
        raise LabError(f"the Slurm cluster does not come up: {'; '.join(words)}")
