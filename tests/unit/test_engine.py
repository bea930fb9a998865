"""The engine and the terminal on tiny checkpoints of all three layouts, against the references' greedy codes."""

import dataclasses
import json
import shutil
import types
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import transformers
from higgs_tts.engine import Engine, EngineConfig, HiggsError, Listener, SamplingParams, Voice
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.core.codes import BOC
from higgs_tts.engine.prompt.builder import PromptBuilder
from higgs_tts.engine.tools.tiny import FAMILIES
from higgs_tts.tests.watched import ending

has = {name: hasattr(transformers, name) for name in ("Qwen3Model", "HiggsAudioV2ForConditionalGeneration")}
TEXT = "Hello there. It is 3.14 past noon."


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def engine(written, family):
    with Engine(EngineConfig(model=str(written[family]), device="cpu")) as engine:
        yield engine


def clip(seconds=2.0, rate=24000):
    t = torch.arange(int(seconds * rate)) / rate
    return torch.sin(6.28 * 220 * t * (1 + 0.1 * torch.sin(3 * t))) * 0.4


def say(folder, out, *extra):
    code = main(["say", TEXT, "--model", str(folder), "--greedy", "--device", "cpu", "--max-frames", "80", *extra,
                 "--codes", str(out / "c.npy"), "--out", str(out / "a.wav")])  # fmt: skip
    assert code == 0
    wav, rate = soundfile.read(out / "a.wav")
    codes = np.load(out / "c.npy")
    assert rate == 24000 and codes.dtype == np.int64 and wav.shape == (960 * len(codes),)
    assert np.isfinite(wav).all() and wav.std() > 0.005
    return torch.from_numpy(codes)


def qwen3_greedy(engine, prompt, rows):
    """Decode with Qwen3, the fused code embedding and the file's renamed tensors, without a ban on specials."""
    from safetensors.torch import load_file
    from transformers import Qwen3Config, Qwen3Model

    folder = engine.checkpoint.folder
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))["text_config"]
    file = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
    keys = ("vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
            "intermediate_size rms_norm_eps").split()  # fmt: skip
    theta = {"rope_type": "default", "rope_theta": engine.checkpoint.config.rope.theta}
    model = Qwen3Model(Qwen3Config(**{k: config[k] for k in keys}, rope_parameters=theta)).eval()
    state = {k.removeprefix("body."): v for k, v in file.items() if k.startswith("body.")}
    state["embed_tokens.weight"] = file["tied.embedding.text_embedding.weight"]
    model.load_state_dict(state)
    table = file["tied.embedding.modality_embeddings.0.embedding.weight"]
    offsets = torch.arange(8) * 1026
    embeds = model.embed_tokens(torch.tensor(prompt.ids))
    for start, span in prompt.audio:
        embeds[start : start + len(span)] = table[span + offsets].sum(1)
    cache, said = None, []
    for step in range(rows):
        out = model(inputs_embeds=embeds[None], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        row = (out.last_hidden_state[0, -1] @ table.t()).view(8, 1026).argmax(-1)
        row[step + 1 :] = BOC
        said.append(row)
        embeds = table[row + offsets].sum(0, keepdim=True)
    return torch.stack(said)


def boson_names(file):
    """Return a first-release file's tensors under transformers' names."""
    moved = {"audio_codebook_embeddings.weight": "model.embed_audio_tokens.embed_audio_tokens.weight",
             "audio_decoder_proj.audio_lm_head.weight": "audio_lm_head.weight"}  # fmt: skip
    kept = {k: v for k, v in file.items() if "text_lm_head" not in k}
    return {moved.get(k, f"model.{k}"): v for k, v in kept.items()}


def v2_greedy(engine, prompt, rows, written):
    """Decode with transformers' own generate, without the repetition rule. First-release tensors are renamed."""
    from safetensors.torch import load_file
    from transformers import HiggsAudioV2ForConditionalGeneration

    model = HiggsAudioV2ForConditionalGeneration.from_pretrained(written["v2"], dtype=torch.float32).eval()
    if engine.checkpoint.config.layout == "v2-boson":
        file = {k: v.float() for k, v in load_file(engine.checkpoint.folder / "model.safetensors").items()}
        model.load_state_dict(boson_names(file), strict=False)
    model.generation_config.ras_win_len = None
    inputs = {"input_ids": torch.tensor(prompt.ids[:-1])[None]}
    for _, span in prompt.audio[:-1]:
        inputs |= {"audio_input_ids": span[None], "audio_input_ids_mask": torch.ones(1, len(span), dtype=torch.bool)}
    out = model.generate(**inputs, do_sample=False, max_new_tokens=rows + 1)
    return getattr(out, "audio_sequences", out)[0][-rows:]


@pytest.mark.parametrize("cloned", [False, True], ids=["zero-shot", "clone"])
def test_the_terminal_s_greedy_codes_equal_the_reference_s(engine, written, family, cloned, tmp_path):
    needed = "Qwen3Model" if family == "v3" else "HiggsAudioV2ForConditionalGeneration"
    if not has[needed]:
        pytest.skip(f"this transformers has no {needed}")
    voice, extra = None, []
    if cloned:
        voice = engine.encode_voice(clip(), 24000, "A reference.")
        extra = ["--voice", str(voice.save(tmp_path / "v.safetensors"))]
    ours = say(written[family], tmp_path, *extra)
    prompt = PromptBuilder(engine.checkpoint.tokenizer, engine.checkpoint.config).build(TEXT, voice)
    rows = qwen3_greedy(engine, prompt, 87) if family == "v3" else v2_greedy(engine, prompt, 87, written)
    assert torch.equal(ours, torch.stack([rows[book : len(rows) - 7 + book, book] for book in range(8)], dim=1))
    assert len(ours[:, 0].unique()) > 10 and (ours < BOC).all()


def test_an_encoded_voice_is_the_same_after_saving_and_changes_speech(engine, tmp_path):
    params = SamplingParams(max_frames=20, temperature=0)
    voice = engine.encode_voice(clip(), 24000, "A reference.")
    loaded = Voice.load(voice.save(tmp_path / "v.safetensors"))
    cloned = engine.speak(TEXT, loaded, params).codes
    assert torch.equal(cloned, engine.speak(TEXT, voice, params).codes)
    assert not torch.equal(cloned, engine.speak(TEXT, None, params).codes)


def test_the_same_seed_gives_the_same_audio_after_closing_and_opening(engine):
    params = SamplingParams(max_frames=30, seed=4)
    first = engine.speak(TEXT, params=params)
    engine.close()
    assert not engine.opened
    engine.open()
    again = engine.speak(TEXT, params=params)
    assert torch.equal(first.wav, again.wav)
    assert not torch.equal(first.codes, engine.speak(TEXT, params=SamplingParams(max_frames=30, seed=5)).codes)


def test_chunks_of_long_text_share_the_first_one_s_voice(engine, monkeypatch):
    asked = []
    build = PromptBuilder.build
    monkeypatch.setattr(PromptBuilder, "build", lambda self, text, voice, scene, **more: (
        asked.append((text, voice)), build(self, text, voice, scene, **more))[1])  # fmt: skip
    text = "The first sentence is here. " * 6
    speech = engine.speak(text, params=SamplingParams(max_frames=40, chunk_seconds=4))
    assert speech.chunks == len(asked) > 2
    assert "".join("".join(said for said, _ in asked).split()) == "".join(text.split())
    assert asked[0][1] is None and all(voice is asked[1][1] for _, voice in asked[1:])
    assert torch.equal(asked[1][1].codes, speech.codes[:40])
    assert len(speech.wav) == 960 * speech.frames and speech.frames == 40 * speech.chunks
    assert "40 frames" in speech.stopped and f"all {speech.chunks} chunks" in speech.stopped


def test_the_streamed_waveform_equals_the_whole_decode(engine):
    from higgs_tts.engine.codec.model import build_decoder

    speech = engine.speak(TEXT, params=SamplingParams(max_frames=90))
    weights = engine.checkpoint.codec
    whole = build_decoder(weights.config, weights.read("decoder", engine.device))(speech.codes.t()[None])[0]
    assert torch.allclose(speech.wav, whole.clamp(-1, 1), atol=1e-5)


def test_a_voice_of_another_codec_is_refused(engine):
    voice = engine.encode_voice(clip(), 24000)
    assert voice.codec and engine.speak(TEXT, voice, SamplingParams(max_frames=10)).frames == 10
    assert engine.speak(TEXT, dataclasses.replace(voice, codec=""), SamplingParams(max_frames=10)).frames == 10
    with pytest.raises(HiggsError, match=r"different model.*clip"):
        engine.speak(TEXT, dataclasses.replace(voice, codec="256+768"))


@pytest.mark.parametrize("what", ["trim", "close"])
def test_a_callback_cannot_close_the_engine_during_speech(written, what):
    engine = Engine(EngineConfig(model=str(written["v3"]), device="cpu"))
    engine.open()
    given = []

    def interfere(done, expected):
        if done > 10 and not given:
            given.append(getattr(engine, what)())

    if what == "trim":
        speech = engine.speak(TEXT, params=SamplingParams(max_frames=30), listener=Listener(on_frame=interfere))
        assert given == [0] and speech.frames == 30 and engine.opened
    else:
        with pytest.raises(HiggsError, match="unloaded"):
            engine.speak(TEXT, params=SamplingParams(max_frames=30), listener=Listener(on_frame=interfere))
        assert given == [None] and not engine.opened and engine.held_bytes == 0
        engine.open()
        assert engine.speak(TEXT, params=SamplingParams(max_frames=30)).frames == 30
    engine.close()


def test_cancel_leaves_the_engine_usable(engine):
    class Cancelled(Exception):
        pass

    def cancel(done, expected):
        assert expected >= done
        if done > 10:
            raise Cancelled

    params = SamplingParams(max_frames=40)
    expected = engine.speak(TEXT, params=params)
    with pytest.raises(Cancelled):
        engine.speak(TEXT, params=params, listener=Listener(on_frame=cancel))
    assert torch.equal(engine.speak(TEXT, params=params).wav, expected.wav)


def test_speech_that_ends_by_itself_is_reported_complete(engine):
    """A head that prefers the end code after a while."""
    state = engine.loaded.runner().state
    with ending(engine.loaded.talker, lambda _: 30):
        speech = engine.speak(TEXT, params=SamplingParams(max_frames=200))
    assert speech.stopped == "end of speech" and speech.how == "torch ops, eager"
    assert speech.frames == 31 and len(speech.wav) == 31 * 960
    assert (speech.codes < BOC).all() and bool(state.delay.ended[0])


def test_closing_from_another_thread_stops_speech_with_a_clear_error(engine):
    import threading

    closer = []

    def close_soon(done, expected):
        if not closer:
            closer.append(threading.Thread(target=engine.close))
            closer[0].start()
            closer[0].join(0.1)  # it waits for this speech, which a later frame ends

    with pytest.raises(HiggsError, match="unloaded"):
        engine.speak(TEXT, listener=Listener(on_frame=close_soon))
    closer[0].join()
    assert not engine.opened
    with pytest.raises(HiggsError, match="not open"):
        engine.speak(TEXT)


@pytest.mark.parametrize("text", ["", "   \n "])
def test_empty_text_is_refused(engine, text):
    with pytest.raises(HiggsError, match="nothing to speak"):
        engine.speak(text)


def test_a_prompt_beyond_the_context_is_refused_with_the_remedy(written, family):
    config = EngineConfig(model=str(written[family]), device="cpu", context=96)
    with Engine(config) as engine, pytest.raises(HiggsError, match="larger context"):
        engine.speak("word " * 40, params=SamplingParams(chunk_seconds=0))


def test_planned_bytes_equal_the_bytes_that_open_uses(engine):
    tensors = [
        *engine.loaded.talker.tensors(),
        *engine.loaded.runner().state.tensors(),
        *engine.loaded.decoder.state_dict().values(),
    ]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    assert abs(sum(storages.values()) - engine.planned_bytes) < 4096


def test_errors_reach_the_terminal_as_one_line(tmp_path, capsys):
    assert main(["say", "Hi.", "--model", str(tmp_path), "--out", str(tmp_path / "a.wav")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and str(tmp_path) in err and err.count("\n") == 1
    assert main(["say", "Hi.", "--device", "cuda:99", "--out", str(tmp_path / "a.wav")]) == 2
    assert "cuda:99" in capsys.readouterr().err
    assert main(["say", "Hi.", "--device", "mps", "--out", str(tmp_path / "a.wav")]) == 2
    assert "mps" in capsys.readouterr().err
    assert main(["say", "Hi.", "--graphs", "on", "--device", "cpu", "--out", str(tmp_path / "a.wav")]) == 2
    assert "graphs" in capsys.readouterr().err
    assert main(["say", "Hi.", "--top-p", "7", "--out", str(tmp_path / "a.wav")]) == 2
    err = capsys.readouterr().err
    assert "top_p" in err and "7.0" in err


def test_unwritable_files_are_reported_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Engine, "speak", None)
    monkeypatch.setattr(Engine, "encode_voice", None)
    (tmp_path / "dir.wav").mkdir()
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    soundfile.write(tmp_path / "ref.wav", np.zeros(24000), 24000)
    before = (tmp_path / "ref.wav").read_bytes()
    for out in ("dir.wav", "file/a.wav", "a.aac"):
        assert main(["say", "Hi.", "--out", str(tmp_path / out)]) == 2
        assert str(Path(out)) in (err := capsys.readouterr().err) and err.count("\n") == 1
    assert "a.aac does not end in .wav or .flac or .mp3 or .ogg." in err
    assert main(["voice", str(tmp_path / "ref.wav"), "--out", str(tmp_path / "ref.wav")]) == 2
    assert main(["tiny", str(tmp_path), "--family", "v3"]) == 2
    assert main(["say", "Hi.", "--out", str(tmp_path / "a.wav"), "--transcript", "Hm."]) == 2
    assert "--voice" in capsys.readouterr().err
    assert (tmp_path / "ref.wav").read_bytes() == before and (tmp_path / "file").read_text(encoding="utf-8") == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dir.wav", "file", "ref.wav"]


def test_stopping_prints_no_traceback(tmp_path, capsys, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "open", stop)
    assert main(["say", "Hi.", "--out", str(tmp_path / "a.wav")]) == 130
    assert "stopped" in capsys.readouterr().err


def test_out_of_memory_is_reported_in_one_line(written, tmp_path, capsys, monkeypatch):
    def full(*args, **kwargs):
        raise torch.cuda.OutOfMemoryError("tried to allocate too much\nmore")

    monkeypatch.setattr(Engine, "open", full)
    assert main(["say", "Hi.", "--model", str(written["v3"]), "--out", str(tmp_path / "a.wav")]) == 2
    err = capsys.readouterr().err
    assert "out of memory" in err and "tried to allocate too much" in err and err.count("\n") == 1


def test_the_voice_and_doctor_commands_work(written, family, tmp_path, capsys):
    soundfile.write(tmp_path / "ref.wav", np.stack([clip(1.5, 44100).numpy()] * 2, 1), 44100)
    folder, made = str(written[family]), str(tmp_path / "v.safetensors")
    args = ["voice", str(tmp_path / "ref.wav"), "--transcript", "Hm.", "--out", made, "--model", folder]
    assert main(args) == 0 and Voice.load(made).codes.shape == (38, 8)
    capsys.readouterr()
    assert main(["doctor", folder, "--json"]) == 0
    report = types.SimpleNamespace(**json.loads(capsys.readouterr().out))
    assert report.family == family[:2] and not report.problems
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    (damaged / "tokenizer.json").unlink()
    assert main(["doctor", str(damaged)]) == 1
    assert "tokenizer.json" in capsys.readouterr().out
