"""Where Slurm's commands run: on this machine, or on a login node.

    slurm.login: (nothing)          here
    slurm.login: cluster            a host, as ssh knows it
    slurm.login: docker:NAME        a container: the login node of the lab's own cluster

Runs are in the working directory, so wherever that is, the path must be the same on both.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from lab.channel import NOT_FOUND, Channel
from lab.errors import LabError
from lab.transport.local import LocalChannel

SHARE = (
    "the folder that lab is called in must have the same path on the login node and on all hosts, "
    "as on a shared file system (from elsewhere: sshfs)"
)
TIMEOUT = 60
"""Seconds for one command: a busy slurmctld may take its time."""
CONTAINER = "docker:"
NO_CONTAINER = ("Error: No such container", "Error response from daemon")
_NO_FOLDER = r"(?i)(?:cd.*{0}: no such file|no such file or directory: {0}$|^{0}: no such file)"
"""What bash, zsh and tcsh say when they cannot change to a folder."""


class NoCommandError(LabError):
    """There is no such command where it was to run."""


class Answer(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str


class Login(Protocol):
    """Runs commands where Slurm's are."""

    def run(self, argv: Sequence[str], cwd: Path) -> Answer:
        """Run a command to its end.

        Raises:
            LabError: it cannot be started, or does not end.
        """
        ...

    def start(self, argv: Sequence[str], cwd: Path) -> Channel:
        """Start a command and speak with it.

        Raises:
            LabError: it cannot be started.
        """
        ...


def login_of(login: str | None) -> Login:
    """The place that `slurm.login` names."""
    if login is None:
        return Here()
    if login.startswith(CONTAINER):
        return Container(login.removeprefix(CONTAINER))
    return Ssh(login)


class Here:
    """This machine is a login node."""

    def run(self, argv: Sequence[str], cwd: Path) -> Answer:
        """See `Login`."""
        return _answer(argv, cwd, missing=argv[0])

    def start(self, argv: Sequence[str], cwd: Path) -> Channel:
        """See `Login`."""
        return _channel(argv, cwd, missing=argv[0])


class Ssh:
    """A host that ssh reaches, by the ssh command and so with all of the user's own settings."""

    def __init__(self, host: str) -> None:
        self._host = host

    def run(self, argv: Sequence[str], cwd: Path) -> Answer:
        """See `Login`. Never asks for anything: a password or a host's key is the user's affair."""
        answer = _answer(self._command(argv, cwd), Path.cwd(), missing="ssh")
        if answer.code == 255:
            raise LabError(
                f"slurm.login: ssh {self._host} fails: {_last(answer.err)}; try it by hand"
            )
        if answer.code == NOT_FOUND:
            raise NoCommandError(
                f"{argv[0]} is not on PATH where ssh {self._host} runs commands, which may be less "
                "than what a login shell has there: ~/.bashrc can set it"
            )
        if answer.code != 0 and re.search(_NO_FOLDER.format(re.escape(str(cwd))), answer.err):
            raise LabError(f"slurm.login: {cwd} is not there on {self._host}: {SHARE}")
        return answer

    def start(self, argv: Sequence[str], cwd: Path) -> Channel:
        """See `Login`."""
        return _channel(self._command(argv, cwd), Path.cwd(), missing="ssh")

    def _command(self, argv: Sequence[str], cwd: Path) -> list[str]:
        command = f"cd {shlex.quote(str(cwd))} && exec {shlex.join(argv)}"
        options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=15"]
        return ["ssh", *options, "--", self._host, command]


class Container:
    """A container of this machine's engine."""

    def __init__(self, name: str) -> None:
        self._name = name

    def run(self, argv: Sequence[str], cwd: Path) -> Answer:
        """See `Login`. As the owner of the folder, whose jobs these are."""
        answer = _answer(self._command(argv, cwd), Path.cwd(), missing="docker")
        if answer.code != 0 and answer.err.startswith(NO_CONTAINER):
            raise LabError(
                f"slurm.login: the container {self._name} is not there: make slurm-lab starts it"
            )
        if answer.code == NOT_FOUND:
            raise NoCommandError(f"{argv[0]} is not on PATH in the container {self._name}")
        return answer

    def start(self, argv: Sequence[str], cwd: Path) -> Channel:
        """See `Login`."""
        return _channel(self._command(argv, cwd), Path.cwd(), missing="docker")

    def _command(self, argv: Sequence[str], cwd: Path) -> list[str]:
        owner = cwd.stat()
        where = [f"--user={owner.st_uid}:{owner.st_gid}", f"--workdir={cwd}"]
        return ["docker", "exec", "--interactive", *where, self._name, *argv]


def _channel(argv: Sequence[str], cwd: Path, missing: str) -> Channel:
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NoCommandError(_not_found(missing)) from error
    return LocalChannel(process, "login", None)


def _answer(argv: Sequence[str], cwd: Path, missing: str) -> Answer:
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
            start_new_session=True,  # Ctrl-C is ours: it must not end sbatch halfway
        )
    except FileNotFoundError as error:
        raise NoCommandError(_not_found(missing)) from error
    except subprocess.TimeoutExpired as error:
        raise LabError(
            f"{argv[0]} does not answer within {TIMEOUT} s: {shlex.join(argv)}"
        ) from error
    return Answer(done.returncode, done.stdout, done.stderr)


def _not_found(command: str) -> str:
    cure = (
        "call lab on a login node of the cluster, or name one in the topology: slurm.login"
        if command not in ("ssh", "docker")
        else "install it"
    )
    return f"{command} is not on PATH: {cure}"


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it says nothing"
