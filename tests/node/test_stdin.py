"""Rank 0's stdin: whoever waits for input is seen, and nobody else."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lab.node import stdin as rank_stdin
from lab.node.stdin import RankStdin
from lab.node.waiting import PIECE
from tests.node.test_agent import agent, job, text

ASYNCIO = """
import asyncio, sys
async def main():
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print((await reader.readline()).decode(), end="")
asyncio.run(main())
"""
THREAD = """
import threading, time
thread = threading.Thread(target=lambda: print(input()))
thread.start()
while thread.is_alive(): time.sleep(0.01)
"""
IN_PYTHON = {
    "input": "print(input())",
    "text": "import sys; print(sys.stdin.readline(), end='')",
    "bytes": "import sys; print(sys.stdin.buffer.readline().decode(), end='')",
    "descriptor": "import os; print(os.read(0, 100).decode(), end='')",
    "opened": "print(open(0).readline(), end='')",
    "opened by name": "print(open('/dev/stdin').readline(), end='')",
    "duplicate": "import os; print(os.read(os.dup(0), 100).decode(), end='')",
    "several buffers": "import os; b = bytearray(6); os.readv(0, [b]); print(b.decode(), end='')",
    "child": "import subprocess; subprocess.run(['head', '-n1'])",
    "other program": "import os; os.execvp('head', ['head', '-n1'])",
    "thread": THREAD,
    "poll": "import select; p = select.poll(); p.register(0, 1); p.poll(); print(input())",
    "select": "import select; select.select([0], [], []); print(input())",
    "select with time": "import select\nwhile not select.select([0], [], [], 5)[0]: pass\n"
    "print(input())",
    "epoll": ASYNCIO,
}
IN_SHELL = {"read": "read x; echo $x", "cat": "cat", "pipeline": "(cat) | cat"}
WAYS = {
    **{name: [sys.executable, "-c", code] for name, code in IN_PYTHON.items()},
    **{name: ["sh", "-c", code] for name, code in IN_SHELL.items()},
}


@contextlib.contextmanager
def reader(argv: Sequence[str]) -> Iterator[tuple[RankStdin, "subprocess.Popen[bytes]"]]:
    """A process whose stdin is a rank's."""
    stdin = RankStdin()
    fd = stdin.open()
    with subprocess.Popen(argv, stdin=fd, stdout=subprocess.PIPE) as process:
        stdin.watch(process.pid)
        try:
            yield stdin, process
        finally:
            process.kill()


def ask(stdin: RankStdin) -> int:
    """Look as an agent does, until somebody waits."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        if stdin.look_at is not None and (size := stdin.look()):
            return size
        time.sleep(0.001)
    raise AssertionError("nobody asks")


linux = pytest.mark.skipif("sys.platform != 'linux'", reason="what waits is told by Linux")


@linux
@pytest.mark.parametrize("way", WAYS)
def test_whoever_waits_is_seen(way: str) -> None:
    with reader(WAYS[way]) as (stdin, process):
        assert ask(stdin) > 0
        assert stdin.look_at is None  # not before the answer
        stdin.feed(b"hello\n")
        while process.poll() is None and not (stdin.look_at and stdin.look()):
            time.sleep(0.001)
        stdin.close()
        assert process.stdout is not None
        assert process.stdout.read() == b"hello\n"


@linux
def test_a_reader_says_how_much_it_takes() -> None:
    with reader([sys.executable, "-c", "import os\nwhile os.read(0, 100): pass"]) as (stdin, _):
        assert ask(stdin) == 100
    with reader(["sh", "-c", "read x"]) as (stdin, _):
        assert ask(stdin) == 1


@linux
def test_who_goes_on_reading_gets_more_at_once() -> None:
    with reader([sys.executable, "-c", f"import os\nwhile os.read(0, {PIECE}): pass"]) as (
        stdin,
        _,
    ):
        sizes = []
        for _ in range(rank_stdin.MANY + 1):
            sizes.append(ask(stdin))
            stdin.feed(b"x" * sizes[-1])
        assert set(sizes[:-1]) == {PIECE}
        assert sizes[-1] > PIECE


@linux
@pytest.mark.parametrize(
    "code",
    [
        "import time; print(1, flush=True); time.sleep(60)",
        "import os; print(1, flush=True); os.read(os.pipe()[0], 1)",
        "import os, select; print(1, flush=True); select.select([os.pipe()[0]], [], [])",
        "import os, select; p = select.poll(); p.register(0, 0); p.register(os.pipe()[0], 1)\n"
        "print(1, flush=True); p.poll()",
        "print(1, flush=True)\nwhile True: pass",
        "import subprocess as s; s.run(['sh', '-c', 'echo 1; sleep 60'], stdin=s.DEVNULL)",
    ],
)
def test_who_waits_for_something_else_is_not_asked_for(code: str) -> None:
    with reader([sys.executable, "-c", code]) as (stdin, process):
        assert process.stdout is not None
        assert process.stdout.read(1) == b"1"
        for _ in range(20):
            assert stdin.look() == 0
            time.sleep(0.01)


def test_where_nobody_tells_one_piece_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_stdin, "can_look", lambda: False)
    with reader([sys.executable, "-c", "import time; time.sleep(60)"]) as (stdin, _):
        assert ask(stdin) == PIECE
        stdin.feed(b"ahead")
        assert [stdin.look() for _ in range(20)] == [0] * 20


def test_who_may_not_be_looked_at_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError("ptrace is forbidden")

    monkeypatch.setattr(rank_stdin, "can_look", lambda: True)
    monkeypatch.setattr(rank_stdin, "awaited", refuse)
    with reader([sys.executable, "-c", "print(input())"]) as (stdin, process):
        assert ask(stdin) == PIECE
        stdin.feed(b"hello\n")
        assert process.stdout is not None
        assert process.stdout.read() == b"hello\n"


def test_an_agent_asks_for_its_first_rank_after_what_that_wrote(tmp_path: Path) -> None:
    script = """
import os, sys
os.write(1, b"name? ")
print(repr(sys.stdin.buffer.readline()), repr(sys.stdin.buffer.read()))
print(sys.stdin.name, sys.stdin.mode, sys.stdin.encoding, sys.stdin.fileno(), sys.stdin.isatty())
"""
    given = replace(job(tmp_path, script, slots=2), stdin=True)
    with agent(given) as running:
        running.until("hello")
        running.start_ranks()
        asked = running.until("stdin")
        assert asked[-1]["rank"] == 0
        assert text(asked) == b"name? "
        running.send(type="stdin", data=b"\xff\n\x00 rest".decode("utf-8", "surrogateescape"))
        asked += running.until("stdin")
        running.send(type="stdin", data="")
        messages = asked + running.until("bye")
    assert text(messages) == b"name? b'\\xff\\n' b'\\x00 rest'\n<stdin> r utf-8 0 False\n"
    assert text(messages, rank=1) == b"name? b'' b''\n<stdin> r utf-8 0 False\n"


def test_nobody_asks_where_there_is_no_input(tmp_path: Path) -> None:
    with agent(job(tmp_path, "import sys; print(repr(sys.stdin.read()))")) as running:
        running.until("hello")
        running.start_ranks()
        messages = running.until("bye")
    assert text(messages) == b"''\n"
    assert "stdin" not in {message["type"] for message in messages}
