"""`say -`: text that arrives on stdin, spoken here or on a server, into a file or stdout."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from higgs_tts.engine import Engine, HiggsError
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.files.plain_text import tell
from higgs_tts.engine.speech.verdict import Doubt, Passage, Verdict
from higgs_tts.engine.tools.arriving import arriving_sentences
from higgs_tts.tests.speech_servers import Fake, sound_of

TEXT = "Où est-elle? The kettle is on. Good night."
SAY = ["say", "-", "--device", "cpu", "--seed", "3", "--max-frames", "60"]


def sentences_of(data, size):
    pieces = iter([data[start : start + size] for start in range(0, len(data), size)] + [b""])
    return list(arriving_sentences(lambda most: next(pieces)))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_sentences_do_not_depend_on_the_pieces(size):
    expected = ["Où est-elle?", "The kettle is on.", "Good night."]
    assert sentences_of(TEXT.encode(), size) == sentences_of(TEXT.encode("utf-8-sig"), size) == expected
    assert sentences_of(b" \n", size) == []


def test_a_sentence_comes_before_the_rest_is_read():
    pieces = iter([b"The kettle is on. Go"])
    assert next(arriving_sentences(lambda most: next(pieces))) == "The kettle is on."


GERMAN = "Grüße aus Köln. Der Zug fährt um neun. Gute Nacht."


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("encoding", ["cp1252", "mac_roman", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_stdin_may_have_any_encoding(encoding, size, caplog):
    tell.cache_clear()
    expected = ["Grüße aus Köln.", "Der Zug fährt um neun.", "Gute Nacht."]
    assert sentences_of(GERMAN.encode(encoding), size) == expected
    names = {"cp1252": "Windows-1252", "mac_roman": "Mac Roman"}
    told = f"The text on stdin is not UTF-8 and was read as {names.get(encoding)}: {GERMAN!r}. If letters are wrong, "
    assert [record.message for record in caplog.records] == [f"{told}save it as UTF-8."] * (encoding in names)


@pytest.mark.parametrize(
    ("data", "said", "told"),
    [
        (b"Good\xff.", "Goodÿ.", "read as Windows-1252: 'Goodÿ.'"),
        ("Grüße an Köln und für Öde, ü!".encode() + b" \xc3", "Grüße an Köln und für Öde, ü!", "1 letter that cannot"),
    ],
)
def test_wrong_bytes_on_stdin_are_told(data, said, told, caplog):
    tell.cache_clear()
    assert sentences_of(data, 100)[0].startswith(said)
    (record,) = caplog.records
    assert told in record.message


@pytest.fixture
def say(pytestconfig):
    """say(*options) -> the running command, with pipes."""
    running = []

    def start(*options):
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "engine", *SAY, *options],
                cwd=pytestconfig.rootpath,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        )
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def say_here(tmp_path, monkeypatch):
    """say_here(data, *options) -> the exit status of the command in this process, with data on stdin."""

    def run(data, *options):
        (tmp_path / "stdin").write_bytes(data)
        with (tmp_path / "stdin").open(encoding="utf-8") as stdin, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            return main([*SAY, *options])

    return run


def test_a_sentence_is_heard_before_the_next_is_complete_and_a_file_has_the_same(say, say_here, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    command = say("--out", "-")
    command.stdin.write(b"It is on. Good")
    heard = command.stdout.read(1000)
    assert len(heard) > 0
    rest, errors = command.communicate(b" night.", timeout=300)
    assert command.returncode == 0, errors
    assert say_here(b"It is on. Good night.", "--out", str(tmp_path / "whole.wav"), "--loudness", "as is") == 0
    samples, rate = soundfile.read(tmp_path / "whole.wav", dtype="int16")
    streamed = np.frombuffer(heard + rest, "<i2").astype(int)
    assert rate == 24_000 and len(streamed) == len(samples) and np.abs(streamed - samples).max() <= 1


def test_a_doubt_is_told_with_its_time_in_the_whole(say_here, tmp_path, capfd, monkeypatch):
    """Even if the same words are lost twice."""
    lost = Verdict("attention", (0,), (Passage((0, 1), (0, 9), (Doubt("missing", "on.", (2, 3), (9, 9)),)),))
    speak = Engine.speak_turns

    def forgets(engine, *args, **given):
        speech = speak(engine, *args, **given)
        return replace(speech, said=tuple(replace(one, verdict=lost) for one in speech.said))

    monkeypatch.setattr(Engine, "speak_turns", forgets)
    assert say_here(b"It is on. It is on.", "--out", str(tmp_path / "whole.wav"), "--loudness", "as is") == 0
    told = [line for line in capfd.readouterr().err.splitlines() if "on." in line]
    first, second = (re.fullmatch(r'warning: At 0:(\d\d\.\d), "on\." is not heard\.', line) for line in told)
    assert 0 < float(first[1]) < float(second[1]) - 0.5, told


def test_what_the_model_cannot_speak_is_left_out_and_named(say_here, tmp_path, capfd, written):
    out, model = tmp_path / "whole.wav", str(written["v2"])
    assert say_here(b"It is on.\n[pause 1] <|sfx:laughter|>\nGood night.", "--out", str(out), "--model", model) == 0
    assert "<|sfx:laughter|>" in capfd.readouterr().err and out.is_file()


def test_an_error_keeps_what_was_spoken_before(say_here, tmp_path, capfd, monkeypatch):
    speak = Engine.speak_turns

    def fails(engine, turns, *args, **given):
        if "night" in turns[0].text:
            raise HiggsError("The GPU is lost.")
        return speak(engine, turns, *args, **given)

    monkeypatch.setattr(Engine, "speak_turns", fails)
    out = tmp_path / "whole.wav"
    assert say_here(b"It is on. Good night.", "--out", str(out)) == 2
    assert out.stat().st_size > 10_000 and capfd.readouterr().err.splitlines()[-1] == "error: The GPU is lost."


def test_a_server_speaks_each_sentence_as_it_is_complete(say):
    with Fake("sglang") as fake:
        command = say("--out", "-", "--server", fake.address, "--voice", "anna")
        command.stdin.write(b"The kettle is on. Good")
        heard = command.stdout.read(1000)
        assert [call["input"] for call in fake.calls] == ["The kettle is on."] and fake.calls[0]["voice"] == "anna"
        rest, errors = command.communicate(b" night.", timeout=300)
        assert command.returncode == 0, errors
        assert [call["input"] for call in fake.calls] == ["The kettle is on.", "Good night."]
    wanted = sum(len(sound_of(call["input"])) for call in fake.calls)
    assert abs(len(heard + rest) / 2 - wanted) < 2 * 960  # whole frames


def test_a_reader_that_goes_ends_it_with_a_sentence(say):
    command = say("--out", "-")
    command.stdin.write(b"The kettle is on. Good night. " * 20)
    assert command.stdout.read(100)
    command.stdout.close()
    assert command.wait(300) == 2
    assert command.stderr.read().splitlines()[-1] == b"error: The program that reads the sound has ended."


def test_text_without_words_is_an_error(say_here, capfd):
    assert say_here(b"...\n", "--out", "-") == 2
    sound, errors = capfd.readouterr()
    assert not sound and "There is nothing to speak" in errors


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--script", "a.txt", "--out", "-"), "- goes with a text only"),
        (("-", "--out", "-", "--srt-out", "a.srt"), "- goes with a text only"),
        (("-", "--out", "-", "--codes", "a.npy"), "- goes with a text only"),
        (("-", "--out", "-", "--srt-words", "2"), "Omit --script, --srt-out, --srt-words, --words, --mouth and"),
        (("-", "--out", "a.wav", "--srt-words", "2"), "or give a text and a file for --out instead of -"),
        (("Hello.", "--out", "-", "--words", "a.json"), "- goes with a text only"),
        (("Hello.", "--out", "-", "--mouth", "a.json"), "- goes with a text only"),
        (("Hello.", "--out", "a.wav", "--codes", "a.npy", "--server", "here"), "--codes needs a model on this machine"),
    ],
)
def test_what_does_not_go_together(given, says, capsys):
    assert main(["say", *given]) == 2 and says in capsys.readouterr().err
