"""Whether every node can connect to every other, on the ports that a run would use."""

import ipaddress

from lab.doctor.check import Check, listed
from lab.doctor.examined import Examined, Facts

WAYS = {
    "gloo": "any port, as gloo takes",
    "master": "the master's port",
    "advertised": "the address that gloo tells",
}
FIREWALL = (
    "let all TCP ports through between the nodes (look at iptables -L, nft list ruleset, ufw)"
)


def connections(exam: Examined) -> list[Check]:
    """TCP connections between every pair, in both directions; what refuses is named by pair."""
    broken: dict[tuple[str, str], str] = {}
    made = 0
    for one in filter(exam.connected.get, exam.names):
        for other, ways in exam.connected[one].items():
            why = {way: _problem(other, answer) for way, answer in ways.items()}
            bad = {way: words for way, words in why.items() if words is not None}
            made += not bad
            if bad:
                broken[one, other] = _in_words(exam, other, bad, len(ways))
    checks = []
    done: set[tuple[str, str]] = set()
    for (one, other), words in broken.items():
        if (one, other) in done:
            continue
        mutual = broken.get((other, one)) is not None
        done |= {(one, other), (other, one)} if mutual else {(one, other)}
        text = (
            f"{one} and {other} cannot connect to each other"
            if mutual
            else (f"{one} cannot connect to {other}")
        )
        checks.append(Check("connections", "fail", f"{text}: {words}", (one, other), _cure(words)))
    if exam.connected and not broken and made:
        found = f"{made} of {made}: every node to every other"
        checks.append(Check("connections", "pass", found, exam.seen))
    return checks


def _problem(other: str, answer: Facts) -> str | None:
    """What is wrong with one connection; None: nothing."""
    if "error" in answer:
        return str(answer["error"])
    if answer["who"] == other:
        return None
    return f"{answer['who']} answers" if answer["who"] else "a stranger answers"


def _in_words(exam: Examined, other: str, bad: dict[str, str], ways: int) -> str:
    address = exam.patient(other).address
    where = "" if len(bad) == ways else f" ({listed(tuple(WAYS[way] for way in bad))})"
    whats = dict.fromkeys(bad.values())
    told = exam.looks[other]["advertises"] if "advertised" in bad else None
    at = f"{address}" if told in (None, address) else f"{address}, {told}"
    return f"{' and '.join(whats)} at {at}{where}"


def _cure(words: str) -> str:
    if "answers" in words:
        return "two nodes have one address, or a name leads elsewhere: correct it"
    return FIREWALL


def port(exam: Examined) -> list[Check]:
    """Whether the port to meet at is free on the master, and who holds it."""
    look = exam.looks.get(exam.master.name)
    if look is None:
        return []
    where = (exam.master.name,)
    if look["port_problem"] is not None:
        found = f"{exam.master.name}: {look['port_problem'].partition(': name')[0]}"
        cure = "end what holds it, or take another: master: {port: ...} in the topology, or none"
        return [Check("port", "fail", found, where, cure)]
    number = look["ports"]["master"]
    how = "" if exam.asked_port else " (each run picks a free one)"
    return [Check("port", "pass", f"{number} is free on {exam.master.name}{how}", where)]


def exposed(exam: Examined) -> list[Check]:
    """Whether the store, which asks nobody who he is, listens on an address of the internet.

    torch binds it to all interfaces (torch.distributed.TCPStore).
    """
    look = exam.looks.get(exam.master.name)
    if look is None:
        return []
    open_ones = [
        address
        for interface in look["interfaces"].values()
        if interface["up"] is not False
        for address in interface["addresses"]
        if _is_public(address)
    ]
    if open_ones:
        found = (
            f"{exam.master.name} has the public address {open_ones[0]}: the store of torch listens "
            "there too, and takes orders from anybody"
        )
        cure = "a firewall that lets only the nodes in, or nodes on a private network"
        return [Check("exposed", "warn", found, (exam.master.name,), cure)]
    return [Check("exposed", "pass", f"{exam.master.name} has no public address", exam.seen[:1])]


def _is_public(address: str) -> bool:
    """Whether the internet may lead here.

    IPv6 is left out: most machines have such addresses, behind a router that lets nobody in.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    return ip.version == 4 and ip.is_global
