"""Names, interfaces and routes as this node has them. Standard library only; sends nothing."""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.node.host import interface_towards, ipv4_interfaces, ipv6_interfaces

RESOLVE_WITHIN = 4.0
"""Seconds for all names; a name server that is away would keep us for half a minute."""


def look_around(peers: Mapping[str, str], env: Mapping[str, str]) -> dict[str, Any]:
    """Look at the network.

    Args:
        peers: name of each node -> its address, or the name by which it is reached.
        env: of the ranks; which interface gloo takes stands there.

    Returns:
        `machine` (equal for nodes on one), `network` (equal for those that share its stack),
        `interfaces` (name -> `addresses`, `mtu`, `up`), `names` (peer -> `addresses` or `error`),
        `routes` (peer -> interface, or None), `own_name` (what the host's own name stands for,
        likewise) and `advertises` (the address by which gloo tells the others to come here; None:
        it finds none).
    """
    hostname = socket.gethostname()
    found = interfaces()
    names = resolve_all([*peers.values(), hostname])
    return {
        "machine": _machine(),
        "network": f"{_machine()} {_namespace()}",
        "interfaces": found,
        "names": {peer: names[address] for peer, address in peers.items()},
        "routes": {peer: _route(names[address]) for peer, address in peers.items()},
        "own_name": names[hostname],
        "advertises": _advertised(env.get("GLOO_SOCKET_IFNAME"), found, names[hostname]),
    }


def _machine() -> str:
    """Stands for the kernel that runs here: containers of one machine have one."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


def _namespace() -> str:
    """Stands for the network namespace (Linux)."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/net").readlink())
    return ""


def resolve_all(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Ask for the addresses of names side by side: `addresses`, or `error` in words."""
    found: dict[str, dict[str, Any]] = {}

    def ask(name: str) -> None:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            addresses = dict.fromkeys(str(answer[4][0]) for answer in answers)
            found[name] = {"addresses": list(addresses)}
        except (OSError, UnicodeError) as error:
            found[name] = {"error": getattr(error, "strerror", None) or str(error)}

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in set(names)]
    for thread in threads:
        thread.start()
    give_up = time.monotonic() + RESOLVE_WITHIN
    for thread in threads:
        thread.join(max(0.0, give_up - time.monotonic()))
    late = {"error": f"no name server answered in {RESOLVE_WITHIN:g} s"}
    return {name: found.get(name, late) for name in names}


def _route(answer: Mapping[str, Any]) -> str | None:
    """The interface by which packets leave for a peer; None: there is no way, or it has no name."""
    for address in answer.get("addresses", []):
        with contextlib.suppress(OSError):
            return interface_towards(address)
    return None


def interfaces() -> dict[str, dict[str, Any]]:
    """The network interfaces: their addresses, MTU, and whether they are up."""
    found: dict[str, dict[str, Any]] = {}
    for _, name in socket.if_nameindex():
        state, mtu = _of_sysfs(name, "operstate"), _of_sysfs(name, "mtu")
        found[name] = {
            "addresses": [],
            "mtu": None if mtu is None else int(mtu),
            "up": None if state is None else state != "down",
        }
    for packed, name in [*ipv4_interfaces().items(), *ipv6_interfaces().items()]:
        if name in found:
            found[name]["addresses"].append(str(ipaddress.ip_address(packed)))
    return found


def _of_sysfs(interface: str, name: str) -> str | None:
    try:
        return (Path("/sys/class/net") / interface / name).read_text().strip()
    except OSError:
        return None


def _advertised(
    interface: str | None, found: Mapping[str, Any], own_name: Mapping[str, Any]
) -> str | None:
    """As torch chooses gloo's device: the interface that is named, else what the host's name means.

    Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, createDefaultDevice. It tries to bind
    the name's addresses, and takes loopback where that fails.
    """
    if interface is not None:
        addresses = found.get(interface, {}).get("addresses", [])
        return addresses[0] if addresses else None
    for address in own_name.get("addresses", []):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.bind((address, 0))
            return str(address)
    return None
