"""One command on all nodes; on docker: tests/cli/test_exec.py, on ssh: tests/deploy."""

from lab.transport.everywhere import Answer, grouped
from tests.conftest import Lab


def test_equal_answers_are_one_group_with_a_node_set() -> None:
    same, other = Answer(b"a\n", 0), Answer(b"a\n", 1)
    answers = {f"node{rank}": same for rank in range(12)} | {"big": other, "node3": other}

    assert grouped(answers) == [("node[0-2,4-11]", same), ("big,node3", other)]


def test_names_that_look_like_groups_stay_names() -> None:
    answer = Answer(b"", 0)
    assert grouped({"a-1": answer, "b": answer}) == [("a-1,b", answer)]


def test_all_nodes_answer_and_those_that_say_the_same_are_shown_once(lab: Lab) -> None:
    script = 'echo 1 >&2; echo 2 >&2; [ "$LAB_NODE" != node2 ] || { echo odd >&2; exit 3; }'
    done = lab("exec", "--on", "local", "--all", "sh", "-c", script)

    assert done.stdout == "node[0-1,3]\n  1\n  2\nnode2 (exit code 3)\n  1\n  2\n  odd\n"
    assert done.returncode == 3


def test_what_says_nothing_and_ends_well_shows_nothing(lab: Lab) -> None:
    done = lab("exec", "--on", "local", "--all", "--", "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_command_that_is_not_there(lab: Lab) -> None:
    done = lab("exec", "--on", "local", "-t", "pair", "--all", "no-such")
    assert done.stdout == (
        "node[0-1] (exit code 127): no-such cannot be run: No such file or directory\n"
    )
    assert done.returncode == 127


def test_a_command_or_a_node_is_needed(lab: Lab) -> None:
    done = lab("exec", "--on", "local", "--all")
    assert (done.returncode, done.stderr) == (
        2,
        "lab: error: --all needs a command: lab exec --all CMD\n",
    )
    done = lab("exec", "--on", "local")
    assert (done.returncode, done.stderr) == (
        2,
        "lab: error: lab exec needs the name of a node, or --all and a command\n",
    )
