"""Pydantic's errors in the words of a topology file."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from lab.topology.document import Loc
from lab.topology.errors import Problem, UnknownKey
from lab.topology.models import Topology

Locate = Callable[[Loc], tuple[str | None, int | None]]
"""Tells file (or option) and line of a field."""


def explain(errors: list[ErrorDetails], locate: Locate) -> list[Problem]:
    """Turn the errors of a ValidationError of `Topology` into problems.

    Args:
        errors: what `ValidationError.errors()` gave.
        locate: where a field was set.
    """
    return [_problem(error, locate) for error in errors]


def field_name(loc: Loc) -> str:
    """`("nodes", 2, "slots")` as `nodes[2].slots`."""
    name = ""
    for part in loc:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{part}" if name else str(part)
    return name


def show(value: Any) -> str:
    """A value as YAML would show it, cut to a readable length."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping | BaseModel):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, int):
        # str() of an int with more than 4300 digits raises.
        return str(value) if value.bit_length() < 200 else "a very long number"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}...")
    return str(value)[:60]


def _problem(error: ErrorDetails, locate: Locate) -> Problem:
    loc = error["loc"]
    is_key = loc[-1:] == ("[key]",)  # the name of a variable in env
    if is_key:
        loc = loc[:-1]
    file, line = locate(loc)
    if error["type"] == "extra_forbidden":
        return _unknown_key(loc, file, line)
    found = None if is_key or error["type"] == "missing" else show(error["input"])
    nearest = None
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        nearest = _nearest(error["input"], _choices(error))
    return Problem(file, line, field_name(loc), found, _allowed(error), nearest)


def _allowed(error: ErrorDetails) -> str:
    """What is allowed, for every type of error that the models can give."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "topology":
        return error["msg"]
    if kind == "literal_error":
        *most, last = _choices(error)
        return f"must be {', '.join(most)} or {last}"
    if kind == "string_type" and isinstance(error["input"], bool | int | float):
        return f'must be text; quote it: "{show(error["input"])}"'
    rules = {
        "missing": "is missing and must be there",
        "string_type": "must be text",
        "int_type": "must be a whole number" + _without_quotes(error["input"], int),
        "float_type": "must be a number" + _without_quotes(error["input"], float),
        "bool_type": "must be true or false",
        "finite_number": "must be a finite number",
        "greater_than_equal": f"must be at least {context.get('ge')}",
        "less_than_equal": f"must be at most {context.get('le')}",
        "tuple_type": "must be a list: [one, two]",
        "dict_type": "must be a mapping of names to values",
        "model_type": "must be a mapping (lines of `key: value`)",
    }
    return rules.get(kind, error["msg"])


def _without_quotes(value: Any, kind: type[int] | type[float]) -> str:
    try:
        kind(value)
    except (TypeError, ValueError, OverflowError):
        return ""
    return " without quotes" if isinstance(value, str) else ""


def _choices(error: ErrorDetails) -> list[str]:
    return [word.strip(" '") for word in error["ctx"]["expected"].replace(" or ", ",").split(",")]


def _nearest(word: str, choices: list[str]) -> str | None:
    matches = difflib.get_close_matches(word.lower(), choices, n=1, cutoff=0.6)
    return matches[0] if matches else None


def _unknown_key(loc: Loc, file: str | None, line: int | None) -> UnknownKey:
    """An unknown key, with the nearest one here or the section that does have it."""
    key = str(loc[-1])
    allowed = list(_model_at(loc[:-1]).model_fields)
    nearest = _nearest(key, allowed)
    elsewhere = [f"{section}.{key}" for section, model in _sections() if key in model.model_fields]
    if elsewhere and (nearest is None or difflib.SequenceMatcher(None, key, nearest).ratio() < 0.8):
        nearest = elsewhere[0]
    return UnknownKey(file, line, field_name(loc), show(key), ", ".join(allowed), nearest)


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """The models inside the topology and how to write that one is meant, the nodes' last."""
    for name in sorted(Topology.model_fields, key=lambda name: name == "nodes"):
        model = _model_at((name,))
        if model is not Topology:
            yield ("nodes[...]" if name == "nodes" else name), model


def _model_at(loc: Loc) -> type[BaseModel]:
    """The model whose fields are the keys at a place."""
    model: type[BaseModel] = Topology
    for part in loc:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model`, `Model | None` or `tuple[Model, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
