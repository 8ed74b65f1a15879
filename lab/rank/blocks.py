"""In which blocks of its function a line of the user's own code is.

A line that some ranks alone come to is in a condition, or after one that leaves; one that ranks
come to more often than others is in a loop. Read from the source as it is now.
"""

import ast
import linecache
from collections.abc import Iterator, Sequence
from functools import cache

LOOP, CONDITION = "loop", "condition"
Block = tuple[str, int, int]
"""`loop` or `condition`, its line, and which of its branches (of one that leaves: -1)."""
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@cache
def blocks_of(file: str, line: int) -> tuple[Block, ...] | None:
    """The blocks around a line, the outermost first, and conditions before it that may leave.

    None: there is no such source.
    """
    tree = _tree(file)
    return None if tree is None else tuple(_around(tree.body, line))


@cache
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file))) if linecache.getline(file, 1) else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _around(body: Sequence[ast.stmt], line: int) -> list[Block]:
    before: list[Block] = []
    for statement in body:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            return _inside(statement, line, before)
        if _may_leave(statement, (ast.Return,)) or (
            isinstance(statement, ast.If | ast.Match | ast.Try | ast.With)
            and _may_leave(statement, (ast.Break, ast.Continue))
        ):
            before.append((CONDITION, statement.lineno, -1))
    return before


def _inside(statement: ast.stmt, line: int, before: list[Block]) -> list[Block]:
    for name, number, body in _bodies(statement):
        first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
        if not first <= line <= last:
            continue
        if isinstance(statement, SCOPES):
            return _around(body, line)
        block = [] if name is None else [(name, statement.lineno, number)]
        return [*before, *block, *_around(body, line)]
    if not isinstance(statement, (*SCOPES, *LOOPS, ast.If, ast.With, ast.Try)) and any(
        isinstance(one, ast.IfExp | ast.BoolOp) for one in ast.walk(statement)
    ):
        return [*before, (CONDITION, statement.lineno, 0)]
    return before


def _bodies(statement: ast.stmt) -> Iterator[tuple[str | None, int, list[ast.stmt]]]:
    """What a statement has below it, and what kind of block that is (None: it always comes)."""
    kind = None
    if isinstance(statement, LOOPS):
        kind = LOOP
    elif isinstance(statement, ast.If):
        kind = CONDITION
    if body := getattr(statement, "body", None):
        yield kind, 0, body
    for number, one in enumerate(getattr(statement, "cases", ())):
        yield CONDITION, number, one.body
    for number, one in enumerate(getattr(statement, "handlers", ()), 1):
        yield CONDITION, number, one.body
    if body := getattr(statement, "orelse", None):
        yield (CONDITION if isinstance(statement, ast.If) else None), 1, body
    if body := getattr(statement, "finalbody", None):
        yield None, 0, body


def _may_leave(statement: ast.AST, how: tuple[type[ast.stmt], ...]) -> bool:
    """Whether it returns, or begins another round of the loop that it is in."""
    if isinstance(statement, how):
        return True
    if isinstance(statement, SCOPES) or (isinstance(statement, LOOPS) and ast.Return not in how):
        return False
    return any(_may_leave(one, how) for one in ast.iter_child_nodes(statement))
