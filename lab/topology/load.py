"""From a preset, a file and the command line's options to one validated topology."""

from typing import Any

from pydantic import ValidationError

from lab.topology.document import Document, DocumentError, Loc
from lab.topology.errors import Problem, TopologyError
from lab.topology.explain import explain, field_name
from lab.topology.models import Topology
from lab.topology.names import check_label
from lab.topology.overrides import Overrides, apply_overrides
from lab.topology.source import Source, read_source


def load_topology(
    source: str | None = None,
    *,
    nodes: str | int | None = None,
    slots: int | None = None,
    on: str | None = None,
    backend: str | None = None,
) -> Topology:
    """Load and validate a topology.

    Args:
        source: name of a preset or path of a file. None means lab.yaml in the current folder
            where there is one, else the preset quad.
        nodes: other nodes than the topology's, a count or a node set; see `apply_overrides`.
        slots: other ranks per node than the topology's, on every node.
        on: another place to run.
        backend: another collective backend.

    Raises:
        TopologyError: something is wrong; its message and its `problems` name all of it.
    """
    found = read_source(source)
    topology, document = _parse(found)
    overrides = Overrides(nodes, slots, on, backend)
    if not overrides.given:
        return topology
    data = apply_overrides(topology, document.value, overrides)

    def locate(loc: Loc) -> tuple[str | None, int | None]:
        if loc and loc[0] in overrides.given:
            return f"--{loc[0]}", None
        return found.name, document.line(loc)

    try:
        return Topology.model_validate(data)
    except ValidationError as error:
        problems = explain(error.errors(include_url=False), locate)
        # The option is the place already: `--slots: found 0`, not `--slots: slots: found 0`.
        raise TopologyError([_without_field(problem) for problem in problems]) from None


def parse_topology(text: str, name: str = "topology") -> Topology:
    """Validate a topology given as YAML text.

    Args:
        text: the YAML.
        name: what to call the text in messages, such as the file's name.

    Raises:
        TopologyError: something is wrong with it.
    """
    return _parse(Source(name, text, "lab"))[0]


def _parse(source: Source) -> tuple[Topology, Document]:
    try:
        document = Document(source.text)
    except DocumentError as error:
        raise TopologyError([_document_problem(source, error)]) from None
    problems = [_document_problem(source, error) for error in document.errors]

    def locate(loc: Loc) -> tuple[str | None, int | None]:
        return source.name, document.line(loc)

    try:
        topology = Topology.model_validate(_prepare(document, source.stem))
    except ValidationError as error:
        # What the document refused has no value; that it is empty is not the user's doing.
        refused = {(problem.field, "nothing") for problem in problems}
        found = explain(error.errors(include_url=False), locate)
        problems += [item for item in found if (item.field, item.found) not in refused]
    if problems:
        raise TopologyError(sorted(problems, key=lambda problem: problem.line or 0))
    return topology, document


def _prepare(document: Document, stem: str) -> dict[str, Any]:
    """The file's values, with what only a file can have: numbers as written, a name of its own."""
    data = dict(document.value)
    env, job = data.get("env"), data.get("job")
    if isinstance(env, dict):
        data["env"] = {key: _as_written(document, ("env", key), env[key]) for key in env}
    if isinstance(job, dict) and isinstance(job.get("args"), list):
        args = [
            _as_written(document, ("job", "args", index), item)
            for index, item in enumerate(job["args"])
        ]
        data["job"] = {**job, "args": args}
    if data.get("name") is None:
        try:
            data["name"] = check_label(stem)
        except ValueError:
            data["name"] = "lab"
    return data


def _as_written(document: Document, loc: Loc, value: Any) -> Any:
    """A number as its text: `1e-4` and `1.10` reach the script as they stand in the file."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return document.text(loc) if is_number else value


def _document_problem(source: Source, error: DocumentError) -> Problem:
    return Problem(source.name, error.line, field_name(error.loc), None, str(error))


def _without_field(problem: Problem) -> Problem:
    if problem.file != f"--{problem.field.partition('[')[0].partition('.')[0]}":
        return problem
    return Problem(problem.file, None, "", problem.found, problem.allowed, problem.nearest)
