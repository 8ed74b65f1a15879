"""What ranks tell of the keys of stores that they wait for; scripts notice nothing of it."""

import json

from tests.conftest import Lab

SCRIPT = """
import json, sys, threading, time
import torch.distributed as dist
store = dist.PrefixStore("mine", dist.HashStore())
assert dist.Store.get.__name__ == "get" and "key" in dist.Store.get.__doc__
told = sys.modules["_lab_rank.stores"].told
found = []

def asks(call, name):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    while told(thread.ident) is None:
        time.sleep(0.01)
    found.append(told(thread.ident))
    store.set(name, "1")
    thread.join()
    assert told(thread.ident) is None

asks(lambda: store.get("one"), "one")
asks(lambda: store.wait(["two"]), "two")
store.set("three", b"3")
assert store.get("three") == b"3"
print("told", json.dumps(found))
"""


def test_the_keys_are_told_of_while_a_thread_waits_for_them(lab: Lab) -> None:
    done = lab("run", "-t", "solo", "--on", "local", lab.script(SCRIPT))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.partition("told ")[2]) == [
        {"function": "get", "keys": ["one"]},
        {"function": "wait", "keys": ["two"]},
    ]


def test_a_traceback_shows_nothing_of_it(lab: Lab) -> None:
    script = lab.script("""
import datetime, torch.distributed as dist
dist.HashStore().wait(["nothing"], datetime.timedelta(milliseconds=10))
""")
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert done.returncode == 1
    assert ".wait([" in done.stderr
    assert "stores.py" not in done.stderr
