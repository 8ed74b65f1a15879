"""Which files a script writes by way of libraries."""

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from lab.rank.audit.files import _was_given


def _save(file: Any, *others: Any, **named: Any) -> FrameType:
    cache = "/somewhere/cache"
    assert cache != file
    return sys._getframe()


def test_a_library_that_was_given_the_path_does_as_it_was_told(tmp_path: Path) -> None:
    path = os.path.realpath(tmp_path / "out.npy")
    assert _was_given(_save(path), path)
    assert _was_given(_save(tmp_path / "out"), path)  # it adds a suffix of its own
    assert _was_given(_save(1, 2, tmp_path / "out.npy"), path)
    assert _was_given(_save(1, where=tmp_path / "out.npy"), path)


def test_what_a_library_writes_of_its_own_accord_it_was_not_given(tmp_path: Path) -> None:
    assert not _was_given(_save(tmp_path, [1], None), os.path.realpath(tmp_path / "lock"))
    assert not _was_given(_save("name", of="model"), "/somewhere/cache")
