"""Tables of what users have named as they like."""

import pytest
from rich.table import Table

from lab.cli.console import print_table
from tests.conftest import Lab

RUN = "20261130-181053-bench-quad2x2-abcd"
JOB = "train.py --epochs 20 --learning-rate 0.1 --seed 7"


def shown(capsys: pytest.CaptureFixture[str], *rows: tuple[str, ...]) -> list[str]:
    """The rows of a table as they are printed, without its head."""
    table = Table("RUN", "STATE", "JOB", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    print_table(table)
    return capsys.readouterr().out.splitlines()[1:]


def test_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, ("a", "b", "train.py '[lr]' '[/lr]'")) == [
        "a    b      train.py '[lr]' '[/lr]'"
    ]


def test_only_the_last_column_folds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "80")
    first, *others = shown(capsys, (RUN, "job 7 is submitted", JOB))
    assert first.startswith(f"{RUN}  job 7 is submitted  train.py")
    assert len(first) <= 80
    assert others
    assert all(line.startswith(" " * 50) for line in others)


def test_where_there_is_no_room_rows_stay_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    assert shown(capsys, (RUN, "finished", JOB), (RUN, "finished", "x.py")) == [
        f"{RUN}  finished  {JOB}",
        f"{RUN}  finished  x.py",
    ]


def test_the_id_of_a_run_is_not_broken(lab: Lab) -> None:
    script = lab.script("", "a_script_with_a_name.py")
    lab("run", "-t", "solo", "--on", "local", script, "--epochs", "20", "--learning-rate", "0.1")
    (run,) = lab.runs()
    done = lab("ps", env={"FORCE_COLOR": "1", "COLUMNS": "80"})
    assert f"\n{run.name} " in done.stdout
