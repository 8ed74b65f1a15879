"""Whether nodes answer, and whether their names lead where they should."""

from lab.doctor.check import Check, listed
from lab.doctor.examined import Examined, is_loopback

ABSENT = {
    "docker": "lab up brings it up; docker unpause wakes a container that is paused",
    "ssh": "try ssh by hand; lab trust HOST where its key is not known; lab hosts",
    "slurm": "sinfo -N says how the host is",
    "local": "try again",
}
"""What to do about a node that does not answer."""


def answers(exam: Examined) -> list[Check]:
    """Whether every node can be reached and has a Python that tells of it."""
    checks = [
        Check("answers", "fail", f"{name}: {problem}", (name,), ABSENT[exam.on])
        for name, problem in exam.problems.items()
    ]
    if exam.seen:
        of = f" of {len(exam.names)}" if exam.problems else ""
        found = f"{len(exam.seen)}{of} node{'s' * (len(exam.names) > 1)}"
        checks.append(Check("answers", "pass", found, exam.seen))
    return checks


def names(exam: Examined) -> list[Check]:
    """Whether every node resolves the master and every peer, and to no address of its own."""
    checks = []
    for name, answers_ in exam.values("names").items():
        for peer in exam.patients:
            if peer.name == name or peer.name in exam.problems:  # engines forget who has ended
                continue
            called = f"{peer.address}, the master," if peer == exam.master else peer.address
            answer = answers_[peer.name]
            if "error" in answer:
                checks.append(
                    Check(
                        "names",
                        "fail",
                        f"{name} cannot resolve {called.rstrip(',')}: {answer['error']}",
                        (name, peer.name),
                        f"put {peer.address} into the name service or into /etc/hosts of {name}, "
                        f"or give {peer.name} an IP address in the topology",
                    )
                )
                continue
            loops = [one for one in answer["addresses"] if is_loopback(one)]
            if loops and not exam.share_a_network(name, peer.name):
                checks.append(
                    Check(
                        "names",
                        "fail",
                        f"on {name} the name {called} means {loops[0]}, which is {name} itself",
                        (name, peer.name),
                        f"take {peer.address} off the line of {loops[0]} in /etc/hosts of {name}, "
                        f"or give {peer.name} an IP address in the topology",
                    )
                )
    if exam.seen and not checks:
        found = "every node finds every other by its name or address"
        checks.append(Check("names", "pass", found, exam.seen))
    return checks if len(exam.patients) > 1 else []


def gloo_address(exam: Examined) -> list[Check]:
    """Whether the address by which gloo tells peers to come is one that peers can come to.

    Without GLOO_SOCKET_IFNAME it is what the host's own name means: Debian's 127.0.1.1, say.
    """
    if exam.backend != "gloo" or len(exam.patients) == 1 or not exam.seen:
        return []
    wrong = {}
    for name, address in exam.values("advertises").items():
        alone = not all(exam.share_a_network(name, other) for other in exam.seen)
        if alone and (address is None or is_loopback(address)):
            wrong[name] = address
    checks = []
    for name, address in wrong.items():
        own = exam.looks[name]["hostname"]
        what = (
            f"its own name {own}" if address is None else f"{own}, its own name, means {address},"
        )
        why = "does not lead to an interface" if address is None else "which only it can reach"
        route = next(
            (to for to in exam.looks[name]["routes"].values() if to not in (None, "lo")), "NAME"
        )
        checks.append(
            Check(
                "gloo-address",
                "fail",
                f"{name}: {what} {why}: gloo would send its peers there",
                (name,),
                f"name the interface: interface: {route} of {name} in the topology, or "
                f"GLOO_SOCKET_IFNAME={route}",
            )
        )
    if not checks:
        ones = [f"{name} {address}" for name, address in exam.values("advertises").items()]
        more = f" and {len(ones) - 4} more" if len(ones) > 4 else ""
        checks.append(Check("gloo-address", "pass", ", ".join(ones[:4]) + more, exam.seen))
    return checks


def interface(exam: Examined) -> list[Check]:
    """Whether GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name what leads to the peers."""
    checks = []
    for name in exam.seen:
        look = exam.looks[name]
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            wanted = look["variables"].get(variable)
            if wanted is not None:
                checks += _judge_interface(exam, name, variable, wanted)
    if exam.seen and not checks and len(exam.patients) > 1:
        used = {name: sorted(_to_peers(exam, name)) for name in exam.seen if _to_peers(exam, name)}
        words = dict.fromkeys(" and ".join(ones) for ones in used.values())
        found = f"packets for peers leave by {' or '.join(words)}" if words else "loopback"
        checks.append(Check("interface", "pass", found, exam.seen))
    return checks


def _to_peers(exam: Examined, name: str) -> set[str]:
    """The interfaces by which a node's packets leave for its peers elsewhere."""
    routes = exam.looks[name]["routes"]
    return {
        routes[peer]
        for peer in exam.names
        if routes.get(peer) and peer != name and not exam.share_a_network(name, peer)
    }


def _judge_interface(exam: Examined, name: str, variable: str, wanted: str) -> list[Check]:
    there = exam.looks[name]["interfaces"]
    chosen = _chosen(variable, wanted, list(there))
    usable = ", ".join(
        one for one, of in there.items() if of["addresses"] and of["up"] is not False
    )
    cure = f"name one of {usable}: interface in the topology, or {variable}"
    if not chosen:
        more = " (gloo takes no ^)" if variable.startswith("GLOO") and "^" in wanted else ""
        found = f"{name} has no interface {wanted}, which {variable} names{more}"
        return [Check("interface", "fail", found, (name,), cure)]
    if not any(there[one]["addresses"] and there[one]["up"] is not False for one in chosen):
        found = (
            f"{listed(tuple(chosen))} of {name}, which {variable} names, is down or has no address"
        )
        return [Check("interface", "fail", found, (name,), cure)]
    leave = _to_peers(exam, name)
    if leave and not leave & set(chosen):
        by = " and ".join(sorted(leave))
        found = f"{variable} of {name} is {wanted}, but packets for its peers leave by {by}"
        return [Check("interface", "warn", found, (name,), f"name {by}, or correct the routes")]
    return []


def _chosen(variable: str, wanted: str, there: list[str]) -> list[str]:
    """The interfaces that a variable means.

    For gloo these are names. For NCCL prefixes, after = names, and after ^ what is left out (NCCL's
    documentation, Environment Variables, NCCL_SOCKET_IFNAME).
    """
    words = wanted.lstrip("^=").split(",")
    if variable.startswith("GLOO"):
        return [one for one in there if one in wanted.split(",")]
    if wanted.startswith("="):
        return [one for one in there if one in words]
    begins = [one for one in there if one.startswith(tuple(words))]
    return [one for one in there if one not in begins] if wanted.startswith("^") else begins
