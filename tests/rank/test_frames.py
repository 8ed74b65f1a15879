"""Whose code a file is."""

import pytest

from lab.rank.frames import STANDARD_LIBRARY, is_users


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/home/me/train.py", True),
        ("/home/me/my-site-packages.py", True),
        (f"{STANDARD_LIBRARY}/json/decoder.py", False),
        ("/opt/venv/lib/python3.12/site-packages/torch/nn/functional.py", False),
        ("/usr/local/lib/python3.12/dist-packages/torch/nn/functional.py", False),
        ("/usr/lib/python3/dist-packages/numpy/__init__.py", False),
        ("<frozen runpy>", False),
    ],
)
def test_installed_packages_are_none_of_the_users_code(file: str, users: bool) -> None:
    assert is_users(file) is users
