"""The Docker SDK's client, whose every call says in one line that the engine has stopped.

Imported late: the SDK takes a moment.
"""

from typing import Any

import docker
from requests import Response
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import Timeout

from lab.transport.engine import EngineStoppedError

ANSWER_TIMEOUT = 30.0
"""Seconds for the engine to answer a question; what it is asked to do may take longer."""
TIMEOUT = 120


class _Api(docker.APIClient):
    """Below all calls of the SDK is this one method."""

    def request(  # type: ignore[override]  # hands on whatever there is
        self, method: str, url: str, **kwargs: Any
    ) -> Response:
        if method.upper() == "GET":
            kwargs["timeout"] = ANSWER_TIMEOUT
        try:
            return super().request(method, url, **kwargs)
        except (NoConnection, Timeout) as error:
            raise EngineStoppedError(error) from error


class EngineClient(docker.DockerClient):
    """A `DockerClient` whose calls raise `EngineStoppedError` where no answer comes."""

    def __init__(self, **arguments: Any) -> None:
        # Hijacked connections leave the pool, so it only has to hold the calls made at one time.
        self.api = _Api(version="auto", timeout=TIMEOUT, max_pool_size=64, **arguments)
