"""Errors and reports in the languages of the page: how many it can translate, and that none of them is out of date."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from higgs_tts.engine import TARGETS, SpeechResult, TrainProgress, TrainReport, master
from higgs_tts.engine.book.report import BookFile, BookProgress
from higgs_tts.engine.finetune.audition import USES, Trial
from higgs_tts.engine.speech.result import FLAWS, DoubtfulWords, Retried, outcome
from higgs_tts.tests.translations import (
    LANGUAGES,
    MESSAGES,
    SERVER,
    TEMPLATES,
    VALUE,
    error_texts,
    sources,
    translations,
    untranslated,
)

UNTRANSLATED = 28  # sentences of errors that the page shows in English: this number may fall, not rise


@pytest.fixture(scope="module")
def keys():
    return [keys[-1] for keys in translations("zh") if keys[:3] in (SERVER, MESSAGES)]


def test_no_more_errors_are_shown_in_english(keys):
    """Of a new error, put the sentence into locales/ (see tests/translations.py), or translate another one."""
    english = sorted(text for text in error_texts() if {*untranslated(text, keys)} - {VALUE, f"{VALUE}."})
    assert len(english) == UNTRANSLATED, "\n".join(english)


def test_every_line_of_a_report_is_translated(keys, load_module):
    speech = SpeechResult(torch.zeros(24_000), torch.zeros(25, 8).long(), 0.5, 2, "end of speech")
    cut = SpeechResult(torch.zeros(24_000), torch.zeros(25, 8).long(), 0.5, 2, "the frame limit (25 frames, 1.0 s)")
    again = [Retried(number, "Hello.", ((*FLAWS,), ()), 2) for number in range(1, 10)]
    doubts = [str(DoubtfulWords(kind, "the lamp", 3.2, 4.0)) for kind in FLAWS]
    tone = torch.sin(torch.arange(96_000) / 20)[None] / 3
    quiet = torch.cat([tone, 0.001 * torch.randn(1, 96_000), torch.zeros(1, 24_000)], 1)
    loudness = [str(master(wav, 24_000, target)[1]) for wav in (tone, quiet) for target in TARGETS.values() if target]
    files = [BookFile("01 One.flac", 61.0, True, loudness[0]), BookFile("2.mp3", 3700.0, False), BookFile("3", 1, True)]
    lost, ended = DoubtfulWords("missing", "the lamp", 3.2, 4.0), DoubtfulWords("limit", "The lamp.", 4.0, 4.0)
    found = ((), (True,)), ([lost], (True,)), ([lost] * 3, (True,)), ((), (False, False)), ((), (False, True))
    outcomes = [outcome(*one) for one in (*found, ([ended], (True, False)))]
    describe = load_module("speak").describe
    reports = [
        describe(
            speech, "higgs", ("Cloning works less well without a transcript.", *doubts), *loudness, *map(str, files)
        ),
        describe(
            cut,
            "higgs",
            (f"One: {doubts[0]}",),
            "Speakers: 1 Anna, 2 (no name)",
            "Saved: output/a.flac.",
            result=("Complete.", [f"door/who_1.wav: {doubts[0]}"]),
        ),
        load_module("comfy.info").info(
            outcomes, ["Voice Anna: x"], again, ["Left out: the notes, 2 notes."], "a", "b."
        ),
        *(str(BookProgress(0.5, left, 1, 2, "One")) for left in (None, 9.0)),
    ]
    parts = {part for report in reports for part in untranslated(report, keys)}
    assert parts == {"x"}, "of a voice's warning"


def test_every_line_about_a_training_is_translated(keys, load_module):
    entries = [{"strength": 1.0, "words": 103, "wrong": [7, 18], "endless": False, "likeness": 0.84}]
    entries += [{**entries[0], "strength": 0.65, "endless": True}, {**entries[0], "strength": 0.3}]
    step = {"step": 41, "loss": 5.2, "ends": 1.1, "held_out": 5.3, "held_out_ends": 1.2}
    history = [step | {"trials": entries[:count]} for count in (1, 2, 3)]
    trial = Trial(0.65, None, "", 103, (7, 18))
    untouched = {key: value for key, value in entries[0].items() if key != "likeness"}
    warnings = [
        f"{use}, 18 of 103 words are wrong. Without the LoRA, 4 are. Record more speech, or train fewer steps."
        for use in USES
    ]
    deaf = "Only words left out or said again were noticed. Choose a Whisper model, which also hears misread ones."
    kept = "Files that this training would have replaced were kept as a.earlier.safetensors, a.earlier.json."
    speech = "8.7 minutes of speech in 145 clips"
    refused = {"a.wav": "It is silent."}
    report = TrainReport(Path("anna"), speech, refused, 41, untouched, history, 9.0, trial, [kept, *warnings, deaf])
    model = SimpleNamespace(model=SimpleNamespace(label="higgs"))
    stages = [("Learning", math.nan, math.nan), ("Learning", 5.2, math.nan), ("Learning", 5.2, 60.0)]
    stages += [("Listening", math.nan, seconds) for seconds in (math.nan, 60.0)]
    progress = [str(TrainProgress(stage, 41, 246, loss, seconds)) for stage, loss, seconds in stages]
    told = [load_module("train").describe(report, model), *progress, str(TrainProgress("Reading clip 1 of 3"))]
    parts = {part for text in told for part in untranslated(text, keys)}
    assert parts == {"It is silent."}, "of a clip's refusal"


def test_every_translated_message_is_still_in_the_code():
    """The words of a key between its values are in the code, in at most three pieces."""
    code = "\n".join(
        node.value
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )

    def texts(words: str) -> int:
        """Return the number of texts of the code that make up a sentence, 9 if they do not."""
        end = next((end for end in range(len(words), 0, -1) if words[:end] in code), 0)
        return 0 if not words else 1 + texts(words[end:]) if end > 3 or end == len(words) else 9

    messages = [keys[-1] for keys in translations(LANGUAGES[0]) if keys[:3] == MESSAGES]
    pieces = {key: [one.strip() for one in re.split(r"\{\w+\}|[.,:;()?]", key)] for key in messages}
    gone = {key: [one for one in found if texts(one) > 3] for key, found in pieces.items()}
    assert {key: found for key, found in gone.items() if found} == {}


@pytest.mark.parametrize("language", LANGUAGES)
def test_nodes_are_called_as_on_the_page(language):
    known = translations(language)
    names = {text for keys, text in known.items() if keys[0] == "nodeDefs" and keys[-1] == "display_name"}
    said = " ".join(text for keys, text in known.items() if keys[:3] in (MESSAGES, TEMPLATES))
    assert {*re.findall("(?:[“「‘«„]|\\*\\*)\\s?(Higgs.*?)\\s?(?:[”」’»“]|\\*\\*)", said)} <= names
