"""Which lessons there are, and what each file must have."""

import re

import pytest

from lab.errors import UsageError
from lab.lessons import LESSONS, Lesson, find_lessons

FOLDER = LESSONS[0].path.parent


def test_every_file_is_a_lesson() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert sorted(lesson.path.stem for lesson in LESSONS) == sorted(files)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_its_text_has_the_exercise_the_theory_and_where_to_read_on(lesson: Lesson) -> None:
    assert 20 < len(lesson.title) < 100
    assert "\n" not in lesson.title
    headings = re.findall(r"^(\w+)$", lesson.text, re.MULTILINE)
    assert headings == ["Exercise", "Theory", "Read"]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_what_it_says_to_read_is_there(lesson: Lesson) -> None:
    root = FOLDER.parents[2]
    read = lesson.text.partition("\nRead\n")[2]
    files = re.findall(r"\b(?:lab|docs)/[\w/.-]+\.(?:py|md)\b", read)
    assert [name for name in files if not (root / name).is_file()] == []


def test_all_are_those_of_the_list_in_its_order() -> None:
    assert find_lessons(["all"]) == list(LESSONS)


def test_several_come_in_the_order_of_the_command() -> None:
    assert [lesson.name for lesson in find_lessons(["overlap", "no-sync"])] == [
        "overlap",
        "no-sync",
    ]


@pytest.mark.parametrize("name", ["no_sync", "nosync"])
def test_an_unknown_one_is_told_the_nearest(name: str) -> None:
    with pytest.raises(UsageError, match=f"no lesson {name}; did you mean no-sync"):
        find_lessons([name])


def test_an_unknown_one_without_a_near_one() -> None:
    with pytest.raises(UsageError, match="no lesson zzz; lab lesson list shows them all"):
        find_lessons(["zzz"])
