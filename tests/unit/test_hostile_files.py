"""Malicious checkpoints, voices, LoRAs and clips: refused in a sentence before their data is read.

Cases that `tests/faults/mutate.py` searches at random are listed here by name.
"""

import contextlib
import io
import json
import shutil
import struct
import sys
import wave
import zipfile

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Adapter, HiggsError, Voice, clip_seconds, read_clip, read_voice_head
from higgs_tts.engine.checkpoint.codec_layout import CodecWeights
from higgs_tts.engine.checkpoint.gguf_file import open_gguf, side_file
from higgs_tts.engine.checkpoint.hf_config import read_settings
from higgs_tts.engine.checkpoint.load import inspect
from higgs_tts.engine.checkpoint.quantised_file import quantised
from higgs_tts.engine.checkpoint.tensor_file import INDEX, open_folder, open_tensors
from higgs_tts.engine.core.errors import shown, shown_name
from higgs_tts.engine.files.gguf_header import read_gguf
from higgs_tts.engine.files.json_file import read_json
from higgs_tts.engine.files.whole_file import read_whole
from higgs_tts.engine.prompt.card import read_card
from higgs_tts.engine.prompt.tokenizer import Vocabulary
from higgs_tts.engine.tools.tiny_config import tiny_tokenizer, v2_config, v3_config
from higgs_tts.engine.voice.clip import decode_clip
from higgs_tts.tests.peft_files import write_adapter
from safetensors.torch import save_file

DEEP, DIGITS, LONG = "[" * 100_000 + "]" * 100_000, "9" * 5000, "x" * 100_000


def refused(told, read, *given):
    """Return the sentence of a refusal. It quotes at most a line of the input."""
    with pytest.raises(HiggsError, match=told) as error:
        read(*given)
    assert len(str(error.value)) < 700 and "\n" not in str(error.value)


def test_a_value_in_a_message_stays_on_one_line():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, LONG, "a\nb", 10**4000, {LONG: LONG}, [LONG] * 50, 1.5):
        assert len(shown(value)) <= 80 and shown(value).isprintable()
    assert (shown("int8"), shown_name("int8"), shown_name("a\nb")) == ("'int8'", "int8", r"'a\nb'")


@pytest.mark.parametrize("text", [f'{{"a": {DEEP}}}', f'{{"a": {DIGITS}}}', f'{{"a": "{LONG}}}', '{"a": ' * 5000])
def test_endless_json_is_refused(tmp_path, text):
    for name in ("config.json", "higgs_tts.json", "tokenizer.json", INDEX):
        (tmp_path / name).write_text(text)
    refused("is not valid JSON", read_json, tmp_path / "config.json")
    refused("is not valid JSON", open_folder, tmp_path)
    refused("is not valid JSON", Vocabulary, tmp_path / "tokenizer.json", inspect(EMBEDDED).config)
    (note,) = read_card(tmp_path).notes
    assert "is not valid JSON" in note and len(note) < 500


def test_pipes_and_oversized_files_are_refused(tmp_path, make_pipe):
    make_pipe(tmp_path / "config.json")  # reading it would never end
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate((32 << 20) + 1)
    refused("it is not a file", read_json, tmp_path / "config.json")
    refused("at most 34 MB can be read", read_json, tmp_path / "large.json")
    refused("No such file", read_json, tmp_path / "a\0b")
    with pytest.raises(OSError, match="not a file"):
        read_whole(tmp_path, 10)


def safetensors(path, header, size=64):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))


def entry(shape=(4,), offsets=(0, 16), dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (f'{{"a": {DEEP}}}'.encode(), "is not valid JSON"),
        (f'{{"a": {{"dtype": "F32", "shape": [{DIGITS}], "data_offsets": [0, 4]}}}}'.encode(), "is not valid JSON"),
        ({"a": entry([4.0])}, "damaged at the tensor a"),
        ({"a": entry([True] * 4)}, "damaged at the tensor a"),
        ({"a": entry([-4])}, "damaged at the tensor a"),
        ({"a": entry([1] * 9)}, "damaged at the tensor a"),
        ({"a": entry("1111")}, "damaged at the tensor a"),
        ({"a": entry([0, 1 << 63], [0, 0])}, "damaged at the tensor a"),
        ({"a": entry([1], [0.5, 4.5])}, "damaged at the tensor a"),
        ({"a": entry([4], [16, 0])}, "wrong size"),
        ({"a": entry([4], [0, 16, 16])}, "damaged at the tensor a"),
        ({"a": [1]}, "damaged at the tensor a"),
        ({LONG: entry()}, "damaged at the tensor 'xxx"),
        ({"a\nb": entry()}, r"damaged at the tensor 'a\\nb'"),
        ({"a": entry(dtype=LONG)}, "stored as 'xxx"),
        ({"a": entry(dtype=[[]])}, "stored as"),
        ({"__metadata__": {"a": [1]}, "b": entry()}, "metadata that is not text"),
        ({"__metadata__": [[1]], "b": entry()}, "metadata that is not text"),
        ({str(n): entry() for n in range(5)}, "its tensors are larger than the file"),  # all of them the same bytes
        ({str(n): entry([0], [0, 0]) for n in range(16_385)}, "16,385 tensors"),
    ],
)
def test_a_safetensors_header_is_checked_number_by_number(tmp_path, header, told):
    safetensors(tmp_path / "a.safetensors", header)
    refused(told, open_tensors, [tmp_path / "a.safetensors"])


def test_an_oversized_header_is_not_read(tmp_path):
    with (tmp_path / "a.safetensors").open("wb") as file:
        file.write(((16 << 20) + 1).to_bytes(8, "little"))
        file.truncate(17 << 20)
    refused("has a header of 16,777,217 bytes", open_tensors, [tmp_path / "a.safetensors"])


@pytest.mark.parametrize("names", [{"a": LONG}, {LONG: "model.safetensors"}, {"a": "a\nb"}, {"a": 1}])
def test_malformed_names_in_an_index_are_refused(tmp_path, names):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    refused("does not name a file for every tensor", open_folder, tmp_path)


@pytest.mark.parametrize(
    "held",
    [
        {"a": torch.zeros(1).expand(1 << 20, 1 << 20)},  # 4 TB of four bytes
        {"a": torch.zeros(3, device="meta")},
        {"a": torch.eye(3).to_sparse()},
        {"a" * 300: torch.zeros(1)},
        {("a",): torch.zeros(1)},
        {f"{n}": torch.zeros(1) for n in range(16_385)},
    ],
    ids=range(6),
)
def test_pickles_with_other_than_plain_tensors_are_refused(tmp_path, held):
    torch.save(held, tmp_path / "a.pth")
    refused("is not a plain t", open_tensors, [tmp_path / "a.pth"])


def test_a_pickle_that_expands_in_memory_is_refused(tmp_path):
    torch.save({"a": torch.zeros(100_000)}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth") as stored, zipfile.ZipFile(tmp_path / "b.pth", "w", 8) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    refused("not a file of plain weights", open_tensors, [tmp_path / "b.pth"])
    shared = torch.zeros(100_000)
    torch.save({f"{n}": shared for n in range(50)}, tmp_path / "c.pth")
    refused("larger than the file", open_tensors, [tmp_path / "c.pth"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ({"rms_norm_eps": 1e308}, "rms_norm_eps is 1e"),
        ({"rope_theta": 1e300}, "rope_theta is 1e"),
        ({"rope_theta": 1e-300}, "rope_theta is 1e-300"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"rope_theta": [[LONG]]}, "rope_theta is"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, not a number from 1 to 256"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5, not a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"hidden_size": 10**4000}, "hidden_size is 1000"),
        ({"vocab_size": 1 << 40}, "vocab_size is"),
        ({"head_dim": 15}, "head_dim is 15, not an even number"),
        ({"head_dim": LONG}, "head_dim is 'xxx"),
        ({"hidden_act": [LONG]}, "hidden_act is"),
    ],
)
def test_config_numbers_outside_a_talker_s_range_are_refused(text, told):
    config = v3_config(tiny_tokenizer("v3"), 336)
    config["text_config"] = {key: value for key, value in config["text_config"].items() if key != "rope_parameters"}
    config["text_config"] |= text
    refused(told, read_settings, config, "config.json", "v3")


@pytest.mark.parametrize("layers", [[[0]], [{}], [0, 1, 10**30], [0, 0], ["0", "1"]])
def test_malformed_expert_layers_are_refused(layers):
    config = v2_config(tiny_tokenizer("v2"), 296) | {"audio_dual_ffn_layers": layers}
    refused("audio_dual_ffn_layers names", read_settings, config, "config.json", "v2")


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (4.0, 1.0)])
def test_rope_bands_without_width_are_refused(low, high):
    rope = {"type": "llama3", "factor": 2.0, "low_freq_factor": low, "high_freq_factor": high}
    config = v2_config(tiny_tokenizer("v2"), 296) | {"rope_scaling": rope | {"original_max_position_embeddings": 512}}
    del config["rope_parameters"]
    refused("not below high_freq_factor", read_settings, config, "config.json", "v2")


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(path, settings, tensors=(b"",), count=None, rest=64):
    tensors = [one for one in tensors if one]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors) if count is None else count, len(settings))
    path.write_bytes(head + b"".join(settings) + b"".join(tensors) + bytes(rest))
    return path


def array(name, kind, letter, values):
    return string(name) + struct.pack(f"<IIQ{len(values)}{letter}", 9, kind, len(values), *values)


def tensor(name, shape, type=0, offset=0):
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type, offset)


RANKS, SHAPES = "audiocpp.tensor_ranks", "audiocpp.tensor_shapes"


@pytest.mark.parametrize(
    ("settings", "tensors", "told"),
    [
        ([array(RANKS, 6, "f", [1.0])], [tensor("a", [4])], f"{RANKS} is damaged"),
        ([array(RANKS, 12, "d", [float("nan")])], [tensor("a", [4])], f"{RANKS} is damaged"),
        ([array(RANKS, 11, "q", [-1])], [tensor("a", [4])], f"{RANKS} is damaged"),
        ([array(RANKS, 10, "Q", [1 << 62]), array(SHAPES, 10, "Q", [4])], [tensor("a", [4, 4])], "a is damaged"),
        ([array(RANKS, 5, "i", [1]), array(SHAPES, 6, "f", [4.0])], [tensor("a", [4])], f"{SHAPES} is damaged"),
        ([string("general.alignment") + struct.pack("<IQ", 10, 1 << 63)], [tensor("a", [4])], "alignment is damaged"),
        ([string("general.alignment") + struct.pack("<If", 6, 32.0)], [tensor("a", [4])], "alignment is damaged"),
        ([], [tensor(LONG, [4])], "'xxx.*is damaged"),
        ([], [tensor("a\nb", [4])], r"'a\\nb' is damaged"),
        ([], [tensor("a", [1 << 62, 1 << 62])], "is cut short: a lies beyond its end"),
        ([], [tensor("a", [16]), tensor("b", [16]), tensor("c", [16])], "larger than the file"),
        ([array("x", 8, "Q", [])[:-8] + struct.pack("<Q", 1 << 40)], [], "is damaged or cut short"),
    ],
)
def test_a_gguf_header_is_checked_number_by_number(tmp_path, settings, tensors, told):
    refused(told, open_gguf, gguf(tmp_path / "a.gguf", settings, tensors, rest=100))


def test_an_endless_gguf_header_is_refused(tmp_path):
    refused("is damaged or cut short", read_gguf, gguf(tmp_path / "a.gguf", [], count=1 << 50))
    strings = string("x") + struct.pack("<IIQ", 9, 8, 1_100_000) + bytes(8 * 1_100_000)
    refused("is damaged or cut short", read_gguf, gguf(tmp_path / "b.gguf", [strings]))
    large = [string(f"{n}") + struct.pack("<I", 8) + string("x" * (8 << 20)) for n in range(9)]
    refused("is damaged or cut short", read_gguf, gguf(tmp_path / "c.gguf", large))


@pytest.mark.parametrize(
    "arrays",
    [
        [array("audiocpp.embedded_files.offsets", 12, "d", [0.0, 2.0]), ("data", 0, "B", b"{}")],
        [array("audiocpp.embedded_files.offsets", 11, "q", [-5, 2]), ("data", 0, "B", b"{}")],
        [array("audiocpp.embedded_files.offsets", 10, "Q", [0, 1 << 60]), ("data", 0, "B", b"{}")],
        [array("audiocpp.embedded_files.offsets", 10, "Q", [0, 2]), ("data", 10, "Q", [1, 2])],
    ],
    ids=range(4),
)
def test_an_embedded_file_outside_its_gguf_file_is_refused(tmp_path, arrays):
    names = string("audiocpp.embedded_files.names") + struct.pack("<IIQ", 9, 8, 1) + string("config.json")
    name, kind, letter, values = arrays[1]
    path = gguf(tmp_path / "a.gguf", [names, arrays[0], array(f"audiocpp.embedded_files.{name}", kind, letter, values)])
    refused("is damaged", lambda: read_json(side_file(path, "config.json")))


def test_a_malformed_tokenizer_is_refused(tmp_path):
    """The tokenizers library ends some of these in a panic, which is not even an Exception."""
    held = json.loads((EMBEDDED / "tokenizer.json").read_text(encoding="utf-8"))
    config = inspect(EMBEDDED).config
    for change in ({"model": {"type": LONG}}, {"added_tokens": LONG}, {"normalizer": {"type": "Precompiled"}}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(held | change))
        refused("tokenizer.json cannot be read", Vocabulary, tmp_path / "tokenizer.json", config)
    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(held | {"model": words, "added_tokens": []}))
    refused("tokenizer.json cannot be used", Vocabulary(tmp_path / "tokenizer.json", config).encode, "Word.", print)


@pytest.fixture
def lora(written, tmp_path):
    """lora(settings) -> the result of inspecting its base with it."""
    with torch.inference_mode(False):
        write_adapter(written["v3"], tmp_path / "lora", "patterns", by_hand=True)
    held = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())

    def inspected(settings):
        (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(held | settings))
        return inspect(written["v3"], adapters=[Adapter(str(tmp_path / "lora"))])

    return inspected


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"alpha_pattern": {"((((.*)*)*)*)*x": 4}}, "which is not a module name"),  # never ends
        ({"alpha_pattern": {"q_proj|v_proj": 4}}, "which is not a module name"),
        ({"alpha_pattern": [LONG]}, "alpha_pattern contains"),
        ({"alpha_pattern": {"q_proj": 10**400}}, "its alpha is 1000"),
        ({"lora_alpha": 1e308}, "its alpha is 1e"),
        ({"lora_alpha": [[]]}, "its alpha is"),
        ({"peft_type": LONG}, "peft_type is 'xxx"),
        ({"init_lora_weights": f"pissa{LONG}"}, "init_lora_weights is 'pissaxxx"),
    ],
)
def test_malformed_lora_settings_are_refused(lora, settings, told):
    refused(told, lora, settings)


def test_an_alpha_pattern_of_names_is_accepted(lora):
    def factors(settings):
        return {
            name: change.factor for name, (change,) in lora(settings).adapters.changes.items() if "layers.0" in name
        }

    plain, named = (factors({"alpha_pattern": held}) for held in ({}, {r"^self_attn\.q_proj$": 12, "k_proj": 3}))
    changed = {name: named[name] / plain[name] for name in plain if named[name] != plain[name]}
    assert changed == {"layers.0.self_attn.q_proj.weight": 2, "layers.0.self_attn.k_proj.weight": 0.5}
    first = factors({"alpha_pattern": {"layers.0.mlp.up_proj": 12, "up_proj": 3}})
    assert first["layers.0.mlp.up_proj.weight"] == 2 * plain["layers.0.mlp.up_proj.weight"]


def codec_of(tmp_path, changed):
    """Write the embedded codec's tensors by name and shape, some changed, as a file without any data for them."""
    shapes = inspect(EMBEDDED).codec.shapes | changed
    header = {name: entry([0, *shape], [0, 0]) for name, shape in shapes.items()}
    safetensors(tmp_path / "a.safetensors", header)
    tensors = open_tensors([tmp_path / "a.safetensors"])
    tensors.shapes = {name: shape[1:] for name, shape in tensors.shapes.items()}
    return CodecWeights(tensors)


HUBERT = "semantic_model.encoder.layers"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({f"{HUBERT}.999999999.layer_norm.bias": (8,)}, "in 1000000000 layers"),
        ({f"{HUBERT}.x{'9' * 150}.layer_norm.bias": (8,)}, "invalid literal"),
        ({"acoustic_decoder.conv1.weight": (1 << 40, 64, 7)}, "wide"),
        ({"acoustic_decoder.conv1.weight": (0, 64, 7)}, "wide"),
        ({"semantic_model.encoder.pos_conv_embed.conv.parametrizations.weight.original1": (8, 1 << 50, 3)}, "wide"),
    ],
)
def test_a_codec_of_absurd_width_is_refused(tmp_path, changed, told):
    (problem,) = codec_of(tmp_path, changed).problems()
    assert told in problem and len(problem) < 600


def test_any_description_of_quantised_tensors_is_handled(tmp_path):
    for number, held in enumerate(
        [
            {"m.comfy_quant": torch.tensor([1.5, 2.5])},
            {"m.comfy_quant": torch.zeros(1 << 20, dtype=torch.uint8)},
            {"m.comfy_quant": torch.tensor([*DEEP.encode()], dtype=torch.uint8)},
            {"m.comfy_quant": torch.tensor([*json.dumps({"format": LONG[:60_000]}).encode()], dtype=torch.uint8)},
        ]
    ):
        save_file(held | {"m.weight": torch.zeros(2, 2)}, tmp_path / f"{number}.safetensors")
        (why,) = quantised(open_tensors([tmp_path / f"{number}.safetensors"])).refused.values()
        assert len(why) < 200
    for said in (DEEP, json.dumps({"layers": {"." * 300_000: {"format": "x"}}}), json.dumps({"layers": [LONG]})):
        save_file({"m.weight": torch.zeros(2, 2)}, tmp_path / "m.safetensors", {"_quantization_metadata": said})
        assert quantised(open_tensors([tmp_path / "m.safetensors"])).shapes


def voice(path, **changes):
    """Write a voice file with changed metadata and codes."""
    codes = changes.pop("codes", torch.zeros(50, 8, dtype=torch.int16))
    told = {"format": "higgs-tts-voice", "format_version": "1", "sample_rate": "24000", "frame_rate": "25"}
    save_file({"codes": codes}, path, told | changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format_version": LONG}, "format version 'xxx"),
        ({"sample_rate": LONG}, "was made for sample_rate 'xxx"),
        ({"codes": torch.zeros(32_769, 8, dtype=torch.int16)}, r"at most 32768 frames, not \[32769, 8\]"),
        ({"codes": torch.zeros(1, 961, dtype=torch.int16)}, r"not \[1, 961\]"),
        ({"codes": torch.zeros(5, dtype=torch.int16)}, r"not \[5\]"),
        ({"codes": torch.zeros((), dtype=torch.int16)}, r"not \[\]"),
    ],
)
def test_a_voice_is_checked_by_its_header(tmp_path, changes, told, monkeypatch):
    voice(tmp_path / "a.safetensors", **changes)
    for read in (Voice.load, read_voice_head):
        refused(told, read, tmp_path / "a.safetensors")


def test_files_that_are_no_voices_are_refused(tmp_path, make_pipe):
    make_pipe(tmp_path / "pipe.safetensors")
    for read in (Voice.load, read_voice_head):
        for name in ("pipe.safetensors", "a\0b.safetensors"):
            refused("no voice file at", read, tmp_path / name)


def wav_of(seconds, rate=8000, channels=1):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(bytes(round(seconds * rate) * channels * 2))
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (wav_of(30.2), r"is 30\.2 s long; more than 30 s makes cloning unstable"),
        (wav_of(1, channels=17), "has 17 channels"),
        (wav_of(0.01, rate=400_000), "has the unusual sample rate 400000"),
        (wav_of(1, rate=7919), "has the unusual sample rate 7919"),
    ],
)
def test_a_clip_is_checked_by_its_header(tmp_path, data, told, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *given, **named: pytest.fail("it was read"))
    (tmp_path / "a.wav").write_bytes(data)
    refused(f"a.wav {told}", read_clip, tmp_path / "a.wav")
    refused(f"The reference clip {told}", decode_clip, data)


def test_a_clip_whose_header_claims_too_much_is_refused(tmp_path):
    """It used to request memory for what it claims: 5 GB."""
    soundfile, file = pytest.importorskip("soundfile"), io.BytesIO()
    soundfile.write(file, torch.sin(torch.arange(24_000.0)).numpy(), 24_000, format="FLAC")
    data = bytearray(file.getvalue())
    data[22:26] = (1_382_400_000).to_bytes(4, "big")  # samples, in STREAMINFO
    (tmp_path / "a.flac").write_bytes(data)
    refused(r"is 57600\.0 s long", read_clip, tmp_path / "a.flac")
    refused(r"is 57600\.0 s long", decode_clip, bytes(data))


def test_a_damaged_clip_in_memory_prints_no_traceback(monkeypatch):
    soundfile, printed = pytest.importorskip("soundfile"), []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    for kind in ("AIFF", "AU", "CAF", "RF64", "W64", "WAV"):
        file = io.BytesIO()
        soundfile.write(file, torch.zeros(24_000).numpy(), 24_000, format=kind)
        for at in range(100):
            data = bytearray(file.getvalue())
            data[at : at + 4] = b"\xff\xff\xff\x7f"
            with contextlib.suppress(HiggsError, RuntimeError):
                decode_clip(bytes(data))
    assert not printed


def test_files_that_are_no_clips_are_refused(tmp_path, make_pipe):
    pytest.importorskip("soundfile")
    make_pipe(tmp_path / "pipe.wav")
    for read in (read_clip, clip_seconds):
        for name in ("pipe.wav", "a\0b.wav"):
            refused("no audio file at", read, tmp_path / name)


def test_a_codec_path_in_place_of_a_name_is_ignored(written, tmp_path):
    """processor_config.json names it. A name of a megabyte used to be looked up in the cache of downloads."""
    folder = shutil.copytree(written["v2"], tmp_path / "v2")
    shutil.rmtree(folder / "audio_tokenizer")
    for name in (LONG, "a\0b", "..", DEEP):
        (folder / "processor_config.json").write_text(json.dumps({"audio_tokenizer": name}))
        with pytest.raises(HiggsError, match="contains no audio codec"):
            inspect(folder)
