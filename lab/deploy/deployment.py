"""A version of the project onto all hosts of a topology: everywhere, or nowhere.

First every host says what it has; those that have this version are left alone. Then the others
stage it, side by side, beside the version in use. When all have, all switch.
"""

import fcntl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lab.cache import cache_folder
from lab.deploy.layout import Layout, Release
from lab.deploy.packages import Environment, Platform
from lab.deploy.plan import Outcome, Plan, Watcher
from lab.deploy.tree import Source
from lab.deploy.visit import BEAT, Message, Start, Visit, hello, stage
from lab.errors import LabError
from lab.threads import side_by_side
from lab.topology import Node

PARALLEL = 64
"""Hosts that are served at the same time."""


def deploy(plan: Plan, start: Start, watcher: Watcher, *, only_check: bool = False) -> Outcome:
    """Bring a version onto all hosts.

    Args:
        plan: what, and where.
        start: starts a command on a host.
        watcher: is shown how it goes.
        only_check: change nothing: it is an error where a host has another version, unless all
            have one and the same to which they were rolled back.

    Raises:
        LabError: no host uses the version now, since one of them cannot have it; says which.
    """
    began = time.monotonic()
    for warning in plan.tree.warnings:
        watcher.warn(warning)
    with _one_at_a_time(plan.layout, watcher):
        deployment = _Deployment(plan, start, watcher)
        try:
            outcome = deployment.check() if only_check else deployment.run()
        finally:
            deployment.close()
    outcome.seconds = time.monotonic() - began
    return outcome


def roll_back(plan: Plan, start: Start, watcher: Watcher) -> Outcome:
    """Have all hosts use the version again that they had before the one in use.

    Raises:
        LabError: they have no such version, or not the same one; nothing has changed then.
    """
    with _one_at_a_time(plan.layout, watcher):
        deployment = _Deployment(plan, start, watcher)
        try:
            return deployment.roll_back()
        finally:
            deployment.close()


@contextmanager
def _one_at_a_time(layout: Layout, watcher: Watcher) -> Iterator[None]:
    """Two deployments of one folder might each wait for a host that the other one holds."""
    folder = cache_folder() / "deploy"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / f"{layout.project}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            watcher.warn("another lab command deploys this folder: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Deployment:
    """One deployment: visits to all hosts, and what they said."""

    def __init__(self, plan: Plan, start: Start, watcher: Watcher) -> None:
        self._plan = plan
        self._start = start
        self._watcher = watcher
        self._visits: dict[str, Visit] = {}
        self._hosts: dict[str, Message] = {}
        self._environments: dict[str, Environment] = {}
        self._packages = plan.packages
        self._outcome = Outcome(plan.tree.content)
        self._lock = threading.Lock()
        self._waiting: list[Visit] = []  # for our decision, and holding their project until then
        self._over = threading.Event()
        threading.Thread(target=self._keep_waiting, daemon=True).start()

    def _keep_waiting(self) -> None:
        """Tell hosts that are ready that we are still there, while others are not ready yet."""
        while not self._over.wait(BEAT):
            for visit in self._waiting[:]:
                visit.send("alive")

    def close(self) -> None:
        """End all visits."""
        self._over.set()
        side_by_side(Visit.close, self._visits.values(), PARALLEL)

    def run(self) -> Outcome:
        """See `deploy`."""
        self._look()
        others = [node for node in self._plan.topology.nodes if not self._is_up_to_date(node)]
        for node in self._plan.topology.nodes:
            if node not in others:
                self._settle(node, self._hosts[node.name]["current"]["release"], "up to date")
        sharing = self._same_folder(others)
        leaders = list(sharing)
        self._fetch(leaders)
        self._each(leaders, self._stage)
        self._switch_all(sharing, "switched")
        return self._outcome

    def check(self) -> Outcome:
        """See `only_check` of `deploy`."""
        self._look()
        nodes = self._plan.topology.nodes
        currents = [self._hosts[node.name]["current"] for node in nodes]
        rolled_back = all(current and current["rolled_back"] for current in currents)
        if not (rolled_back and len({current["content"] for current in currents}) == 1):
            behind = [node.name for node in nodes if not self._is_up_to_date(node)]
            if behind:
                raise LabError(
                    f"{', '.join(behind)}: the code there is not what is here; send it with "
                    "lab deploy, or leave --no-deploy out"
                )
        for node, current in zip(nodes, currents, strict=True):
            self._settle(node, current["release"], "checked")
        return self._outcome

    def roll_back(self) -> Outcome:
        """See the function."""
        self._look()
        sharing = self._same_folder(self._plan.topology.nodes)
        contents: dict[str, str | None] = {}

        def ask(node: Node) -> None:
            visit = self._visits[node.name]
            contents[node.name] = visit.ask("back", "before")["content"]
            self._waiting.append(visit)

        self._each(list(sharing), ask)
        none = [node.name for node in sharing if contents[node.name] is None]
        if none:
            raise LabError(f"{', '.join(none)}: there is no version before the one in use")
        if len(set(contents.values())) != 1:
            raise LabError(
                "the hosts have different versions before this one: deploy what you want"
            )
        self._outcome.content = next(filter(None, contents.values()))
        self._switch_all(sharing, "rolled back")
        return self._outcome

    # Steps

    def _look(self) -> None:
        """Have every host say what it has."""
        self._each(self._plan.topology.nodes, self._hello)
        first, *others = self._plan.topology.nodes
        mine = self._hosts[first.name]["python"]
        for node in others:
            theirs = self._hosts[node.name]["python"]
            if theirs.split(".")[:2] != mine.split(".")[:2]:
                raise LabError(
                    f"{node.name} has Python {theirs}, and {first.name} has {mine}: the ranks of "
                    f"a run need one version on all nodes. Name another one (ssh.python), or leave "
                    "the node out"
                )
        current = self._hosts[first.name]["current"]
        if current is not None:
            self._packages = self._plan.packages.as_before(current["requirements"])
        for node in self._plan.topology.nodes:
            platform = Platform.of(self._hosts[node.name])
            self._environments[node.name] = self._packages.environment(platform)

    def _hello(self, node: Node) -> None:
        self._watcher.step(node.name, "connecting", 0, 0)
        ssh, layout = self._plan.topology.ssh, self._plan.layout

        def say(words: str, done: int, total: int) -> None:
            self._watcher.step(node.name, words, done, total)

        visit = Visit(node, self._start, ssh.python, say)
        with self._lock:
            self._visits[node.name] = visit
        host = visit.ask("hello", "host", **hello(layout))
        with self._lock:
            self._hosts[node.name] = host

    def _is_up_to_date(self, node: Node) -> bool:
        current = self._hosts[node.name]["current"]
        return bool(
            current
            and current["content"] == self._plan.tree.content
            and current["environment"] == self._environments[node.name].key
            and current["environment"] in self._hosts[node.name]["environments"]
            and current["intact"]
        )

    def _same_folder(self, nodes: Sequence[Node]) -> dict[Node, list[Node]]:
        """Hosts with a home that they share: the first of each, and the others."""
        by_identity: dict[str, list[Node]] = defaultdict(list)
        for node in nodes:
            by_identity[self._hosts[node.name]["identity"]].append(node)
        return {first: others for first, *others in by_identity.values()}

    def _fetch(self, nodes: list[Node]) -> None:
        """Have the packages here that a host lacks; each set once."""
        for node in nodes:
            host = self._hosts[node.name]
            environment = self._environments[node.name]
            if environment.key not in host["environments"]:
                self._watcher.step(node.name, "fetching packages", 0, 0)
                self._environments[node.name] = self._packages.fetch(Platform.of(host))

    def _stage(self, node: Node) -> None:
        visit, environment = self._visits[node.name], self._environments[node.name]
        tree = self._plan.tree
        entries = [entry.as_data() for entry in tree.entries]
        visit.send("stage", **stage(tree, environment.as_data(), entries))
        sent = 0
        want = visit.expect("want")
        if want["what"] == "packages":  # which the host may have got from somebody else by now
            wheels = {
                wheel.hash: Source(environment.folder / wheel.name, wheel.size)
                for wheel in environment.wheels
            }
            sent += visit.send_files(want["hashes"], wheels, "sending packages")
            want = visit.expect("want")
        if want["what"] == "updates":
            sent += visit.update_files(want, tree.sources, "updating large files")
            want = visit.expect("want")
        wanted = want["hashes"]
        files = f"sending {len(wanted)} file{'s' * (len(wanted) != 1)}"
        sent += visit.send_files(wanted, tree.sources, files)
        visit.expect("staged")
        self._waiting.append(visit)
        self._watcher.step(node.name, "staged", sent, sent)
        with self._lock:
            self._outcome.sent += sent

    def _switch_all(self, sharing: dict[Node, list[Node]], words: str) -> None:
        """Have all hosts use what they have staged."""

        def switch(leader: Node) -> None:
            release = self._visits[leader.name].ask("switch", "switched")["release"]
            for node in (leader, *sharing[leader]):  # who shares its folder has it too
                with self._lock:
                    self._outcome.changed.append(node.name)
                self._settle(node, release, words)

        self._each(list(sharing), switch)

    def _settle(self, node: Node, release: str, words: str) -> None:
        with self._lock:
            self._outcome.releases[node.name] = Release(release)
        self._watcher.step(node.name, words, 0, 0)

    def _each(self, nodes: Sequence[Node], do: Callable[[Node], None]) -> None:
        """Do something for several hosts side by side.

        Raises:
            LabError: with what went wrong, host by host.
        """
        reasons: dict[str, list[str]] = defaultdict(list)

        def one(node: Node) -> None:
            try:
                do(node)
            except (LabError, OSError, TimeoutError) as error:
                self._watcher.step(node.name, "failed", 0, 0)
                with self._lock:
                    reasons[str(error)].append(node.name)

        try:
            side_by_side(one, nodes, PARALLEL)
        except BaseException:  # Ctrl-C: nobody waits for what hosts still do
            for visit in self._visits.values():
                visit.cut()
            raise
        if reasons:
            words = (f"{', '.join(sorted(names))}: {text}" for text, names in reasons.items())
            raise LabError("; ".join(sorted(words)))
