"""The blocks that a line is in, from the source."""

from pathlib import Path

import pytest

from lab.rank.blocks import blocks_of

SOURCE = """\
def main(rank):
    for epoch in range(3):
        for batch in loader:
            step(batch)
        if rank == 0: save()
        else:
            wait()
    try:
        step(1)
    except ValueError:
        report()
    finally:
        barrier()
    rank == 0 and save()
    end()
    while True:
        if rank: continue
        step(2)
    if rank:
        return
    last()
"""


@pytest.mark.parametrize(
    ("line", "blocks"),
    [
        (4, (("loop", 2, 0), ("loop", 3, 0))),
        (5, (("loop", 2, 0), ("condition", 5, 0))),
        (7, (("loop", 2, 0), ("condition", 5, 1))),
        (9, ()),
        (11, (("condition", 8, 1),)),
        (13, ()),
        (14, (("condition", 14, 0),)),
        (15, ()),
        (18, (("loop", 16, 0), ("condition", 17, -1))),
        (21, (("condition", 19, -1),)),
    ],
)
def test_loops_and_conditions_around_a_line(
    tmp_path: Path, line: int, blocks: tuple[tuple[str, int, int], ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SOURCE)
    assert blocks_of(str(script), line) == blocks


def test_what_has_no_source_has_no_blocks(tmp_path: Path) -> None:
    assert blocks_of("<string>", 1) is None
    broken = tmp_path / "broken.py"
    broken.write_text("def\n")
    assert blocks_of(str(broken), 1) is None
