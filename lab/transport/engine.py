"""Finding the Docker engine as the docker command finds it, and saying so when none answers."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lab.errors import LabError

if TYPE_CHECKING:
    from docker import DockerClient

NO_ENGINE = """\
no Docker engine answers{where}: {reason}
  Start Docker Desktop, or the service (`sudo systemctl start docker`), or see \
https://docs.docker.com/get-docker/.
  If it runs and you may not use it: `sudo usermod -aG docker $USER`, and log in again."""
INSTEAD = "\n  Without one, the same nodes can be processes of this machine: "


class EngineStoppedError(LabError):
    """The engine has answered before, and does not now."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"the Docker engine has stopped answering ({_reason(error)}): start it again, then "
            "lab gc removes what may be left"
        )


def connect(local_command: str | None = "add --on local to the command") -> "DockerClient":
    """A client of the engine that DOCKER_HOST names, else the current docker context.

    `local_command` is what would do the same without an engine; None: nothing would.

    Raises:
        LabError: none answers; says how to get one.
    """
    from docker.errors import DockerException

    from lab.transport.client import EngineClient

    where = ""
    try:
        arguments = _endpoint()
        where = f" at {arguments['base_url']}" if arguments.get("base_url") else ""
        client = EngineClient(**arguments)
    except (DockerException, EngineStoppedError, OSError) as error:
        reason = _reason(error)
        instead = "" if local_command is None else f"{INSTEAD}{local_command}"
        raise LabError(NO_ENGINE.format(where=where, reason=reason) + instead) from error
    # Its warnings about a full pool would go to the user's terminal.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    return client


def engine_answers() -> bool:
    """Whether an engine can be used from here."""
    try:
        connect().close()
    except LabError:
        return False
    return True


def _endpoint() -> dict[str, Any]:
    """Arguments of `DockerClient`: DOCKER_HOST wins over DOCKER_CONTEXT over the chosen context."""
    from docker.context import ContextAPI
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    if os.environ.get("DOCKER_HOST"):
        arguments = dict(kwargs_from_env())
    else:
        name = os.environ.get("DOCKER_CONTEXT")
        context = ContextAPI.get_context(name)
        if context is None:
            raise DockerException(f"there is no docker context {name!r}")
        arguments = {"base_url": context.Host, "tls": context.TLSConfig or False}
    if str(arguments.get("base_url", "")).startswith("ssh://"):
        arguments["use_ssh_client"] = True  # with the user's own keys and ~/.ssh/config
    return arguments


def _reason(error: BaseException) -> str:
    """The innermost cause, in the system's words."""
    deepest = error
    while deepest.__cause__ or deepest.__context__:
        deepest = deepest.__cause__ or deepest.__context__  # type: ignore[assignment]  # not None
    if isinstance(deepest, FileNotFoundError):
        return "there is no such socket"
    if isinstance(deepest, OSError) and deepest.strerror:
        return deepest.strerror.lower()
    return str(deepest) or type(deepest).__name__


@contextmanager
def api_errors(what: str) -> Iterator[None]:
    """Say an engine's refusal in one line, with its own reason."""
    from docker.errors import APIError, DockerException

    try:
        yield
    except APIError as error:
        reason = str(error.explanation or error).strip()
        hint = ""
        if "Pool overlaps" in reason:
            hint = "; another network has these addresses: give the nodes others, or none"
        elif "No such image" in reason:
            hint = "; somebody has removed it just now: try again, and it is built anew"
        elif "Range of CPUs" in reason:
            hint = "; ask for no more: docker.cpus, or cpus of the node, in the topology"
        elif "address pool" in reason:
            hint = "; the engine is out of networks: lab gc, lab ps, docker network prune"
        raise LabError(f"{what}: {reason}{hint}") from error
    except DockerException as error:
        raise LabError(f"{what}: {error}") from error
