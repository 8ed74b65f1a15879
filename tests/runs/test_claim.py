"""What belongs to whom in the folder of a run."""

import os
from pathlib import Path

from lab.runs.claim import UNPRIVILEGED, Claim


def _made_on_a_node(*paths: Path) -> None:
    for path in paths:
        os.chown(path, UNPRIVILEGED, UNPRIVILEGED, follow_symlinks=False)


def _claim(run: Path) -> Claim:
    claim = Claim.of_run(run)
    assert claim is not None
    return claim


if os.geteuid() == 0:  # only root may give files away

    def test_root_gets_what_nodes_made_and_nothing_else(tmp_path: Path) -> None:
        run = tmp_path / "runs" / "a-run"
        run.mkdir(parents=True)
        (tmp_path / "data" / "deep").mkdir(parents=True)
        somebodys = tmp_path / "users" / "somebody"
        somebodys.mkdir(parents=True)
        of_somebody = [tmp_path / "data" / "old", somebodys / "old", somebodys / "new"]
        of_somebody[0].write_text("was there before")
        of_somebody[1].write_text("was there before")
        _made_on_a_node(of_somebody[0], of_somebody[1], somebodys)
        claim = _claim(run)
        of_somebody[0].write_text("changed")
        of_somebody[1].write_text("changed")
        of_somebody[2].write_text("its owner works on")
        _made_on_a_node(of_somebody[2])
        (tmp_path / "data" / "deep" / "new").write_text("")
        (tmp_path / "made" / "below").mkdir(parents=True)
        (tmp_path / "made" / "link").symlink_to(of_somebody[0])
        (tmp_path / "made" / "folder").symlink_to(somebodys)
        (run / "rank0.error.json").write_text("")
        of_nodes = [
            tmp_path / "data" / "deep" / "new",
            tmp_path / "made",
            tmp_path / "made" / "below",
            tmp_path / "made" / "link",
            tmp_path / "made" / "folder",
            run / "rank0.error.json",
        ]
        _made_on_a_node(*of_nodes)
        claim.settle()
        assert {path.lstat().st_uid for path in of_nodes} == {0}
        assert {path.stat().st_uid for path in (somebodys, *of_somebody)} == {UNPRIVILEGED}

    def test_in_the_folder_of_another_user_only_the_run_is_claimed(tmp_path: Path) -> None:
        run = tmp_path / "runs" / "a-run"
        run.mkdir(parents=True)
        _made_on_a_node(tmp_path)
        claim = _claim(run)
        (run / "result").write_text("")
        (tmp_path / "output").write_text("")
        _made_on_a_node(run / "result", tmp_path / "output")
        claim.settle()
        assert (run / "result").stat().st_uid == 0
        assert (tmp_path / "output").stat().st_uid == UNPRIVILEGED

    def test_a_folder_that_has_gone(tmp_path: Path) -> None:
        run = tmp_path / "work" / "runs" / "a-run"
        run.mkdir(parents=True)
        claim = _claim(run)
        (tmp_path / "work").rename(tmp_path / "elsewhere")
        claim.settle()
        assert (tmp_path / "elsewhere").exists()
