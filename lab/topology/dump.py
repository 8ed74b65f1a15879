"""A topology as YAML that loads back to an equal one: what a run directory keeps."""

import io
from typing import Any, TextIO

from yaml.emitter import Emitter
from yaml.nodes import MappingNode, ScalarNode
from yaml.representer import SafeRepresenter
from yaml.serializer import Serializer

from lab.topology.document import CoreResolver
from lab.topology.models import Topology


class _Row(dict[str, Any]):
    """A mapping that is written in one line."""


class _Dumper(Emitter, Serializer, SafeRepresenter, CoreResolver):
    """A dumper that quotes by YAML 1.2, as the loader reads: `on` is a word there."""

    def __init__(self, stream: TextIO) -> None:
        Emitter.__init__(self, stream, width=100, allow_unicode=True)
        Serializer.__init__(self)
        SafeRepresenter.__init__(self, default_flow_style=False, sort_keys=False)
        CoreResolver.__init__(self)

    def ignore_aliases(self, data: Any) -> bool:  # PyYAML calls it with this
        return True


def _represent_row(dumper: _Dumper, row: _Row) -> MappingNode:
    return dumper.represent_mapping("tag:yaml.org,2002:map", row.items(), flow_style=True)


def _represent_text(dumper: _Dumper, text: str) -> ScalarNode:
    # Line and paragraph separators survive in double quotes only, where they are escaped.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(_Row, _represent_row)
_Dumper.add_representer(str, _represent_text)


def dump_topology(topology: Topology) -> str:
    """The resolved topology as YAML, one line for each node; defaults are left out.

    `parse_topology(dump_topology(t)) == t` for every topology.
    """
    # These say what the topology is, also where they are the defaults.
    values: dict[str, Any] = {
        "name": topology.name,
        "on": topology.on,
        "nodes": [_Row(node.model_dump(exclude_none=True)) for node in topology.nodes],
        "slots": topology.slots,
        "backend": topology.backend,
    }
    given = topology.model_dump(exclude_defaults=True, exclude=set(values))
    values.update({key: _with_lists(value) for key, value in given.items()})
    stream = io.StringIO()
    dumper = _Dumper(stream)
    dumper.open()
    dumper.represent(values)
    dumper.close()
    return stream.getvalue()


def _with_lists(value: Any) -> Any:
    """The same with lists for tuples, which YAML does not have."""
    if isinstance(value, tuple):
        return [_with_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return value
