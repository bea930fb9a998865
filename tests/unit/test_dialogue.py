"""Dialogues: the speaker of each word in a script, and turns that sound the same in any context."""

import pathlib
import random
from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import (
    EMBEDDED,
    SAMPLE_RATE,
    Engine,
    EngineConfig,
    HiggsError,
    Listener,
    SamplingParams,
    Turn,
    Voice,
    read_dialogue,
    speaker_key,
)
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.audio.loudness import evening_gain
from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.speech.kept_codes import KeptCodes

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARAMS = SamplingParams(seed=3, max_frames=60, retries=0)
BRIEF = replace(PARAMS, max_frames=12)  # for tiny models, which do not end by themselves


def turns_of(script, known=()):
    return [(turn.speaker, turn.text) for turn in read_dialogue(script, known).turns]


def test_lines_of_underscores_are_read_quickly():
    """The number of their readings as a name grew with its cube: this took hours."""
    line = f"Introduction{'_' * 4000} x y z w 1"
    assert turns_of(line) == [("", line)]


@pytest.mark.parametrize(
    ("script", "known", "turns"),
    [
        (
            "Ann: One.\nBob: Two.\nAnn: Three.\nBob: Four.",
            (),
            [("Ann", "One."), ("Bob", "Two."), ("Ann", "Three."), ("Bob", "Four.")],
        ),
        ("[Ann] One.\n[Bob] Two.", ("Ann", "Bob"), [("Ann", "One."), ("Bob", "Two.")]),
        ("[Ann]\nOne.\nStill one.\n\n[Bob]:\nTwo.", ("Ann", "Bob"), [("Ann", "One.\nStill one."), ("Bob", "Two.")]),
        ("ann: One.\nANN: Two.", ("Ann",), [("Ann", "One."), ("Ann", "Two.")]),
        (
            "[1]: One.\nSpeaker 2: Two.\n[S1] Three.\n[Speaker_2]: Four.",
            ("1", "2"),
            [("1", "One."), ("2", "Two."), ("1", "Three."), ("2", "Four.")],
        ),
        ("小明：你好。\n小红：你好。", ("小明", "小红"), [("小明", "你好。"), ("小红", "你好。")]),
        ("Ann: One.\n\nBob: Two.\n", (), [("Ann", "One."), ("Bob", "Two.")]),
        ("Note: one.", (), [("", "Note: one.")]),
        ("Ann: One.\nBob: Two.\nAnd so on.", (), [("", "Ann: One.\nBob: Two.\nAnd so on.")]),
        ("Before.\nAnn: One.", ("Ann",), [("", "Before."), ("Ann", "One.")]),
        ("# said by nobody\nAnn: One. # two\n\\# three", ("Ann",), [("Ann", "One. # two\n# three")]),
        (
            "Ann: One. [pause 1]\n[pause 2]\nAnn: Two.",
            ("Ann",),
            [("Ann", "One. [pause 1]\n[pause 2]"), ("Ann", "Two.")],
        ),
        ("Ann = a.wav\nBob= b.wav\n\nAnn: One.\nBob: Two.", (), [("Ann", "One."), ("Bob", "Two.")]),
        (
            "Ann: It was 5:30.\nhttp://example.org\nAnn: Two",
            ("Ann",),
            [("Ann", "It was 5:30.\nhttp://example.org"), ("Ann", "Two")],
        ),
        (
            "[Ann|speed:fast] One.\n[Ann|speed: very_slow] Two.",
            ("Ann",),
            [("Ann", "<|prosody:speed_fast|>One."), ("Ann", "<|prosody:speed_very_slow|>Two.")],
        ),
        ("One.\nTwo.", ("Ann",), [("", "One.\nTwo.")]),
        ("Ann:\n\nBob: Two.", ("Ann", "Bob"), [("Bob", "Two.")]),
        ("", (), []),
    ],
)
def test_lines_are_assigned_to_their_speakers(script, known, turns):
    assert turns_of(script, known) == turns


def test_pauses_on_their_own_lines_have_no_speaker():
    script = "Ann: One.\n[pause 1]\nBob: Two.\n[pause 1]\nAnn: Three.\n[pause 1]\nBob: Four."
    assert [speaker for speaker, _ in turns_of(script)] == ["Ann", "Bob", "Ann", "Bob"]


@pytest.mark.parametrize("text", ["Note: once.\nThen more.", "[sigh] Oh.\n[sigh] Well.", "He said: no.\n(Ann) yes."])
def test_text_without_speakers_stays_text(text):
    assert turns_of(text) == [("", text)]


def test_prose_has_no_turns():
    """The training texts, and two chapters in the public domain: Alice's first, and A Scandal in Bohemia's."""
    chapters = sorted((ROOT / "tests" / "unit" / "data").glob("*.txt"))
    assert len(chapters) == 2
    for path in [*(ROOT / "training" / "text").glob("*.txt"), *chapters]:
        assert not any(read_dialogue(path.read_text(encoding="utf-8")).speakers), path


def test_a_turn_has_its_own_settings():
    script = "[Ann|seed:24] One.\n[Ann|loud|volume:-2] Two.\n[Ann|volume:0.5] Three.\n[Ann|volume: -6 dB|seed:1] Four."
    dialogue = read_dialogue(f"{script}\n[Ann|volume:+40dB] Five.", ["Ann"])
    assert [turn.seed for turn in dialogue.turns] == [24, None, None, 1, None]
    assert [round(turn.volume, 3) for turn in dialogue.turns] == [1.0, 1.0, 0.5, 0.501, 4.0]
    assert len(dialogue.warnings) == 2 and all("left out" in warning for warning in dialogue.warnings)


def test_only_the_header_names_voices():
    dialogue = read_dialogue("\nAnn = my voices/ann.safetensors\nBob = 2\n\nAnn: One.\nx = 3")
    assert dialogue.head == {"Ann": "my voices/ann.safetensors", "Bob": "2"}
    assert dialogue.turns[0].text == "One.\nx = 3"


def test_an_unknown_name_is_refused_or_warned_about_if_it_may_be_text():
    with pytest.raises(HiggsError, match=r"Bobb has no voice.*Ann, Bob.*mean Bob"):
        read_dialogue("Ann: One.\nBobb: Two.\nBobb: Three.", ["Ann", "Bob"])
    dialogue = read_dialogue("Ann: One.\nWarning: Two.", ["Ann"])
    assert dialogue.turns[0].text == "One.\nWarning: Two." and "Warning" in dialogue.warnings[0]


@pytest.mark.parametrize("names", [("1", "Speaker 1", "S1", "[s 1]", "SPEAKER_1"), ("Old Tom", "old_tom", "OLD  TOM")])
def test_differently_written_names_are_one_speaker(names):
    assert len({speaker_key(name.strip("[]")) for name in names}) == 1


def test_any_text_can_be_read_as_a_script():
    """Every word is spoken, or it is a comment, markup, or named in a warning."""
    parts = [
        "Ann",
        "Bob:",
        "[Ann]",
        "[",
        "]",
        ":",
        "|seed:",
        "7",
        "#",
        "\\#",
        "\n",
        "\n\n",
        " ",
        "=",
        "word",
        "[pause 1]",
        "<|emotion:awe|>",
        "。",
        "：",
        "Ann: ",
        "[Bob|x:y]",
        "\t",
        "é",
    ]
    choose = random.Random(1)
    for _ in range(3000):
        script = "".join(choose.choices(parts, k=choose.randint(1, 25)))
        try:
            dialogue = read_dialogue(script, ["Ann", "Bob"])
        except HiggsError:
            continue
        said = " ".join(turn.text for turn in dialogue.turns)
        kept = [line for line in script.splitlines() if not line.strip().startswith("#")]
        named = " ".join(script[start:stop] for start, stop, says in dialogue.unsaid if says)
        for word in ("word", "é"):
            assert said.count(word) == dialogue.said.count(word), script
            if not dialogue.head:
                assert (said + named).count(word) == "\n".join(kept).count(word), script


@pytest.fixture(scope="module")
def voices():
    codes = torch.randint(0, 1024, (2, 40, 8), generator=torch.Generator().manual_seed(1))
    return {name: Voice(one, "A reference.", name) for name, one in zip(("Ann", "Bob"), codes, strict=True)}


SCENE = [
    Turn("Ann", "One apple."),
    Turn("Bob", "Two apples are here."),
    Turn("Ann", "Three."),
    Turn("Bob", "One apple."),
    Turn("Ann", "One apple."),
]


def opened(folder, **config):
    return Engine(EngineConfig(str(folder), device="cpu", context=512, **config))


@pytest.fixture(scope="module")
def embedded():
    with opened(EMBEDDED) as engine:
        yield engine


def codes_of(speech):
    """Return the codes of each turn."""
    return [speech.codes[slice(*turn.frames)] for turn in speech.turns]


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_turn_depends_on_neither_the_batch_size_nor_its_place(written, voices, family):
    said = []
    for batch in (1, 2, 0):
        with opened(written[family], batch=batch) as engine:
            said.append(engine.speak_turns(SCENE, voices, BRIEF))
    assert all(torch.equal(said[0].codes, other.codes) for other in said[1:])
    assert all(torch.equal(said[0].wav, other.wav) for other in said[1:])
    first = codes_of(said[0])
    assert not torch.equal(first[0], first[4]), "the same words again are said anew"
    with opened(written[family]) as engine:
        edited = engine.speak_turns([*SCENE[:2], Turn("Bob", "A new turn."), *SCENE[2:]], voices, BRIEF)
        reseeded = engine.speak_turns([Turn("Ann", "One apple.", seed=9), *SCENE[1:]], voices, BRIEF)
    again = codes_of(edited)
    for old, new in zip((0, 1, 2, 3, 4), (0, 1, 3, 4, 5), strict=True):
        assert torch.equal(first[old], again[new]), old
    changed = codes_of(reseeded)
    assert not torch.equal(changed[0], first[0])
    assert all(torch.equal(one, other) for one, other in zip(changed[1:], first[1:], strict=True))


def test_turns_lie_at_the_reported_times_and_gaps_are_silent(embedded, voices):
    script = [
        Turn("Ann", "One apple is here. [pause 1]"),
        Turn("Bob", "Two apples."),
        Turn("Ann", "[pause 0.5] Three."),
    ]
    speech = embedded.speak_turns(script, voices, SamplingParams(seed=3, max_frames=100))
    heard = []
    embedded.speak_turns(
        script,
        voices,
        SamplingParams(seed=3, max_frames=100),
        listener=Listener(on_audio=lambda wav: heard.append(wav)),
    )
    one, two, three = speech.turns
    assert [turn.speaker for turn in speech.turns] == ["Ann", "Bob", "Ann"]
    assert one.start == 0 and two.start - one.stop == SAMPLE_RATE and three.stop == len(speech.wav)
    assert three.start - two.stop == SAMPLE_RATE // 2, "what is written counts, not the gap"
    assert not speech.wav[one.stop : two.start].any() and not speech.wav[two.stop : three.start].any()
    assert all(speech.wav[turn.start : turn.stop].abs().max() > 0.01 for turn in speech.turns)
    assert len(torch.cat(heard)) == len(speech.wav)


def test_turns_have_the_requested_gap(embedded, voices):
    for gap in (PARAMS.turn_gap, 0.0, 0.7):
        speech = embedded.speak_turns(SCENE[:2], voices, replace(PARAMS, turn_gap=gap))
        assert speech.turns[1].start - speech.turns[0].stop == round(gap * SAMPLE_RATE)


def test_speakers_without_a_voice_get_different_ones_and_keep_them(written, voices):
    script = [
        Turn(name, text) for text in ("Here I am.", "This is what I say.", "And this.") for name in ("Ann", "Cid")
    ]
    with opened(written["v3"]) as engine:
        both = engine.speak_turns(script, {}, BRIEF)
        one = engine.speak_turns(script, {"Cid": voices["Bob"]}, BRIEF)
    spoken, beside = codes_of(both), codes_of(one)
    assert not torch.equal(spoken[0], spoken[1]), "the same words, two people"
    for place in (0, 2, 4):
        assert torch.equal(spoken[place], beside[place]), "Ann's voice has nothing to do with Cid's"


@pytest.mark.parametrize("turns", [[], [Turn("Ann", "[pause 1]"), Turn("Bob", " ... ")]])
def test_a_script_without_a_word_is_refused(embedded, turns):
    with pytest.raises(HiggsError, match="nothing to speak"):
        embedded.speak_turns(turns, {}, PARAMS)


def test_a_turn_without_a_word_is_a_pause(embedded, voices):
    silent = Turn("Bob", "[pause 1] <|emotion:awe|> [pause 0.5]")
    script = [Turn("Bob", "..."), Turn("Ann", "One apple."), silent, Turn("Ann", "Two.")]
    turns = embedded.speak_turns(script, voices, PARAMS).turns
    assert [turn.text for turn in turns] == [turn.text for turn in script]
    assert [turn.is_spoken for turn in turns] == [False, True, False, True]
    assert [embedded.planner.is_spoken(turn.text) for turn in script] == [False, True, False, True]
    before, one, between, two = turns
    assert before.start == one.start == 0, "nothing is silent before the first word"
    assert two.start - one.stop == 1.5 * SAMPLE_RATE and between.start == between.stop == one.stop
    assert between.frames == (one.frames[1], two.frames[0])


def test_turns_of_effects_only_are_left_out_for_models_without_tags(written, embedded, voices):
    """Higgs Audio v2 has no control tags, so a turn of only an effect is silent there."""
    script = [Turn("Ann", "One apple."), Turn("Ann", "<|sfx:laughter|>"), Turn("Ann", "Two.")]
    with opened(written["v2"]) as engine:
        speech = engine.speak_turns(script, voices, BRIEF)
        with pytest.raises(HiggsError, match=r"no words\. <\|sfx:laughter\|> was left out: Higgs Audio v2"):
            engine.speak_turns(script[1:2], voices, BRIEF)
    assert [turn.is_spoken for turn in speech.turns] == [True, False, True]
    assert [engine.planner.is_spoken(turn.text) for turn in script] == [True, False, True]
    assert embedded.planner.is_spoken("<|sfx:laughter|>")
    assert any("<|sfx:laughter|> was left out" in warning for warning in speech.warnings)


def test_the_terminal_speaks_a_script(tmp_path, capsys, voices):
    script, out = tmp_path / "scene.txt", tmp_path / "scene.wav"
    voices["Ann"].save(tmp_path / "ann.safetensors")
    script.write_text("Ann = ann.safetensors\n\nAnn: One apple.\nAnn: Two.\n", encoding="utf-8-sig")
    assert main(["say", "--script", str(script), "--out", str(out), "--device", "cpu", "--max-frames", "40"]) == 0
    assert out.is_file() and "2 chunks at a time" in capsys.readouterr().out
    assert main(["say", "--script", str(script), "--out", str(out), "--turn-gap", "-1"]) == 2
    assert "turn_gap is -1.0" in capsys.readouterr().err
    assert main(["say", "--out", str(out)]) == 2 and "--script" in capsys.readouterr().err
    script.write_text("Ann = gone.safetensors\nAnn: One.", encoding="utf-8")
    assert main(["say", "--script", str(script), "--out", str(out)]) == 2
    assert "gone.safetensors" in capsys.readouterr().err


def test_the_terminal_warns_about_ambiguous_scripts(tmp_path, capsys, voices):
    script, srt, ann = tmp_path / "scene.txt", tmp_path / "scene.srt", tmp_path / "ann.safetensors"
    voices["Ann"].save(ann)
    how = ["--out", str(tmp_path / "scene.wav"), "--device", "cpu", "--max-frames", "10", "--retries", "0"]
    script.write_text("**Ann:** One apple.\n**Bob (whispering):** Two.\n", encoding="utf-8")
    assert main(["say", "--script", str(script), *how]) == 0
    told = capsys.readouterr().err
    assert "warning: Ann and Bob have only one line each." in told
    assert 'warning: "(whispering)" was left out for Bob: the model has not learned <|style:whispering|>.' in told
    srt.write_text(
        "1\n0:01 --> 0:02\nAnn: One.\n\n2\n0:02 -> 0:03\nBob: Two.\n\n3\n0:03 --> 0:04\nBob: Three.\n", encoding="utf-8"
    )
    assert main(["say", "--srt-in", str(srt), "--voice", str(ann), *how]) == 0
    told = capsys.readouterr().err
    assert "warning: Cue 2 (line 6) was left out: " in told and "warning: --voice was not used" in told


def test_only_changed_turns_are_spoken_again(written, voices):
    edited = [*SCENE[:2], Turn("Ann", "Three and a half."), *SCENE[3:]]
    with opened(written["v3"]) as engine:
        first = engine.speak_turns(SCENE, voices, BRIEF)
        again = engine.speak_turns(SCENE, voices, BRIEF)
        steps = []
        changed = engine.speak_turns(
            edited, voices, BRIEF, listener=Listener(on_frame=lambda done, expected: steps.append((done, expected)))
        )
        anew = engine.speak_turns(edited, voices, BRIEF, reuse=False)
        other_seed = engine.speak_turns(SCENE, voices, replace(BRIEF, seed=4))
        other_voice = engine.speak_turns(SCENE, voices | {"Bob": voices["Ann"]}, BRIEF)
    assert (first.reused, again.reused, changed.reused, anew.reused) == (0, 5, 4, 0)
    assert (other_seed.reused, other_voice.reused) == (0, 4), "Bob says in Ann's voice what she has said"
    assert torch.equal(first.codes, again.codes) and torch.equal(first.wav, again.wav)
    assert torch.equal(changed.codes, anew.codes) and torch.equal(changed.wav, anew.wav)
    assert first.stopped == again.stopped and first.warnings == again.warnings
    assert steps[-1][0] < 2 * 12 and steps[-1][0] <= steps[-1][1]
    with opened(written["v3"]) as engine:
        engine.speak_turns(SCENE, voices, BRIEF)
        engine.close()
        engine.open()
        assert engine.speak_turns(SCENE, voices, BRIEF).reused == 5, "unloading keeps them: they are on the host"


def test_a_generated_voice_is_reused_with_its_turns(written):
    script = [Turn(name, text) for text in ("Here I am.", "This is what I say.") for name in ("Ann", "Cid")]
    with opened(written["v3"]) as engine:
        first = engine.speak_turns(script, {}, BRIEF)
        again = engine.speak_turns(script, {}, BRIEF)
        cancelled = []

        def cancel(done, expected):
            cancelled.append(done)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            engine.speak_turns([*script, Turn("Ann", "One more.")], {}, BRIEF, listener=Listener(on_frame=cancel))
        after = engine.speak_turns([*script, Turn("Ann", "One more.")], {}, BRIEF)
    assert torch.equal(first.wav, again.wav) and again.reused == 4 and after.reused == 4


def test_kept_codes_stay_within_their_limit():
    kept = KeptCodes(most_bytes=3 * 100 * 8 * 2)
    sequences = [Sequence([1, 2, number], index=number) for number in range(5)]
    for sequence in sequences:
        sequence.codes.append(torch.full((100, 8), 1023))
        sequence.finished = sequence.ended = True
        kept.keep(sequence, sequence)
        assert kept.nbytes <= 3 * 100 * 8 * 2
    assert len(kept) == 3
    for number, there in enumerate((False, False, True, True, True)):
        fresh = Sequence([1, 2, number], index=number)
        assert kept.fill(fresh) == there == fresh.finished
        assert not there or torch.equal(fresh.codes[0], sequences[number].codes[0])


def test_turns_are_equally_loud_and_match_the_requested_loudness(embedded, voices):
    script = [
        Turn("Ann", "One apple is here."),
        Turn("Bob", "Two apples."),
        Turn("Ann", "Three.", volume=0.5),
    ]
    params = SamplingParams(seed=3, max_frames=100)
    plain = embedded.speak_turns(script, voices, params, even=False)
    even = embedded.speak_turns(script, voices, params)
    assert torch.equal(plain.codes, even.codes) and plain.turns == even.turns
    for number, turn in enumerate(plain.turns):
        before, after = (speech.wav[turn.start : turn.stop] for speech in (plain, even))
        gain = evening_gain(before / script[number].volume)
        assert torch.allclose(after, before * gain, atol=1e-6) and after.abs().max() <= 1
    other = embedded.speak_turns([script[1], Turn("Ann", "No.")], voices, params, reuse=False)
    spans = [speech.wav[turn.start : turn.stop] for speech, turn in ((even, even.turns[1]), (other, other.turns[0]))]
    assert torch.equal(*spans), "a turn's loudness is its own affair"
