"""The variables that a job adds to its ranks' environment: --env, --env-file, --pass-env."""

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.errors import UsageError
from lab.node.environment import rank_environment

CONTRACT = frozenset(
    rank_environment(
        rank=0,
        local_rank=0,
        world_size=1,
        local_world_size=1,
        node_rank=0,
        nnodes=1,
        node="",
        topology="",
        master_addr="",
        master_port=0,
        run_id="",
        run_dir="",
    )
) | {"LAB_EVENTS_FD", "LAB_AUDIT"}
"""What every rank is told about its place. Only lab can know it, so nobody else may set it."""
_SECRET_WORDS = frozenset(
    ("APIKEY", "AUTH", "CREDENTIAL", "CREDENTIALS", "KEY", "KEYS", "PASSWD", "PASSWORD", "SECRET")
) | {"TOKEN"}


def job_variables(
    caller: Mapping[str, str],
    *,
    passed: Sequence[str] = (),
    files: Sequence[Path] = (),
    given: Sequence[str] = (),
) -> dict[str, str]:
    """The variables of a job, where later sources win: `passed`, then `files`, then `given`.

    Args:
        caller: the environment of the caller.
        passed: patterns of `fnmatch` for names in the caller's environment.
        files: files as docker's `--env-file` takes them.
        given: `NAME=VALUE`, or `NAME` for the caller's value, as docker's `--env` does.

    Raises:
        UsageError: one of them is wrong.
    """
    variables: dict[str, str] = {}
    for pattern in passed:
        if pattern in CONTRACT:
            raise UsageError(_reserved(f"--pass-env {pattern}", pattern))
        matching = fnmatch.filter(caller, pattern)
        variables |= {name: caller[name] for name in matching if name not in CONTRACT}
    for file in files:
        variables |= read_env_file(file, caller)
    for text in given:
        name, equals, value = text.partition("=")
        _check_name(name, f"--env {text}")
        if not equals and name not in caller:
            raise UsageError(f"--env {name}: it is not set here; give it a value: --env {name}=...")
        variables[name] = value if equals else caller[name]
    return variables


def check_variables(variables: Mapping[str, str]) -> None:
    """Raise UsageError where one of them has no name to go by, or a name that is lab's."""
    for name, value in variables.items():
        _check_name(name, f"env {name}", value)


def unmatched(caller: Mapping[str, str], passed: Sequence[str]) -> list[str]:
    """Those of the patterns that no variable of the caller has: perhaps a slip of the pen."""
    return [pattern for pattern in passed if not fnmatch.filter(caller, pattern)]


def read_env_file(file: Path, caller: Mapping[str, str]) -> dict[str, str]:
    """What a file in the format of docker's `--env-file` says.

    `NAME=VALUE` a line, the value as it stands (quotes are part of it); `NAME` alone takes the
    caller's value and is left out where there is none; blank lines and lines that start with # are
    nothing.

    Raises:
        UsageError: it cannot be read, or a line is wrong.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad_line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{file}:{bad_line}: not UTF-8; write it as text") from error
    except OSError as error:
        raise UsageError(f"--env-file {file}: {error.strerror}") from error
    variables: dict[str, str] = {}
    for line_number, raw in enumerate(text.split("\n"), start=1):
        line = raw.removesuffix("\r").lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        _check_name(name, f"{file}:{line_number}", value)
        if equals:
            variables[name] = value
        elif name in caller:
            variables[name] = caller[name]
    return variables


def redacted(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables as they may be written down: without what their names say is secret."""
    return {
        name: "***" if _SECRET_WORDS & set(name.upper().split("_")) else value
        for name, value in variables.items()
    }


def _check_name(name: str, where: str, value: str = "") -> None:
    if not name:
        raise UsageError(f"{where}: no name before the =; write NAME=VALUE")
    if any(character.isspace() for character in name):
        raise UsageError(f"{where}: {name!r} is no name; write NAME=VALUE without spaces")
    if "\0" in name + value:
        raise UsageError(f"{where}: a NUL character cannot be part of a variable")
    if name in CONTRACT:
        raise UsageError(_reserved(where, name))


def _reserved(where: str, name: str) -> str:
    cure = {
        "MASTER_PORT": "set master.port in the topology",
        "MASTER_ADDR": "set master.addr in the topology",
        "WORLD_SIZE": "use --nodes and --slots",
    }.get(name, "give yours another name")
    return f"{where}: {name} is set by lab for each rank and cannot be overridden; {cure}"
