"""What a node hands over, as it arrives here: whole, or an error."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.node.results import hand_over
from lab.transport.ssh_results import bring_back


class Sent:
    """A channel on which these bytes come."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def output(self) -> Iterator[tuple[str, bytes]]:
        for at in range(0, len(self._data), 1000):
            yield "out", self._data[at : at + 1000]

    def send(self, data: bytes) -> None:
        pass

    def finish(self) -> tuple[int, bytes, bytes]:
        return 0, b"", b""

    def close(self) -> None:
        pass


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    run = tmp_path / "there"
    run.mkdir()
    for name in "abc":
        (run / name).write_bytes(name.encode() * 700)
    out = io.BytesIO()
    asked = {"run_dir": str(run), "folder": str(run), "node": "n", "limit": 9999, "collect": []}
    hand_over(asked, out)
    return out.getvalue()


def arrive(data: bytes, run_dir: Path) -> None:
    bring_back(Sent(data), "n", "/there", run_dir, "/there")  # type: ignore[arg-type]  # enough of one


def test_what_is_sent_arrives(data: bytes, tmp_path: Path) -> None:
    arrive(data, tmp_path / "here")
    found = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    assert found == {name: name.encode() * 700 for name in "abc"}


def test_what_is_cut_off_anywhere_is_an_error(data: bytes, tmp_path: Path) -> None:
    head = data.index(b"\n") + 1
    # A member takes 512 bytes and its content in blocks of as many: cut between and within them.
    for size in range(0, head + 3 * 1536 + 1, 256):
        with pytest.raises(LabError, match="does not come whole"):
            arrive(data[:size], tmp_path / str(size))
