"""Which exceptions tell of another rank's end."""

import pytest

from lab.node.victims import consequence, timed_out

GLOO = (
    "RuntimeError",
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:1234",
)
STORE = (
    "DistNetworkError",
    "recvValue failed on SocketImpl(fd=3, addr=...): Connection reset by peer",
)
REFUSED = ("ConnectionRefusedError", "[Errno 111] Connection refused")
REAL = ("ValueError", "no data")


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ([GLOO], 2),
        ([STORE], 2),
        ([("RuntimeError", "Broken pipe")], 0),  # any script may say so
        ([("RuntimeError", "data server: Connection refused")], 0),
        ([REFUSED], 0),
        ([("BrokenPipeError", "[Errno 32] Broken pipe")], 0),
        ([("ConnectionResetError", "[Errno 104] Connection reset by peer")], 0),
        ([REAL], 0),
        ([], 0),
        ([("TrainingFailed", "step failed"), GLOO], 2),
        ([("SystemExit", "5"), GLOO], 2),
        ([("SystemExit", "5"), REFUSED], 0),
        ([GLOO, STORE], 2),
        ([GLOO, REAL], 1),  # a barrier in a `finally`, or a step in an `except`: who knows
        ([("RuntimeError", "[gloo/x.cc:1] op.preamble.length <= op.nbytes. 8 vs 4")], 0),
        ([("DistNetworkError", "port: 29500, code: -98, name: EADDRINUSE")], 0),
        ([("DistBackendError", "NCCL error in: x.cpp:1, remote process exited")], 2),
        ([("DistBackendError", "NCCL error in: x.cpp:1, unhandled cuda error")], 0),
        ([("RuntimeError", "eof (this error originated at tensorpipe/x.cc:1)")], 2),
        ([("ProcessRaisedException", f"\nTraceback:\n  x\nRuntimeError: {GLOO[1]}\n")], 2),
        ([("ProcessRaisedException", f"\nTraceback:\n  x\nConnectionRefusedError: {REFUSED}")], 0),
        (
            [("ProcessRaisedException", f"torch.distributed.DistNetworkError: {STORE[1]}")],
            2,
        ),
    ],
)
def test_what_tells_of_another_rank(chain: list[tuple[str, str]], expected: int) -> None:
    assert consequence([{"kind": kind, "message": message} for kind, message in chain]) == expected


def test_a_time_out_of_a_process_group_is_told_from_a_lost_connection() -> None:
    waited = "[gloo/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"
    assert timed_out([{"kind": "RuntimeError", "message": waited}])
    lost = "[gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:12210"
    assert not timed_out([{"kind": "RuntimeError", "message": lost}])
    assert not timed_out([{"kind": "ValueError", "message": waited}])
