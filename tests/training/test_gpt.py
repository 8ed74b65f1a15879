"""The GPT job: its text, its model, what it writes, and that ranks train one model."""

import contextlib
import io
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lab.errors import UsageError
from lab.training.gpt import GptOptions, loss, main, write
from lab.training.gpt_data import Windows, library_source, require_same_text
from lab.training.gpt_model import GPT
from lab.training.options import training_arguments
from lab.training.world import World
from tests.ranks import RankPool

TINY = "--steps 4 --report-every 2 --save-every 0 --batch-size 4 --context 8 --width 16 --layers 2"
ALONE = World(rank=0, size=1, device=torch.device("cpu"), backend="none")


def tiny() -> GPT:
    torch.manual_seed(0)
    return GPT(context=8, width=16, heads=2, layers=2)


def test_the_text_is_the_standard_librarys_source() -> None:
    text = library_source()
    assert len(text) > 2_000_000
    assert Path(contextlib.__file__).read_bytes() in text
    assert Path(pytest.__file__).read_bytes() not in text
    assert library_source() == text


def test_windows_follow_one_another() -> None:
    windows = Windows(b"abcdefghij", context=4)
    assert [[bytes(part.tolist()) for part in windows[n]] for n in range(len(windows))] == [
        [b"abcd", b"bcde"],
        [b"efgh", b"fghi"],
    ]
    with pytest.raises(IndexError):
        windows[2]
    few = Windows(bytes(range(101)), context=10, at_most=4)
    assert [int(few[n][0][0]) for n in range(len(few))] == [0, 30, 60, 90]
    with pytest.raises(UsageError, match="a text of 4 bytes is too short for a window of 4"):
        Windows(b"abcd", context=4)


def test_no_position_sees_what_comes_after_it() -> None:
    tokens = torch.randint(0, 256, (2, 8))
    other = tokens.clone()
    other[:, 5] += 1
    model = tiny()
    before, after = model(tokens), model(other % 256)
    assert before.shape == (2, 8, 256)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_an_untrained_model_guesses_among_all_bytes() -> None:
    batch = torch.randint(0, 256, (2, 4, 8))
    summed = loss(tiny(), batch.unbind())
    assert float(summed.detach()) / 32 == pytest.approx(5.545, abs=0.1)  # ln 256


@pytest.mark.parametrize(
    ("words", "every"),
    [
        ("", (50, 200)),
        ("--epochs 3", (1, 1)),
        ("--epochs 3 --save-every 2", (1, 2)),
        ("--report-every 0 --epochs 3", (0, 1)),
    ],
)
def test_in_epochs_it_speaks_and_saves_by_epochs(words: str, every: tuple[int, int]) -> None:
    """Its defaults count steps: 200 of them would be 200 epochs."""
    given = vars(training_arguments("gpt", "", GptOptions()).parse_args(words.split()))
    options = GptOptions(**given)
    assert (options.report_every, options.saves_every) == every
    assert options.steps == (None if "--epochs" in words else 400)
    assert options.needs_checkpoints == ("--save-every" in words)


def test_the_model_learns_a_text_and_writes_it() -> None:
    """Each byte of this one follows from the one before it."""
    model, text = tiny(), b"abcdefg" * 20
    windows = Windows(text, context=8)
    batch = [torch.stack(part) for part in zip(*(windows[n] for n in range(7)), strict=True)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    assert write(model, b"ab", 20, 8, ALONE, seed=1) == b"abcdefgabcdefgabcdefga"


def job(folder: Path, *words: str) -> tuple[int, list[str]]:
    """Exit code and printed lines of one rank."""
    os.environ.pop("LAB_RUN_DIR", None)
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main([*TINY.split(), "--text", "text", "--sample", "5", *words])
    return code, printed.getvalue().splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a text is."""
    path = tmp_path_factory.mktemp("gpt")
    (path / "text").write_bytes(b"def f(x):\n    return x + 1\n\n\n" * 40)
    return path


@pytest.fixture(scope="module")
def plain(ranks: RankPool, folder: Path) -> list[str]:
    """What rank 0 of our DDP prints."""
    lines: list[str]
    (code, lines), others = ranks.run(2, job, folder)
    assert (code, others) == (0, (0, []))
    return lines


def losses(lines: list[str]) -> list[list[str]]:
    """Step, loss and held-out loss, where there is one, of each line of the table."""
    return [line.split()[:-1] for line in lines[2:4]]


@pytest.mark.parametrize(
    "words",
    [
        ("--impl", "torch"),
        ("--parallel", "fsdp"),
        ("--parallel", "fsdp", "--impl", "torch"),
        ("--parallel", "zero1"),
        ("--parallel", "zero1", "--impl", "torch"),
        ("--parallel", "zero2"),
    ],
)
def test_ranks_train_one_model_and_rank_0_speaks(
    ranks: RankPool, folder: Path, plain: list[str], words: tuple[str, ...]
) -> None:
    """With whatever the model is wrapped in, it is the same one, and writes the same."""
    (code, lines), others = ranks.run(2, job, folder, *words)
    assert (code, others) == (0, (0, []))
    assert "2 x batch 4" in lines[0]
    assert lines[1].split() == ["step", "loss", "held", "out", "bytes/s"]
    assert [row[0] for row in losses(lines)] == ["2", "4"]
    assert losses(lines) == losses(plain)
    assert lines[5].startswith("def ")
    assert lines[4:] == plain[4:]


def compare(texts: list[bytes]) -> str:
    """What this rank is told."""
    try:
        require_same_text(texts[dist.get_rank()])
    except UsageError as error:
        return str(error)
    return ""


def test_ranks_with_different_texts_are_told(ranks: RankPool) -> None:
    assert ranks.run(3, compare, [b"text"] * 3) == [""] * 3
    told = ranks.run(3, compare, [b"text", b"text", b"texts"])
    assert told[0] == told[1] == told[2]
    assert "rank 2 with Python" in told[0]
    assert "--text FILE" in told[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--width 10 --heads 4", "--width 10 does not divide among --heads 4"),
        ("--layers 0", "argument --layers: '0' must be a whole number, at least 1"),
        ("--sample -1", "argument --sample: '-1' must be"),
    ],
)
def test_wrong_arguments_end_with_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--text", "missing"), "--text missing: No such file or directory"),
        (("--prompt", ""), "--prompt is empty"),
        (("--text", "short"), "the text has 160 bytes: too few to hold 5% out in windows of 64"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_bytes(b"def f(x): return" * 10)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with contextlib.suppress(SystemExit):
        assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
