"""What `lab run` promises to a script: torchrun's environment, its arguments, its folder."""

import json
import os
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from tests.conftest import Lab

DUMP = """
import json, os, sys
with open(os.path.join(sys.argv[1], os.environ["RANK"] + ".json"), "w") as file:
    json.dump(dict(os.environ), file)
"""
OURS = {"NODE_RANK", "NNODES", "LAB_RUN_ID", "LAB_RUN_DIR", "LAB_NODE", "LAB_TOPOLOGY"}
OF_THE_PLACE = {"GLOO_SOCKET_IFNAME"}
"""What a local node sets for gloo."""
FREE = {"MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
"""Names whose values are each launcher's own."""
OF_THE_PROCESS = {"_", "SHLVL", "COLUMNS", "PYTEST_CURRENT_TEST"}
ARGUMENTS = [
    *("--dash", "-t", "--", "a b", "it's", 'say "hi"', "line\nbreak", "$(id)", "`id`", "*", ""),
    *("\\", "$HOME", "é", '{"lr": {"a": 1}}', "{}", "{rank}", "{ nnodes }"),
]


@pytest.mark.parametrize("slots", [1, 2])
def test_the_environment_is_torchruns(lab: Lab, slots: int) -> None:
    """The real torchrun and `lab run`, variable for variable."""
    script = lab.script(DUMP)
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    for name in ("torchrun", "ours"):
        (lab.cwd / name).mkdir()
    torchrun = str(Path(sys.executable).parent / "torchrun")
    standalone = ["--standalone", f"--nproc-per-node={slots}", script, "torchrun"]
    subprocess.run([torchrun, *standalone], cwd=lab.cwd, env=env, check=True, capture_output=True)
    run = ["-m", "lab", "run", "-t", "solo", "--slots", str(slots), "--on", "local", script, "ours"]
    subprocess.run([sys.executable, "-P", *run], cwd=lab.cwd, env=env, check=True)
    for rank in range(slots):
        theirs, ours = (
            json.loads((lab.cwd / name / f"{rank}.json").read_text())
            for name in ("torchrun", "ours")
        )
        extra = OURS | OF_THE_PLACE
        assert set(ours) - extra - OF_THE_PROCESS == set(theirs) - OF_THE_PROCESS
        different = {
            name
            for name in set(theirs) - FREE - OF_THE_PROCESS
            if theirs[name] != ours[name] and name != "TORCHELASTIC_USE_AGENT_STORE"
        }
        assert different == set()
        # Where its agent hosts the store its ranks must not; here no agent does.
        assert (theirs["TORCHELASTIC_USE_AGENT_STORE"], ours["TORCHELASTIC_USE_AGENT_STORE"]) == (
            "True",
            "False",
        )
        assert ours["MASTER_PORT"].isdigit()
        assert extra <= set(ours)


def test_arguments_arrive_unchanged(lab: Lab) -> None:
    script = lab.script("import json, sys; json.dump(sys.argv[1:], open('seen.json', 'w'))")
    done = lab("run", "-t", "solo", "--on", "local", script, *ARGUMENTS)
    assert done.returncode == 0, done.stderr
    assert json.loads((lab.cwd / "seen.json").read_text()) == ARGUMENTS


def test_an_executable_without_python(lab: Lab) -> None:
    program = lab.cwd / "my program"
    program.write_text('#!/bin/sh\nprintf "%s|" "$RANK" "$@"\necho "${LAB_EVENTS_FD-none}"\nexit 5')
    program.chmod(0o755)
    done = lab("run", "-t", "solo", "--on", "local", "--no-python", "./my program", *ARGUMENTS[:7])
    assert done.returncode == 5
    seen = "".join(line.removeprefix("[0 node0] ") + "\n" for line in done.stdout.splitlines())
    assert seen == "0|" + "".join(f"{text}|" for text in ARGUMENTS[:7]) + "none\n"


def test_placeholders_stand_for_what_each_node_knows(lab: Lab) -> None:
    names = ("node_rank", "nnodes", "nproc", "world_size", "master_addr", "master_port", "run_dir")
    text = " ".join(f"{name}={{{name}}}" for name in names)
    code = "import os, sys; print(sys.argv[2], *map(os.environ.get, sys.argv[3:]), sep=' | ')"
    script = lab.script(code)
    words = [script, '{"json": {nnodes}}', text, "MASTER_ADDR", "MASTER_PORT", "LAB_RUN_DIR"]
    done = lab("run", "-t", "quad2x2", "--on", "local", *words)
    assert done.returncode == 0, done.stderr
    for line in sorted(done.stdout.splitlines()):
        rank = int(line[1])
        shown, addr, port, folder = line[len("[0 node0] ") :].split(" | ")
        assert shown == (
            f"node_rank={rank // 2} nnodes=2 nproc=2 world_size=4 master_addr={addr} "
            f"master_port={port} run_dir={folder}"
        )
    assert (addr, int(port) > 1023, folder) == ("127.0.0.1", True, str(lab.runs()[0]))


def test_a_script_that_spawns_its_own_processes(lab: Lab) -> None:
    script = lab.script(
        """
import multiprocessing, socket, sys
def work(local, node_rank, nproc, addr, port):
    print(f"global {int(node_rank) * int(nproc) + local} {addr}\\n", end="", flush=True)
if __name__ == "__main__":
    _, node_rank, nproc, addr, port = sys.argv
    context = multiprocessing.get_context("spawn")
    rest = (node_rank, nproc, addr, port)
    children = [context.Process(target=work, args=(i, *rest)) for i in (0, 1)]
    [child.start() for child in children]
    [child.join() for child in children]
    sys.exit(any(child.exitcode for child in children))
"""
    )
    words = [script, "{node_rank}", "2", "{master_addr}", "{master_port}"]
    done = lab("run", "-t", "pair", "--on", "local", *words)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[3] for line in done.stdout.splitlines()) == ["0", "1", "2", "3"]


def test_variables_and_their_order(lab: Lab) -> None:
    lab.script("# a comment\n\nB=file\nC='as it is' # all of it\nFROM_HERE\nNOT_HERE\r\n", "my.env")
    lab.script("nodes: 1\non: local\nenv: {A: topology, B: topology}\n", "lab.yaml")
    names = ("A", "B", "C", "FROM_HERE", "NOT_HERE", "WANDB_MODE", "EMPTY", "API_KEY")
    script = lab.script(f"import os; print([os.environ.get(n) for n in {names}])")
    done = lab(
        *("run", "--pass-env", "WANDB_*", "--pass-env", "B", "--env-file", "my.env"),
        *("--env", "A=a=b c", "--env", "EMPTY=", "--env", "API_KEY", script),
        env={"WANDB_MODE": "offline", "FROM_HERE": "here", "API_KEY": "hush", "B": "shell"},
    )
    values = ["a=b c", "file", "'as it is' # all of it", "here", None, "offline", "", "hush"]
    assert done.stdout == f"[0 node0] {values}\n", done.stderr
    kept = (lab.runs()[0] / "job.json").read_text()
    assert json.loads(kept)["env"]["API_KEY"] == "***"
    assert "hush" not in kept


def test_ranks_start_where_cwd_says(lab: Lab) -> None:
    lab.script("import os; print(os.getcwd())", "sub/train.py")
    done = lab("run", "-t", "solo", "--on", "local", "--cwd", "sub", "train.py")
    assert done.stdout == f"[0 node0] {lab.cwd / 'sub'}\n"
    assert len(lab.runs()) == 1


def test_a_script_can_become_another_program(lab: Lab) -> None:
    script = lab.script(
        "import os\nprint('before', flush=True)\n"
        "os.execvp('sh', ['sh', '-c', 'echo after; exit 6'])"
    )
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert done.returncode == 6
    assert done.stdout.splitlines() == ["[0 node0] before", "[0 node0] after"]


def test_a_script_can_end_without_a_word(lab: Lab) -> None:
    script = lab.script("import os; os.write(1, b'written'); print('not flushed'); os._exit(0)")
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert (done.returncode, done.stdout[:17]) == (0, "[0 node0] written")


def test_loader_workers_run_and_end(lab: Lab) -> None:
    script = lab.script(
        """
import torch
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor(i * i)
if __name__ == "__main__":
    for context in ("fork", "spawn"):
        loader = DataLoader(Squares(), 4, num_workers=1, multiprocessing_context=context)
        print(context, sum(int(batch.sum()) for batch in loader), flush=True)
"""
    )
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert done.stdout == "[0 node0] fork 140\n[0 node0] spawn 140\n", done.stderr


def test_input_is_at_its_end(lab: Lab) -> None:
    script = lab.script("input()")
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert done.returncode == 1
    assert "EOFError" in done.stderr.splitlines()[-1]


def test_a_module_that_is_not_there_is_named(lab: Lab) -> None:
    done = lab("run", "-t", "solo", "--on", "local", "-m", "no.such", "--x")
    assert done.returncode == 1
    *_, verdict, hint = done.stderr.splitlines()
    assert "No module named 'no'" in verdict
    assert f"there is no module no.such in {lab.cwd}" in hint


def test_a_module_that_no_rank_finds_is_told_of_once(lab: Lab) -> None:
    done = lab("run", "--nodes", "3", "--on", "local", "-m", "nosuch")
    assert done.returncode == 1
    assert done.stderr.count("/python: No module named nosuch") <= 1  # rank 0 says what Python says
    assert "besides" not in done.stderr
    *_, verdict, hint = done.stderr.splitlines()
    assert "ModuleNotFoundError: No module named nosuch" in verdict
    assert "there is no module nosuch" in hint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["nosuch.py"], "there is no script nosuch.py"),
        (["folder"], "is a folder without a __main__.py"),
        ([""], "the script's name is empty"),
        (["broken.py"], "broken.py:2: "),
        (["latin.py"], "latin.py"),
        (["nul.py"], "nul"),
        (["tool.sh"], "--no-python"),
        (["--no-python", "nosuchprogram"], "there is no executable nosuchprogram"),
        (["--no-python", "./tool.sh"], "chmod +x ./tool.sh"),
        (["--no-python", "./nosuch"], "nosuch does not exist"),
        (["--no-python"], "needs an executable"),
        (["-m", "--no-python", "x"], "-m is for"),
        (["--cwd", "nosuch", "good.py"], "does not exist"),
        (["--cwd", "good.py", "good.py"], "is not a folder"),
        (["--cwd", "folder", "good.py"], "../good.py"),
        (["--on", "docker", "--cwd", "/usr", "good.py"], "nodes see only"),
        (["--on", "docker", __file__], "nodes see only"),
        (["--on", "docker", "linked.py"], "nodes see only"),
        (["--json", "--quiet", "good.py"], "--json prints everything"),
        (["--env", "RANK=3", "good.py"], "RANK is set by lab"),
        (["--env", "MASTER_PORT=3", "good.py"], "master.port"),
        (["--env", "=x", "good.py"], "no name"),
        (["--env", "A B=x", "good.py"], "'A B'"),
        (["--env", "NOT_SET_HERE", "good.py"], "--env NOT_SET_HERE=..."),
        (["--env-file", "nosuch.env", "good.py"], "nosuch.env: No such file"),
        (["--env-file", "folder", "good.py"], "folder: Is a directory"),
        (["--env-file", "bad.env", "good.py"], "bad.env:3: no name"),
        (["--env-file", "rank.env", "good.py"], "rank.env:2: WORLD_SIZE is set by lab"),
        (["--env-file", "binary.env", "good.py"], "binary.env:2: not UTF-8"),
        (["--pass-env", "RANK", "good.py"], "RANK is set by lab"),
    ],
)
def test_wrong_input_is_one_line_before_anything_starts(
    lab: Lab, options: list[str], words: str
) -> None:
    lab.script("", "good.py")
    lab.script("", "folder/other.py")
    lab.script("x = 1\ndef f(:\n", "broken.py")
    lab.script("x = '\0'", "nul.py")
    lab.script("#!/bin/sh\nexit 0\n", "tool.sh")
    lab.script("A=1\n\n=2\n", "bad.env")
    lab.script("A=1\nWORLD_SIZE=2\n", "rank.env")
    (lab.cwd / "binary.env").write_bytes(b"A=1\nB=\xff\n")
    (lab.cwd / "linked.py").symlink_to(__file__)
    (lab.cwd / "latin.py").write_bytes(b"x = '\xe9'\n")
    done = lab("run", "-t", "solo", "--on", "local", *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert lab.runs() == []


def test_a_folder_and_an_archive_of_any_name(lab: Lab) -> None:
    lab.script("import sys, beside; print(sys.argv, beside.WORD)", "app/__main__.py")
    lab.script("WORD = 'there'", "app/beside.py")
    zipapp.create_archive(lab.cwd / "app", lab.cwd / "app.pyz")
    zipapp.create_archive(lab.cwd / "app", lab.cwd / "app.pex", sys.executable)
    for name in ("app", "app.pyz", "app.pex"):
        done = lab("run", "-t", "solo", "--on", "local", name, "x")
        assert done.stdout == f"[0 node0] ['{name}', 'x'] there\n", done.stderr
