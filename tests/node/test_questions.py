"""Questions to the ranks of a job, of which there may be several at one time."""

from pathlib import Path

from lab.node.meeting import write_whole
from lab.node.questions import ASK, FOLDER, KEPT, RankQuestion, asked, question, rank_answer


def test_a_question_stays_beside_a_later_one(tmp_path: Path) -> None:
    first = RankQuestion(tmp_path, "state", by=[0])
    second = RankQuestion(tmp_path, "pulse")
    assert asked(tmp_path) == [
        {"number": first.number, "what": "state", "by": [0]},
        {"number": second.number, "what": "pulse"},
    ]
    assert question(tmp_path) == second.number > first.number


def test_one_that_was_overwritten_is_put_again(tmp_path: Path) -> None:
    first = RankQuestion(tmp_path, "state")
    other = {"number": first.number + 1, "what": "pulse"}  # of one who read just before
    write_whole(tmp_path / FOLDER / ASK, [other])
    first.keep()
    assert asked(tmp_path) == [{"number": first.number, "what": "state"}, other]
    before = (tmp_path / FOLDER / ASK).stat().st_ino
    first.keep()
    assert (tmp_path / FOLDER / ASK).stat().st_ino == before, "it is there"


def test_neither_questions_nor_answers_pile_up(tmp_path: Path) -> None:
    for _ in range(2 * KEPT):
        one = RankQuestion(tmp_path, "pulse")
        assert one.answers({2, 3}) == {}
        write_whole(rank_answer(tmp_path, one.number, 3), {"rank": 3})
        assert one.answers({2, 3}) == {3: {"rank": 3}}
        assert one.answers({2}) == {}
        one.close()
    assert len(asked(tmp_path)) == KEPT
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [ASK]


def test_a_file_that_is_not_understood_is_no_question(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    for text in ("", "{}", "3", '{"number": 1}', '[{"what": "state"}]', "[[]]"):
        (tmp_path / FOLDER / ASK).write_text(text)
        assert asked(tmp_path) == []
