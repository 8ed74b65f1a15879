"""What torch.distributed has done in this process: its process groups and their collectives.

From its flight recorder, which also has what C++ begins (DDP's reducer), and works on gloo without
any setting. Who is in a group is not in its records; `distributed_c10d._world` has it.
Nothing is imported here: where the script has not imported torch.distributed there are no groups.
"""

import json
import sys
from typing import Any

NEWEST = 64
"""How many collectives are told of, of each group."""
DTYPES = {
    "BFloat16": "bfloat16",
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "Int": "int32",
    "Long": "int64",
    "Short": "int16",
}
"""The flight recorder's names (c10/core/ScalarType.h) and those that users know."""

Told = dict[str, Any]


def _world() -> Any:
    """Torch's own record of the process groups; None where there is none."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return getattr(c10d, "_world", None)


def _record(*, entries: bool) -> Told:
    """The flight recorder's, with or without the collectives."""
    extension = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(extension, "_dump_fr_trace_json", None)
    if dump is None:
        return {}
    record: Told = json.loads(dump(includeCollectives=entries))
    return record


def _members() -> list[tuple[Any, str, list[int]]]:
    """The process groups that this rank is in: the object, its name and its global ranks."""
    world = _world()
    if world is None:
        return []
    return [
        (group, world.pg_names[group], sorted(ranks))
        for group, ranks in list(world.pg_group_ranks.items())
        if group in world.pg_map and group in world.pg_names
    ]


def sequence_numbers() -> dict[str, int]:
    """How many operations each group has begun, point-to-point ones included."""
    numbers = {}
    for group, name, _ in _members():
        try:
            numbers[name] = int(group._get_sequence_number_for_group())
        except RuntimeError:  # its backend does not count
            continue
    return numbers


def in_flight() -> int:
    """How many collectives have begun and not ended."""
    status = _record(entries=False).get("pg_status", {}) if _members() else {}
    return sum(
        max(0, int(one["last_enqueued_collective"]) - int(one["last_completed_collective"]))
        for one in status.values()
    )


def groups() -> list[Told]:
    """Every group that this rank is in, with its members and how far it has come."""
    record = _record(entries=True)
    numbers = _own_numbers(record)
    found = []
    for group, name, ranks in _members():
        status = record.get("pg_status", {}).get(str(numbers.get(name)), {})
        found.append(
            {
                "name": name,
                "desc": group.group_desc,
                "backend": str(_world().pg_map[group][0]),
                "ranks": ranks,
                "last_enqueued": int(status.get("last_enqueued_collective", 0)),
                "last_completed": int(status.get("last_completed_collective", 0)),
            }
        )
    return found


def collectives(newest: int = NEWEST) -> list[Told]:
    """The newest collectives of each group, in the order in which they began."""
    record = _record(entries=True)
    numbers = _own_numbers(record)
    found: dict[str, list[Told]] = {}
    for entry in record.get("entries", ()):
        name = entry["process_group"][0]
        if entry["pg_id"] == numbers[name]:
            found.setdefault(name, []).append(
                {
                    "group": name,
                    "seq": entry["collective_seq_id"],
                    "op": entry["profiling_name"].rpartition(":")[2],
                    "p2p": entry["is_p2p"],
                    "shapes": entry["input_sizes"],
                    "dtypes": [DTYPES.get(one, one) for one in entry["input_dtypes"]],
                    "done": entry["retired"] or entry["state"] == "completed",
                    "time": entry["time_created_ns"] / 1e9,
                }
            )
    return [one for group in found.values() for one in group[-newest:]]


def _own_numbers(record: Told) -> dict[str, int]:
    """By name: which number the recorder has given a group in this process.

    A name may come again when a script has destroyed its groups: the last one counts.
    """
    numbers: dict[str, int] = {}
    for entry in record.get("entries", ()):
        name = entry["process_group"][0]
        numbers[name] = max(entry["pg_id"], numbers.get(name, 0))
    return numbers
