"""audio.cpp's GGUF files: opened as they are, recognised by content, and refused in a sentence if damaged."""

import contextlib
import shutil
import sys

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, HiggsError, SamplingParams, find_checkpoints
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.checkpoint.gguf_file import Blocks, open_gguf, q4_k, q8_0
from higgs_tts.engine.checkpoint.load import inspect, load_talker
from higgs_tts.engine.checkpoint.places import Place
from higgs_tts.engine.checkpoint.talker_layout import V3_CODEC
from higgs_tts.engine.checkpoint.tensor_file import TensorFile, open_folder
from higgs_tts.engine.files.gguf_header import read_gguf
from higgs_tts.engine.talker.weight import FORMATS, SCRATCH, Weight
from higgs_tts.engine.tools.doctor import examine
from higgs_tts.tests.gguf_files import BF16, F16, Q4_K, Q8_0, encoded, write_gguf
from higgs_tts.tests.traced import tracing
from safetensors.torch import save_file

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_frames=16, seed=3, retries=0)
KINDS = {"f16": F16, "bf16": BF16, "q8_0": Q8_0, "q4_k": Q4_K}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """{kind: (GGUF file in a folder of its own, folder of its dequantised tensors)} of the embedded checkpoint."""
    root, found = tmp_path_factory.mktemp("gguf"), {}
    for name, kind in KINDS.items():
        meant = write_gguf(EMBEDDED, root / name / f"higgs_{name}.gguf", kind)
        dense = root / f"{name} dense"
        shutil.copytree(EMBEDDED, dense, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
        save_file({key: tensor.contiguous() for key, tensor in meant.items()}, dense / "model.safetensors")
        found[name] = root / name / f"higgs_{name}.gguf", dense
    return found


@pytest.mark.parametrize("name", KINDS)
def test_tensors_equal_the_file_s_values(made, name):
    path, dense = made[name]
    ours, theirs = open_gguf(path), open_folder(dense)
    assert ours.shapes == theirs.shapes
    assert all(torch.equal(ours.get(key).float(), theirs.get(key)) for key in theirs.shapes)
    ours, theirs = (load_talker(inspect(place), CPU, torch.float32) for place in (path, dense))
    assert all(torch.equal(ours[key].float(), tensor.float()) for key, tensor in theirs.items())


@pytest.mark.parametrize(("name", "auto"), [("f16", "fp32"), ("bf16", "fp32"), ("q4_k", "int4")])
def test_a_gguf_file_gives_the_dequantised_model_s_codes(made, name, auto):
    path, dense = made[name]
    for place in (path, path.parent):  # a folder with one such file is that file
        with Engine(EngineConfig(place, device="cpu")) as engine:
            assert engine.config.dtype == auto
            speech = engine.speak("Good morning.", params=PARAMS)
    with Engine(EngineConfig(dense, device="cpu", dtype=auto)) as engine:
        expected = engine.speak("Good morning.", params=PARAMS)
    assert torch.equal(speech.codes, expected.codes) and torch.equal(speech.wav, expected.wav)


def test_q8_0_weights_are_kept_to_the_bit(made):
    """Codes and scales move to other places, and nothing else happens to them."""
    path, dense = made["q8_0"]
    plain = load_talker(inspect(dense), CPU, torch.float32)
    kept = load_talker(inspect(path), CPU, torch.float32, "int8")
    scratch, matrices = kept[SCRATCH], 0
    for name, tensor in kept.items():
        if tensor.dtype == FORMATS["q8_0"].dtype:
            assert torch.equal(Weight(tensor, scratch).dense(torch.float32), plain[name]), name
            matrices += 1
    assert matrices == 4 * inspect(path).config.layers


@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_q8_0_gives_the_dequantised_model_s_codes(made, dtype):
    path, dense = made["q8_0"]
    with Engine(EngineConfig(dense, device="cpu", dtype="fp32")) as engine:
        expected = engine.speak("Good morning.", params=PARAMS)
    for steps in (contextlib.nullcontext, tracing):
        for place in (path, path.parent):  # a folder with one such file is that file
            with steps(), Engine(EngineConfig(place, device="cpu", dtype=dtype)) as engine:
                assert engine.config.dtype == "int8"
                speech = engine.speak("Good morning.", params=PARAMS)
            assert torch.equal(speech.codes, expected.codes) and speech.how.endswith("q8_0 weights")


def test_weights_keep_at_least_the_file_s_bits(made):
    with pytest.raises(HiggsError, match=r"higgs_q8_0\.gguf contains q8_0 weights.*auto or int8"):
        Engine(EngineConfig(made["q8_0"][0], device="cpu", dtype="int4"))
    for dtype in ("int8", "fp32"):
        with Engine(EngineConfig(made["q4_k"][0], device="cpu", dtype=dtype)) as engine:
            assert engine.config.dtype == dtype


def test_one_matrix_of_more_bits_raises_all_matrices(tmp_path):
    write_gguf(EMBEDDED, tmp_path / "a.gguf", Q4_K, types={"layers.0.self_attn.o_proj.weight": Q8_0})
    assert inspect(tmp_path).talker.weights == "q8_0"


@pytest.mark.parametrize(
    ("name", "told"),
    [("q8_0", "49 matrices Q8_0 (8.5 bits a weight)"), ("q4_k", "49 matrices Q4_K (4.5 bits a weight)")],
)
def test_doctor_names_layout_bits_and_the_error(made, name, told):
    path, _ = made[name]
    for place in (path, path.parent):
        report = examine(place)
        assert not report.problems, report.problems
        head, _, percent = report.packed.partition(" by ")
        if name == "q8_0":
            assert report.packed == f"{told}; used unchanged"
        else:
            assert head == f"{told}; rounded once more to int4, which changes layer 0" and float(percent[:-1]) < 12
        assert report.tokens and str(path) in report.tokenizer and report.files == {path.name: path.stat().st_size}
    assert examine(made["bf16"][0]).packed == ""


def test_the_terminal_accepts_a_gguf_file(made, tmp_path, capsys):
    path, _ = made["q8_0"]
    assert main(["doctor", str(path)]) == 0 and "Q8_0 (49 tensors)" in capsys.readouterr().out
    assert main(["say", "Hi.", "--out", str(tmp_path / "a.wav"), "--model", str(path), "--max-frames", "8"]) == 0
    assert main(["quantize", str(path), str(tmp_path / "b"), "--dtype", "int4"]) == 2


def test_each_gguf_file_is_listed_by_name(made, tmp_path):
    folder = tmp_path / "models" / "Higgs-Audio-v3-TTS-4B-GGUF"
    folder.mkdir(parents=True)
    for name in ("q8_0", "bf16"):
        shutil.copy(made[name][0], folder)
    (folder / "other.gguf").write_bytes(b"GGUF" + bytes(40))
    (folder / "higgs_broken.gguf").write_bytes(b"none")
    found = {one.name: one for one in find_checkpoints([tmp_path / "models"])}
    names = [f"{folder.name}/higgs_{name}.gguf" for name in ("bf16", "broken", "q8_0")]
    assert list(found) == names and [found[name].complete for name in names] == [True, False, True]
    assert found[names[0]].family == "v3" and "not a GGUF file" in found[names[1]].note
    with pytest.raises(HiggsError, match=r"several models: higgs_bf16\.gguf, .*Choose one of them"):
        inspect(folder)


def test_config_and_tokenizer_may_lie_beside_the_file(tmp_path):
    write_gguf(EMBEDDED, tmp_path / "a.gguf", BF16, sidecars=False)
    with pytest.raises(HiggsError, match=r"config\.json"):
        inspect(tmp_path / "a.gguf")
    assert not find_checkpoints([tmp_path])
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(EMBEDDED / name, tmp_path)
    (found,) = find_checkpoints([tmp_path])
    assert found.complete and inspect(found.path).tokenizer == tmp_path / "tokenizer.json"
    (tmp_path / "tokenizer.json").unlink()
    assert not find_checkpoints([tmp_path])[0].complete
    with pytest.raises(HiggsError, match=r"tokenizer\.json is missing"):
        inspect(found.path)


@pytest.mark.parametrize("damage", ["cut", "header", "names", "type", "version"])
def test_damaged_files_are_refused_in_one_sentence(made, tmp_path, damage):
    path = shutil.copy(made["q8_0"][0], tmp_path / "a.gguf")
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[-5000:]
    elif damage == "header":
        del data[3000:]
    elif damage == "names":
        at = data.index(b"audiocpp.embedded_files.names") + 29 + 4 + 4
        data[at : at + 8] = b"\xff" * 8
    elif damage == "version":
        data[4] = 1
    else:
        key = b"body.layers.0.mlp.down_proj.weight"
        at = data.rindex(key) + len(key) + 4 + 16
        assert data[at] == Q8_0
        data[at] = 99
    path.write_bytes(data)
    with pytest.raises(HiggsError, match=r"a\.gguf.*(again|supported)"):
        inspect(path)
    assert examine(path).problems


def test_tensors_of_more_than_two_dimensions_keep_their_shape(made):
    stored = open_folder(EMBEDDED)
    ours = open_gguf(made["q8_0"][0])
    odd = [name for name in stored.shapes if stored.shapes[name][:1] == (1,) and len(stored.shapes[name]) > 1]
    assert odd and all(ours.shapes[name] == stored.shapes[name] for name in odd)
    assert any(name.startswith(V3_CODEC) for name in odd)


def test_rare_block_types_need_the_gguf_package(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(88))
    raw = TensorFile({"w": Place(tmp_path / "a", (2, 44), torch.uint8)})
    blocks = Blocks(raw, "w", (2, 64), "Q5_0", "int8", 5.5, size=22)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(HiggsError, match=r"gguf cannot be used: .*Q8_0 file of the model, or install gguf"):
        blocks.dense("cpu")


class TestAgainstTheGgufPackage:
    @pytest.fixture
    def gguf(self):
        return pytest.importorskip("gguf", reason="the gguf package is not installed: nothing to compare with")

    def test_the_gguf_package_reads_the_tests_files(self, gguf, written, tmp_path):
        meant = write_gguf(written["v3"], tmp_path / "a.gguf", Q8_0, sidecars=False)
        reader, ours = gguf.GGUFReader(tmp_path / "a.gguf"), read_gguf(tmp_path / "a.gguf")
        assert len(reader.tensors) == len(ours.tensors) == len(meant)
        for theirs, (name, tensor) in zip(reader.tensors, ours.tensors.items(), strict=True):
            assert (theirs.data_offset, theirs.tensor_type) == (tensor.offset, tensor.type), name

    @pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q5_1"])
    def test_rare_block_types_are_decoded_by_the_gguf_package(self, gguf, tmp_path, name):
        noise, kind = torch.randn(3, 64), gguf.GGMLQuantizationType[name]
        (tmp_path / "a").write_bytes(gguf.quants.quantize(noise.numpy(), kind).tobytes())
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = TensorFile({"w": Place(tmp_path / "a", (3, 64 // block * size), torch.uint8)})
        read = Blocks(raw, "w", (3, 64), name, "int8", 8 * size / block, size=size).dense("cpu")
        assert read.shape == noise.shape and float((read - noise).norm() / noise.norm()) < 0.15

    @pytest.mark.parametrize("name", ["Q8_0", "Q4_K"])
    def test_blocks_decode_as_the_gguf_package_does(self, gguf, name):
        noise = torch.randn(12, 512, generator=torch.Generator().manual_seed(0)) * 0.05
        data, meant = encoded(noise, {"Q8_0": Q8_0, "Q4_K": Q4_K}[name])
        _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        blocks = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, size)
        expected = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[name])
        ours = {"Q8_0": q8_0, "Q4_K": q4_k}[name](blocks)
        assert torch.equal(ours.view(-1), torch.from_numpy(expected).view(-1))
        assert torch.equal(ours.view(noise.shape), meant) and float((meant - noise).norm() / noise.norm()) < 0.1
        if name == "Q8_0":
            assert gguf.quants.quantize(noise.numpy(), gguf.GGMLQuantizationType.Q8_0).tobytes() == data
