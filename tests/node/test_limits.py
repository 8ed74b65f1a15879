"""Whether processes may look into each other."""

import ctypes
import errno
import os
import sys

import pytest

from lab.node import limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.mark.parametrize(("file", "may"), [(0, True), (errno.EACCES, False)])
def test_the_file_will_do_where_the_call_is_denied(
    file: int, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in containers of Docker 20.10, where py-spy takes the file as well."""
    monkeypatch.setattr(limits, "_by_call", lambda pid, address: errno.EPERM)
    monkeypatch.setattr(limits, "_by_file", lambda pid, address: file)
    assert limits.may_read_others() is may


def test_the_file_has_what_is_in_memory() -> None:
    word = ctypes.create_string_buffer(b"word")
    assert limits._by_file(os.getpid(), ctypes.addressof(word)) == 0
    assert limits._by_file(os.getpid(), 0) != 0
