"""What belongs to whom in the folder of a run."""

import os
import time
from pathlib import Path

from lab.runs.directory import UNPRIVILEGED, RunDirectory


def _made_on_a_node(path: Path) -> None:
    os.chown(path, UNPRIVILEGED, UNPRIVILEGED, follow_symlinks=False)


if os.geteuid() == 0:  # only root may give files away

    def test_root_gets_what_nodes_made_and_nothing_else(tmp_path: Path) -> None:
        run = tmp_path / "runs" / "a-run"
        run.mkdir(parents=True)
        (tmp_path / "data" / "deep").mkdir(parents=True)
        of_somebody = tmp_path / "data" / "old"
        of_somebody.write_text("was there before")
        _made_on_a_node(of_somebody)
        time.sleep(0.02)  # the kernel's clock for files has coarse ticks
        since = time.time()
        time.sleep(0.02)
        (tmp_path / "data" / "deep" / "new").write_text("")
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "link").symlink_to("/etc/passwd")
        (run / "rank0.error.json").write_text("")
        of_nodes = [
            tmp_path / "data" / "deep" / "new",
            tmp_path / "made",
            tmp_path / "made" / "link",
            run / "rank0.error.json",
        ]
        for path in of_nodes:
            _made_on_a_node(path)
        RunDirectory(run).claim(since)
        assert {path.lstat().st_uid for path in of_nodes} == {0}
        assert of_somebody.stat().st_uid == UNPRIVILEGED
        assert Path("/etc/passwd").stat().st_uid == 0
