"""What is sent to a host is one quoted command, whatever is in its words."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.deploy.program import BOOTSTRAP
from lab.transport.ssh_bundle import KEEP
from lab.transport.ssh_channel import BEGIN, remote_command

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]))"
HOSTILE = (
    "two words",
    "",
    "-rf",
    "--",
    "$(touch pwned)",
    "`touch pwned`",
    "a;touch pwned",
    "a\ntouch pwned\n",
    "it's",
    '"quoted"',
    "back\\slash\\",
    "*",
    "~",
    "~/x",
    "!!",
    "#no comment",
    "{a,b}",
    "ünï→code",
    "a\tb\rc",
    "&& false",
    "> pwned",
)


SHELLS = [path for name in ("sh", "bash", "zsh", "fish", "tcsh") if (path := shutil.which(name))]
"""Login shells that this machine has."""


def run(command: str, shell: str, home: Path) -> subprocess.CompletedProcess[str]:
    """As sshd does it: by the login shell."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": "/theirs"}
    done = subprocess.run(
        [shell, "-c", command], capture_output=True, text=True, env=env, cwd=home, timeout=60
    )
    begin = BEGIN.decode()
    assert done.stdout.startswith(begin)
    assert done.stderr.startswith(begin)
    done.stdout, done.stderr = (text.removeprefix(begin) for text in (done.stdout, done.stderr))
    return done


@pytest.mark.parametrize("text", [*HOSTILE, BOOTSTRAP, KEEP, "\\'", "\\n%s\\0041"])
def test_every_login_shell_takes_it_for_one_word(text: str, tmp_path: Path) -> None:
    """Sh, csh and fish differ in what they take for itself between single quotes."""
    command = remote_command(["printf", "%s", text])
    assert not re.search(r"[\n!]|\\[\\']", command)
    for shell in SHELLS:
        said = run(command, shell, tmp_path).stdout
        assert said == text.replace("\r", "\n"), shell  # as reading text does


@pytest.mark.parametrize("shell", SHELLS)
def test_words_arrive_as_they_are(shell: str, tmp_path: Path) -> None:
    done = run(remote_command([sys.executable, "-c", SHOW, *HOSTILE]), shell, tmp_path)
    assert done.returncode == 0, done.stderr
    argv, cwd, _ = json.loads(done.stdout)
    assert argv == list(HOSTILE)
    assert Path(cwd) == tmp_path
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("text", [text for text in HOSTILE if text not in ("", "--", "~", "~/x")])
def test_folders_and_variables_too(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "in" / text.replace("/", "_")
    made = tmp_path / "made" / text.replace("/", "_")
    command = remote_command(
        [sys.executable, "-c", SHOW],
        cwd=[str(tmp_path / "missing"), str(folder)],
        env={"VALUE": text},
        folder=str(made),
        path=str(folder),
    )
    folder.mkdir(parents=True)
    done = run(command, "/bin/sh", tmp_path)
    assert done.returncode == 0, done.stderr
    _, cwd, env = json.loads(done.stdout)
    assert Path(cwd) == folder
    assert env["VALUE"] == text
    assert env["PYTHONPATH"] == f"{folder}:/theirs"
    assert made.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "made"]


def test_a_tilde_is_the_home_there_in_paths_of_ours(tmp_path: Path) -> None:
    (tmp_path / "lab of mine").mkdir()
    (tmp_path / "python").symlink_to(sys.executable)
    done = run(remote_command(["~/python", "-c", SHOW], cwd=["~/lab of mine"]), "/bin/sh", tmp_path)
    assert Path(json.loads(done.stdout)[1]) == tmp_path / "lab of mine"


def test_no_folder_is_said_by_name(tmp_path: Path) -> None:
    done = run(remote_command(["true"], cwd=["/no such"]), "/bin/sh", tmp_path)
    assert (done.returncode, done.stderr) == (1, "there is no folder /no such\n")


@pytest.mark.parametrize(("code", "expected"), [("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_exit_status_is_a_shells(code: str, expected: int, tmp_path: Path) -> None:
    assert run(remote_command(["sh", "-c", code]), "/bin/sh", tmp_path).returncode == expected
