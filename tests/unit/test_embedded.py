"""The embedded checkpoint: complete and small; it speaks, ends, obeys its tags and follows a voice."""

import json

import pytest
import torch
import transformers
from higgs_tts.engine import EMBEDDED, SAMPLE_RATE, Engine, EngineConfig, Listener, SamplingParams
from higgs_tts.engine.audio.resample import resample
from higgs_tts.engine.checkpoint.codec_layout import decoder_shapes, encoder_shapes, unused_shapes
from higgs_tts.engine.checkpoint.find_codec import open_codec
from higgs_tts.engine.checkpoint.talker_layout import V3_CODEC
from higgs_tts.engine.checkpoint.tensor_file import open_folder
from higgs_tts.engine.codec.model import build_decoder
from higgs_tts.engine.prompt.tags import TAGS
from higgs_tts.engine.tools.doctor import examine
from higgs_tts.engine.tools.tiny_codec import hf_config
from higgs_tts.tests.traced import tracing
from higgs_tts.training import hearing

TEXT = "Your computer can speak now, and this is how it sounds."


def make_engine() -> Engine:
    return Engine(EngineConfig(model=str(EMBEDDED), device="cpu", context=1024))


@pytest.fixture(scope="module")
def say():
    """say(text, seed=1, voice=None, **sampling) -> Speech"""
    with make_engine() as engine:

        def speak(text, seed=1, voice=None, **sampling):
            return engine.speak(text, voice, SamplingParams(**{"seed": seed, "max_frames": 300, **sampling}))

        speak.engine = engine
        yield speak


@pytest.fixture(scope="module")
def spoken(say):
    return say(TEXT)


def test_the_folder_is_whole_and_small():
    files = [path for path in EMBEDDED.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 41_000_000
    assert max(path.stat().st_size for path in files) < 16_000_000
    assert len(list(EMBEDDED.glob("model-*-of-*.safetensors"))) > 1  # sharded, so that this way of reading is in use
    assert not examine(EMBEDDED).problems
    added = {token["content"] for token in json.loads((EMBEDDED / "tokenizer.json").read_text("utf-8"))["added_tokens"]}
    assert added >= {"<|tts|>", "<|text|>", "<|audio|>", "<|ref_audio|>", "<|ref_text|>", *TAGS}


def test_the_codec_has_the_published_shapes(codec_of_transformers):
    """Every tensor, so that a strict load into transformers' class works."""
    weights = open_codec(EMBEDDED).weights
    wanted = {**encoder_shapes(weights.config), **decoder_shapes(weights.config), **unused_shapes(weights.config)}
    del wanted["semantic_model.masked_spec_embed"]  # HuBERT's, which transformers' class leaves out
    assert weights.shapes == {name: tuple(shape) for name, shape in wanted.items()}
    config = transformers.HiggsAudioV2TokenizerConfig(**hf_config(weights.config))
    held = open_folder(EMBEDDED).under(V3_CODEC)
    state = {name: held.get(name).float() for name in held.shapes}
    codec_of_transformers(config).load_state_dict(state, strict=True)


def test_speech_ends_by_itself_and_is_not_silent(spoken):
    assert spoken.stopped == "end of speech"
    assert 2.5 < spoken.seconds < 5.5  # the voice it learned from takes 3.7
    loud = spoken.wav.unfold(0, 2400, 2400).square().mean(1).sqrt() > 0.01
    assert loud.float().mean() > 0.5
    assert spoken.wav.abs().max() <= 1.0


def test_traced_steps_give_the_same_codes(spoken):
    with tracing(), make_engine() as engine:
        again = engine.speak(TEXT, params=SamplingParams(seed=1, max_frames=300))
    assert torch.equal(again.codes, spoken.codes)


def test_the_streamed_sound_equals_the_whole_decode(spoken):
    weights = open_codec(EMBEDDED).weights
    whole = build_decoder(weights.config, weights.read("decoder", "cpu"))(spoken.codes.t()[None])[0]
    assert torch.allclose(spoken.wav, whole.clamp(-1, 1), atol=1e-5)


@pytest.mark.parametrize("tag, seconds", [("pause", 0.7), ("long_pause", 1.2)])
def test_a_pause_is_silence_inside_the_speech(say, tag, seconds):
    plain, paused = (say(f"The door is open,{between}please come in.") for between in (" ", f" <|prosody:{tag}|> "))
    assert abs(hearing.longest_silence(paused.wav) - seconds) < 0.25
    assert hearing.longest_silence(plain.wav) < 0.3
    assert paused.seconds > plain.seconds + 0.5 * seconds


def test_speed_tags_stretch_the_speech(say):
    tags = ("very_fast", "fast", None, "slow", "very_slow")
    text = "The train leaves at half past seven."
    lengths = [say((f"<|prosody:speed_{tag}|>" if tag else "") + text).seconds for tag in tags]
    assert lengths == sorted(set(lengths))


@pytest.mark.parametrize("transcript", [None, TEXT])
@pytest.mark.parametrize("height", [0.8, 1.2])
def test_a_clone_has_its_reference_s_pitch(say, spoken, height, transcript):
    """The reference is the checkpoint's own voice played slower or faster: another voice, in a tract of other size."""
    clip = resample(spoken.wav, round(SAMPLE_RATE * height), SAMPLE_RATE)
    wanted = hearing.pitch(clip)
    assert abs(wanted / (height * hearing.pitch(spoken.wav)) - 1) < 0.05
    voice = say.engine.encode_voice(clip, SAMPLE_RATE, transcript)
    clone = say("Hello! The door is open, please come in.", voice=voice)
    assert clone.stopped == "end of speech"
    assert abs(hearing.pitch(clone.wav) / wanted - 1) < 0.15


def test_a_long_text_stays_one_voice_and_whole(say):
    text = "Your computer can speak now. The train leaves at half past seven. Please close the door when you go out. "
    speech = say(text + "There are twelve apples on the table.", chunk_seconds=3.0)
    assert speech.chunks == 4 and speech.stopped == "end of speech"
    assert 6.5 < speech.seconds < 11  # said alone, the four take 8.5
    assert hearing.longest_silence(speech.wav) < 0.6
    pitches = [hearing.pitch(part) for part in speech.wav.split(2 * SAMPLE_RATE) if len(part) > SAMPLE_RATE]
    assert len(pitches) >= 3 and max(pitches) < 1.4 * min(pitches)  # a natural voice rises and falls


def test_an_early_listener_hears_the_first_sound_five_frames_sooner_and_the_same_codes():
    said = {}
    for early in (False, True):
        events: list[tuple[str, int]] = []
        listener = Listener(
            on_frame=lambda done, expected, events=events: events.append(("frames", done)),
            on_audio=lambda wav, events=events: events.append(("samples", len(wav))),
        )
        with Engine(EngineConfig(str(EMBEDDED), device="cpu", early=early)) as engine:
            speech = engine.speak(TEXT, params=SamplingParams(seed=1), listener=listener)
        first = next(place for place, (kind, _) in enumerate(events) if kind == "samples")
        said[early] = speech, events[first][1], next(done for kind, done in events[first:] if kind == "frames")
    (exact, size, frames), (early, early_size, early_frames) = said[False], said[True]
    assert size == early_size == 960 and frames - early_frames == 5
    assert torch.equal(exact.codes, early.codes) and torch.equal(exact.wav[2880:], early.wav[2880:])
    assert 0 < (exact.wav[:2880] - early.wav[:2880]).abs().max() < 1e-4
