"""The order of streams, told to a fake GPU. What a real one does with it: test_cuda.py."""

from types import SimpleNamespace
from typing import Any

import torch

from lab.parallel.streams import CudaStreams, NoStreams, gradient_streams, used_on_current_stream

DEVICE = torch.device("cuda", 0)


class Stream:
    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: "Stream") -> None:
        self.log.append((self.name, other.name))


class Cuda:
    """The part of torch.cuda that is used."""

    def __init__(self, current: Stream) -> None:
        self.current = current

    def current_stream(self, device: torch.device) -> Stream:
        assert device == DEVICE
        return self.current


def test_the_sending_stream_waits_for_all_that_wrote_gradients() -> None:
    waits: list[tuple[str, str]] = []
    main, side, other = (Stream(name, waits) for name in ("main", "side", "other"))
    cuda = Cuda(main)
    streams = CudaStreams(DEVICE, cuda)
    for cuda.current in (main, side, side, other, main):
        streams.note()
    streams.join()
    assert waits == [("main", "side"), ("main", "other")], "once each, and not for itself"
    streams.join()
    assert len(waits) == 2, "what was waited for is done"
    cuda.current = side
    streams.note()
    streams.join()
    assert len(waits) == 2, "one stream has one order"


def test_memory_of_another_stream_is_kept_on_a_gpu_only() -> None:
    recorded: list[Any] = []
    tensor: Any = SimpleNamespace(is_cuda=True, device=DEVICE, record_stream=recorded.append)
    cuda = Cuda(Stream("main", []))
    used_on_current_stream(tensor, cuda)
    assert recorded == [cuda.current]
    used_on_current_stream(torch.zeros(1), cuda)
    assert recorded == [cuda.current]


def test_who_needs_streams() -> None:
    assert isinstance(gradient_streams(torch.device("cpu")), NoStreams)
    assert isinstance(gradient_streams(DEVICE), CudaStreams)
