"""A YAML file as plain Python values that still know their lines.

The text is composed into YAML's node tree by libyaml (about 0.5 s for 10,000 nodes written out),
and scalars are read by the core schema of YAML 1.2: there `on` is a word and `01:00:00` no number,
while PyYAML's own loaders follow YAML 1.1, to which the key `on:` means true.
"""

import re
from typing import Any

import yaml
from yaml.constructor import BaseConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.resolver import BaseResolver

MAX_DEPTH = 20
MAX_ALIASED = 10_000
"""Values that may come from aliases; nested aliases could stand for any number of them."""
_PREFIX = "tag:yaml.org,2002:"

Loc = tuple[int | str, ...]


class DocumentError(Exception):
    """The text is no YAML, or no YAML that a topology can be written in.

    Attributes:
        line: where, from 1; None for the whole file.
        loc: the field, where it is known.
    """

    def __init__(self, line: int | None, message: str, loc: Loc = ()) -> None:
        super().__init__(message)
        self.line = line
        self.loc = loc


class CoreResolver(BaseResolver):
    """Which plain scalars are not text: the core schema of YAML 1.2, section 10.3.2."""


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    CoreResolver.add_implicit_resolver(_PREFIX + _tag, re.compile(rf"^(?:{_pattern})$"), _first)


if yaml.__with_libyaml__:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]  # left out of the stubs

    class _Composer(CParser, BaseConstructor, CoreResolver):
        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            BaseConstructor.__init__(self)
            CoreResolver.__init__(self)
else:  # a PyYAML built without libyaml: the same tree, about ten times slower
    from yaml import SafeLoader

    class _Composer(SafeLoader):  # type: ignore[no-redef]  # the same class, other parts
        yaml_implicit_resolvers = CoreResolver.yaml_implicit_resolvers


class Document:
    """A YAML file that holds one mapping.

    Attributes:
        value: what the file says, as dict, list, str, int, float, bool and None. Keys are text.
    """

    def __init__(self, text: str) -> None:
        """Read a document.

        Args:
            text: the file's text.

        Raises:
            DocumentError: the text is no YAML, or has two equal keys, tags or too much nesting,
                or holds something else than one mapping.
        """
        self.errors: list[DocumentError] = []
        root = _compose(text)
        if root is None or root.tag == f"{_PREFIX}null":
            raise DocumentError(None, "the file is empty; a topology needs at least `nodes: 1`")
        self._root: Node = root
        self._seen: set[int] = set()
        self._aliased = 0
        if not isinstance(root, MappingNode):
            kind = "a list" if isinstance(root, SequenceNode) else "a single value"
            raise DocumentError(
                _line(root), f"must be a mapping (lines of `key: value`), and the file holds {kind}"
            )
        self.value: dict[str, Any] = self._build(root, ())

    def line(self, loc: Loc) -> int:
        """The line of a field's key or list item, or of the innermost one around that exists."""
        node, key = self._find(loc)
        return _line(node if key is None else key)

    def text(self, loc: Loc) -> str | None:
        """A scalar as it was written: `1e-4`, where its value would be 0.0001."""
        node, _ = self._find(loc)
        return str(node.value) if isinstance(node, ScalarNode) else None

    def _find(self, loc: Loc) -> tuple[Node, Node | None]:
        node, key_node = self._root, None
        for part in loc:
            if isinstance(node, MappingNode):
                pair = next((pair for pair in node.value if pair[0].value == part), None)
                if pair is None:
                    break
                key_node, node = pair
            elif isinstance(node, SequenceNode) and isinstance(part, int):
                if part >= len(node.value):
                    break
                key_node, node = None, node.value[part]
            else:
                break
        return node, key_node

    def _build(self, node: Node, loc: Loc) -> Any:
        """The value of a node. Whatever is met again comes from an alias, and that is bounded."""
        self._aliased += id(node) in self._seen
        self._seen.add(id(node))
        if self._aliased > MAX_ALIASED:
            raise DocumentError(
                _line(node), f"must not stand for more than {MAX_ALIASED:,} values through aliases"
            )
        if len(loc) > MAX_DEPTH:
            raise DocumentError(_line(node), f"must be nested at most {MAX_DEPTH} levels deep")
        if not node.tag.startswith(_PREFIX) or node.tag[len(_PREFIX) :] not in _KNOWN:
            self._refuse(node, f"must have no tag, and this has {node.tag[:60]}", loc)
            return None
        if isinstance(node, MappingNode):
            return self._build_mapping(node, loc)
        if isinstance(node, SequenceNode):
            return [self._build(item, (*loc, index)) for index, item in enumerate(node.value)]
        return self._build_scalar(node, loc)

    def _build_mapping(self, node: MappingNode, loc: Loc) -> dict[str, Any]:
        result: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._refuse(key_node, "keys must be words; quote text that has brackets", loc)
                continue
            key = str(key_node.value)
            if key in lines:
                message = f"must stand here once, and stands in line {lines[key]} already"
                self._refuse(key_node, message, (*loc, key))
                continue
            lines[key] = _line(key_node)
            result[key] = self._build(value_node, (*loc, key))
        return result

    def _build_scalar(self, node: Node, loc: Loc) -> Any:
        kind, text = node.tag[len(_PREFIX) :], str(node.value)
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return int(text, 0 if text[:2] in ("0o", "0x") else 10)
            if kind == "float":
                return float(re.sub(r"\.(inf|nan)", r"\1", text.lower()))
        except (ValueError, KeyError):
            self._refuse(node, "has more digits than a number can have", loc)
            return None
        return text

    def _refuse(self, node: Node, message: str, loc: Loc) -> None:
        self.errors.append(DocumentError(_line(node), message, loc))


_KNOWN = frozenset({"null", "bool", "int", "float", "str", "seq", "map"})


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _compose(text: str) -> Node | None:
    try:
        # Without libyaml the constructor reads already, and nesting has no limit but Python's.
        node: Node | None = _Composer(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _explain(error, text) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DocumentError(line, f"is no text: {error.reason}") from None
    except RecursionError:
        raise DocumentError(None, f"must be nested at most {MAX_DEPTH} levels deep") from None
    return node


def _explain(error: yaml.MarkedYAMLError, text: str) -> DocumentError:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark is not None else 0
    lines = text.splitlines()
    shown = lines[line] if line < len(lines) else ""
    if "\t" in shown[: len(shown) - len(shown.lstrip())]:
        return DocumentError(
            line + 1, "is indented with a tab, which YAML does not allow; use spaces"
        )
    message = ", ".join(part for part in (error.context, error.problem) if part)
    if re.search(r"[\[{][^\"']*\w\[", shown):
        message += "; inside [...] and {...} quote node sets: 'node[0-3]'"
    return DocumentError(line + 1, f"is no valid YAML: {message}")
