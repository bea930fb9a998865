"""Training from a folder of clips to a LoRA that speaks: resuming, what is kept, and what is refused."""

import dataclasses
import itertools
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from higgs_tts.engine import BUILT_IN_CLIPS, EMBEDDED, Adapter, Engine, EngineConfig, HiggsError, SamplingParams
from higgs_tts.engine import train as train_voice
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.checkpoint.adapter_files import adapter_files
from higgs_tts.engine.checkpoint.load import inspect, load_talker
from higgs_tts.engine.core.config import TrainParams
from higgs_tts.engine.finetune import audition, lessons, train
from higgs_tts.engine.finetune.audition import Audition, Trial
from higgs_tts.engine.finetune.network import Network
from higgs_tts.engine.finetune.rows import Utterance, make_row
from higgs_tts.engine.finetune.run_state import RunState
from higgs_tts.engine.talker import FAMILIES
from higgs_tts.engine.voice import likeness
from higgs_tts.engine.voice.likeness import likeness_to
from higgs_tts.engine.words.check import ChunkCheck
from higgs_tts.engine.words.whisper_check import misheard, misheard_in
from higgs_tts.tests.peft_files import tree_of
from higgs_tts.tests.port_files import EMBEDDING, HEAD, port_name
from higgs_tts.tests.whisper_files import write_whisper
from safetensors.torch import load_file

CPU = torch.device("cpu")
PARAMS = TrainParams(steps=4, learning_rate=1e-3, rank=2)


# Clips, and the seconds that their first sentences take.
FIRST = {"amber": 2.2, "nora": 2.1, "henry": 2.6, "sky": 2.3, "jack": 2.4, "marcus": 2.9}


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Six clips of two to three seconds, with their words."""
    soundfile = pytest.importorskip("soundfile")
    folder = tmp_path_factory.mktemp("clips")
    for name, seconds in FIRST.items():
        wav, rate = soundfile.read(BUILT_IN_CLIPS / f"{name}.flac")
        soundfile.write(folder / f"{name}.flac", wav[: int(seconds * rate)], rate)
        (sentence, *_) = re.split(r"(?<=[.!]) ", (BUILT_IN_CLIPS / f"{name}.txt").read_text(encoding="utf-8"))
        (folder / f"{name}.txt").write_text(sentence, encoding="utf-8")
    return folder


@pytest.fixture
def quick(monkeypatch):
    """Trainings of few clips, with small steps and a trial every second one."""
    monkeypatch.setattr(train, "LEAST_MINUTES", 0.1)
    monkeypatch.setattr(train, "TRIALS", 2)
    monkeypatch.setattr(train, "APART", 1)
    monkeypatch.setattr(lessons, "ROWS", 2)
    monkeypatch.setattr(audition, "WORDS", 2)


@pytest.fixture
def trials(monkeypatch):
    """Stand for what is heard and expected, since a random network never ends: Trials by turns, the last one stays."""
    told = [Trial(1.0, None)]

    def spoken(self, adapter, strength, on_frame):
        on_frame(0, 1)
        made = told[0] if adapter is None or len(told) == 1 else told.pop(0)
        return dataclasses.replace(made, strength=strength)

    monkeypatch.setattr(Network, "shifted", lambda self, rows, shifts: [0.0, 1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(Audition, "__call__", spoken)
    return told


def config(folder, **given):
    return EngineConfig(str(folder), device="cpu", **given)


class Stopped(Exception):
    pass


def stop_at(step):
    def on_progress(progress):
        if progress.step == step and progress.stage == "Learning":
            raise Stopped

    return on_progress


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_run_that_goes_on_gives_the_weights_of_one_that_was_never_stopped(
    written, clips, quick, trials, tmp_path, family
):
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    train_voice(config(written[family]), clips, one, PARAMS)
    with pytest.raises(Stopped):
        train_voice(config(written[family]), clips, two, PARAMS, on_progress=stop_at(3))
    assert two.is_file()  # the best so far
    report = train_voice(config(written[family]), clips, two, PARAMS)
    assert [entry["step"] for entry in report.history] == [2, 4]
    ours, theirs = (load_file(tmp_path / f"{name}.training" / "state.safetensors") for name in ("one", "two"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    ours, theirs = load_file(one), load_file(two)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    stage = "Reading clip 1 of 6"
    stages = []
    again = train_voice(config(written[family]), clips, two, PARAMS, on_progress=lambda one: stages.append(one.stage))
    assert again.best_step == report.best_step and stages[0] == stage and "Learning" not in stages


def test_other_settings_begin_anew_and_keep_the_lora_that_was_there(written, clips, quick, trials, tmp_path):
    out = tmp_path / "voice.safetensors"
    first, params = train_voice(config(written["v3"]), clips, out, PARAMS), dataclasses.replace(PARAMS, seed=1)
    kinds = (".safetensors", ".json", ".md")
    held = [out.with_suffix(kind).read_bytes() for kind in kinds]
    with pytest.raises(Stopped):
        train_voice(config(written["v3"]), clips, out, params, on_progress=stop_at(3))
    other = train_voice(config(written["v3"]), clips, out, params)
    assert len(other.history) == 2 and other.history != first.history
    assert [(tmp_path / f"voice.earlier{kind}").read_bytes() for kind in kinds] == held
    told = "kept as voice.earlier.safetensors, voice.earlier.json, voice.earlier.md."
    assert any(told in one for one in other.warnings)
    (tmp_path / "voice.training" / "state.safetensors").write_bytes(b"damaged")
    assert train_voice(config(written["v3"]), clips, out, PARAMS).history == first.history
    assert len([*tmp_path.glob("voice.earlier*.safetensors")]) == 2


def test_another_whisper_begins_anew(written, clips, quick, trials, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "load_whisper", lambda *given: None)
    stages = {"small": [], "small again": [], "base": []}
    for name, told in stages.items():
        place = clips, tmp_path / "voice.safetensors", PARAMS, tmp_path / name.split()[0]
        train_voice(config(written["v3"]), *place, lambda progress, told=told: told.append(progress.stage))
    assert ["Learning" in told for told in stages.values()] == [True, False, True]


@pytest.mark.parametrize(
    ("out", "own"),
    [
        ("voice.safetensors", {"voice.md": "voice.earlier1.md", "voice.json": "voice.earlier1.json"}),
        ("voice", {"voice/README.md": "voice.earlier/README.md"}),
    ],
)
def test_files_of_others_are_kept(written, clips, quick, trials, tmp_path, out, own):
    (tmp_path / "voice").mkdir()
    for name in ("voice.earlier.md", *own):
        (tmp_path / name).write_text(name, encoding="utf-8")
    report = train_voice(config(written["v3"]), clips, tmp_path / out, PARAMS)
    for name, kept in own.items():
        assert (tmp_path / kept).read_text(encoding="utf-8") == name != (tmp_path / name).read_text(encoding="utf-8")
        assert any(str(Path(kept)) in one for one in report.warnings)
    assert (tmp_path / "voice.earlier.md").read_text(encoding="utf-8") == "voice.earlier.md"


@pytest.mark.parametrize("out", ["voice.safetensors", "voice"])
def test_a_lora_that_was_moved_away_is_put_back(written, clips, quick, trials, tmp_path, out):
    trials[:] = [heard(0, 0, likeness=0.9)]
    with pytest.raises(Stopped):
        train_voice(config(written["v3"]), clips, tmp_path / out, PARAMS, on_progress=stop_at(3))
    moved = (tmp_path / out).rename(tmp_path / "moved")
    trials[:] = [heard(0, 0, likeness=0.1)]
    assert train_voice(config(written["v3"]), clips, tmp_path / out, PARAMS).best_step == 2
    there, gone = (adapter_files(place)[0].read_bytes() for place in (tmp_path / out, moved))
    assert there == gone


def test_the_adapter_with_fewest_doubts_is_kept_and_an_endless_one_never(written, clips, quick, trials, tmp_path):
    out = tmp_path / "voice.safetensors"
    ended, endless = Trial(1.0, None), Trial(1.0, None, "“Hello” had not ended after 5.0 s")
    trials[:] = [ended, endless]
    assert train_voice(config(written["v3"]), clips, out, PARAMS).best_step == 2
    trials[:] = [endless]
    with pytest.raises(HiggsError, match=r"No LoRA was kept.*“Hello” had not ended"):
        train_voice(config(written["v3"]), clips, tmp_path / "other.safetensors", PARAMS)
    assert not (tmp_path / "other.safetensors").exists()


def heard(*wrong, strength=1.0, **figures):
    """A trial of 100 words with a clip, and of 100 without."""
    return Trial(strength, None, words=100, wrong=wrong, **figures)


def test_words_count_before_likeness_and_that_before_the_loss():
    """Differences that may be chance do not count: up to a quarter more than the untouched model, and 1.5 %."""
    state, untouched = RunState("x", step=1), heard(2, 4).entry()
    ranks = [
        heard(7, 8, likeness=0.7).rank(untouched, 4.0),
        heard(6, 9, strength=0.3, likeness=0.5).rank(untouched, 4.5),
        heard(6, 6, strength=0.65, likeness=0.7).rank(untouched, 4.5),
        heard(2, 4, likeness=0.701).rank(untouched, 4.4),
    ]
    kept = [state.keep_best(strength, rank) for strength, rank in zip((1.0, 0.3, 0.65, 1.0), ranks, strict=True)]
    assert kept == [True, False, True, True] and state.best_strength == 1.0
    assert not state.keep_best(0.3, heard(3, 9, likeness=0.9).rank(untouched, 1.0))
    assert Trial(1.0, None).rank(Trial(0.0, None).entry(), 4.0) == [0.0, 0, 4.0]


def test_a_voice_that_misreads_is_told(tmp_path):
    """The counts of a training on 4.6 minutes: with a clip 11 wrong words of 163, without 22; untouched 7 and 9."""
    engine, made = Engine(config(EMBEDDED)), [Utterance("one", "Good morning.", torch.zeros(60, 8).long())]
    untouched = dataclasses.replace(heard(7, 9), words=163).entry()
    trial = dataclasses.replace(heard(11, 22), words=163)
    hearing, deaf = (Audition(engine, made, made, whisper) for whisper in (tmp_path, None))
    assert hearing.warnings(trial, untouched) == [
        "Without a clip, 22 of 163 words are wrong. Without the LoRA, 9 are. Record more speech, or train fewer steps."
    ]
    fine = dataclasses.replace(heard(12, 6), words=163)  # of one on 8.6 minutes
    assert hearing.warnings(fine, untouched) == [] and "Choose a Whisper model" in deaf.warnings(fine, untouched)[0]


def test_a_lower_strength_is_tried_where_words_are_misread(written, clips, quick, trials, tmp_path):
    good, bad = heard(0, 0), heard(0, 9)
    trials[:] = [good, bad, bad, good]
    report = train_voice(config(written["v3"]), clips, tmp_path / "voice.safetensors", PARAMS)
    assert [[one["strength"] for one in entry["trials"]] for entry in report.history] == [[1.0], [1.0, 0.65, 0.3]]
    assert report.warnings and not any("Record more speech" in one for one in report.warnings)


def test_misheard_words_are_those_that_were_not_understood():
    assert misheard("Hello there, my friend.", "hello their my friend") == 1
    assert misheard("Hello there.", "") == 2 and misheard("Hello.", "Oh, hello!") == 0


def test_whisper_hears_texts_together_up_to_its_window():
    heard = []

    def hear(wavs, rate):
        heard.extend(len(wav) / rate for wav in wavs)
        return ["one two free", "", "", "one two three", "four five six"]

    texts = ["One.", "Two three.", "Four five.", "Six."]
    takes = [[torch.zeros(seconds * 24_000) for seconds in take] for take in ((9, 9, 9, 26), (9, 9, 9, 3))]
    assert misheard_in(texts, takes, hear) == [1 + 2 + 1, 0]
    assert heard == pytest.approx([18.8, 9.4, 26.4, 18.8, 12.8])


def test_likeness_is_a_cosine_to_the_clips_where_its_package_is_installed(monkeypatch):
    def missing(module, name):
        raise HiggsError("not installed")

    class Encoder:
        def __init__(self, *device, **settings):
            pass

        def embed_utterance(self, wav):
            return np.array([1.0, float(wav.mean()), 0.0], dtype=np.float32)

    there = {"VoiceEncoder": Encoder, "preprocess_wav": lambda wav: wav}
    monkeypatch.setattr(likeness, "import_optional", missing)
    assert likeness_to([torch.zeros(24_000)]) is None
    monkeypatch.setattr(likeness, "import_optional", lambda module, name: there[name])
    alike = likeness_to([torch.zeros(24_000), torch.zeros(48_000)])
    assert alike(torch.zeros(24_000)) == pytest.approx(1.0) and alike(torch.ones(24_000)) == pytest.approx(
        0.5**0.5, abs=0.01
    )


def test_trials_speak_texts_with_a_clip_and_without_and_count_wrong_words(clips, quick, tmp_path, monkeypatch):
    """A word and texts, each in a clip's voice and then without, as often as it takes."""
    spoken = []

    def opened(config):
        spoken.append(sum(adapter.strength for adapter in config.adapters))
        return Engine(config)

    monkeypatch.setattr(audition, "Engine", opened)
    monkeypatch.setattr(audition, "WORDS", 8)
    monkeypatch.setattr(audition, "likeness_to", lambda held: lambda wav: 0.5 if len(spoken) < 2 else 0.9)
    params, whisper = dataclasses.replace(PARAMS, steps=1), write_whisper(tmp_path / "whisper")
    report = train_voice(config(EMBEDDED), clips, tmp_path / "v.safetensors", params, whisper)
    assert spoken == [0.0, 1.0]
    texts = [turn.text for turn in report.trial.speech.turns]
    assert len(texts) == 4 and texts[::2] == texts[1::2]
    (entry,) = report.history
    (one,) = entry["trials"]
    assert one["likeness"] == 0.9
    assert one["words"] >= 8 and all(0 < wrong <= one["words"] for wrong in one["wrong"])  # it mumbles, our Whisper
    told = f"best at a strength of 1: {one['wrong'][0]} of {one['words']} words wrong with a clip, "
    assert told in str(report) and "Without it: " in str(report) and "likeness 0.50" in str(report)
    assert "The 1 trials took" in str(report) and report.listened > 0
    assert "strength 1: " in (tmp_path / "v.md").read_text(encoding="utf-8")


def test_all_words_are_wrong_where_the_check_cannot_follow_them(quick, tmp_path, monkeypatch):
    """Where there is one: by the heads that the untouched model has, else by the model's Whisper. This one mumbles."""
    with Engine(config(EMBEDDED)) as engine:
        codes = engine.speak("Good morning.", params=SamplingParams(max_frames=60, retries=0)).codes
    made = [Utterance("one", "Good morning.", codes)]

    def spoken(**given):
        return Audition(Engine(config(EMBEDDED, **given)), made, made)(None, 0.0, lambda *_: None)

    with monkeypatch.context() as patch:
        patch.setattr(ChunkCheck, "verdict", lambda *given: None)
        assert spoken().wrong == [3, 3]
    monkeypatch.setattr(Engine, "heads", lambda self: ())
    assert spoken().wrong == [0, 0]
    assert spoken(whisper=str(write_whisper(tmp_path / "whisper"))).wrong == [3, 3]


def test_texts_are_spoken_again_until_there_are_words_enough(clips, tmp_path, monkeypatch):
    monkeypatch.setattr(audition, "WORDS", 10)
    codes = torch.zeros(60, 8).long()
    clips = [Utterance("one", "Good morning, everybody.", codes), Utterance("two", "A b c d.", codes)]
    long = Utterance("long", 40 * "never said ", codes)
    chosen = Audition(Engine(config(EMBEDDED)), clips, [*clips, long]).texts
    assert chosen == ["everybody", clips[0].text, clips[1].text, clips[0].text]
    (_, cut, *_) = Audition(Engine(config(EMBEDDED)), clips, [long]).texts
    assert long.text.startswith(cut) and len(cut) == 40


def test_a_model_that_expects_the_codes_elsewhere_is_refused(written, clips, quick, tmp_path, monkeypatch):
    """Random weights expect them nowhere."""
    monkeypatch.setattr(audition, "WORDS", 1)
    monkeypatch.setattr(audition, "TOO_LONG", 0.1)
    with pytest.raises(HiggsError, match="expects these clips' codes 1 positions later"):
        train_voice(config(written["v3"]), clips, tmp_path / "voice.safetensors", PARAMS)
    with Engine(config(EMBEDDED)) as engine:  # the embedded one expects them where they are
        one = engine.speak("Good morning.", params=SamplingParams(max_frames=40, retries=0)).codes
    made = Engine(config(EMBEDDED))
    row = make_row(made.planner.prompts, FAMILIES["v3"], Utterance("one", "Good morning.", one), None)
    given = made.checkpoint, made.config, made.device, made.dtype, row.tokens.tolist(), 1, 1.0
    with torch.inference_mode(False), Network(*given) as network:
        means = network.shifted([row], (0, -1, 1))
    assert means[0] < min(means[1:])


def test_too_little_speech_and_other_adapters_are_refused(written, clips, tmp_path):
    with pytest.raises(HiggsError, match=r"has 0\.\d minutes of usable speech in 6 clips.*2 minutes in 4 clips"):
        train_voice(config(EMBEDDED), clips, tmp_path / "voice.safetensors", PARAMS)
    with pytest.raises(HiggsError, match="trained on the model itself"):
        train_voice(config(written["v3"], adapters=(Adapter("x"),)), clips, tmp_path / "voice.safetensors")
    with pytest.raises(HiggsError, match=r"voice\.bin is not a name"):
        train_voice(config(written["v3"]), clips, tmp_path / "voice.bin")


def test_the_embedded_model_learns_and_speaks_with_it(clips, quick, tmp_path):
    """The untouched model passes its check of shifts, in inference mode too, as ComfyUI has it."""
    with torch.inference_mode():
        report = train_voice(config(EMBEDDED), clips, tmp_path / "voice", dataclasses.replace(PARAMS, steps=1))
    speech, halves = report.trial.speech, [[], []]
    for turn, half in zip(speech.turns, itertools.cycle(halves)):
        (chunk,) = (one for one in speech.said if one.start == turn.start)
        half += [stop - first for doubt in chunk.verdict.doubts for first, stop in (doubt.words,)]
    assert report.trial.wrong == [*map(sum, halves)] and speech.complete and len(speech.turns) == 4
    assert {path.name for path in report.out.iterdir()} == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "README.md",
    }
    settings = json.loads((report.out / "adapter_config.json").read_text(encoding="utf-8"))
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 2, 4.0)
    assert settings["target_modules"] == sorted("q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split())
    card = (report.out / "README.md").read_text(encoding="utf-8")
    assert "6 clips" in card and "library_name: peft" in card and "amber" not in card
    params = SamplingParams(max_frames=20, retries=0)
    heard = []
    for strength in (0.0, 1.0):
        with Engine(config(EMBEDDED, adapters=(Adapter(str(report.out), strength),))) as engine:
            heard.append(engine.speak("Good morning.", params=params).codes)
    assert not torch.equal(*heard)


@pytest.mark.parametrize("names", ["model", "port"])
@pytest.mark.parametrize("codes_in_full", [False, True])
def test_peft_opens_the_file(written, clips, quick, trials, tmp_path, names, codes_in_full):
    """PEFT merges what we merge, under the model's names and under the port's."""
    out = tmp_path / "voice"
    params = dataclasses.replace(PARAMS, codes_in_full=codes_in_full, names=names, learning_rate=0.01)
    train_voice(config(written["v3"]), clips, out, params)
    ours = load_talker(inspect(written["v3"], adapters=[Adapter(str(out))]), CPU, torch.float32)
    base = load_talker(inspect(written["v3"]), CPU, torch.float32)
    tables = ("embed_codes", "head_codes")
    assert [not torch.equal(ours[name], base[name]) for name in tables] == 2 * [codes_in_full]
    assert not torch.equal(ours["layers.1.qkv"], base["layers.1.qkv"])
    held = load_file(out / "adapter_model.safetensors")
    start = "base_model.model." + ("model." if names == "port" else "body.")
    assert sum(not name.startswith(f"{start}layers.") for name in held) == 2 * codes_in_full
    peft = pytest.importorskip("peft", reason="PEFT is not installed: these tests write its files by hand")
    layout = port_name if names == "port" else str
    with torch.inference_mode(False), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = tree_of(written["v3"], layout)
        merged = peft.PeftModel.from_pretrained(model, out).merge_and_unload().state_dict()
    assert not [one for one in told if "missing" in str(one.message).lower()]
    theirs = torch.cat([merged[layout(f"body.layers.1.self_attn.{one}_proj.weight")] for one in "qkv"])
    torch.testing.assert_close(theirs, ours["layers.1.qkv"], rtol=1e-5, atol=1e-6)
    for name, table in zip((EMBEDDING, HEAD), tables, strict=True):
        torch.testing.assert_close(merged[layout(name)], ours[table].float(), rtol=0, atol=0)


def test_the_port_has_no_names_for_v2(written, clips, tmp_path):
    with pytest.raises(HiggsError, match="names for Higgs TTS 3 alone"):
        train_voice(config(written["v2"]), clips, tmp_path / "a.safetensors", dataclasses.replace(PARAMS, names="port"))
    with pytest.raises(HiggsError, match=r"names is 'boson'\. Choose one of: model, port"):
        TrainParams(names="boson")


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_codes_trained_in_full_are_resumed_and_loaded(written, clips, quick, trials, tmp_path, family):
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    params = dataclasses.replace(PARAMS, codes_in_full=True)
    train_voice(config(written[family]), clips, one, params)
    with pytest.raises(Stopped):
        train_voice(config(written[family]), clips, two, params, on_progress=stop_at(3))
    train_voice(config(written[family]), clips, two, params)
    ours, theirs = load_file(one), load_file(two)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    tensors = load_talker(inspect(written[family], adapters=[Adapter(str(one))]), CPU, torch.float32)
    whole = [ours[name] for name in sorted(ours, key=lambda name: "embed" not in name) if "lora" not in name]
    for name, tensor in zip(("embed_codes", "head_codes"), whole, strict=True):
        torch.testing.assert_close(tensors[name], tensor.to(tensors[name].dtype), rtol=0, atol=0)


def test_a_word_that_does_not_end_in_time_is_endless(written, clips, quick, tmp_path, monkeypatch):
    """The tiny checkpoint never stops."""
    monkeypatch.setattr(audition, "WORDS", 8)
    monkeypatch.setattr(audition, "TOO_LONG", 0.1)
    monkeypatch.setattr(Network, "shifted", lambda self, rows, shifts: [0.0, 1.0, 1.0, 1.0, 1.0])
    with pytest.raises(HiggsError, match="with each of them speech does not end"):
        train_voice(config(written["v3"]), clips, tmp_path / "voice.safetensors", PARAMS)


def test_held_out_clips_are_never_references_of_learned_ones(clips, quick, tmp_path):
    engine = Engine(config(EMBEDDED))
    made, _ = train.learnable(engine, clips, tmp_path, None, lambda progress: None)
    order = lessons.Lessons(engine.planner.prompts, FAMILIES["v3"], made, seed=0)
    assert {one.name for one in order.learned}.isdisjoint(one.name for one in order.held_out)
    assert len(order.held_out) == 3 and len(order.learned) == 3
    rows = [row for step in range(8) for group in order.step(step) for row in group]
    again = [row for step in range(8) for group in order.step(step) for row in group]
    assert all(torch.equal(a.codes, b.codes) for a, b in zip(rows, again, strict=True))

    def holds(row, one):
        return any(torch.equal(row.codes[at : at + 9, 0], one.codes[:9, 0]) for at in range(len(row.codes) - 9))

    assert not any(holds(row, one) for row in rows for one in order.held_out)
    shares = [sum(holds(row, one) for one in order.learned) for row in rows]
    assert set(shares) == {1, 2} and 0.1 < shares.count(1) / len(shares) < 0.45
    ids = {token for row in rows for token in row.tokens[~row.is_code].tolist()}
    assert ids <= order.vocabulary()


def test_the_terminal_trains(written, clips, quick, trials, tmp_path, capsys):
    out = tmp_path / "anna.safetensors"
    (clips / "bad.wav").write_bytes(b"")
    try:
        assert main(["train", str(clips), "--model", str(written["v3"]), "--device", "cpu", "--out", str(out),
                     "--steps", "1", "--rank", "1"]) == 0  # fmt: skip
    finally:
        (clips / "bad.wav").unlink()
    told = capsys.readouterr()
    assert "Kept the LoRA of step 1" in told.out and str(out) in told.out
    assert "left out: bad.wav" in told.err and "step 1 of 1" in told.err
    assert out.is_file() and out.with_suffix(".json").is_file() and out.with_suffix(".md").is_file()


@pytest.mark.parametrize("out", ["a.safetensors", "a"])
def test_a_stopped_run_tells_how_to_continue(clips, quick, trials, tmp_path, capsys, monkeypatch, out):
    monkeypatch.setattr(Network, "learn", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["train", str(clips), "--device", "cpu", "--out", str(tmp_path / out), "--steps", "1"]) != 0
    told = capsys.readouterr().err
    assert "Run the same command again to continue." in told and "best LoRA" not in told
