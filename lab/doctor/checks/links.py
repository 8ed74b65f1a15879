"""How good the links between nodes are: what was measured between pairs, and the clocks."""

import math
from collections.abc import Mapping
from statistics import median

from lab.doctor.check import Check, listed
from lab.doctor.examined import Examined, groups

MBIT = 125_000
"""Bytes a second."""
SLOW = 100 * MBIT
"""A link between machines that is below this keeps any training waiting."""
FEW = 4
"""A link that is so many times worse than the usual one here stands out."""
NOTICED = 0.002
"""Seconds of latency below which it does not matter which link is the slower."""
FEW_IN_A_REHEARSAL = 80
"""The same for bandwidth where nodes share a machine; latency says nothing there."""
SKEW = 1.0
"""Seconds between clocks that make logs hard to compare."""
SKEW_REFUSED = 300.0
"""Seconds after which munge, Kerberos and TLS refuse each other."""


def mtu(exam: Examined) -> list[Check]:
    """Whether all nodes have one MTU towards their peers; else large packets may vanish."""
    towards: dict[str, int] = {}
    for name in exam.seen:
        look = exam.looks[name]
        for peer, interface in look["routes"].items():
            known = look["interfaces"].get(interface or "", {}).get("mtu")
            if peer != name and known is not None:
                towards[name] = known
    found = groups(towards)
    if not found:
        return []
    if len(found) == 1:
        return [Check("mtu", "pass", next(iter(found)), exam.seen)]
    words = "; ".join(f"{value} on {listed(names)}" for value, names in found.items())
    odd = tuple(name for names in list(found.values())[1:] for name in names)
    return [Check("mtu", "warn", words, odd, "give all interfaces the same MTU, and the switches")]


def latency(exam: Examined) -> list[Check]:
    """There and back on an idle link, the quickest of some.

    Nodes that share a machine wait for a core, not for a link, so none is blamed there.
    """
    links = _of(exam, "latency")
    if not links:
        return []
    usual = median(links.values())
    limit = math.inf if exam.is_rehearsal else max(FEW * usual, NOTICED)
    checks = [
        Check(
            "latency",
            "warn",
            f"{one} to {other}: {value * 1e3:.2f} ms, where {usual * 1e3:.2f} ms is usual here",
            (one, other),
            "look at the route (ip route get), the switch, and what else uses the link",
        )
        for (one, other), value in links.items()
        if value > limit
    ]
    return checks or [Check("latency", "pass", _range(links, 1e3, "ms"), exam.seen)]


def bandwidth(exam: Examined) -> list[Check]:
    """Bytes that arrive in a short time, one pair at a time."""
    links = _of(exam, "bandwidth")
    checks = [
        Check(
            "bandwidth",
            "fail",
            f"{one} to {other}: they connect, but data does not get through: {answer['error']}",
            (one, other),
            "often an MTU that is too large on the way: ping -M do -s 1472, or set a smaller one",
        )
        for (one, other), answer in exam.measured.items()
        if "error" in answer
    ]
    usual = median(links.values()) if links else 0.0
    least = usual / FEW_IN_A_REHEARSAL if exam.is_rehearsal else max(usual / FEW, SLOW)
    for (one, other), value in links.items():
        if value < least:
            words = f"{one} to {other}: {in_bits(value)}, where {in_bits(usual)} is usual here"
            cure = "look at the interface (ethtool), its cable, the switch, and what else uses it"
            checks.append(Check("bandwidth", "warn", words, (one, other), cure))
    if links and not checks:
        spread = sorted(links.values())
        ends = dict.fromkeys((in_bits(spread[0]), in_bits(spread[-1])))
        checks.append(Check("bandwidth", "pass", " to ".join(ends), exam.seen))
    return checks


def clock(exam: Examined) -> list[Check]:
    """How far the nodes' clocks are from the master's."""
    skews: dict[str, float] = {}
    for other, ways in exam.connected.get(exam.master.name, {}).items():
        answers = [answer for answer in ways.values() if answer.get("who") == other]
        if answers:
            best = min(answers, key=lambda answer: float(answer["clock_unsure"]))
            certain = max(0.0, abs(best["clock_ahead"]) - best["clock_unsure"])
            skews[other] = math.copysign(certain, best["clock_ahead"])
    if not skews:
        return []
    checks = []
    for name, skew in skews.items():
        if abs(skew) > SKEW:
            way = "ahead of" if skew > 0 else "behind"
            checks.append(
                Check(
                    "clock",
                    "fail" if abs(skew) > SKEW_REFUSED else "warn",
                    f"{name} is {abs(skew):.1f} s {way} {exam.master.name}",
                    (name,),
                    "let chrony or systemd-timesyncd set it: timedatectl set-ntp true",
                )
            )
    if not checks:
        most = max(abs(skew) for skew in skews.values())
        checks.append(Check("clock", "pass", f"within {max(most, 0.001) * 1e3:.0f} ms", exam.seen))
    return checks


def _of(exam: Examined, what: str) -> dict[tuple[str, str], float]:
    return {pair: answer[what] for pair, answer in exam.measured.items() if what in answer}


def _range(links: Mapping[tuple[str, str], float], factor: float, unit: str) -> str:
    ends = dict.fromkeys(
        f"{end * factor:.2f}" for end in (min(links.values()), max(links.values()))
    )
    return f"{' to '.join(ends)} {unit}"


def in_bits(value: float) -> str:
    """Bytes a second as bits: `940 Mbit/s`, `9.4 Gbit/s`."""
    mbit = value / MBIT
    return f"{mbit / 1000:.1f} Gbit/s" if mbit >= 1000 else f"{mbit:.0f} Mbit/s"
