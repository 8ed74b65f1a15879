"""`lab bench deploy`: hosts with homes of their own, beside rsync where there is one."""

import os
import shutil

import pytest

from lab.bench.deploy import LARGE, ONE_FILE, UNCHANGED, bench_deploy
from lab.bench.sshd import find_sshd


def test_every_way_is_measured_on_every_kind_of_folder() -> None:
    if find_sshd() is None and os.environ.get("CI") != "true":
        pytest.skip("no sshd: install openssh-server")
    told: list[str] = []
    rows = bench_deploy(hosts=2, files=3, runs=1, progress=told.append)
    rsync = shutil.which("rsync") is not None
    assert [(row["folder"], row["way"]) for row in rows] == [
        (folder, way)
        for folder, ways in {
            UNCHANGED: ["lab deploy"] + ["xargs rsync"] * rsync,
            ONE_FILE: ["lab deploy"] + ["xargs rsync"] * rsync,
            LARGE: ["lab deploy"] + ["lab deploy, no rsync", "xargs rsync"] * rsync,
        }.items()
        for way in ways
    ]
    assert all(len(row["all"]) == 1 for row in rows)
    assert told == ["warm-up", "round 1 of 1"]
