"""ssh's configuration files with `Include`: what counts for whom is what the system's ssh says."""

import getpass
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.transport.ssh_config import SshConfig

CI = os.environ.get("CI") == "true"
NAMES = ("gpu1", "gpu2", "cpu1", "jump")
INCLUDED = {
    "plain": "User plain\nPort 1001\n",
    "blocks": "User first\nHost gpu1\n    Port 1002\nHost *\n    Port 1003\n",
    "match": 'Match host "gpu*"\n    Port 1004\nMatch all\n    User everybody\n',
    "config.d/.plain.swp": "Port 1006\n",  # an editor's
    "config.d/folder/in it": "Port 1007\n",
    "config.d/plain": "User plain\n",
    "deep": "Host *1\n    Include {folder}/blocks\n    HostName deep\nHost gpu2\n    Port 1005\n",
}
CONFIGS = {
    "for all": "Include {folder}/blocks\nUser last\n",
    "in a block": "Host gpu*\n    Include {folder}/plain\n    HostName h\nHost *\n    User u\n",
    "blocks in a block": "Host gpu2 cpu1\n    Include {folder}/blocks\n    User mine\nPort 7\n",
    "not for": "Host * !gpu1\n    Include {folder}/blocks\nHost gpu1\n    User other\n",
    "match in a block": "Host gpu1 jump\n    Include {folder}/match\n    HostName there\n",
    "block in a match": "Match originalhost gpu1,cpu1\n    Include {folder}/blocks\n    User m\n",
    "match in a match": "Match all\n    Include {folder}/match\nMatch final\n    User f\n",
    "two levels": "Host gpu* jump\n    Include {folder}/deep\n    User outer\nHost *\n  Port 9\n",
    "several": 'Host=gpu1\n    Include="{folder}/plain" "{folder}/match"\n    User after\n',
    "a folder of them": "Include {folder}/config.d/*\nPort 9\n",
    "a hidden one": "Include {folder}/config.d/.plain.swp\nPort 9\n",
    "none is there": "Host gpu1\n    Include {folder}/nothing-*\n    Port 8\n",
}


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_it_counts_for_those_whom_ssh_takes_it_for(text: str, tmp_path: Path) -> None:
    if shutil.which("ssh") is None and not CI:
        pytest.skip("no ssh: install openssh-client")
    for name, included in INCLUDED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(included.format(folder=tmp_path))
    (tmp_path / "config.d/gone").symlink_to("nowhere")
    path = tmp_path / "config"
    path.write_text(text.format(folder=tmp_path))
    config = SshConfig()
    config.read(path)
    for name in NAMES:
        argv = ["ssh", "-F", str(path), "-G", name]
        said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        theirs = dict(line.partition(" ")[::2] for line in said.splitlines())
        ours = {"port": "22", "user": getpass.getuser(), **config.lookup(name)}
        for key in ("hostname", "port", "user"):
            assert ours[key] == theirs[key], (name, key)


def test_who_asks_again_gets_an_answer_of_his_own(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("Host gpu1\n    Port 7\n")
    config = SshConfig()
    config.read(path)
    config.lookup("gpu1")["port"] = "8"
    assert config.lookup("gpu1")["port"] == "7"
