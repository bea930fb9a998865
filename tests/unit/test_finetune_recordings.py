"""Recordings to train on: clips and their transcripts in a folder, checked and encoded once."""

import contextlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from higgs_tts.engine import BUILT_IN_CLIPS, EMBEDDED, HiggsError
from higgs_tts.engine.checkpoint.load import inspect
from higgs_tts.engine.finetune import utterances
from higgs_tts.engine.finetune.recordings import find_recordings
from higgs_tts.engine.finetune.utterances import utterances_of
from higgs_tts.engine.words.whisper_check import passages_heard
from higgs_tts.tests.whisper_files import write_whisper

CPU = torch.device("cpu")
TEXT = (BUILT_IN_CLIPS / "amber.txt").read_text(encoding="utf-8").strip()


def sound(path, like="amber"):
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(BUILT_IN_CLIPS / f"{like}.flac", path.with_suffix(".flac"))


def texts(folder):
    return {one.name: one.text for one in find_recordings(folder)[0]}


def test_words_lie_beside_a_clip(tmp_path):
    sound(tmp_path / "a")
    sound(tmp_path / "deep" / "b")
    sound(tmp_path / "c")
    (tmp_path / "a.txt").write_text("Hello\n there.", encoding="utf-8")
    (tmp_path / "deep" / "b.txt").write_text("Good day.", encoding="utf-8")
    (tmp_path / "notes.md").write_text("no clip", encoding="utf-8")
    assert texts(tmp_path) == {"a.flac": "Hello there.", "c.flac": "", str(Path("deep", "b.flac")): "Good day."}


@pytest.mark.parametrize(
    "table",
    [
        'a|He said "no"|He said no\nb|Bye|Bye.\n',
        "file,text\nwavs/a.flac,He said no\nb.flac,Bye.\n",
        "path;speaker;sentence\nwavs\\a.flac;x;He said no\nb.flac;x;Bye.\n",
        "a\tHe said no\nb\tBye.\n",
    ],
)
def test_tables_name_clips_by_file_or_stem(tmp_path, table):
    for name in "ab":
        sound(tmp_path / "wavs" / name)
    (tmp_path / "metadata.csv").write_text(table, encoding="utf-8")
    found, refused = find_recordings(tmp_path)
    assert [one.text for one in found] == ["He said no", "Bye."] and not refused


def test_clips_of_one_name_keep_their_own_words(tmp_path):
    """Of tables in several folders, and of one table that names folders."""
    for place in ("many/a", "many/b", "one/x/a", "one/x/b", "one/b"):
        sound(tmp_path / place / "1")
        (tmp_path / place / "metadata.csv").write_text(f"file,text\n1.flac,{place}\n", encoding="utf-8")
    for table in (tmp_path / "one").rglob("*.csv"):
        table.unlink()
    (tmp_path / "one" / "list.csv").write_text("x/a/1.flac|xa\nx/b/1.flac|xb\nb/1.flac|b\n", encoding="utf-8")
    assert texts(tmp_path / "many") == {str(Path("a", "1.flac")): "many/a", str(Path("b", "1.flac")): "many/b"}
    assert set(texts(tmp_path / "one").items()) == {
        (str(Path("x", "a", "1.flac")), "xa"),
        (str(Path("x", "b", "1.flac")), "xb"),
        (str(Path("b", "1.flac")), "b"),
    }


def test_files_as_other_systems_leave_them(tmp_path):
    """Names that macOS decomposes, its hidden files, and suffixes in capitals."""
    for name in ("e\u0301", "b", "c"):
        sound(tmp_path / name)
    (tmp_path / "list.csv").write_text("file,text,,\n\u00e9.flac,Bon.,,\n", encoding="utf-8")
    (tmp_path / "._list.csv").write_bytes(b"\x00\x05\x16\x07" + bytes(100))
    (tmp_path / "b.TXT").write_text("Good.", encoding="utf-8")
    (tmp_path / "c.SRT").write_text("1\n00:00:00,000 --> 00:00:01,000\nCut.\n", encoding="utf-8")
    found, refused = find_recordings(tmp_path)
    assert [one.text for one in found] == ["Good.", "Cut.", "Bon."] and not refused


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("file,text\na.flac,Hello, you there\n", "3 columns for a.flac, but 2 in"),
        ("a.flac,Hello, you there\nb.flac,Bye.\n", "2 columns for b.flac, but 3 in"),
        ('file,text\na.flac,"Hello.\nb.flac,Bye.\n', "a quote in the row of a.flac is not closed"),
        ('file,text\na.flac,"Hello.\nb.flac,"Bye."\n', "a quote in the row of a.flac is not closed"),
    ],
)
def test_a_text_is_not_cut_at_a_comma_and_takes_in_no_other_row(tmp_path, table, told):
    sound(tmp_path / "a")
    (tmp_path / "list.csv").write_text(table, encoding="utf-8")
    with pytest.raises(HiggsError, match=rf"list.csv cannot be read as CSV \({told}"):
        find_recordings(tmp_path)


def test_a_table_with_two_texts_for_a_recording_is_refused(tmp_path):
    sound(tmp_path / "a")
    table = "file,text\na.flac,Hello.\nother,One.\nother,Two.\n"  # not of a recording here
    (tmp_path / "list.csv").write_text(table + "a.flac,Hello.\n", encoding="utf-8")
    assert texts(tmp_path) == {"a.flac": "Hello."}
    (tmp_path / "list.csv").write_text(table + "a.flac,Bye.\n", encoding="utf-8")
    with pytest.raises(HiggsError, match=r"list\.csv has two texts for a\.flac\. Keep one of them\."):
        find_recordings(tmp_path)


@pytest.mark.parametrize("first", ['"Hello\nyou."', '"Hello" you.'])
def test_a_text_of_two_lines_and_a_stray_quote_are_read(tmp_path, first):
    for name in "ab":
        sound(tmp_path / name)
    (tmp_path / "list.csv").write_text(f"file,text\na.flac,{first}\nb.flac,Bye.\n", encoding="utf-8")
    assert texts(tmp_path) == {"a.flac": "Hello you.", "b.flac": "Bye."}


def test_a_recording_is_cut_by_its_subtitles(tmp_path):
    sound(tmp_path / "talk")
    (tmp_path / "talk.srt").write_text(
        "00:00:00,000 --> 00:00:01,000\nOne,\n\n00:00:01,500 --> 00:00:03,000\ntwo.\n\n"
        "00:00:04,500 --> 00:00:05,000\nThree.\n\n00:00:06,000 --> 00:00:20,000\nLong.\n",
        encoding="utf-8",
    )
    found, _ = find_recordings(tmp_path / "talk.flac")
    assert [(one.text, one.span) for one in found] == [
        ("One, two.", (0.0, 3.1)),
        ("Three.", (4.4, 5.1)),
        ("Long.", (5.9, 20.1)),
    ]
    assert found[1].name == "talk.flac at 4.4 s"


def test_what_is_wrong_in_a_folder_is_named(tmp_path):
    with pytest.raises(HiggsError, match=r"nowhere does not exist\. Give a folder"):
        find_recordings(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(HiggsError, match="empty holds no sound file"):
        find_recordings(tmp_path / "empty")
    sound(tmp_path / "two")
    (tmp_path / "two.srt").write_text(
        "1\n00:00:00,000 --> 00:00:01,000\nANNA: Hi.\n\n2\n00:00:01,000 --> 00:00:02,000\nBEN: Ho.\n",
        encoding="utf-8",
    )
    (tmp_path / "list.csv").write_text("file,text\nmissing.wav,Hello.\n", encoding="utf-8")
    found, refused = find_recordings(tmp_path)
    assert not found and "several speakers: ANNA, BEN" in refused["two.flac"]
    assert "1 of its rows name no sound file here: missing.wav" in refused["list.csv"]


@pytest.fixture(scope="module")
def codec():
    return inspect(EMBEDDED).codec


def test_bad_clips_are_left_out_by_name_with_the_reason(tmp_path, codec):
    rate = 24_000
    wav, _ = soundfile.read(BUILT_IN_CLIPS / "amber.flac", dtype="float32")
    for name, samples in {
        "good": wav,
        "silent": np.zeros(2 * rate),
        "short": wav[: rate // 2],
        "long": np.tile(wav, 6),
        "tone": 0.3 * np.sin(np.arange(3 * rate) * 0.05),
        "loud": np.clip(wav * 60, -1, 1),
        "other": wav,
        "wordless": wav,
        "tiny": wav[:10],
    }.items():
        soundfile.write(tmp_path / f"{name}.wav", samples, rate)
        if name != "wordless":
            (tmp_path / f"{name}.txt").write_text("Hi." if name == "other" else TEXT, encoding="utf-8")
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    recordings, _ = find_recordings(tmp_path)
    heard = utterances_of(recordings, codec, CPU, tmp_path / "codes.safetensors")
    assert [one.name for one in heard.utterances] == ["good.wav"] and heard.utterances[0].text == TEXT
    assert heard.utterances[0].codes.shape[1] == 8
    reasons = {
        "silent": "is silent",
        "short": "too short",
        "long": "30 s at most. Choose a Whisper model",
        "tone": "does not sound like speech",
        "loud": "overdriven",
        "other": "transcript is too short",
        "wordless": "no transcript",
        "tiny": "too short",
        "broken": "cannot be read as audio",
    }
    assert heard.refused.keys() == {f"{name}.wav" for name in reasons}
    for name, reason in reasons.items():
        assert reason in heard.refused[f"{name}.wav"], heard.refused[f"{name}.wav"]


def test_codes_are_kept_for_the_next_run(tmp_path, codec, monkeypatch):
    for name in ("amber", "clara"):
        shutil.copy(BUILT_IN_CLIPS / f"{name}.flac", tmp_path)
        shutil.copy(BUILT_IN_CLIPS / f"{name}.txt", tmp_path)
    keep, done = tmp_path / "codes.safetensors", []
    recordings, _ = find_recordings(tmp_path)
    first = utterances_of(recordings, codec, CPU, keep, on_clip=lambda *what: done.append(what))
    assert done == [(0, 2), (1, 2)]
    monkeypatch.setattr(utterances, "open_encoder", None)
    second = utterances_of(recordings, codec, CPU, keep)
    assert all(torch.equal(a.codes, b.codes) for a, b in zip(first.utterances, second.utterances, strict=True))
    keep.write_bytes(b"damaged")
    with pytest.raises(TypeError):  # encodes again
        utterances_of(recordings, codec, CPU, keep)


def test_clips_of_one_name_size_and_time_keep_their_own_codes(tmp_path, codec):
    """As from an archive of clips of one length."""
    for name in ("amber", "clara"):
        wav, rate = soundfile.read(BUILT_IN_CLIPS / f"{name}.flac", dtype="float32")
        (tmp_path / name).mkdir()
        soundfile.write(tmp_path / name / "1.wav", wav[: 4 * rate], rate)
        (tmp_path / name / "1.txt").write_text("One two three four five six seven.", encoding="utf-8")
        os.utime(tmp_path / name / "1.wav", (0, 0))
    recordings = find_recordings(tmp_path)[0]
    first, second = utterances_of(recordings, codec, CPU, tmp_path / "codes.safetensors").utterances
    assert not torch.equal(first.codes, second.codes)


def test_whisper_writes_down_a_long_recording_between_its_pauses(tmp_path, codec, monkeypatch):
    pytest.importorskip("transformers")
    wav, rate = soundfile.read(BUILT_IN_CLIPS / "amber.flac", dtype="float32")
    gap = np.zeros(rate // 2, dtype="float32")
    soundfile.write(tmp_path / "talk.wav", np.concatenate([part for _ in range(6) for part in (wav, gap)]), rate)
    whisper = write_whisper(tmp_path / "models" / "tiny")
    monkeypatch.setattr(utterances, "misfit", lambda text, seconds: "")  # a random Whisper's words fit nothing
    recordings, _ = find_recordings(tmp_path)
    heard = utterances_of(recordings, codec, CPU, tmp_path / "codes.safetensors", whisper)
    assert len(heard.utterances) >= 3 and all(one.text for one in heard.utterances)
    assert heard.utterances[1].name.startswith("talk.wav at ")


def test_a_long_recording_with_its_text_is_cut_and_keeps_the_words_as_written(tmp_path, codec, monkeypatch):
    """Whisper hears where each part is in the text. What it misspells is right there."""
    wav, rate = soundfile.read(BUILT_IN_CLIPS / "amber.flac", dtype="float32")
    gap = np.zeros(rate // 2, dtype="float32")
    soundfile.write(tmp_path / "talk.wav", np.concatenate([part for _ in range(6) for part in (wav, gap)]), rate)
    written = [
        "“Mr. Kovač left,” she said.",
        "It was late; nobody spoke.",
        "Anna and Tomáš went home.",
        "The end came.",
    ]
    (tmp_path / "talk.txt").write_text(f"Chapter One\n\n{' '.join(written)}\n", encoding="utf-8")
    heard = iter(
        ["mr kovatch left she said", "it was late nobody spoke", "and what is that supposed to be", "the end game"]
    )

    @contextlib.contextmanager
    def transcriber(folder, device):
        yield lambda wavs, rate: [next(heard) for _ in wavs]

    monkeypatch.setattr(utterances, "transcriber", transcriber)
    monkeypatch.setattr(utterances, "misfit", lambda text, seconds: "")
    clips = utterances_of(find_recordings(tmp_path)[0], codec, CPU, tmp_path / "codes.safetensors", tmp_path)
    assert [one.text for one in clips.utterances] == [written[0], written[1], written[3]]
    ((name, why),) = clips.refused.items()
    assert name.startswith("talk.wav at ") and "does not have the words" in why


@pytest.mark.parametrize(
    ("text", "heard", "passages"),
    [
        # A tag tears a sign from its word, and holds letters of words.
        (
            "A cat <|sfx:laugh|> — and a dog. <|emotion:amusement|> A laugh, and home.",
            ["a cat and a dog", "a laugh and home"],
            ["A cat <|sfx:laugh|> — and a dog.", "<|emotion:amusement|> A laugh, and home."],
        ),
        ("<|emotion:amusement|> “Go,” he said.", ["go he said"], ["<|emotion:amusement|> “Go,” he said."]),
        # Beside words that nobody reads, one is misheard.
        (
            "The Sea. By Ann Ny and others. All rights are reserved. Some came home late. They slept until noon. "
            "The end. Printed at the press of the hill.",
            ["sum came home late", "they slept until moon"],
            ["Some came home late.", "They slept until noon."],
        ),
        ("In May of 1984, said she.", ["in may of nineteen eighty four", "said she"], ["In May of 1984,", "said she."]),
        (
            "It was nineteen eighty-four, said she.",
            ["it was 1984 said she"],
            ["It was nineteen eighty-four, said she."],
        ),
        # Words that are said and not written.
        (
            "They came home. It was late.",
            ["they came home", "it was late and that is what I say"],
            ["They came home.", ""],
        ),
        ("", ["it was late", ""], ["", ""]),
        ("x" * 10_000, ["it was late"], [""]),
        # Parts end at dashes, too.
        (
            "He went home—the well-known way… and slept—badly.",
            ["he went home", "the well known way", "and slept", "badly"],
            ["He went home—", "the well-known way…", "and slept—", "badly."],
        ),
        ("你好。再见。", ["你好", "再见"], ["你好。", "再见。"]),
    ],
)
def test_what_is_heard_is_found_in_the_text(text, heard, passages):
    assert passages_heard(text, heard) == passages


def test_a_recording_without_a_pause_is_refused_by_name(tmp_path, codec):
    wav, rate = soundfile.read(BUILT_IN_CLIPS / "amber.flac", dtype="float32")
    hum = 0.1 * np.sin(np.arange(31 * rate) * 0.05).astype("float32")
    soundfile.write(tmp_path / "talk.wav", np.resize(wav, 31 * rate) * 0.5 + hum, rate)
    clips = utterances_of(find_recordings(tmp_path)[0], codec, CPU, tmp_path / "codes.safetensors", tmp_path)
    ((name, why),) = clips.refused.items()
    assert name == "talk.wav at 0.0 s" and "31.0 s long" in why and not clips.utterances


def test_a_stop_is_told_also_if_nothing_can_be_kept(tmp_path, codec):
    sound(tmp_path / "clip")

    def stop(done, count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        utterances_of(find_recordings(tmp_path)[0], codec, CPU, tmp_path / "clip.flac" / "codes", None, stop)


def test_another_whisper_writes_down_what_one_has_heard(tmp_path, codec, monkeypatch):
    """Another name or size is another one. Without one, what was heard stays."""
    sound(tmp_path / "clips" / "amber")
    whispers, heard = [tmp_path / name for name in ("a/small", "a/base", "b/base")], []
    for whisper, size in zip(whispers, (1, 1, 2), strict=True):
        whisper.mkdir(parents=True)
        (whisper / "model.safetensors").write_bytes(bytes(size))

    @contextlib.contextmanager
    def transcriber(folder, device):
        yield lambda wavs, rate: heard.append(folder) or [TEXT]

    monkeypatch.setattr(utterances, "transcriber", transcriber)
    recordings, keep = find_recordings(tmp_path / "clips")[0], tmp_path / "codes.safetensors"
    for whisper in (*whispers, whispers[-1], None, whispers[-1]):
        (clip,) = utterances_of(recordings, codec, CPU, keep, whisper).utterances
        assert clip.text == TEXT
    assert heard == whispers


def test_a_clip_in_which_whisper_hears_nothing_is_left_out(tmp_path, codec, monkeypatch):
    @contextlib.contextmanager
    def transcriber(folder, device):
        yield lambda wavs, rate: ["" for _ in wavs]

    monkeypatch.setattr(utterances, "transcriber", transcriber)
    shutil.copy(BUILT_IN_CLIPS / "amber.flac", tmp_path)
    clips = utterances_of(find_recordings(tmp_path)[0], codec, CPU, tmp_path / "codes.safetensors", tmp_path)
    assert not clips.utterances and "no words in it. Cut it out." in clips.refused["amber.flac"]


def test_a_stopped_reading_goes_on_where_it_was(tmp_path, codec, monkeypatch):
    """Also within a long recording, of which each part counts."""
    wav, rate = soundfile.read(BUILT_IN_CLIPS / "amber.flac", dtype="float32")
    gap = np.zeros(rate // 2, dtype="float32")
    soundfile.write(tmp_path / "talk.wav", np.concatenate([part for _ in range(6) for part in (wav, gap)]), rate)
    steps, heard = [], []

    @contextlib.contextmanager
    def transcriber(folder, device):
        yield lambda wavs, rate: heard.append(rate) or ["one two three"]

    monkeypatch.setattr(utterances, "transcriber", transcriber)
    monkeypatch.setattr(utterances, "misfit", lambda text, seconds: "")
    given = find_recordings(tmp_path)[0], codec, CPU, tmp_path / "codes.safetensors", tmp_path

    def stop(done, count):
        steps.append((done, count))
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        utterances_of(*given, stop)
    assert steps == [(0, 4), (1, 4), (2, 4)]
    assert len(utterances_of(*given).utterances) == len(heard) == 4


def test_a_bad_part_of_a_long_recording_is_left_out_alone(tmp_path, codec, monkeypatch):
    pytest.importorskip("transformers")
    wav, rate = soundfile.read(BUILT_IN_CLIPS / "amber.flac", dtype="float32")
    tone = (0.3 * np.sin(np.arange(14 * rate) * 0.05)).astype("float32")
    gap = np.zeros(rate // 2, dtype="float32")
    soundfile.write(tmp_path / "talk.wav", np.concatenate([wav, gap, wav, gap, tone, gap, wav, gap, wav, gap]), rate)
    whisper = write_whisper(tmp_path / "models" / "tiny")
    monkeypatch.setattr(utterances, "misfit", lambda text, seconds: "")
    heard = utterances_of(find_recordings(tmp_path)[0], codec, CPU, tmp_path / "codes.safetensors", whisper)
    assert len(heard.utterances) == 4 and len(heard.refused) == 1
    assert all(name.startswith("talk.wav at ") for name in heard.refused)


def test_a_clip_in_which_two_people_speak_is_refused(tmp_path, codec):
    """Beside clips of the first one. A clip of hers that is joined from two is not."""

    def part(name, start, stop):
        wav, rate = soundfile.read(BUILT_IN_CLIPS / f"{name}.flac", dtype="float32")
        return wav[int(start * rate) : int(stop * rate)]

    for at, (first, second) in enumerate((((0, 3), (3, 6)), ((0, 4), (2, 6)), ((1, 4), (0, 3)), ((2, 6), (0, 4)))):
        soundfile.write(tmp_path / f"{at}.wav", np.concatenate([part("amber", *first), part("amber", *second)]), 24_000)
    soundfile.write(tmp_path / "two.wav", np.concatenate([part("amber", 0, 3), part("henry", 0, 5)]), 24_000)
    for path in tmp_path.glob("*.wav"):
        path.with_suffix(".txt").write_text(TEXT, encoding="utf-8")
    for _ in range(2):  # and again when the codes are kept
        heard = utterances_of(find_recordings(tmp_path)[0], codec, CPU, tmp_path / "codes.safetensors")
        assert [one.name for one in heard.utterances] == [f"{at}.wav" for at in range(4)]
        assert heard.refused.keys() == {"two.wav"} and "Two people seem to speak" in heard.refused["two.wav"]
