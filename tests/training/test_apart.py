"""Ranks whose nodes share no folder, as hosts over SSH may not: they cannot save together."""

import os
from pathlib import Path
from typing import Any

import pytest

from lab.training.options import Options
from tests.ranks import RankPool
from tests.training.training_jobs import Result, train

DEFAULT = {"parallel": "ddp", "steps": 12, "save_every": None}


def train_apart(folder: Path, options: dict[str, Any]) -> Result:
    """On a rank: with a run directory of its own, and a folder of checkpoints, if one is named."""
    here = folder / f"node{os.environ['RANK']}"
    named = options.get("checkpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_RUN_DIR", str(here / "runs/1"))
        return train(folder, {**options, "checkpoints": named and here / named})


def test_by_default_they_train_without_checkpoints_and_say_so(
    ranks: RankPool, tmp_path: Path
) -> None:
    main, other = ranks.run(2, train_apart, tmp_path, DEFAULT)
    assert (main.error, other.error) == ("", "")
    assert len(main.losses) == 12
    (line,) = main.said
    assert "one folder that all nodes share: trains without any" in line
    assert "--checkpoints FOLDER" in line
    assert other.said == []
    assert not list(tmp_path.rglob("step-*"))


@pytest.mark.parametrize(
    "asked",
    [
        {"save_every": Options.SAVE_EVERY},
        {"resume": "auto"},
        {"on_nan": "rollback"},
        {"checkpoints": Path("checkpoints")},
    ],
)
def test_who_relies_on_checkpoints_is_told_where_to_have_them(
    ranks: RankPool, tmp_path: Path, asked: dict[str, Any]
) -> None:
    for result in ranks.run(2, train_apart, tmp_path, {**DEFAULT, **asked}):
        assert result.error.startswith("LabError: rank 1 on ")
        assert "--checkpoints FOLDER" in result.error
        assert "--save-every 0" in result.error
        assert result.printed == []
