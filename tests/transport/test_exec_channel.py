"""The frames of an exec's stream."""

import struct

import pytest

from lab.transport.exec_channel import FrameParser

STREAM = b"".join(
    struct.pack(">BxxxL", number, len(data)) + data
    for number, data in [(1, b"hello\n"), (2, b"oh\n"), (1, b""), (1, b"x" * 1000), (2, b"end")]
)


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 100, 5000])
def test_frames_may_be_cut_anywhere(size: int) -> None:
    parser = FrameParser()
    got = {"out": b"", "err": b""}
    for at in range(0, len(STREAM), size):
        for stream, data in parser.feed(STREAM[at : at + size]):
            got[stream] += data
    assert got == {"out": b"hello\n" + b"x" * 1000, "err": b"oh\nend"}


def test_what_has_come_of_a_large_frame_is_given_on() -> None:
    parser = FrameParser()
    assert list(parser.feed(struct.pack(">BxxxL", 1, 1 << 30) + b"first")) == [("out", b"first")]
