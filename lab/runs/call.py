"""A function as a job: what it takes goes to the ranks, and what it returns comes back, in files.

They are pickles in the run directory. Only files that belong to this user are read back: what the
ranks, which are this user's own code, wrote there. Nothing is unpickled that came over a network.
"""

import contextlib
import json
import os
import pickle
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.errors import LabError, UsageError
from lab.rank.call import ERROR, FOLDER, FUNCTION, RESULT, SETUP

WORKER = "lab.rank.call"


@dataclass(frozen=True)
class Call:
    """One function with its arguments, ready to be sent."""

    name: str
    function: bytes
    """The pickle of the function and its arguments."""
    setup: Mapping[str, Any]
    """How a rank finds the function: `path` for sys.path, `main_path` or `main_name`."""

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        cwd: Path,
        local: bool,
    ) -> "Call":
        """Prepare a call; `local`: the ranks see this machine's files, not only those of `cwd`.

        Raises:
            UsageError: it cannot be sent.
        """
        name = getattr(function, "__qualname__", repr(function))
        if "<lambda>" in name or "<locals>" in name:
            raise UsageError(
                f"{name} cannot be sent to the ranks: it is not at the top level of a module; "
                "define it there with def, and hand it what it needs by args"
            )
        try:
            pickle.dumps(function)
        except Exception as error:
            raise UsageError(f"{name} cannot be sent to the ranks: {error}") from error
        try:
            data = pickle.dumps((function, tuple(args), dict(kwargs)))
        except Exception as error:
            raise UsageError(f"the arguments of {name} cannot be pickled: {error}") from error
        main = _main(name, cwd, local) if b"__main__" in data else {}
        path = [
            entry
            for entry in map(os.path.abspath, sys.path)
            if local or Path(entry).is_relative_to(cwd)
        ]
        return cls(name, data, {"path": path, **main})

    @property
    def words(self) -> tuple[str, ...]:
        """What every rank runs, a module; the name is for those who read it."""
        return (WORKER, self.name)

    def write(self, directory: Path) -> None:
        """Put what the ranks need into the run directory."""
        folder = directory / FOLDER
        folder.mkdir()
        (folder / SETUP).write_text(json.dumps(dict(self.setup)))
        (folder / FUNCTION).write_bytes(self.function)

    def results(self, directory: Path, world_size: int) -> tuple[Any, ...]:
        """What each rank returned.

        Raises:
            LabError: one of them cannot be read.
        """
        results = []
        for rank in range(world_size):
            try:
                results.append(_load(directory / FOLDER / RESULT.format(rank=rank)))
            except FileNotFoundError:
                raise LabError(
                    f"{self.name} did not return on rank {rank}, which ended with exit code 0"
                ) from None
            except Exception as error:
                raise LabError(
                    f"what {self.name} returned on rank {rank} cannot be read here: {error}"
                ) from error
        return tuple(results)

    def exception(self, directory: Path, rank: int) -> BaseException | None:
        """What the function raised on a rank, if that can be had."""
        with contextlib.suppress(Exception):  # an exception's class may do anything in there
            error = _load(directory / FOLDER / ERROR.format(rank=rank))
            if isinstance(error, BaseException):
                return error
        return None


def _main(name: str, cwd: Path, local: bool) -> dict[str, str]:
    """Where ranks find the module that is `__main__` here."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name is not None:
        return {"main_name": spec.name}
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        raise UsageError(
            f"{name} cannot be sent to the ranks: it was defined in an interactive session; "
            "put it into a file and import it from there"
        )
    path = Path(file).resolve()
    if not local and not path.is_relative_to(cwd):
        raise UsageError(f"nodes see only {cwd} and what is below it; {path} is elsewhere")
    return {"main_path": str(path)}


def _load(path: Path) -> Any:
    """Unpickle a file of our own."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{path} is not a file of this user")
        return pickle.load(file)  # noqa: S301 - see the top
