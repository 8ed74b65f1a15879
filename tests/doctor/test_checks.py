"""What each check says of facts: nothing of healthy nodes; of a fault who, what and the cure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.doctor.check import Check, worst
from lab.doctor.checks import CHECKS, judge
from lab.doctor.examined import Examined, Patient
from tests.doctor.patients import GIB, give_gpus, healthy

Fault = Callable[[Examined], None]


def bad(exam: Examined) -> list[Check]:
    return [check for check in judge(exam) if check.status != "pass"]


def look(exam: Examined, node: str) -> dict[str, Any]:
    facts = exam.looks[node]
    assert isinstance(facts, dict)
    return facts


@pytest.mark.parametrize("count", [1, 2, 4, 9])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_nothing_is_said_against_healthy_nodes(count: int, backend: str) -> None:
    exam = healthy(count, backend=backend)
    if backend == "nccl":
        give_gpus(exam)
    assert bad(exam) == []
    assert worst(judge(exam)) == "pass"


def test_nothing_is_said_of_what_is_not_known_yet() -> None:
    patients = tuple(Patient(f"node{rank}", f"node{rank}") for rank in range(3))
    assert judge(Examined("docker", "gloo", patients)) == []
    known = healthy()
    for part in ("torch", "connected", "measured", "roll_call"):
        setattr(known, part, {})
    known.is_called = False
    assert {check.name for check in judge(known)} == {
        *("answers", "names", "gloo-address", "interface", "port", "exposed", "mtu", "python"),
        *("code", "environment", "cores", "memory", "shared-memory", "limits", "container"),
        *("disk", "kernel"),
    }


def test_every_check_has_a_name_of_its_own_in_the_docs() -> None:
    docs = (Path(__file__).parents[2] / "docs/doctor.md").read_text()
    exam = healthy(backend="nccl", on="slurm")
    give_gpus(exam)
    for facts in exam.looks.values():
        assert isinstance(facts, dict)
        facts["slurm"] = {"munge": "down", "slurmctld": None}
        facts["gpu_links"] = {"NV18": ["0-1"]}
    look(exam, "node1")["gpus"][0]["driver"] = "535"
    names = {check.name for check in [*judge(exam), *judge(healthy())]}
    assert len(names) == len(CHECKS) + 1  # `driver` is one of `backend`'s, `munge` of `slurm`'s
    assert [name for name in names if f"`{name}`" not in docs] == []


def expect(exam: Examined, name: str, status: str, *words: str, nodes: tuple[str, ...]) -> None:
    """One line is not good, and this is it; it has a cure."""
    (found,) = bad(exam)
    assert (found.name, found.status, found.nodes) == (name, status, nodes)
    for word in words:
        assert word in f"{found.found} | {found.cure}"
    assert found.cure


# Reaching them


def test_a_node_that_does_not_answer() -> None:
    exam = healthy()
    del exam.looks["node2"]
    exam.problems["node2"] = "it is not up"
    look(exam, "node0")["names"]["node2"] = {"error": "Name or service not known"}
    found = bad(exam)
    assert [(check.name, check.nodes) for check in found] == [("answers", ("node2",))]
    assert "it is not up" in found[0].found


def test_a_master_that_means_loopback_somewhere() -> None:
    exam = healthy()
    look(exam, "node1")["names"]["node0"] = {"addresses": ["127.0.1.1"]}
    expect(
        exam,
        "names",
        "fail",
        "on node1 the name node0, the master, means 127.0.1.1, which is node1 itself",
        "/etc/hosts of node1",
        nodes=("node1", "node0"),
    )


def test_loopback_is_good_where_nodes_share_a_machine() -> None:
    exam = healthy(2, on="local")
    for node in ("node0", "node1"):
        facts = look(exam, node)
        facts.update(network="one", advertises="127.0.0.1")
        facts["names"] = {name: {"addresses": ["127.0.0.1"]} for name in exam.names}
        facts["routes"] = dict.fromkeys(exam.names, "lo")
    assert bad(exam) == []


def test_a_name_that_nobody_knows() -> None:
    exam = healthy()
    look(exam, "node3")["names"]["node1"] = {"error": "Name or service not known"}
    expect(
        exam,
        "names",
        "fail",
        "node3 cannot resolve node1: Name or service not known",
        "IP address in the topology",
        nodes=("node3", "node1"),
    )


@pytest.mark.parametrize("address", ["127.0.1.1", None])
def test_a_host_whose_own_name_leads_nowhere(address: str | None) -> None:
    exam = healthy()
    look(exam, "node2")["advertises"] = address
    expect(
        exam,
        "gloo-address",
        "fail",
        "node2: ",
        "GLOO_SOCKET_IFNAME=eth0",
        nodes=("node2",),
    )


def test_an_interface_that_is_not_there() -> None:
    exam = healthy()
    look(exam, "node1")["variables"]["GLOO_SOCKET_IFNAME"] = "ens5"
    found = bad(exam)
    assert ("interface", "fail") in {(check.name, check.status) for check in found}
    assert "node1 has no interface ens5, which GLOO_SOCKET_IFNAME names" in found[0].found
    assert "lo, eth0" in (found[0].cure or "")


def test_an_interface_that_is_down() -> None:
    exam = healthy()
    look(exam, "node1")["variables"]["NCCL_SOCKET_IFNAME"] = "ib"
    expect(exam, "interface", "fail", "ib0 of node1", "down or has no address", nodes=("node1",))


def test_an_interface_that_does_not_lead_to_the_peers() -> None:
    exam = healthy()
    facts = look(exam, "node1")
    facts["interfaces"]["wlan0"] = {"addresses": ["192.168.1.7"], "mtu": 1500, "up": True}
    facts["variables"]["GLOO_SOCKET_IFNAME"] = "wlan0"
    expect(exam, "interface", "warn", "wlan0", "leave by eth0", nodes=("node1",))


@pytest.mark.parametrize("wanted", ["eth", "=eth0", "^ib,lo"])
def test_ncclls_way_to_name_interfaces(wanted: str) -> None:
    exam = healthy()
    look(exam, "node1")["variables"]["NCCL_SOCKET_IFNAME"] = wanted
    assert [check for check in bad(exam) if check.name == "interface"] == []


def test_gloo_takes_no_exclusion() -> None:
    exam = healthy()
    for node in exam.names:
        look(exam, node)["variables"]["GLOO_SOCKET_IFNAME"] = "^lo"
    found = bad(exam)
    assert [check.nodes for check in found] == [(name,) for name in exam.names]
    assert "gloo takes no ^" in found[0].found


# Connections


def test_a_firewall_between_two_is_named_by_pair() -> None:
    exam = healthy()
    refused = {"error": "connection refused"}
    for one, other in (("node1", "node2"), ("node2", "node1")):
        exam.connected[one] = {
            **exam.connected[one],
            other: dict.fromkeys(("gloo", "advertised"), refused),
        }
        exam.measured.pop((one, other))
    expect(
        exam,
        "connections",
        "fail",
        "node1 and node2 cannot connect to each other: connection refused",
        "iptables",
        nodes=("node1", "node2"),
    )


def test_a_firewall_that_lets_only_the_masters_port_through() -> None:
    exam = healthy(2)
    ways = dict(exam.connected["node1"]["node0"])
    timed_out = {"error": "timed out"}
    exam.connected["node1"] = {"node0": {**ways, "gloo": timed_out, "advertised": timed_out}}
    expect(
        exam,
        "connections",
        "fail",
        "node1 cannot connect to node0: timed out",
        "any port, as gloo takes",
        nodes=("node1", "node0"),
    )


def test_another_node_that_answers() -> None:
    exam = healthy(2)
    other = {"who": "node7", "clock_ahead": 0.0, "clock_unsure": 0.0}
    exam.connected["node0"] = {"node1": {"gloo": other, "advertised": other}}
    expect(exam, "connections", "fail", "node7 answers", "one address", nodes=("node0", "node1"))


def test_a_port_that_is_held() -> None:
    exam = healthy()
    look(exam, "node0").update(
        port_problem="port 29500 is taken by pid 7 (python train.py): name another, or none",
        ports={"gloo": 40000},
    )
    expect(
        exam,
        "port",
        "fail",
        "port 29500 is taken by pid 7 (python train.py)",
        "master: {port:",
        nodes=("node0",),
    )


def test_a_store_on_the_internet() -> None:
    exam = healthy()
    look(exam, "node0")["interfaces"]["eth1"] = {"addresses": ["8.8.4.4"], "mtu": 1500, "up": True}
    expect(exam, "exposed", "warn", "public address 8.8.4.4", "firewall", nodes=("node0",))


# Links


def test_mtus_that_differ() -> None:
    exam = healthy()
    look(exam, "node3")["interfaces"]["eth0"]["mtu"] = 9000
    expect(exam, "mtu", "warn", "1500 on node0, node1 and node2; 9000 on node3", nodes=("node3",))


def test_a_link_that_is_slower_than_the_others() -> None:
    exam = healthy(on="ssh")
    exam.measured["node1", "node2"] = {"latency": 0.03, "bandwidth": 1.25e8}
    found = bad(exam)
    assert [(check.name, check.status) for check in found] == [
        ("latency", "warn"),
        ("bandwidth", "warn"),
    ]
    assert "node1 to node2: 30.00 ms, where 0.10 ms is usual here" in found[0].found
    assert "node1 to node2: 1.0 Gbit/s, where 10.0 Gbit/s is usual here" in found[1].found


def test_hosts_whose_links_are_all_slow() -> None:
    exam = healthy(2, on="ssh")
    for pair in exam.measured:
        exam.measured[pair] = {"latency": 1e-4, "bandwidth": 5e6}
    assert [check.name for check in bad(exam)] == ["bandwidth", "bandwidth"]


@pytest.mark.parametrize("on", ["docker", "ssh"])
def test_on_one_machine_cores_are_what_is_short_and_not_links(on: str) -> None:
    exam = healthy(on=on)
    for node in exam.names:
        look(exam, node)["machine"] = "one"
    exam.measured["node0", "node1"] = {"latency": 0.04, "bandwidth": 5e7}
    assert bad(exam) == []
    exam.measured["node0", "node1"] = {"latency": 0.04, "bandwidth": 5e6}
    assert [(check.name, check.nodes) for check in bad(exam)] == [("bandwidth", ("node0", "node1"))]


def test_large_packets_that_vanish() -> None:
    exam = healthy()
    exam.measured["node0", "node1"] = {"error": "timed out"}
    expect(exam, "bandwidth", "fail", "data does not get through", "MTU", nodes=("node0", "node1"))


@pytest.mark.parametrize(
    ("ahead", "status", "words"),
    [(-7.5, "warn", "node2 is 7.5 s behind node0"), (400.0, "fail", "400.0 s ahead of node0")],
)
def test_clocks_that_differ(ahead: float, status: str, words: str) -> None:
    exam = healthy()
    answer = {"who": "node2", "clock_ahead": ahead, "clock_unsure": 0.0}
    exam.connected["node0"] = {**exam.connected["node0"], "node2": {"gloo": answer}}
    expect(exam, "clock", status, words, "chrony", nodes=("node2",))


def test_a_clock_is_not_blamed_for_a_slow_answer() -> None:
    exam = healthy()
    answer = {"who": "node2", "clock_ahead": 3.0, "clock_unsure": 3.0}
    exam.connected["node0"] = {**exam.connected["node0"], "node2": {"gloo": answer}}
    assert bad(exam) == []


# Software


def test_another_python_on_one_node() -> None:
    exam = healthy()
    look(exam, "node1")["python"] = "3.12.1"
    words = "3.11.2 on node0, node2 and node3; 3.12.1 on node1"
    expect(exam, "python", "fail", words, nodes=("node1",))


def test_another_bug_fix_of_python_is_no_fault() -> None:
    exam = healthy()
    look(exam, "node1")["python"] = "3.11.9"
    assert bad(exam) == []


def test_another_torch_on_one_node() -> None:
    exam = healthy()
    exam.torch["node1"] = {**exam.torch["node1"], "version": "2.6.0"}
    expect(exam, "torch", "fail", "2.6.0 on node1", nodes=("node1",))


def test_a_torch_that_cannot_be_imported() -> None:
    exam = healthy(on="ssh")
    exam.torch["node3"] = {"error": "libcudart.so.12: cannot open shared object file"}
    expect(exam, "torch", "fail", "node3", "libcudart", "lab deploy", nodes=("node3",))


def test_hosts_that_nothing_has_been_deployed_to_are_not_to_blame() -> None:
    exam = healthy(on="ssh")
    exam.roll_call = {}
    for node in exam.names:
        look(exam, node)["code"] = None
        exam.torch[node] = {"error": "No module named 'torch'", "missing": True}
    assert [(check.name, check.status) for check in bad(exam)] == [
        ("torch", "warn"),
        ("roll-call", "warn"),
    ]


def test_backends_that_differ_or_are_not_there() -> None:
    exam = healthy(backend="nccl")
    give_gpus(exam)
    exam.torch["node1"] = {**exam.torch["node1"], "nccl": "2.18.1"}
    expect(exam, "backend", "fail", "NCCL 2.18.1", nodes=("node1",))
    exam.torch["node1"] = {**exam.torch["node1"], "nccl": None}
    expect(exam, "backend", "fail", "torch on node1 has no NCCL", nodes=("node1",))


def test_gloo_though_there_are_gpus() -> None:
    exam = healthy()
    give_gpus(exam)
    expect(exam, "backend", "warn", "backend: nccl", nodes=exam.names)


def test_code_that_differs_is_named_by_file() -> None:
    exam = healthy(on="ssh")
    files = {"train.py": "cc", "more.py": "dd"}
    look(exam, "node2")["code"] = {"files": files, "hash": "ee"}
    words = "more.py, train.py on node2 are not those of node0"
    expect(exam, "code", "fail", words, "lab deploy", nodes=("node2",))


def test_code_that_is_not_there() -> None:
    exam = healthy(on="slurm")
    look(exam, "node2")["code"] = None
    expect(exam, "code", "fail", "not there on node2", "by one path", nodes=("node2",))
    exam = healthy(on="ssh")
    for node in exam.names:
        look(exam, node)["code"] = None
    assert bad(exam) == []


def test_variables_that_differ() -> None:
    exam = healthy()
    look(exam, "node3")["variables"]["NCCL_P2P_DISABLE"] = "1"
    look(exam, "node3")["variables"]["CUDA_VISIBLE_DEVICES"] = "4,5"  # may well differ
    words = "NCCL_P2P_DISABLE is not set on node0, node1 and node2; 1 on node3"
    expect(exam, "environment", "warn", words, nodes=("node3",))


def test_threads_follow_cores_and_ranks() -> None:
    exam = healthy()
    look(exam, "node3")["variables"]["OMP_NUM_THREADS"] = "2"
    assert [check.nodes for check in bad(exam)] == [("node3",)]
    look(exam, "node3")["cores"] = 8.0
    assert bad(exam) == []
    exam = healthy()
    look(exam, "node3")["variables"]["OMP_NUM_THREADS"] = "2"
    exam.patients = (*exam.patients[:3], Patient("node3", "node3", 2))
    assert bad(exam) == []


def test_a_variable_that_crashes_ddp() -> None:
    exam = healthy()
    for node in exam.names:
        look(exam, node)["variables"]["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    expect(exam, "environment", "warn", "crash", "INFO", nodes=exam.names)


# Resources


def of_node(**facts: Any) -> Fault:
    return lambda exam: look(exam, "node1").update(facts)


@pytest.mark.parametrize(
    ("fault", "name", "words"),
    [
        (of_node(memory_free=GIB // 4), "memory", "268 MB free of 8.6 GB"),
        (of_node(shm={"total": GIB // 16, "free": GIB // 16}), "shared-memory", "67.1 MB"),
        (of_node(shm={"total": GIB, "free": 4096}), "shared-memory", "ls -l /dev/shm"),
        (of_node(disk_free=GIB // 2), "disk", "537 MB free"),
        (of_node(ulimits={"open files": [256, 4096]}), "limits", "256 open files"),
        (of_node(cgroup={"memory": None, "pids": 20}), "limits", "20 processes"),
    ],
)
def test_too_little_of_something(fault: Fault, name: str, words: str) -> None:
    exam = healthy()
    fault(exam)
    expect(exam, name, "warn", words, nodes=("node1",))


def test_a_folder_in_which_nothing_can_be_written() -> None:
    exam = healthy()
    of_node(writable=False)(exam)
    expect(exam, "disk", "fail", "nothing can be written", "ssh.workdir", nodes=("node1",))


def test_more_threads_than_cores() -> None:
    exam = healthy(on="ssh", slots=2)
    exam.torch["node1"] = {**exam.torch["node1"], "threads": 4}
    words = ("2 x 4 threads on 4 cores on node1", "OMP_NUM_THREADS: 2")
    expect(exam, "cores", "warn", *words, nodes=("node1",))


def test_more_ranks_than_cores() -> None:
    exam = healthy(on="ssh", slots=6)
    assert [(check.name, check.nodes) for check in bad(exam)] == [("cores", exam.names)]
    assert bad(healthy(on="docker", slots=6)) == []  # a rehearsal says so, and goes on


def test_a_kernel_that_cannot_do_what_is_asked() -> None:
    exam = healthy()
    for node in exam.names:
        look(exam, node)["netem"] = False
    assert bad(exam) == []
    exam.link = {"delay": "1ms"}
    expect(exam, "kernel", "fail", "sch_netem", "take delay and loss out", nodes=exam.names)


# GPUs, Slurm


def test_fewer_gpus_than_ranks() -> None:
    exam = healthy(backend="nccl", slots=8)
    for node in exam.names:
        look(exam, node)["cores"] = 64.0
    give_gpus(exam)
    exam.torch["node2"] = {**exam.torch["node2"], "gpus": 4}
    words = "node2: 8 ranks, and torch can use 4 GPUs, of 8 that nvidia-smi sees"
    expect(exam, "gpus", "fail", words, nodes=("node2",))


def test_a_gpu_that_somebody_uses() -> None:
    exam = healthy(backend="nccl")
    give_gpus(exam)
    look(exam, "node2")["gpus"][3]["memory_used"] = 30 * GIB
    expect(exam, "gpus", "warn", "GPU 3 has 30720 MiB in use", nodes=("node2",))


def test_munge_that_does_not_answer() -> None:
    exam = healthy(on="slurm")
    for node in exam.names:
        look(exam, node)["slurm"] = {"munge": None, "slurmctld": None}
    assert bad(exam) == []
    look(exam, "node2")["slurm"]["munge"] = "munge: Error: Failed to access socket"
    expect(exam, "munge", "fail", "node2: munge: Error", "systemctl", nodes=("node2",))


# The roll-call


def test_absent_ones_are_named() -> None:
    exam = healthy()
    del exam.roll_call["node2"]
    for answer in exam.roll_call.values():
        assert isinstance(answer, dict)
        answer["present"] = ["node0", "node1", "node3"]
    expect(
        exam,
        "roll-call",
        "fail",
        "node2 did not come; node0, node1 and node3 went on without",
        nodes=("node2",),
    )


def test_no_roll_call_without_the_master() -> None:
    exam = healthy()
    exam.roll_call = {}
    expect(exam, "roll-call", "fail", "node0, the master", nodes=("node0",))


def test_an_all_reduce_that_fails_or_is_wrong() -> None:
    exam = healthy()
    exam.roll_call["node3"] = {"error": "Connection refused"}
    expect(exam, "roll-call", "fail", "node3: Connection refused", nodes=("node3",))
    exam = healthy()
    exam.roll_call["node1"] = {**exam.roll_call["node1"], "sum_is_right": False}
    expect(exam, "roll-call", "fail", "the sum is wrong on node1", nodes=("node1",))
