"""What is wrong with a topology file, and how that is said."""

from itertools import pairwise

import pytest

from lab.topology import Problem, TopologyError, parse_topology
from lab.topology.errors import UnknownKey


def problems(text: str) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        parse_topology(text, "lab.yaml")
    assert str(caught.value) == "\n".join(map(str, caught.value.problems[:20]))
    return [str(problem) for problem in caught.value.problems]


TOP = "name, on, nodes, min_nodes, slots, backend, master, env, docker, ssh, slurm, job"
NODE = "name, address, slots, interface, cpus, memory"
HOST = "must be a host name (RFC 1123)"
LIST_RULE = "must be a node set such as node[0-3], a count, or a list of names and of mappings"
LONG = "x" * 64

# The text, and the beginning of the one message about it.
SINGLE = [
    # Unknown keys.
    (
        "nodes: 4\nbackned: gloo",
        f"2: backned: unknown key; did you mean 'backend'? Allowed: {TOP}",
    ),
    ("nodes: 4\nzzz:\n  a: 1", f"2: zzz: unknown key. Allowed: {TOP}"),
    (
        "nodes:\n  - a\n  - name: b\n    adress: x",
        f"4: nodes[1].adress: unknown key; did you mean 'address'? Allowed: {NODE}",
    ),
    ("nodes: 1\ndocker:\n  memori: 2g", "3: docker.memori: unknown key; did you mean 'memory'?"),
    (
        "nodes: 1\ndocker: {link: {speed: 1}}",
        "2: docker.link.speed: unknown key. Allowed: rate, delay, loss",
    ),
    ("nodes: 1\nport: 29500", "2: port: unknown key; did you mean 'master.port'?"),
    ("nodes: 1\nmemory: 2g", "2: memory: unknown key; did you mean 'docker.memory'?"),
    ("nodes: 1\nworld_size: 4", "2: world_size: unknown key."),
    ("nodes: 1\n7: 4", "2: 7: unknown key."),
    ("nodes: 1\ntrue: 4", "2: true: unknown key."),
    # Nodes.
    ("nodes: [a, b, a]", "1: nodes[2].name: found 'a'; must be unique, and nodes[0] has that name"),
    ("nodes: [a, A]", "1: nodes[1].name: found 'A'; must be unique"),
    ('nodes: ["n[0-3]", n2]', "1: nodes[1].name: found 'n2'; must be unique, and nodes[0] has"),
    (
        "nodes:\n- {name: a, address: 10.0.0.1}\n- {name: b, address: 10.0.0.1}",
        "3: nodes[1].address: found '10.0.0.1'; must be unique, and nodes[0] is reached by it",
    ),
    (
        "nodes:\n- {name: a, address: '::1'}\n- {name: b, address: '0:0::1'}",
        "3: nodes[1].address: found '0:0::1'; must be unique",
    ),
    ("nodes: [a, {name: b, address: a}]", "1: nodes[1].address: found 'a'; must be unique"),
    (
        'nodes: [{name: "n[0-1]", address: 10.0.0.1}]',
        "1: nodes[0].address: found '10.0.0.1'; must be unique",
    ),
    ("nodes: [a, node_1]", f"1: nodes[1].name: found 'node_1'; {HOST}"),
    ("nodes: node_[0-9999]", f"1: nodes: found 'node_0'; {HOST}"),
    ("nodes: [-a]", f"1: nodes[0].name: found '-a'; {HOST}"),
    ("nodes: [a-]", f"1: nodes[0].name: found 'a-'; {HOST}"),
    ("nodes: [a..b]", f"1: nodes[0].name: found 'a..b'; {HOST}"),
    ("nodes: [a.]", f"1: nodes[0].name: found 'a.'; {HOST}"),
    ("nodes: ['']", f"1: nodes[0].name: found ''; {HOST}"),
    ("nodes: ['a b']", f"1: nodes[0].name: found 'a b'; {HOST}"),
    ("nodes: [ä]", f"1: nodes[0].name: found 'ä'; {HOST}"),
    (f"nodes: [{LONG}]", f"1: nodes[0].name: found '{LONG[:57]}...'; {HOST}"),
    ("nodes: [10.0.0.1]", "1: nodes[0].name: found '10.0.0.1'; must be a host name, and one whose"),
    ("nodes: ['7']", "1: nodes[0].name: found '7'; must be a host name, and one whose last part"),
    ("nodes: localhost", "1: nodes: found 'localhost'; must be another name"),
    ("nodes: [{slots: 2}]", "1: nodes[0].name: is missing and must be there"),
    ("nodes: [{name: 7}]", "1: nodes[0].name: found 7; must be text; quote it"),
    ("nodes: [{name: [a]}]", "1: nodes[0].name: found a list; must be text"),
    ("nodes: [{name: a, address: 300.1.1.1}]", "1: nodes[0].address: found '300.1.1.1'; must be"),
    ("nodes: [{name: a, address: 0.0.0.0}]", "1: nodes[0].address: found '0.0.0.0'; must be the"),
    ("nodes: [{name: a, address: 224.0.0.1}]", "1: nodes[0].address: found '224.0.0.1'; must be"),
    ("nodes: [{name: a, address: a_b}]", "1: nodes[0].address: found 'a_b'; must be an IP address"),
    ("nodes: [{name: a, interface: 'e 0'}]", "1: nodes[0].interface: found 'e 0'; must be the"),
    ("nodes: [{name: a, cpus: 0}]", "1: nodes[0].cpus: found 0; must be at least 0.01"),
    ("nodes: [{name: a, cpus: '2'}]", "1: nodes[0].cpus: found '2'; must be a number without"),
    ("nodes: [{name: a, cpus: true}]", "1: nodes[0].cpus: found true; must be a number"),
    ("nodes: [{name: a, memory: -1}]", "1: nodes[0].memory: found -1; must be an amount of memory"),
    ("nodes: [4]", "1: nodes[0]: found 4; must be a name, a node set or a mapping"),
    ("nodes: [[a]]", "1: nodes[0]: found a list; must be a name, a node set or a mapping"),
    ("nodes: [null]", "1: nodes[0]: found nothing; must be a name, a node set or a mapping"),
    ("nodes: []", "1: nodes: found an empty list; must have at least one node"),
    ("nodes: 0", "1: nodes: found 0; must be at least 1"),
    ("nodes: -4", "1: nodes: found -4; must be at least 1"),
    ("nodes: 1.5", f"1: nodes: found 1.5; {LIST_RULE}"),
    ("nodes: true", f"1: nodes: found true; {LIST_RULE}"),
    ("nodes:", f"1: nodes: found nothing; {LIST_RULE}"),
    ("nodes: {name: a}", f"1: nodes: found a mapping; {LIST_RULE}"),
    ("name: x", "1: nodes: is missing and must be there"),
    ("nodes: 2-4", "1: nodes: found '2-4'; must be one number: only slurm takes a range of counts"),
    ("on: slurm\nnodes: 4-2", "2: nodes: found '4-2'; must be fewest-most, such as 2-4"),
    ("on: slurm\nnodes: 0-2", "2: nodes: found '0-2'; must be fewest-most"),
    ("nodes: 2\nmin_nodes: 1", "2: min_nodes: found 1; must be left out unless the topology is"),
    ("on: slurm\nnodes: 2\nmin_nodes: 3", "3: min_nodes: found 3; must be at most the number of"),
    # Node sets.
    ("nodes: node[0-3", "1: nodes: found 'node[0-3'; must be a node set such as"),
    ("nodes:\n- a\n- node[0-x]", "3: nodes[1]: found 'node[0-x]'; must be a node set such as"),
    (
        "nodes: node[0-999999999]",
        "1: nodes: found 'node[0-999999999]'; must be at most 100,000 nodes, and this is "
        "1,000,000,000",
    ),
    ("nodes: 1000000000", "1: nodes: found 1000000000; must be at most 100,000 nodes"),
    ("nodes:\n- a[1-60000]\n- b[1-60000]", "1: nodes: found a list; must be at most 100,000"),
    (f"nodes: {'9' * 5000}", "1: nodes: has more digits than a number can have"),
    (f"nodes: '{'9' * 5000}'", "1: nodes: found '999"),
    # Slots and other numbers.
    ("nodes: [a, b, {name: c,\n slots: 0}]", "2: nodes[2].slots: found 0; must be at least 1"),
    ("nodes: 4\nslots: 0", "2: slots: found 0; must be at least 1"),
    ("nodes: 4\nslots: -2", "2: slots: found -2; must be at least 1"),
    ("nodes: 4\nslots: 1025", "2: slots: found 1025; must be at most 1024"),
    ("nodes: 4\nslots: true", "2: slots: found true; must be a whole number"),
    ("nodes: 4\nslots: 2.0", "2: slots: found 2.0; must be a whole number"),
    ("nodes: 4\nslots: '2'", "2: slots: found '2'; must be a whole number without quotes"),
    ("nodes: 4\nslots: two", "2: slots: found 'two'; must be a whole number"),
    ("nodes: 4\nslots: [1]", "2: slots: found a list; must be a whole number"),
    (f"nodes: 4\nslots: 0x{'9' * 5000}", "2: slots: found a very long number; must be at most"),
    # Place and backend.
    ("nodes: 4\non: mars", "2: on: found 'mars'; must be local, docker, ssh or slurm"),
    ("nodes: 4\non: Docker", "2: on: found 'Docker'; must be local, docker, ssh or slurm; did you"),
    ("nodes: 4\nbackend: mpi", "2: backend: found 'mpi'; must be auto, gloo or nccl"),
    ("nodes: 4\nbackend: nccl", "2: backend: found 'nccl'; must be gloo or auto, since these"),
    (
        "nodes: 4\nslots: 2\nbackend: nccl\ndocker: {gpus: 1}",
        "4: docker.gpus: found 1; must be at least 2: nccl wants a GPU for each of a node's ranks",
    ),
    # Master.
    ("nodes: 2\nmaster:\n  port: 0", "3: master.port: found 0; must be at least 1"),
    ("nodes: 2\nmaster:\n  port: 65536", "3: master.port: found 65536; must be at most 65535"),
    ("nodes: 2\nmaster: {port: -1}", "2: master.port: found -1; must be at least 1"),
    ("nodes: 2\nmaster: {port: '1'}", "2: master.port: found '1'; must be a whole number without"),
    ("nodes: 2\nmaster: {port: 29500.0}", "2: master.port: found 29500.0; must be a whole number"),
    ("nodes: 2\nmaster: {port: true}", "2: master.port: found true; must be a whole number"),
    ("nodes: 2\nmaster: node0", "2: master: found 'node0'; must be a mapping"),
    (
        "nodes: 2\nmaster: {addr: node1}",
        "2: master.addr: found 'node1'; must be the first node's name or address (node0): rank 0 "
        "runs there and hosts the rendezvous; to meet on node1, put it first in `nodes`",
    ),
    (
        "nodes: [{name: a, address: 10.0.0.1}]\nmaster: {addr: b}",
        "2: master.addr: found 'b'; must be the first node's name or address (a or 10.0.0.1): "
        "rank 0 runs there and hosts the rendezvous; and this is none of the nodes",
    ),
    ("nodes: 2\nmaster: {addr: 'a b'}", "2: master.addr: found 'a b'; must be"),
    # Environment.
    ("nodes: 1\nenv: {A: true}", '2: env.A: found true; must be text; quote it: "true"'),
    ("nodes: 1\nenv: {A: }", "2: env.A: found nothing; must be text"),
    ("nodes: 1\nenv: {A: [1]}", "2: env.A: found a list; must be text"),
    ("nodes: 1\nenv: {1A: x}", "2: env.1A: must be the name of a variable"),
    ("nodes: 1\nenv: {A=B: x}", "2: env.A=B: must be the name of a variable"),
    ("nodes: 1\nenv: {RANK: 0}", "2: env.RANK: is set by the lab for every rank and cannot be"),
    (
        "nodes: 1\nenv: {MASTER_PORT: 1}",
        "2: env.MASTER_PORT: is set by the lab for every rank; use",
    ),
    ("nodes: 1\nenv: {LAB_X: 1}", "2: env.LAB_X: is set by the lab"),
    ('nodes: 1\nenv: {A: "\\0"}', "2: env.A: found '\\x00'; must not hold a NUL character"),
    ("nodes: 1\nenv: [A=1]", "2: env: found a list; must be a mapping"),
    # Docker.
    ("nodes: 1\ndocker: 3", "2: docker: found 3; must be a mapping"),
    ("nodes: 1\ndocker: {cpus: -1}", "2: docker.cpus: found -1; must be at least 0.01"),
    ("nodes: 1\ndocker: {cpus: .inf}", "2: docker.cpus: found inf; must be"),
    ("nodes: 1\ndocker: {cpus: .nan}", "2: docker.cpus: found nan; must be"),
    ("nodes: 1\ndocker: {memory: -2g}", "2: docker.memory: found '-2g'; must be an amount"),
    ("nodes: 1\ndocker: {memory: 2x}", "2: docker.memory: found '2x'; must be an amount"),
    ("nodes: 1\ndocker: {memory: 1.5}", "2: docker.memory: found 1.5; must be an amount"),
    ("nodes: 1\ndocker: {memory: true}", "2: docker.memory: found true; must be an amount"),
    ("nodes: 1\ndocker: {memory: 2}", "2: docker.memory: found 2; must be an amount of memory"),
    ("nodes: 1\ndocker: {shm: 1k}", "2: docker.shm: found '1k'; must be an amount"),
    ("nodes: 1\ndocker: {internet: yes}", "2: docker.internet: found 'yes'; must be true or false"),
    ("nodes: 1\ndocker: {internet: 1}", "2: docker.internet: found 1; must be true or false"),
    ("nodes: 1\ndocker: {gpus: 0}", "2: docker.gpus: found 0; must be `all` or the number of GPUs"),
    ("nodes: 1\ndocker: {gpus: true}", "2: docker.gpus: found true; must be `all` or"),
    ("nodes: 1\ndocker: {link: 1gbit}", "2: docker.link: found '1gbit'; must be a mapping"),
    ("nodes: 1\ndocker: {link: {rate: 1}}", "2: docker.link.rate: found 1; must be bits per"),
    ("nodes: 1\ndocker: {link: {rate: 1gb}}", "2: docker.link.rate: found '1gb'; must be bits"),
    ("nodes: 1\ndocker: {link: {rate: 1mbps}}", "2: docker.link.rate: found '1mbps'; must be bits"),
    ("nodes: 1\ndocker: {link: {rate: 0bit}}", "2: docker.link.rate: found '0bit'; must be bits"),
    ("nodes: 1\ndocker: {link: {rate: -1mbit}}", "2: docker.link.rate: found '-1mbit'; must be"),
    ("nodes: 1\ndocker: {link: {delay: 5}}", "2: docker.link.delay: found 5; must be a time with"),
    ("nodes: 1\ndocker: {link: {delay: 1min}}", "2: docker.link.delay: found '1min'; must be a"),
    ("nodes: 1\ndocker: {link: {delay: 11s}}", "2: docker.link.delay: found '11s'; must be a time"),
    ("nodes: 1\ndocker: {link: {loss: 0.1}}", "2: docker.link.loss: found 0.1; must be the share"),
    ("nodes: 1\ndocker: {link: {loss: 100%}}", "2: docker.link.loss: found '100%'; must be the"),
    ("nodes: 1\ndocker: {link: {loss: -1%}}", "2: docker.link.loss: found '-1%'; must be the"),
    # SSH and Slurm.
    ("nodes: 1\nssh: {user: -oProxyCommand=x}", "2: ssh.user: found '-oProxyCommand=x'; must be"),
    ("nodes: 1\nssh: {port: '22'}", "2: ssh.port: found '22'; must be a whole number without"),
    ("nodes: 1\nssh: {workdir: ''}", "2: ssh.workdir: found ''; must be one line of text"),
    ("nodes: 1\nssh: {password: x}", "2: ssh.password: unknown key."),
    ("nodes: 1\nslurm: {time: soon}", "2: slurm.time: found 'soon'; must be one of Slurm's forms"),
    ("nodes: 1\nslurm: {time: 0}", "2: slurm.time: found 0; must be one of Slurm's forms of time"),
    ("nodes: 1\nslurm: {gpus_per_node: 0}", "2: slurm.gpus_per_node: found 0; must be at least 1"),
    ("nodes: 1\nslurm: {extra: [qos=x]}", "2: slurm.extra[0]: found 'qos=x'; must be an option of"),
    ("nodes: 1\nslurm: {extra: --qos=x}", "2: slurm.extra: found '--qos=x'; must be a list"),
    ('nodes: 1\nslurm: {extra: ["--a=b\\nrm"]}', "2: slurm.extra[0]: found '--a=b\\nrm'; must be"),
    ("nodes: 1\nslurm: {partition: 'a b'}", "2: slurm.partition: found 'a b'; must be a name"),
    # Job.
    ("nodes: 1\njob: {args: [a]}", "2: job.script: is missing and must be there"),
    ("nodes: 1\njob: {script: ''}", "2: job.script: found ''; must be one line of text"),
    ("nodes: 1\njob: {script: [a]}", "2: job.script: found a list; must be text"),
    ("nodes: 1\njob: {script: a.py, args: -v}", "2: job.args: found '-v'; must be a list"),
    (
        "nodes: 1\njob: {script: a.py, args: [true]}",
        "2: job.args[0]: found true; must be text; quote",
    ),
    ("nodes: 1\njob: a.py", "2: job: found 'a.py'; must be a mapping"),
    # The name.
    ("nodes: 1\nname: ../x", "2: name: found '../x'; must be at most 63 letters"),
    ("nodes: 1\nname: a.b", "2: name: found 'a.b'; must be at most 63 letters"),
    ("nodes: 1\nname: 7", '2: name: found 7; must be text; quote it: "7"'),
    # YAML.
    ("nodes: 1\nnodes: 2", "2: nodes: must stand here once, and stands in line 1 already"),
    (
        "nodes:\n- name: a\n  name: b",
        "3: nodes[0].name: must stand here once, and stands in line 2",
    ),
    ("nodes: 1\ndocker:\n\tcpus: 1", "3: is indented with a tab, which YAML does not allow; use"),
    ("\tnodes: 1", "1: is indented with a tab, which YAML does not allow; use spaces"),
    ("nodes:\n  - a\n \t- b", "3: is indented with a tab"),
    ("nodes: [node[0-3]]", "1: is no valid YAML: while parsing a flow sequence"),
    ("nodes: 'a", "1: is no valid YAML: while scanning a quoted scalar"),
    ("nodes: *a", "1: is no valid YAML: found undefined alias"),
    ("nodes: 1\n---\nnodes: 2", "2: is no valid YAML: expected a single document"),
    ("a: b: c", "1: is no valid YAML: mapping values are not allowed"),
    ("nodes: 1\n? [a]\n: b", "2: keys must be words"),
    ("nodes: !python/name:os.system 1", "1: nodes: must have no tag, and this has !python/name"),
    ("nodes: !!binary aGk=", "1: nodes: must have no tag, and this has tag:yaml.org,2002:binary"),
    ("nodes: !!int x", "1: nodes: has more digits than a number can have"),
    ("- a\n- b", "1: must be a mapping (lines of `key: value`), and the file holds a list"),
    ("quad", "1: must be a mapping (lines of `key: value`), and the file holds a single value"),
    ("nodes: &a [*a]", "1: must be nested at most 20 levels deep"),
    (f"a: {'[' * 30}{']' * 30}", "1: must be nested at most 20 levels deep"),
    ("nodes: \x01", "1: is no text: "),
]


@pytest.mark.parametrize(("text", "message"), SINGLE)
def test_one_thing_wrong_is_one_message(text: str, message: str) -> None:
    (found,) = problems(text)
    assert found.startswith(f"lab.yaml:{message}")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n", "null\n"])
def test_an_empty_file(text: str) -> None:
    (found,) = problems(text)
    assert "empty" in found


def test_the_hint_about_quotes_inside_brackets() -> None:
    (found,) = problems("nodes: [node[0-3]]")
    assert found.endswith("inside [...] and {...} quote node sets: 'node[0-3]'")


def test_everything_wrong_is_said_in_the_order_of_the_file() -> None:
    text = """\
name: quad
backned: gloo
nodes:
  - {name: a, slots: 0}
  - {name: b_, address: 10.0.0.1}
  - {name: a, address: 10.0.0.1}
slots: no
slots: 2
master: {port: 0, addr: c}
env: {RANK: 1}
"""
    starts = [
        "lab.yaml:2: backned: unknown key",
        "lab.yaml:4: nodes[0].slots: found 0;",
        "lab.yaml:5: nodes[1].name: found 'b_';",
        "lab.yaml:6: nodes[2].name: found 'a';",
        "lab.yaml:7: slots: found 'no';",
        "lab.yaml:8: slots: must stand here once",
        "lab.yaml:9: master.port: found 0;",
        "lab.yaml:9: master.addr: found 'c';",
        "lab.yaml:10: env.RANK: is set by the lab",
    ]
    found = problems(text)
    assert len(found) == len(starts)
    for message, start in zip(found, starts, strict=True):
        assert message.startswith(start)


def test_a_wrong_default_is_said_once() -> None:
    assert len(problems("nodes: 1000\nslots: 0")) == 1


def test_of_very_many_problems_the_message_shows_some() -> None:
    with pytest.raises(TopologyError) as caught:
        parse_topology("nodes:\n" + "- {name: a, slots: 1}\n" * 10_000)
    assert len(caught.value.problems) == 9_999
    assert str(caught.value).count("\n") == 20
    assert str(caught.value).endswith("... and 9,979 more problems")


def test_aliases_cannot_blow_up() -> None:
    names = "abcdefghij"
    lines = [f"a: &a [{'x,' * 9}x]"]
    lines += [
        f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]" for before, name in pairwise(names)
    ]
    (found,) = problems("\n".join(lines))
    assert found.endswith("must not stand for more than 10,000 values through aliases")


def test_no_depth_of_nesting_ends_in_a_traceback() -> None:
    (found,) = problems(f"a: {'[' * 3000}")
    assert "nest" in found


def test_problems_are_data_too() -> None:
    with pytest.raises(TopologyError) as caught:
        parse_topology("nodes: 4\nbackend: ncl\nbackned: x", "lab.yaml")
    allowed = "must be auto, gloo or nccl"
    assert caught.value.problems == (
        Problem("lab.yaml", 2, "backend", "'ncl'", allowed, "nccl"),
        UnknownKey("lab.yaml", 3, "backned", "'backned'", TOP, "backend"),
    )
    assert caught.value.exit_code == 2
