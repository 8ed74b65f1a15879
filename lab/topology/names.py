"""Host names, addresses and the other names a topology gives to things.

Each `check_*` function returns the value, or raises ValueError with what is allowed instead, as
pydantic's validators want it.
"""

import ipaddress
import re

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,14}")

HOST_NAME_RULE = (
    "must be a host name (RFC 1123): letters, digits and hyphens, in parts of at most 63 "
    "characters that are separated by dots and neither begin nor end with a hyphen"
)


def check_label(text: str) -> str:
    """One part of a host name, as container names and folders can take it over."""
    if _LABEL.fullmatch(text) is None:
        raise ValueError(
            "must be at most 63 letters, digits and hyphens, with no hyphen first or last"
        )
    return text


def check_host_name(text: str) -> str:
    """A host name by RFC 1123, section 2.1, which no resolver could take for an IPv4 address."""
    labels = text.split(".")
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(HOST_NAME_RULE)
    # inet_aton reads `7` as 0.0.0.7 and `10.1` as 10.0.0.1: the last part must not be a number.
    if labels[-1].isdigit():
        raise ValueError(
            "must be a host name, and one whose last part is a number is taken for an IP address "
            "(an address goes into `address`)"
        )
    return text


def check_address(text: str) -> str:
    """An IPv4 or IPv6 address that a node can have, or a host name."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        try:
            return check_host_name(text)
        except ValueError:
            raise ValueError("must be an IP address or a host name (RFC 1123)") from None
    if address.is_unspecified or address.is_multicast or address == _BROADCAST:
        raise ValueError("must be the address of one host")
    return text


_BROADCAST = ipaddress.IPv4Address("255.255.255.255")


def same_place(text: str) -> str:
    """One spelling for all spellings of a host name or address, to find duplicates with."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text.casefold()


def check_interface(text: str) -> str:
    """The name of a network interface; Linux allows 15 characters."""
    if _INTERFACE.fullmatch(text) is None:
        raise ValueError("must be the name of one network interface, such as eth0 or ib0")
    return text


def check_variable(text: str) -> str:
    """The name of an environment variable that every shell can take."""
    if _VARIABLE.fullmatch(text) is None:
        raise ValueError(
            "must be the name of a variable: letters, digits and _, and no digit first"
        )
    return text
