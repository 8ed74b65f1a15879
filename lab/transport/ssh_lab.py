"""`make ssh-lab`: machines to rehearse on, over the very code that reaches bare metal.

Containers with Debian, Python and an SSH server that runs as a plain user: no lab, no torch, no
root, no password. The topology `ssh-lab` and everything that belongs to it lie in one folder: a key
for this user, the keys of the hosts, and an ssh_config that names them.
"""

import contextlib
import hashlib
import platform
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lab import interrupts
from lab.channel import Progress
from lab.errors import LabError
from lab.packaged import packaged
from lab.temporary import TemporaryFolder
from lab.topology import SSH_LAB, written_folder
from lab.transport.container_config import archive_of
from lab.transport.containers import LABEL
from lab.transport.engine import api_errors, connect
from lab.transport.image_build import build_image
from lab.transport.labs import find_labs, remove_lab, workdir_lock
from lab.transport.making import at_once, whole_or_nothing
from lab.transport.ssh_keys import KeyPair, write_private

if TYPE_CHECKING:
    from docker import DockerClient

REPOSITORY = "multinode-lab/sshd"
DOCKERFILE = "docker/sshd.Dockerfile"
PORT = 2222
"""Of the SSH servers, inside: a plain user may not take 22."""
USER = "trainer"
UID = 1000
START_PATIENCE = 30.0
"""Seconds for a machine's SSH server to greet."""


class Machine(NamedTuple):
    """One of them."""

    name: str
    release: str
    """The release of Debian that Python is from."""
    slots: int | None
    """Ranks in the topology; None: it is not in it."""


MACHINES = (
    Machine("host0", "bookworm", 1),
    Machine("host1", "bookworm", 1),
    Machine("host2", "bookworm", 2),
    Machine("host3", "trixie", None),
)
"""host3 has another Python, to see that refused: `lab up -t ssh-lab --nodes host[0-3]`."""

SSHD_CONFIG = """\
Port {port}
HostKey /home/{user}/.sshd/host_key
AuthorizedKeysFile .ssh/authorized_keys
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 200
MaxSessions 100
Subsystem sftp internal-sftp
"""
TOPOLOGY = """\
# Written by `make ssh-lab`; `lab down -t ssh-lab` removes it, and the containers.
# host3 is there too, with another Python: lab up -t ssh-lab --nodes 'host[0-3]' says so.
name: ssh-lab
on: ssh
nodes:
{nodes}
ssh: {{config: {config}, workdir: ~/lab}}
env: {{OMP_NUM_THREADS: 1}}  # the machines share the cores of one
job: {{script: -m lab.training.wine, args: [--epochs, 20]}}
"""
HOST_CONFIG = """\
Host {name}
    HostName 127.0.0.1
    Port {port}
    User {user}
    IdentityFile {folder}/id_ed25519
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts

"""


class SshLab:
    """The rehearsal of this user; there is one."""

    def __init__(self) -> None:
        """Connect to the Docker engine.

        Raises:
            LabError: none answers.
        """
        self.folder = written_folder(SSH_LAB)
        digest = hashlib.sha256(f"{platform.node()}\0{self.folder}".encode()).hexdigest()
        self.lab_id = f"{SSH_LAB}-{digest[:6]}"
        self._client: DockerClient = connect(None)

    def up(self, progress: Progress) -> None:
        """Bring the machines up, unless they are.

        Raises:
            LabError: they cannot be made; nothing is left of them.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with workdir_lock(self.folder, wait=True):
            images = {release: self._image(release, progress) for release in _releases()}
            config = self._config(images)
            labs = find_labs(self._client, self.lab_id)
            if [lab.complete and lab.nodes[0].config == config for lab in labs] == [True]:
                return
            self._remove()
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            progress(f"starting {len(MACHINES)} machines ({self.lab_id})")
            whole_or_nothing(partial(self._make, images, config), self._remove)

    def down(self, progress: Progress) -> None:
        """Remove the machines, the topology and the keys."""
        with workdir_lock(self.folder, wait=True):
            progress(f"removing {len(MACHINES)} machines ({self.lab_id})")
            with interrupts.deferred():
                self._remove()

    def _remove(self) -> None:
        for lab in find_labs(self._client, self.lab_id):
            remove_lab(self._client, lab)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _image(self, release: str, progress: Progress) -> str:
        text = packaged(DOCKERFILE).read_text()
        tag = f"{REPOSITORY}:{release}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        if not self._client.images.list(name=tag):
            with TemporaryFolder() as context:
                (context / "Dockerfile").write_text(text)
                build_image(
                    context,
                    tag,
                    {f"{LABEL}.sshd": release},
                    None,
                    progress,
                    dockerfile="Dockerfile",
                    arguments={"RELEASE": release},
                )
        return tag

    def _config(self, images: Mapping[str, str]) -> str:
        """A hash of what decides what the machines are."""
        what = repr((MACHINES, sorted(images.items()), SSHD_CONFIG, TOPOLOGY, HOST_CONFIG))
        return hashlib.sha256(what.encode()).hexdigest()[:16]

    def _make(self, images: Mapping[str, str], config: str, check: Callable[[], None]) -> None:
        labels = {
            f"{LABEL}.lab": self.lab_id,
            f"{LABEL}.topology": SSH_LAB,
            f"{LABEL}.nodes": str(len(MACHINES)),
            f"{LABEL}.workdir": str(self.folder),
            f"{LABEL}.host": platform.node(),
            f"{LABEL}.config": config,
        }
        user = KeyPair.new()
        hosts = {machine.name: KeyPair.new() for machine in MACHINES}

        def make(machine: Machine) -> int:
            key = hosts[machine.name].private
            return self._start(machine, images[machine.release], labels, user.public, key)

        with api_errors("the machines of ssh-lab cannot be made"):
            self._client.networks.create(self.lab_id, driver="bridge", labels=labels)
            made = at_once([partial(make, machine) for machine in MACHINES], check)
        ports = dict(zip(hosts, made, strict=True))
        known = [f"[127.0.0.1]:{ports[name]} {key.public}\n" for name, key in hosts.items()]
        write_private(self.folder / "id_ed25519", user.private)
        write_private(self.folder / "id_ed25519.pub", f"{user.public}\n".encode())
        write_private(self.folder / "known_hosts", "".join(known).encode())
        write_private(
            self.folder / "ssh_config",
            "".join(map(self._host_config, ports, ports.values())).encode(),
        )
        write_private(self.folder / "topology.yaml", self._topology().encode())

    def _start(
        self, machine: Machine, image: str, labels: Mapping[str, str], public: str, host_key: bytes
    ) -> int:
        """Make and start one; the port of this machine that leads to its SSH server."""
        api: Any = self._client.api
        rank = str(MACHINES.index(machine))
        own = {f"{LABEL}.node": machine.name, f"{LABEL}.node-rank": rank}
        made = api.create_container(
            image,
            name=f"{self.lab_id}-{machine.name}",
            hostname=machine.name,
            labels={**labels, **own},
            ports=[PORT],
            networking_config=api.create_networking_config(
                {self.lab_id: api.create_endpoint_config(aliases=[machine.name])}
            ),
            host_config=api.create_host_config(
                network_mode=self.lab_id,
                init=True,
                shm_size="256m",  # the engine's 64m are too few for workers of a DataLoader
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                port_bindings={PORT: ("127.0.0.1", None)},  # this machine alone gets in
            ),
        )["Id"]
        files = {
            ".ssh/authorized_keys": f"{public}\n".encode(),
            ".sshd/host_key": host_key,
            ".sshd/config": SSHD_CONFIG.format(port=PORT, user=USER).encode(),
        }
        api.put_archive(made, f"/home/{USER}", archive_of(files, mode=0o600, uid=UID))
        api.start(made)
        bound = api.inspect_container(made)["NetworkSettings"]["Ports"][f"{PORT}/tcp"]
        port = int(bound[0]["HostPort"])
        _wait_for_server(machine.name, port)
        return port

    def _host_config(self, name: str, port: int) -> str:
        return HOST_CONFIG.format(name=name, port=port, user=USER, folder=self.folder)

    def _topology(self) -> str:
        nodes = "\n".join(
            f"  - {{name: {m.name}, address: {m.name}, slots: {m.slots}}}"
            for m in MACHINES
            if m.slots is not None
        )
        return TOPOLOGY.format(nodes=nodes, config=self.folder / "ssh_config")


def _releases() -> list[str]:
    return sorted({machine.release for machine in MACHINES})


def _wait_for_server(name: str, port: int) -> None:
    """Raises LabError where none greets in time."""
    give_up = time.monotonic() + START_PATIENCE
    while time.monotonic() < give_up:
        with (
            contextlib.suppress(OSError),  # the engine's own end of the port is there before it
            socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
        ):
            if connection.recv(4) == b"SSH-":
                return
        time.sleep(0.1)
    raise LabError(f"the SSH server of {name} does not start: docker logs tells why")
