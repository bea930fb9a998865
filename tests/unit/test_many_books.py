"""Several books in one run of `narrate`: a folder and a progress for each, and faults that stop no other book."""

import pytest
from higgs_tts.engine import terminal
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.tools.book_places import book_places

COMMON = ["--device", "cpu", "--max-frames", "10", "--retries", "0"]


@pytest.fixture
def shelf(tmp_path):
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name, text in (("A.txt", "It begins."), ("B.md", "# Bee\n\nIt ends here."), ("C.txt", "That is all.")):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "notes.pdf").write_bytes(b"%PDF")
    return folder


@pytest.fixture
def run(tmp_path, capsys):
    def run(*given):
        code = main(["narrate", *map(str, given), "--out", str(tmp_path / "out"), *COMMON])
        run.said, run.told = capsys.readouterr()
        return code

    run.out = tmp_path / "out"
    return run


def sounds(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.flac"))


def test_each_gets_a_folder_and_the_model_is_loaded_once(run, shelf, monkeypatch):
    opened = []
    engine_on = terminal.engine_on

    def counted(*given):
        opened.append(given)
        return engine_on(*given)

    monkeypatch.setattr(terminal, "engine_on", counted)
    assert run(shelf) == 0 and len(opened) == 1
    assert sounds(run.out) == ["A/01 A.flac", "B/01 Bee.flac", "C/01 C.flac"]
    for name in ("A.txt", "B.md", "C.txt"):
        assert f"{name}, into " in run.told
    assert run.told.count("chapter 1 of 1") >= 3 and " left" in run.told
    before = {path: path.read_bytes() for path in run.out.rglob("*.flac")}
    assert run(shelf / "A.txt", shelf / "B.md", shelf / "C.txt") == 0 and run.said.count("unchanged") == 3
    assert before == {path: path.read_bytes() for path in run.out.rglob("*.flac")}


def test_one_book_is_written_to_the_folder_itself(run, shelf):
    assert run(shelf / "A.txt") == 0 and sounds(run.out) == ["01 A.flac"]
    assert "into" not in run.told


def test_a_broken_book_is_named_and_the_others_are_spoken(run, shelf):
    (shelf / "B.epub").write_bytes(b"PK")
    (shelf / "B.md").unlink()
    (run.out / "C").mkdir(parents=True)
    (run.out / "C" / "01 C.flac").mkdir()  # cannot be written
    assert run(shelf, shelf / "none.txt") == 2
    assert sounds(run.out) == ["A/01 A.flac", "C/01 C.flac"] and (run.out / "A" / "01 A.flac").is_file()
    faults = [line for line in run.told.splitlines() if line.startswith("error: ")]
    assert [line.split(":")[1].strip() for line in faults] == ["B.epub", "none.txt", "C.txt"]
    assert "3 of 4 books failed. Run again to continue." in run.told
    assert "cannot be read as an EPUB" in faults[0] and "does not exist" in faults[1]


def test_nothing_is_loaded_if_no_book_can_be_read(run, shelf, monkeypatch):
    monkeypatch.setattr(terminal, "book_bar", None)
    assert run(shelf / "x.txt", shelf / "y.txt") == 2 and "2 of 2 books failed" in run.told


def test_places_that_would_be_shared_or_hold_no_book_are_refused(run, shelf, tmp_path):
    (shelf / "a.md").write_text("Another.", encoding="utf-8")
    assert run(shelf) == 2 and "would be written to the same folder" in run.told and "Rename one." in run.told
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty") == 2 and "empty has no books. Choose a folder with files ending in .txt" in run.told
    assert not run.out.exists()


def test_a_book_given_twice_and_files_of_macos_do_no_harm(shelf, tmp_path):
    (shelf / "._A.txt").write_bytes(b"\x00\x05\x16\x07")
    once = [(shelf / name, tmp_path / name[0]) for name in ("A.txt", "B.md", "C.txt")]
    assert book_places([shelf], tmp_path) == once
    assert book_places([shelf, shelf / "A.txt", shelf / ".." / "shelf" / "B.md"], tmp_path) == once


def test_credits_and_details_are_those_of_each_book(run, shelf):
    assert (
        run(shelf / "A.txt", shelf / "B.md", "--detail", "author = Ann", "--detail", "narrator = Bo", "--credits") == 0
    )
    assert sounds(run.out)[:3] == ["A/01 Opening Credits.flac", "A/02 A.flac", "A/03 Closing Credits.flac"]
    told = (run.out / "B" / "01 Opening Credits.srt").read_text(encoding="utf-8")
    assert "Bee." in told or "B." in told
