"""Many at once, and nobody is waited for after Ctrl-C."""

import signal
import subprocess
import sys
import threading

import pytest

from lab.threads import side_by_side

INTERRUPTED = """
import sys, time
from lab.threads import side_by_side

def wait(number):
    if number == 1:
        print("begun", flush=True)
        time.sleep(1000)

try:
    side_by_side(wait, range(3), 2)
except KeyboardInterrupt:
    sys.exit(7)
"""


def test_results_come_in_order_and_so_many_work_at_once() -> None:
    together = threading.Barrier(3)  # breaks where fewer than three work at the same time

    def work(number: int) -> int:
        together.wait(60)
        return number * 10

    assert side_by_side(work, range(6), 3) == [0, 10, 20, 30, 40, 50]
    assert side_by_side(work, [], 3) == []


def test_no_more_than_so_many() -> None:
    lock = threading.Lock()
    now, most = 0, 0

    def work(_number: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1

    side_by_side(work, range(50), 2)
    assert 1 <= most <= 2


def test_an_error_is_raised_while_others_still_wait() -> None:
    over = threading.Event()

    def work(number: int) -> None:
        if number == 1:
            raise ValueError("this one")
        over.wait()

    with pytest.raises(ValueError, match="this one"):
        side_by_side(work, range(2), 2)
    over.set()


def test_ctrl_c_waits_for_nobody() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 7
        finally:
            process.kill()


def test_a_signal_that_interrupts_no_wait_is_seen_all_the_same() -> None:
    """As one that comes when the main thread is just about to wait."""
    to_itself = "signal.pthread_kill(threading.get_ident(), signal.SIGINT)"
    script = "import signal, threading" + INTERRUPTED.replace(
        "time.sleep(1000)", f"time.sleep(1); {to_itself}; time.sleep(1000)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert done.returncode == 7
