"""Lab's code for the ranks goes with the last run that links to it."""

from pathlib import Path

from lab.batch.code import link_code, remove_unused


def test_it_stays_while_a_run_has_it(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for run in (first, second):
        run.mkdir()
        link_code(run)
        assert (run / "code/lab/node/task.py").is_file()
        assert [path.name for path in run.iterdir()] == ["code"]
    older = tmp_path / ".code/older"
    older.mkdir()
    (first / "code").unlink()
    remove_unused(tmp_path)
    assert not older.exists()
    assert (second / "code/lab/node/task.py").is_file()
    (second / "code").unlink()
    remove_unused(tmp_path)
    assert not (tmp_path / ".code").exists()
    remove_unused(tmp_path)
