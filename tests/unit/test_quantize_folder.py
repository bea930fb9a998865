"""A checkpoint stored in 8 or 4 bits: written by the terminal, opened as it is, refused if incomplete."""

import json
import shutil

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, HiggsError, SamplingParams
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.checkpoint.load import inspect, load_talker
from higgs_tts.engine.checkpoint.tensor_file import open_folder, open_tensors
from higgs_tts.engine.talker.weight import SCRATCH
from higgs_tts.engine.tools.doctor import examine
from higgs_tts.engine.tools.quantize_folder import quantize_folder
from safetensors.torch import load_file, save_file

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_frames=40, seed=3)
MATRIX = "body.layers.1.mlp.down_proj"


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("quantised")
    return {name: quantize_folder(EMBEDDED, made / name, name) for name in ("int8", "int4")}


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_quantised_folder_equals_quantising_on_load(folders, name):
    loaded = load_talker(inspect(EMBEDDED), CPU, torch.float32, name)
    read = load_talker(inspect(folders[name]), CPU, torch.float32, name)
    assert loaded.keys() == read.keys()
    for key in loaded.keys() - {SCRATCH}:
        assert torch.equal(loaded[key], read[key]), key
    assert size(folders[name]) < size(EMBEDDED) * {"int8": 0.8, "int4": 0.65}[name]  # the codec is in it as well


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_quantised_folder_opens_and_gives_the_same_codes(folders, name):
    with Engine(EngineConfig(EMBEDDED, device="cpu", dtype=name)) as engine:
        expected = engine.speak("Good morning.", params=PARAMS)
    with Engine(EngineConfig(folders[name], device="cpu")) as engine:
        assert engine.config.dtype == name
        speech = engine.speak("Good morning.", params=PARAMS)
    assert torch.equal(speech.codes, expected.codes) and f"{name} weights" in speech.how


def test_int8_folders_have_comfyui_s_layout(folders):
    stored, plain = open_folder(folders["int8"]), open_folder(EMBEDDED)
    codes, scale = stored.get(f"{MATRIX}.weight"), stored.get(f"{MATRIX}.weight_scale")
    assert codes.dtype == torch.int8 and scale.dtype == torch.float32 and scale.shape == (len(codes), 1)
    matrix = plain.get(f"{MATRIX}.weight").float()
    assert float((codes * scale - matrix).norm() / matrix.norm()) < 0.02
    assert json.loads(bytes(stored.get(f"{MATRIX}.comfy_quant").tolist())) == {"format": "int8_tensorwise"}


@pytest.mark.parametrize("shape", [(), (1,), "rows"])
def test_scales_of_other_tools_are_read(folders, tmp_path, shape):
    """One for all, or one per row without a second dimension."""
    tensors = load_file(folders["int8"] / "model.safetensors")
    scale = tensors[f"{MATRIX}.weight_scale"]
    tensors[f"{MATRIX}.weight_scale"] = scale[:, 0] if shape == "rows" else scale.mean().reshape(shape)
    checkpoint = inspect(copied(folders["int8"], tmp_path, tensors))
    read = load_talker(checkpoint, CPU, torch.float32, "int8")["layers.1.down"]
    expected = load_talker(inspect(folders["int8"]), CPU, torch.float32, "int8")["layers.1.down"]
    codes = [data[:, :-16] for data in (read, expected)]
    assert torch.equal(*codes) and torch.equal(read, expected) == (shape == "rows")


def copied(folder, to, tensors):
    for path in folder.iterdir():
        if path.suffix == ".json":
            (to / path.name).write_bytes(path.read_bytes())
    save_file(tensors, to / "model.safetensors")
    return to


def test_unquantised_matrices_of_a_file_are_quantised_on_load(folders, tmp_path):
    tensors = load_file(folders["int8"] / "model.safetensors")
    for name in ("weight_scale", "comfy_quant"):
        del tensors[f"{MATRIX}.{name}"]
    tensors[f"{MATRIX}.weight"] = open_folder(EMBEDDED).get(f"{MATRIX}.weight").clone()
    read = load_talker(inspect(copied(folders["int8"], tmp_path, tensors)), CPU, torch.float32, "int8")
    expected = load_talker(inspect(folders["int8"]), CPU, torch.float32, "int8")
    assert torch.equal(read["layers.1.down"], expected["layers.1.down"])


def test_fewer_bits_than_the_file_s_are_refused_with_a_remedy(folders):
    with pytest.raises(HiggsError, match=r"int8 weights.*auto or int8"):
        Engine(EngineConfig(folders["int8"], device="cpu", dtype="int4"))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_more_bits_than_the_file_s_keep_its_values(folders, name):
    with Engine(EngineConfig(EMBEDDED, device="cpu", dtype=name)) as engine:
        layers = [layer.code.down.dense(torch.float32).clone() for layer in engine.loaded.talker.layers]
    with Engine(EngineConfig(folders[name], device="cpu", dtype="fp32")) as engine:
        for layer, expected in zip(engine.loaded.talker.layers, layers, strict=True):
            assert torch.equal(layer.code.down.data, expected)


@pytest.mark.parametrize("spoilt", ["format", "scale", "embedding"])
def test_unreadable_quantised_tensors_are_named(folders, tmp_path, spoilt):
    tensors = load_file(folders["int8"] / "model.safetensors")
    if spoilt == "format":
        tensors[f"{MATRIX}.comfy_quant"] = torch.tensor(list(b'{"format": "int8_tensorwise", "convrot": true}'))
        tensors[f"{MATRIX}.comfy_quant"] = tensors[f"{MATRIX}.comfy_quant"].to(torch.uint8)
    elif spoilt == "scale":
        tensors[f"{MATRIX}.weight_scale"] = torch.ones(3)
    else:
        name = "tied.embedding.modality_embeddings.0.embedding.weight"
        tensors[name] = torch.zeros(tensors[name].shape, dtype=torch.int8)
    with pytest.raises(HiggsError, match=r"model\.safetensors: tensor .* quantised model"):
        Engine(EngineConfig(copied(folders["int8"], tmp_path, tensors), device="cpu"))


def test_doctor_describes_a_quantised_folder(folders):
    report = examine(folders["int8"])
    assert not report.problems and list(report.memory) == ["bf16", "fp32", "int8"] and report.auto == "int8"
    assert report.dtypes["int8_tensorwise"] == 49
    assert report.packed == "49 matrices int8_tensorwise (8.06 bits a weight); used unchanged"
    assert "quantised:  49 matrices" in report.as_text()
    assert "used unchanged" in examine(folders["int4"]).packed


def test_the_terminal_writes_a_quantised_folder_once(tmp_path, capsys):
    out = tmp_path / "new"
    assert main(["quantize", str(EMBEDDED), str(out), "--dtype", "int4"]) == 0
    assert "MB" in capsys.readouterr().out and not list(out.glob("*.part"))
    assert (out / "higgs_tts.json").is_file() and not (out / "model.safetensors.index.json").exists()
    assert main(["quantize", str(EMBEDDED), str(out), "--dtype", "int4"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["quantize", str(out), str(tmp_path / "again"), "--dtype", "int8"]) == 2
    assert "already contains int4 weights" in capsys.readouterr().err


def test_interrupted_quantising_leaves_nothing_behind(tmp_path, monkeypatch):
    def stopped(matrix):
        raise KeyboardInterrupt

    monkeypatch.setattr("higgs_tts.engine.tools.quantize_folder.row_int8", stopped)
    with pytest.raises(KeyboardInterrupt):
        quantize_folder(EMBEDDED, tmp_path / "new", "int8")
    assert not (tmp_path / "new").exists()


def test_leftovers_of_a_killed_run_do_not_prevent_quantising(tmp_path):
    out = tmp_path / "new"
    (out / ".part" / "audio_tokenizer").mkdir(parents=True)
    for name in ("model.safetensors.part", "audio_tokenizer/config.json"):
        (out / ".part" / name).write_bytes(b"half")
    quantize_folder(EMBEDDED, out, "int4")
    assert not (out / ".part").exists() and not examine(out).problems


def test_a_file_that_you_added_beside_leftovers_is_kept(tmp_path):
    out = tmp_path / "new"
    (out / ".part").mkdir(parents=True)
    (out / "config.json").write_text("mine")
    with pytest.raises(HiggsError, match=r"new already exists\. Choose a new folder, or empty this one"):
        quantize_folder(EMBEDDED, out, "int4")
    assert (out / "config.json").read_text() == "mine"


def test_the_folder_appears_only_when_whole(tmp_path, monkeypatch):
    """A killed run leaves nothing that looks like a checkpoint, and two runs do not fill one folder."""
    seen, copy = [], shutil.copy2

    def look(source, target):
        seen.append([path.name for path in (tmp_path / "new").iterdir()])
        with pytest.raises(HiggsError, match=r"Another run is writing to .*new\. Wait"):
            quantize_folder(EMBEDDED, tmp_path / "new", "int4")
        return copy(source, target)

    monkeypatch.setattr(shutil, "copy2", look)
    quantize_folder(EMBEDDED, tmp_path / "new", "int4")
    assert seen and all(names == [".part"] for names in seen)
    assert not (tmp_path / "new" / ".part").exists() and (tmp_path / "new" / "model.safetensors").is_file()


@pytest.mark.parametrize("missing", [10, 1_000_000])
def test_a_full_disk_is_reported_and_leaves_nothing_behind(folders, tmp_path, full_disk, missing):
    room = (folders["int4"] / "model.safetensors").stat().st_size - missing
    with (
        full_disk(room),
        pytest.raises(HiggsError, match=r"new could not be written: .* free there") as error,
    ):
        quantize_folder(EMBEDDED, tmp_path / "new", "int4")
    assert "None" not in str(error.value) and not (tmp_path / "new").exists()


def test_a_folder_inside_the_checkpoint_is_refused(tmp_path):
    """It would be copied into itself."""
    checkpoint = shutil.copytree(EMBEDDED, tmp_path / "checkpoint")
    with pytest.raises(HiggsError, match=r"inside"):
        quantize_folder(checkpoint, checkpoint / "int8", "int8")
    assert not (checkpoint / "int8").exists()


def test_existing_files_are_never_replaced(tmp_path):
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(HiggsError, match=r"already exists"):
        quantize_folder(EMBEDDED, tmp_path, "int8")
    assert (tmp_path / "kept.txt").read_text() == "mine"


def test_widths_that_do_not_fit_are_named(written, tmp_path):
    with pytest.raises(HiggsError, match=r"int8 .*512"):
        quantize_folder(written["v3"], tmp_path / "new", "int8")
    assert not (tmp_path / "new").exists()


def test_a_written_file_is_read_back_by_others(folders):
    ours, theirs = (
        open_tensors([folders["int4"] / "model.safetensors"]),
        load_file(folders["int4"] / "model.safetensors"),
    )
    assert ours.shapes.keys() == theirs.keys()
    assert all(torch.equal(ours.get(name), tensor) for name, tensor in theirs.items())
