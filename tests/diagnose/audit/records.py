"""Records as ranks write them."""

import struct
from base64 import b64encode
from typing import Any


def pack(code: str, values: tuple[float, ...]) -> str:
    return b64encode(struct.pack(f"<{len(values)}{code}", *values)).decode()


def layout(**fields: Any) -> dict[str, Any]:
    return {
        "check": "layout",
        "step": 1,
        "optimizer": 0,
        "names": ["weight", "bias"],
        "shapes": [[2, 2], [2]],
        "parts": [False, False],
        "order": None,
        "sites": [None],
        "built": [0, 0],
        "managed": [False, False],
        "group": None,
        "made": None,
        "sampler": False,
        "together": True,
        **fields,
    }


def replica(count: int, weights: tuple[int, ...], gradients: tuple[int, ...], **fields: Any) -> Any:
    return {
        "check": "replica",
        "step": count,
        "optimizer": 0,
        "count": count,
        "moment": [0, 0, 0, count],
        "parameters": pack("I", weights),
        "gradients": pack("I", gradients),
        "parameter_norms": pack("f", weights),
        "parameter_sums": pack("f", weights),
        "gradient_norms": pack("f", gradients),
        "exchanged": {},
        "options": [],
        "late": None,
        "unwaited": False,
        "no_sync": None,
        "bad_loss": None,
        "scaled": None,
        "file": "train.py",
        "line": 7,
        "function": None,
        **fields,
    }
