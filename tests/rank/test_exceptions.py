"""What a rank's bootstrap tells the agent of exceptions."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.node.spawn import BOOTSTRAP

RAISE = """
import sys
class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")
def loop():
    one, two = KeyError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    raise one
try:
    raise ConnectionError("peer closed")
except ConnectionError as error:
    {statement}
"""


def events_of(folder: Path, source: str) -> tuple[int, list[dict[str, Any]], str]:
    """The exit code, the events and stderr of a script."""
    (folder / "script.py").write_text(source)
    reading, writing = os.pipe()
    done = subprocess.run(
        [sys.executable, BOOTSTRAP, "script.py"],
        cwd=folder,
        env={**os.environ, "LAB_EVENTS_FD": str(writing)},
        pass_fds=[writing],
        capture_output=True,
        text=True,
    )
    os.close(writing)
    with os.fdopen(reading) as file:
        events = [json.loads(line) for line in file]
    return done.returncode, [one for one in events if one["type"] != "state"], done.stderr


@pytest.mark.parametrize(
    ("statement", "chain"),
    [
        ("raise RuntimeError('x')", ["RuntimeError: x", "ConnectionError: peer closed"]),
        ("raise RuntimeError('x') from error", ["RuntimeError: x", "ConnectionError: peer closed"]),
        ("raise RuntimeError('x') from OSError('y')", ["RuntimeError: x", "OSError: y"]),
        ("raise RuntimeError('x') from None", ["RuntimeError: x", "ConnectionError: peer closed"]),
        ("raise", ["ConnectionError: peer closed"]),
        ("loop()", ["KeyError: 'one'", "KeyError: 'two'"]),
        ("raise Mute", ["Mute: <exception str() failed>", "ConnectionError: peer closed"]),
    ],
)
def test_an_exception_comes_with_those_before_it(
    tmp_path: Path, statement: str, chain: list[str]
) -> None:
    code, (event,), stderr = events_of(tmp_path, RAISE.format(statement=statement))
    assert (code, event["type"]) == (1, "exception")
    assert [f"{link['kind']}: {link['message']}" for link in event["chain"]] == chain
    assert f"{event['kind']}: {event['message']}" == chain[0]
    assert event["file"] == "script.py"
    assert event["line"] > 0
    assert str(BOOTSTRAP) not in stderr


@pytest.mark.parametrize(
    ("statement", "how"),
    [
        ("raise RuntimeError('x')", "context"),
        ("raise RuntimeError('x') from error", "cause"),
        ("raise RuntimeError('x') from None", "hidden"),
    ],
)
def test_the_one_before_comes_with_its_place_and_how_it_became_the_other(
    tmp_path: Path, statement: str, how: str
) -> None:
    _, (event,), _ = events_of(tmp_path, RAISE.format(statement=statement))
    told = [(link["file"], link["line"], link["how"]) for link in event["chain"]]
    assert told == [("script.py", 13, None), ("script.py", 11, how)]


LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset
class Odd(Exception):
    def __init__(self, one, other):
        super().__init__(f"{{one}} and {{other}}")
class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        try:
            {body}
        except LookupError:
            raise ValueError("no words\\nin line 2")
for batch in DataLoader(Data(), batch_size=2, num_workers=1):
    pass
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise TypeError('a: b')", ("TypeError", "a: b", 12)),
        ("raise Odd(1, 2)", ("Odd", "1 and 2", 12)),  # torch makes a RuntimeError of it
        ("assert index > 5", ("AssertionError", "", 12)),
        ("return [][0]", ("ValueError", "no words\nin line 2", 14)),
        ("return torch.ones(index)", ("RuntimeError", "stack expects each tensor", 15)),
    ],
)
def test_what_a_loaders_worker_raised_is_told_as_it_was_raised(
    tmp_path: Path, body: str, told: tuple[str, str, int]
) -> None:
    _, (event,), stderr = events_of(tmp_path, LOADER.format(body=body))
    kind, message, line = told
    assert (event["kind"], event["file"], event["line"]) == (kind, "script.py", line), stderr
    assert event["message"].startswith(message)
    assert "Traceback" not in event["message"]
    first = {name: event[name] for name in ("kind", "message", "file", "line")}
    assert event["chain"][0] == {**first, "how": None}
    assert event["caught"] == "DataLoader worker process 0"
    assert "in DataLoader worker process 0" in event["traceback"]


@pytest.mark.parametrize(
    ("code", "ends", "message"),
    [("3", 3, "3"), ("'words'", 1, "words"), ("False", 0, None), ("0", 0, None), ("", 0, None)],
)
def test_a_code_chosen_while_an_exception_is_handled_comes_with_it(
    tmp_path: Path, code: str, ends: int, message: str | None
) -> None:
    returned, events, _ = events_of(tmp_path, RAISE.format(statement=f"sys.exit({code})"))
    assert returned == ends
    at = {"file": "script.py"}
    chain = [
        {"kind": "SystemExit", "message": message, **at, "line": 13, "how": None},
        {"kind": "ConnectionError", "message": "peer closed", **at, "line": 11, "how": "context"},
    ]
    event = {"type": "context", "file": "script.py", "line": 13, "chain": chain}
    assert events == ([] if message is None else [event])


def test_a_code_comes_with_the_users_own_line(tmp_path: Path) -> None:
    source = """
import argparse

def parse():
    argparse.ArgumentParser().parse_args(["--what"])

parse()
"""
    event = {"type": "context", "file": "script.py", "line": 5, "chain": []}
    assert events_of(tmp_path, source)[:2] == (2, [event])
    assert events_of(tmp_path, "import os; os._exit(3)")[:2] == (3, []), "it had no chance"


def test_objects_that_cannot_be_looked_at_leave_the_script_its_own_ending(tmp_path: Path) -> None:
    source = """
import sys, types
class Model:
    @property
    def module(self):
        raise RuntimeError("not yet")
class Odd:
    __module__ = property(lambda self: 1 / 0)
sys.modules["lab.parallel.ddp"] = types.SimpleNamespace(DistributedDataParallel=Model)
sys.excepthook = lambda kind, *_: print("mine:", kind.__name__, file=sys.stderr)
model, odd = Model(), Odd()
raise KeyError("x")
"""
    code, (event,), stderr = events_of(tmp_path, source)
    assert (code, event["kind"], stderr) == (1, "KeyError", "mine: KeyError\n")


def test_a_long_chain_is_cut(tmp_path: Path) -> None:
    source = """
def deep(n):
    try:
        if n:
            deep(n - 1)
    finally:
        raise ValueError("x" * 100_000)
deep(30)
"""
    _, (event,), _ = events_of(tmp_path, source)
    assert len(event["chain"]) == 10
    assert {len(link["message"]) for link in event["chain"]} == {1000}
