"""Nodes that are containers on this machine's Docker engine."""

import contextlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import interrupts
from lab.channel import Progress
from lab.deploy.requirements import Requirements
from lab.errors import LabError
from lab.topology import Node, Topology
from lab.transport.container_config import container_config
from lab.transport.containers import (
    ENTRYPOINT,
    LABEL,
    PYTHON,
    Container,
    LabSpec,
    check_workdir,
    lab_id,
    lab_spec,
    node_address,
)
from lab.transport.engine import EngineStoppedError, api_errors, connect, engine_answers
from lab.transport.exec_channel import DockerChannel
from lab.transport.image import chosen_requirements, ensure_image
from lab.transport.labs import (
    Lab,
    find_labs,
    list_labs,
    remove_lab,
    workdir_lock,
)
from lab.transport.making import at_once, whole_or_nothing

if TYPE_CHECKING:
    from docker import DockerClient

__all__ = ["DockerTransport", "engine_answers", "list_labs"]


class DockerTransport:
    """The nodes of one topology as containers; implements `Transport`.

    They are found by their labels, so that any `lab` command in the same folder finds them again.
    """

    keeps_warm = True
    silence: float | None = None

    def __init__(
        self, topology: Topology, workdir: Path, requirements: Requirements | None = None
    ) -> None:
        """Connect to the engine.

        `requirements` are packages for the nodes on top of the image's own; None: those that
        `lab build` took for this folder, if any.

        Raises:
            LabError: none answers.
            UsageError: the working directory cannot be mounted on nodes.
        """
        self.topology = topology
        self.workdir = workdir.resolve()
        self.lab_id = lab_id(topology, self.workdir)
        self._brought_up = False  # whether `up` made the nodes, rather than found them
        self._requirements = requirements
        check_workdir(self.workdir)
        self._client: DockerClient = connect("put --on local on the command line")

    def up(self, progress: Progress, run_id: str | None = None) -> None:
        """See `Transport`. Nodes that are up with another image or configuration are replaced.

        A run may take some of more nodes that are up; without one it is all or none.

        Raises:
            LabError: a node cannot be made, or says why it cannot start; nothing is left of it.
        """
        image = self._image(progress)
        spec = lab_spec(self.topology, self.workdir, image, host=platform.node())
        with workdir_lock(self.workdir, wait=False) as free:
            if free:
                self._bring_up(spec, progress, run_id)
                return
        progress("another lab command brings nodes up or down in this folder: waiting for it")
        with workdir_lock(self.workdir, wait=True):
            self._bring_up(spec, progress, run_id)

    def _image(self, progress: Progress) -> str:
        if self._requirements is not None:
            return ensure_image(self._client, progress, self._requirements)
        chosen = chosen_requirements(self._client, self.workdir)
        return ensure_image(self._client, progress, chosen, chosen_for=self.workdir)

    def _bring_up(self, spec: LabSpec, progress: Progress, run_id: str | None) -> None:
        for lab in find_labs(self._client, self.lab_id):
            found = {node.name: node.config for node in lab.nodes}
            of_a_larger_one = run_id is not None and spec.configs.items() <= found.items()
            as_asked = found == spec.configs or of_a_larger_one
            # Whatever a killed controller left is not to be relied on.
            if lab.complete and as_asked and lab.run_state() != "died":
                return
            self._refuse_to_replace(lab)
            progress(f"replacing the nodes of {lab.id}, which are not as asked for now")
            with interrupts.deferred():
                remove_lab(self._client, lab)
        count = len(spec.containers)
        progress(f"bringing up {count} node{'s' * (count > 1)} ({spec.lab_id})")
        began = time.monotonic()
        labels = dict(spec.labels)
        if run_id is not None:
            labels[f"{LABEL}.run"] = run_id

        def make(check: Callable[[], None]) -> set[str]:
            self._make_network(spec, labels)
            check()
            nodes = [partial(self._make_node, spec, one, labels) for one in spec.containers]
            said = {warning for warnings in at_once(nodes, check) for warning in warnings}
            self._brought_up = True
            return said

        said = whole_or_nothing(make, self._remove)
        progress(f"{count} node{'s' * (count > 1)} up in {time.monotonic() - began:.1f} s")
        for warning in sorted(said):  # a limit that this engine cannot keep, say
            progress(f"the engine warns: {warning}")

    def _remove(self) -> None:
        for lab in find_labs(self._client, self.lab_id):
            remove_lab(self._client, lab)

    def _refuse_to_replace(self, lab: Lab) -> None:
        """Nodes on which something runs are not pulled away under it."""
        node = self._busy_node(lab)
        if node is not None:
            raise LabError(
                f"the nodes of {lab.id} are not as asked for now, and cannot be "
                f"replaced while a command runs on {node}: wait for its end, or "
                "remove them with what runs there: lab down with the same -t and --on"
            )

    def _busy_node(self, lab: Lab) -> str | None:
        """A node on which somebody's command runs."""
        from docker.errors import NotFound

        for node in lab.nodes:
            with contextlib.suppress(NotFound):
                found = self._client.api.inspect_container(node.container_id)["ExecIDs"] or []
                if any(self._client.api.exec_inspect(one)["Running"] for one in found):
                    return node.name
        return None

    def _make_network(self, spec: LabSpec, labels: Mapping[str, str]) -> None:
        with api_errors("the network of the nodes cannot be made"):
            from docker.types import IPAMConfig, IPAMPool

            network = spec.network
            pool = IPAMPool(subnet=network.subnet, gateway=network.gateway)
            self._client.networks.create(
                spec.lab_id,
                driver="bridge",
                internal=network.internal,
                labels=dict(labels),
                ipam=IPAMConfig(pool_configs=[pool]) if network.subnet else None,
            )

    def _make_node(
        self, spec: LabSpec, container: Container, labels: Mapping[str, str]
    ) -> list[str]:
        """Make and start one node; returns the engine's warnings."""
        with api_errors(f"{container.node} cannot be made"):
            api: Any = self._client.api
            made = api.create_container_from_config(
                container_config(api, spec, container, labels), name=self._container(container.node)
            )
            api.start(made["Id"])
            # Waits for the entrypoint's lock, so what it sets up is there afterwards.
            reason = self._why_not_ready(made["Id"])
        if reason is not None:
            raise LabError(reason or f"{container.node} does not start, and does not say why")
        return list(made.get("Warnings") or [])

    def _why_not_ready(self, container_id: str) -> str | None:
        """None when commands can be run on a node, else what its entrypoint said against it."""
        from docker.errors import APIError

        api: Any = self._client.api
        said = b""
        with contextlib.suppress(APIError):  # it does not run any more
            created = api.exec_create(container_id, [ENTRYPOINT, "true"], user="0:0")["Id"]
            said = api.exec_start(created)
            if api.exec_inspect(created)["ExitCode"] == 0:
                return None
        with contextlib.suppress(EngineStoppedError):  # its own words are better, once it has ended
            api.wait(container_id, timeout=5)
            said = api.logs(container_id, tail=5) or said
        return said.decode(errors="replace").strip().removeprefix("lab: ")

    def down(self, progress: Progress) -> None:
        """See `Transport`."""
        with workdir_lock(self.workdir, wait=True):
            for lab in find_labs(self._client, self.lab_id):
                count = len(lab.nodes)
                progress(f"removing {count} node{'s' * (count != 1)} ({lab.id})")
                with interrupts.deferred():
                    remove_lab(self._client, lab)

    def release(self) -> None:
        """See `Transport`."""
        if not self._brought_up:
            return
        with (
            workdir_lock(self.workdir, wait=True),
            interrupts.deferred(),
            contextlib.suppress(EngineStoppedError),  # lab gc removes them later
        ):
            for lab in find_labs(self._client, self.lab_id):
                if self._busy_node(lab) is None:
                    remove_lab(self._client, lab)

    def start(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        tty: bool = False,
    ) -> DockerChannel:
        """See `Transport`. The command runs as the owner of LAB_RUN_DIR, else of the workdir."""
        return DockerChannel(
            self._client,
            self._container(node.name),
            argv,
            cwd=cwd or str(self.workdir),
            env=env or {},
            tty=tty,
        )

    def exec_arguments(self, node: Node, argv: Sequence[str]) -> list[str]:
        """What to put after `docker exec` to run a command as `start` does."""
        where = [f"--workdir={self.workdir}", "--user=0:0", self._container(node.name)]
        return [*where, ENTRYPOINT, *argv]

    def alive(self, node: Node) -> bool:
        """See `Transport`.

        Raises:
            EngineStoppedError: nobody can say.
        """
        from docker.errors import APIError

        try:
            state = self._client.api.inspect_container(self._container(node.name))["State"]
        except APIError:
            return False
        return bool(state["Running"]) and not state["Paused"]

    def python(self, node: Node) -> Sequence[str]:
        """The Python of the image; `lab` is importable for it from any folder."""
        return [PYTHON]

    def place(self, node: Node, path: Path) -> str:
        """The same: the working directory is mounted where it is here."""
        return str(path)

    def bring_back(self, run_dir: Path, folder: Path, collect: Sequence[str] = ()) -> None:
        """Nothing to do: nodes see it."""

    def address(self, node: Node) -> str:
        """See `Transport`. The network resolves a node's name."""
        return node_address(node)

    def default_env(self, node: Node) -> Mapping[str, str]:
        """The interface, if the topology names one, and no more threads than the node has cores.

        Torch counts the machine's, whatever the container's limit, and threads that share one core
        wait for each other's turn: steps take ten times as long.
        """
        env = {"GLOO_SOCKET_IFNAME": node.interface} if node.interface else {}
        cpus = self.topology.docker.cpus if node.cpus is None else node.cpus
        if cpus is not None:
            env["OMP_NUM_THREADS"] = str(max(1, int(cpus / node.slots)))
        return env

    def _container(self, node: str) -> str:
        return f"{self.lab_id}-{node}"
