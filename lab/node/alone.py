"""`python -P -m lab.node.alone`: one node of a run that has no controller (`docker compose up`).

It starts the node's ranks through the same agent as a controlled run, prints what they write with
the rank in front, and ends with the run's exit code: that of the first real failure on any node.
The first node judges. The others outlive it for a while, since Compose may be told to stop
everything when one container ends, and takes one container's exit code for the whole.
"""

import contextlib
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from lab.node.meeting import POLL, MeetingError, RunBoard, meet, read, write_whole
from lab.node.protocol import Message, decode, encode
from lab.node.settings import Settings
from lab.node.victims import VICTIM_PATIENCE, consequence
from lab.node.words import shortened

PATIENCE = 1.0
"""Seconds between a failure and the end of the others; `VICTIM_PATIENCE` after a consequence."""
GRACE = 1.0
OUTLIVE = 3.0
"""Seconds that the other nodes stay when the first has ended."""
VERDICT_TIMEOUT = 60.0
LAST_LINES = 30
END: Message = {"type": "end"}
"""In the inbox: the agent has ended."""


class NodeRun:
    """Drives this node's agent to its end, and tells the board."""

    def __init__(self, settings: Settings, run: Path, board: RunBoard) -> None:
        self._settings = settings
        self._job = settings.job(run)
        self._board = board
        self._inbox: queue.Queue[Message] = queue.Queue(64)
        self._failures: dict[int, dict[str, Any]] = {}
        self._contexts: dict[int, Message] = {}  # by rank: how it chose its code
        self._partial: dict[tuple[int, str], str] = {}
        self._stop_at: float | None = None
        self._stopped = False
        self._folder = run / settings.node
        self.signal = 0
        """The signal that asked for the end, if one did."""

    def run(self) -> None:
        """Serve until the agent has ended."""
        self._agent = subprocess.Popen(
            [sys.executable, "-P", "-m", "lab.node"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()
        self._send(self._job.to_json().encode() + b"\n")
        while (message := self._next()) is not END:
            if message is not None:
                self._handle(message)
            self._look_around()
        self._agent.wait()
        self._board.end()

    def _listen(self) -> None:
        assert self._agent.stdout is not None
        for line in self._agent.stdout:
            self._inbox.put(decode(line))
        self._inbox.put(END)

    def _next(self) -> Message | None:
        with contextlib.suppress(queue.Empty):
            return self._inbox.get(timeout=POLL)
        return None

    def _send(self, data: bytes) -> None:
        assert self._agent.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._agent.stdin.write(data)
            self._agent.stdin.flush()

    def _look_around(self) -> None:
        self._board.beat()
        now = time.monotonic()
        if self.signal and not self._stopped:
            self._fail(self._job.first_rank, 128 + self.signal, "interrupted")
            self._stop_in(0.0)
            now = time.monotonic()
        elif not self._stopped:
            for failure in self._board.failures_of_others():
                self._stop_in(_patience(failure["consequence"]))
            if self._stop_at is None and self._board.lost():
                self._stop_in(PATIENCE)
        if self._stop_at is not None and now >= self._stop_at and not self._stopped:
            self._stopped = True
            self._send(encode({"type": "stop", "grace": GRACE}))

    def _handle(self, message: Message) -> None:
        kind = message["type"]
        if kind == "hello":
            settings = self._settings
            self._send(
                encode(
                    {
                        "type": "start",
                        "master_addr": settings.master_addr,
                        "master_port": settings.master_port,
                    }
                )
            )
        elif kind == "log":
            self._print(message["rank"], message["stream"], message["data"])
        elif kind == "exception":
            what = f"{message['kind']}: {message['message']}"
            self._fail(
                message["rank"],
                1,
                what,
                consequence=consequence(message["chain"]),
                traceback=message["traceback"],
            )
        elif kind == "context":
            self._contexts[message["rank"]] = message
        elif kind == "exit":
            self._flush(message["rank"])
            self._on_exit(message["rank"], message["code"], message["signal"])
        elif kind == "error":
            self._fail(self._job.first_rank, 1, message["message"])

    def _on_exit(self, rank: int, code: int, number: int | None) -> None:
        known = self._failures.get(rank)
        if known is not None and number is None and code != 0:
            known["code"] = code  # the script's own, where it has chosen one
            self._board.report(list(self._failures.values()))
        elif known is None and code != 0 and (number is None or not self._stopped):
            # With a code of its own also after the stop: on a busy machine the victims may be heard
            # of first. What the stop does to a rank is a signal.
            what = f"ended by signal {number}" if number else f"exited with code {code}"
            context, weight = self._contexts.get(rank), 0
            if context is not None:
                weight = consequence(context["chain"])
                what += f" ({context['file']}:{context['line']})" if context["file"] else ""
            self._fail(rank, code, what, consequence=weight, late=True)

    def _fail(
        self,
        rank: int,
        code: int,
        what: str,
        *,
        consequence: int = 0,
        traceback: str | None = None,
        late: bool = False,
    ) -> None:
        if rank in self._failures or (self._stopped and not late):
            return  # what comes after the stop is our own doing
        self._failures[rank] = {
            "at": time.time(),
            "rank": rank,
            "node": self._settings.node,
            "code": code,
            "what": what,
            "consequence": consequence,
            "traceback": traceback,
        }
        self._board.report(list(self._failures.values()))
        self._stop_in(_patience(consequence))

    def _stop_in(self, wait: float) -> None:
        stop_at = time.monotonic() + wait
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)

    # What the ranks write

    def _print(self, rank: int, stream: str, text: str) -> None:
        with (self._folder / f"rank{rank}.{stream}").open("ab") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
        *lines, rest = (self._partial.pop((rank, stream), "") + text).split("\n")
        self._partial[rank, stream] = rest
        self._emit(rank, stream, lines)

    def _flush(self, rank: int) -> None:
        for stream in ("out", "err"):
            rest = self._partial.pop((rank, stream), "")
            if rest:
                self._emit(rank, stream, [rest])

    def _emit(self, rank: int, stream: str, lines: list[str]) -> None:
        file = sys.stdout if stream == "out" else sys.stderr
        text = "".join(f"[{rank} {self._settings.node}] {line}\n" for line in lines)
        file.write(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        file.flush()


def _patience(consequence: int) -> float:
    return VICTIM_PATIENCE if consequence else PATIENCE


def judge(board: RunBoard) -> dict[str, Any]:
    """On the first node: wait for all others, then say how the run ended."""
    while not board.all_ended() and not board.lost():
        board.beat()
        time.sleep(POLL)
    failures = board.failures()
    first = min(failures, key=lambda failure: int(failure["consequence"]), default=None)
    lost = board.lost()
    if lost and (first is None or first["consequence"]):
        what = f"{lost[0]} is gone: its container has ended or hangs"
        return {"exit_code": 1, "summary": what, "first": None}
    if first is None:
        return {"exit_code": 0, "summary": "all ranks ended well", "first": None}
    what = shortened(first["what"].strip().splitlines()[0])
    summary = f"rank {first['rank']} on {first['node']}: {what}"
    return {"exit_code": first["code"], "summary": summary, "first": first}


def outlive_the_first(board: RunBoard) -> int:
    """On the other nodes: stay until some time after the verdict, and end with its code."""
    give_up = time.monotonic() + VERDICT_TIMEOUT
    while (verdict := read(board.path / "verdict.json")) is None:
        board.beat()
        if time.monotonic() > give_up:
            return 1
        time.sleep(POLL)
    time.sleep(OUTLIVE)
    return int(verdict["exit_code"])


def _print_last_words(run: Path, failure: Mapping[str, Any]) -> None:
    """Repeat why it failed, which stands far above what its victims wrote."""
    words = failure["traceback"]
    for stream in ("err", "out"):
        with contextlib.suppress(OSError):
            path = run / failure["node"] / f"rank{failure['rank']}.{stream}"
            words = words or path.read_text(errors="replace")
    if words:
        say(f"the last words of rank {failure['rank']} on {failure['node']}:")
        print("\n".join(words.rstrip().splitlines()[-LAST_LINES:]), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """One line of lab's own."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def _exit_at_once(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def main() -> int:
    """Meet the others, run, and say how it went."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_at_once)
    try:
        settings = Settings.from_environment(os.environ)
        run = meet(settings.workdir / "runs", settings.node, list(settings.slots), say)
    except (ValueError, MeetingError, OSError) as error:
        what = "the working directory cannot be written: " * isinstance(error, OSError)
        say(f"error: {what}{error}")
        if os.environ.get("NODE_RANK") != "0":
            time.sleep(OUTLIVE)  # the first node has met the same, and its code is to count
        return 2 if isinstance(error, ValueError) else 1
    board = RunBoard(run, settings.node, settings.slots)
    node_run = NodeRun(settings, run, board)

    def interrupt(number: int, _frame: FrameType | None) -> None:
        node_run.signal = number

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    first = settings.node == next(iter(settings.slots))
    if first:
        say(f"run {run.name}: {shlex.join(settings.command)}")
    node_run.run()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_at_once)
    if node_run.signal:
        return 128 + node_run.signal
    if not first:
        return outlive_the_first(board)
    verdict = judge(board)
    write_whole(run / "verdict.json", verdict)
    if verdict["first"] is not None:
        _print_last_words(run, verdict["first"])
    say(f"{verdict['summary']} (exit code {verdict['exit_code']})")
    return int(verdict["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
