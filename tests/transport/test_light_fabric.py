"""Fabric is imported without what its own users' tests need, and still works for them."""

import subprocess
import sys

CODE = """
import sys
import lab.transport.ssh
assert "asyncio" not in sys.modules, "lab begins slower than it need"
assert "unittest.mock" not in sys.modules
from invoke import MockContext, Result
assert MockContext(run=Result("out")).run("anything").stdout == "out"
"""


def test_fabric_comes_alone_and_tests_of_its_users_work() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
