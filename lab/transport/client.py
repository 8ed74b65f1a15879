"""The Docker SDK's client, whose every call says in one line that the engine refuses or is gone.

Imported late: the SDK takes a moment.
"""

from typing import Any

import docker
from docker.errors import APIError, NotFound
from requests import Response
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import Timeout

from lab.errors import LabError
from lab.transport.engine import EngineStoppedError

ANSWER_TIMEOUT = 30.0
"""Seconds for the engine to answer a question; what it is asked to do may take longer."""
TIMEOUT = 120


class EngineRefusalError(LabError, APIError):
    """The engine has answered that it cannot: the SDK's error, in one line."""

    def __str__(self) -> str:
        reason = str(self.explanation or self.args[0])
        return f"the Docker engine refuses: {' '.join(reason.split())}"


class NotThereError(EngineRefusalError, NotFound):
    """What was asked for is not there, or not any more."""


class _Api(docker.APIClient):
    """Below all calls of the SDK are these two methods."""

    def request(  # type: ignore[override]  # hands on whatever there is
        self, method: str, url: str, **kwargs: Any
    ) -> Response:
        if method.upper() == "GET":
            kwargs["timeout"] = ANSWER_TIMEOUT
        try:
            return super().request(method, url, **kwargs)
        except (NoConnection, Timeout) as error:
            raise EngineStoppedError(error) from error

    def _raise_for_status(self, response: Response) -> None:
        try:
            super()._raise_for_status(response)  # type: ignore[misc]  # no part of its stubs
        except APIError as error:
            kind = NotThereError if isinstance(error, NotFound) else EngineRefusalError
            raise kind(str(error), error.response, error.explanation) from error


class EngineClient(docker.DockerClient):
    """A `DockerClient` whose calls raise `EngineStoppedError` where no answer comes."""

    def __init__(self, **arguments: Any) -> None:
        # Hijacked connections leave the pool, so it only has to hold the calls made at one time.
        self.api = _Api(version="auto", timeout=TIMEOUT, max_pool_size=64, **arguments)
