"""Large files that a host has in an older version: only what differs travels, by rsync.

rsync compares two versions of a file block by block without either end having both (Tridgell and
Mackerras, The rsync algorithm, 1996; https://rsync.samba.org/tech_report). Its two ends talk over
a channel of the connection that a deployment has anyway, to which `rsync_relay` leads.

Nothing depends on it: what it does not bring, the host asks for as a whole.
"""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import resources
from io import BufferedReader
from pathlib import Path

from lab.channel import Channel
from lab.temporary import TemporaryFolder

CHUNK = 1 << 16
START_PATIENCE = 10.0
"""Seconds for our end to ask for the host's."""


class Rsync:
    """One transfer to one host."""

    @staticmethod
    def is_here() -> bool:
        """Whether this machine has it."""
        return shutil.which("rsync") is not None

    def __init__(self, files: Mapping[str, Path], folder: str) -> None:
        """Start our end; `run` goes on.

        Args:
            files: what to bring up to date there, by the names that they have there.
            folder: where these are.

        Raises:
            OSError: it cannot be started.
        """
        self.sent = 0
        """Bytes that went to the host."""
        self._names = TemporaryFolder()
        for name, path in files.items():
            (self._names.path / name).symlink_to(path)
        self._ours, theirs = socket.socketpair()
        relay = str(resources.files("lab.deploy") / "rsync_relay.py")
        words = [sys.executable, "-I", "-S", relay, str(theirs.fileno())]
        # As links to files (-L), whatever their times say (-I); names not by a shell (-s).
        argv = ["rsync", "-LIs", "-e", _command(words)]
        argv += [f"{self._names.path}/{name}" for name in files]
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*argv, f"host:{folder}/"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is for us to hear
                )
        except OSError:
            self.close()
            raise

    def run(
        self, start: Callable[[list[str]], Channel], beat: Callable[[], None], every: float
    ) -> None:
        """Have the host's end started as ours asks, and pass on what they say until that is all.

        Args:
            start: starts a command on the host.
            beat: called again and again meanwhile.
            every: seconds between.

        Raises:
            LabError: the host starts nothing.
            OSError: our end has not come so far.
        """
        with self._ours.makefile("rb") as said:
            self._ours.settimeout(START_PATIENCE)
            asked = said.readline()
            self._ours.settimeout(None)
            if not asked:
                return
            channel = start(json.loads(asked))
            try:
                ways = [
                    threading.Thread(target=self._pass_on, args=[said, channel], daemon=True),
                    threading.Thread(target=self._bring_back, args=[channel], daemon=True),
                ]
                for way in ways:
                    way.start()
                for way in ways:
                    while way.is_alive():
                        beat()
                        way.join(every)
            finally:
                channel.close()

    def _pass_on(self, said: BufferedReader, channel: Channel) -> None:
        with contextlib.suppress(OSError):  # ours has ended with something unread
            while data := said.read1(CHUNK):
                channel.send(data)
                self.sent += len(data)
        channel.close_stdin()

    def _bring_back(self, channel: Channel) -> None:
        with contextlib.suppress(OSError):  # the connection was lost
            for stream, data in channel.output():
                if stream == "out":
                    with contextlib.suppress(OSError):  # ours has ended: the host's hears of it
                        self._ours.sendall(data)
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End it, wherever it is."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._ours.close()
        self._names.close()


def _command(words: list[str]) -> str:
    """A command as rsync takes it apart: quotes are doubled within quotes (rsync(1), --rsh)."""
    return " ".join("'{}'".format(word.replace("'", "''")) for word in words)
