"""Buffers are noted when a model is evaluated, and nothing is left in it."""

import json
import os
import pickle

import pytest
import torch
from torch import nn

from lab.rank.audit.buffers import Buffers
from lab.rank.audit.hooks import Hooks
from lab.rank.audit.models import Model
from lab.rank.audit.recorder import Recorder
from lab.rank.events import Events


def test_a_model_can_be_saved_while_it_waits_for_its_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nn.Module, "eval", nn.Module.eval)  # which is wrapped, and put back
    reading, writing = os.pipe()
    recorder = Recorder(Events(writing))
    buffers = Buffers(Hooks(recorder))
    first, second = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    for number, model in enumerate((first, second)):
        named = {f"{name}.{number}": buffer for name, buffer in model.named_buffers()}
        buffers.watch([Model(None, buffers=named)])
    for model in (first, second):
        model.eval()
        pickle.dumps(model)
        model.train()
        model.eval()
    for model in (first, second, first):
        model(torch.ones(1, 2))
        assert not model._forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    recorder.close()
    records = [json.loads(line)["record"] for line in os.read(reading, 1 << 16).splitlines()]
    os.close(reading)
    os.close(writing)
    assert {record["check"] for record in records} == {"buffers"}
    assert sum(record["when"] == "evaluation" for record in records) == 2
