"""`lab zoo`: what it lists and explains, and what its exit codes say."""

import json

from tests.conftest import Lab


def test_list(lab: Lab) -> None:
    shown = lab("zoo", "list").stdout.splitlines()
    data = json.loads(lab("zoo", "list", "--json").stdout)
    assert len(shown) == len(data) >= 30
    assert [line.split()[:2] for line in shown] == [
        [case["name"], case["expect"]["kind"]] for case in data
    ]
    for line, case in zip(shown, data, strict=True):
        assert ("(only on " in line) == (case["elsewhere"] is not None)


def test_explain(lab: Lab) -> None:
    shown = lab("zoo", "explain", "no-set-epoch", "wrong-interface").stdout
    for part in (
        "what goes wrong: ",
        "in the field: ",
        "what lab sees: order-never-changes. ",
        "\n+        sampler.set_epoch(epoch)\n",
        "lab zoo run no-set-epoch\n",
        "\nonly on docker, ssh, slurm: for nodes that are one machine",
        "lab zoo run wrong-interface --on docker\n",
    ):
        assert part in shown
    assert "<- fault" not in shown


def test_a_case_that_is_run(lab: Lab) -> None:
    shown = lab("zoo", "run", "bad-sample")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "lab: failed: rank 1 " in shown.stdout
    assert (
        "on local: right kind 1 of 1, ranks 1 of 1, line 1 of 1; false alarms 0 in 1"
        in shown.stderr
    )
    assert (lab.cwd / "outputs/zoo/bad-sample/fault/train.py").exists()
    assert len(list((lab.cwd / "outputs/zoo/runs").iterdir())) == 2


def test_wrong_usage(lab: Lab) -> None:
    for words, said in (
        (["zoo", "run"], "name cases, or --all"),
        (["zoo", "run", "--all", "bad-sample"], "name cases, or --all"),
        (["zoo", "run", "bad-samples"], "did you mean bad-sample?"),
        (["zoo", "explain", "nothing-like-it"], "there is no case nothing-like-it"),
        (["zoo", "run", "wrong-interface"], "the right one; add --on docker"),
        (["zoo", "run", "bad-sample", "--on", "moon"], "moon"),
    ):
        done = lab(*words)
        assert done.returncode == 2, words
        assert said in done.stderr
