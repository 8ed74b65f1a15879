"""Tables of what users have named as they like."""

import pytest
from rich.table import Table

from lab.cli.console import table_console


def test_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("JOB", box=None)
    table.add_row("train.py '[lr]' '[/lr]'")
    table_console().print(table)
    assert "train.py '[lr]' '[/lr]'" in capsys.readouterr().out
