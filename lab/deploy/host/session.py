"""The program on a host: it answers the controller's messages until its stdin ends.

=========  =====================================================================================
hello      what this host is and has: answered by `host`; `silence`: seconds without a word after
           which a controller counts as gone that has others wait for its bytes or its decision
stage      `content`, `environment` (`key`, `wheels`, `own`) and `entries` of a version: answered
           by `want` with the hashes of `packages`, if need be, and of `files`, whose bytes are
           then awaited, and by `staged`; nothing is in use yet. Before the files there may come a
           `want` of `updates` with a `folder`, where older versions are under the hashes of
           `older`: which has the `size` of each and `samples` of it
updated    they are what they shall be, or are not: what is still missing is among the files
back       have the version before the one in use staged; answered by `before` with its `content`,
           which is none where there is none
switch     use what was staged; answered by `switched`
alive      nothing: the decision is still to come
=========  =====================================================================================

In between come `step` (words). An `error` has `kind` and `reason`, and is the last that comes.
"""

import errno
import fcntl
import os
import platform
import shutil
import sys
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from lab.deploy.host.environments import READY, install, remove_unused
from lab.deploy.host.files import Entry, accept, make_links, older_versions, place, receive_blob
from lab.deploy.host.releases import Project
from lab.deploy.host.wire import Wire

STEP_WIDTH = 80
"""Characters of pip's lines that are worth showing."""
MARGIN = 32 << 20
"""Bytes that shall stay free on the disk."""
_KINDS = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EROFS: "unwritable"}
_KINDS |= {errno.EACCES: "unwritable", errno.EPERM: "unwritable"}


class RefusalError(Exception):
    """Something that the controller has to put in words for the user."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Session:
    """One controller's visit."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._project: Project

    def serve(self) -> None:
        """Answer until there are no more messages."""
        while (message := self._wire.receive()) is not None:
            getattr(self, f"_on_{message['type']}")(message)

    def _on_hello(self, message: dict[str, Any]) -> None:
        self._project = Project(message["workdir"], message["project"])
        self._wire.silence = message["silence"]
        identity = self._project.make()
        envs = self._project.workdir / "envs"
        self._wire.send(
            "host",
            identity=identity,
            python=platform.python_version(),
            implementation=sys.implementation.name,
            system=platform.system(),
            machine=platform.machine(),
            libc=list(platform.libc_ver()),
            cuda=shutil.which("nvidia-smi") is not None,
            torch=_torch(),
            current=self._project.describe(),
            environments=[path.parent.name for path in envs.glob(f"*/{READY}")],
        )

    def _on_stage(self, message: dict[str, Any]) -> None:
        project = self._project
        with project.lock(wait=False) as free:
            if free:
                self._stage(message)
                return
        self._say("waiting for another deploy")
        with project.lock(wait=True):
            self._stage(message)

    def _stage(self, message: dict[str, Any]) -> None:
        project, wanted = self._project, message["environment"]
        self._check_space(message)
        environment = project.workdir / "envs" / wanted["key"]
        if not (environment / READY).exists():
            self._install(environment, wanted)
        entries: list[Entry] = message["entries"]
        release = project.begin(message["content"])
        copies = project.contents()
        code = release / "code"
        older = project.blobs / "older"
        if older.is_dir():
            accept(older, project.blobs)  # of a deploy that did not end
        missing = place(entries, code, copies, project.blobs)
        if missing and shutil.which("rsync") is not None and self._update(missing, older):
            missing = place(missing, code, {}, project.blobs)
        self._receive("files", missing, project.blobs)
        left = place(entries, code, copies, project.blobs)
        assert not left
        make_links(entries, code)
        (release / "venv").symlink_to(os.path.relpath(environment, release))
        project.finish(release, message["content"], wanted, entries)
        self._wire.send("staged")
        if self._is_decided():
            project.switch(release)
            remove_unused(project.workdir)
            self._wire.send("switched", release=str(release))
        else:
            shutil.rmtree(release)

    def _update(self, missing: list[Entry], folder: Path) -> bool:
        """Have rsync make large files of what an earlier version has in their place, if it has."""
        current = self._project.current
        if current is None:
            return False
        known = {one["path"] for one in self._project.read(current)["entries"] if "hash" in one}
        older = older_versions(missing, current / "code", known, folder)
        if older:
            self._wire.send("want", what="updates", older=older, folder=str(folder))
            if not self._is_told("updated"):
                raise EOFError
        accept(folder, self._project.blobs)
        return bool(older)

    def _is_decided(self) -> bool:
        """Whether the controller wants what was staged, when it has heard of all other hosts.

        The project is held until then, so that nobody begins in between.
        """
        return self._is_told("switch")

    def _is_told(self, what: str) -> bool:
        """Whether that is the controller's next word, but for those that say that it is there."""
        while (answer := self._wire.receive(held=True)) and answer["type"] == "alive":
            pass
        return answer is not None and answer["type"] == what

    def _on_alive(self, message: dict[str, Any]) -> None:
        pass  # it came after the decision

    def _say(self, words: str) -> None:
        self._wire.send("step", words=words[:STEP_WIDTH])

    def _check_space(self, message: dict[str, Any]) -> None:
        environment = message["environment"]
        need = sum(entry.get("size", 0) for entry in message["entries"])
        ready = self._project.workdir / "envs" / environment["key"] / READY
        if not ready.exists():
            need += sum(wheel["size"] + wheel["unpacked"] for wheel in environment["wheels"])
        free = shutil.disk_usage(self._project.folder).free
        if free < need + MARGIN:
            raise RefusalError("full", f"{need + MARGIN} {free}")

    def _install(self, environment: Path, wanted: dict[str, Any]) -> None:
        store = self._project.workdir / "wheels"
        store.mkdir(mode=0o700, exist_ok=True)
        with (store / "lock").open("w") as lock:  # other projects keep theirs there, too
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._install_from(store, environment, wanted)

    def _install_from(self, store: Path, environment: Path, wanted: dict[str, Any]) -> None:
        wheels: list[Entry] = wanted["wheels"]
        missing = [wheel for wheel in wheels if not (store / wheel["hash"]).exists()]
        self._receive("packages", missing, store)
        named = store / wanted["key"]  # pip goes by their names
        shutil.rmtree(named, ignore_errors=True)
        named.mkdir()
        for wheel in wheels:
            os.link(store / wheel["hash"], named / wheel["name"])
        files = [named / wheel["name"] for wheel in wheels if not wheel["name"].startswith("pip-")]
        pip = next((named / wheel["name"] for wheel in wheels if "pip-" in wheel["name"]), named)
        reason = install(
            environment,
            files,
            pip,
            wanted["own"],
            lambda words: self._wire.send("step", words=words),
        )
        shutil.rmtree(named)
        if reason is not None:
            raise RefusalError("packages", reason)
        for wheel in wheels:
            (store / wheel["hash"]).unlink(missing_ok=True)

    def _receive(self, what: str, missing: list[Entry], folder: Path) -> None:
        """Ask for contents that are not here, each once, and take them."""
        blobs = {entry["hash"]: entry for entry in missing}
        self._wire.send("want", what=what, hashes=list(blobs))
        for blob in blobs.values():
            try:
                receive_blob(self._wire, folder, blob)
            except ValueError as error:
                raise RefusalError("changed", blob.get("path") or blob["name"]) from error

    def _on_back(self, _message: dict[str, Any]) -> None:
        project = self._project
        with project.lock(wait=True):
            current = project.current
            before = None if current is None else project.before(current)
            content = None if before is None else project.read(before)["content"]
            self._wire.send("before", content=content)
            if before is not None and self._is_decided():
                project.roll_back(before)
                self._wire.send("switched", release=str(before))


def _torch() -> str | None:
    """The version of torch that this Python has by itself."""
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Serve the controller at our stdin; say in one message why it cannot go on."""
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get between the messages
    wire = Wire(cast("BufferedReader", sys.stdin.buffer), outgoing)
    try:
        Session(wire).serve()
    except EOFError:
        pass  # the connection was lost: what is half done is repaired by the next deploy
    except RefusalError as refusal:
        wire.send("error", kind=refusal.kind, reason=str(refusal))
    except OSError as error:
        kind = _KINDS.get(error.errno or 0, "other")
        where = f"{error.filename}: " if error.filename else ""
        wire.send("error", kind=kind, reason=f"{where}{error.strerror or error}")
