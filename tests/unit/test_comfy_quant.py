"""ComfyUI's quantised safetensors, exactly as in ComfyUI 0.33.0.

Sources: QUANTIZATION.md ("Quantized Checkpoints"), QUANT_ALGOS of comfy/quant_ops.py, `_load_quantized_module` of
comfy/ops.py (which takes `comfy_quant` and `weight_scale`) and `convert_old_quants` of comfy/utils.py (which makes the
first from metadata and from `scaled_fp8`).
"""

import json
import shutil

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, HiggsError, SamplingParams
from higgs_tts.engine.checkpoint.load import inspect, load_talker
from higgs_tts.engine.checkpoint.tensor_file import open_folder
from higgs_tts.engine.tools.doctor import examine
from safetensors.torch import load, save_file

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_frames=16, seed=3, retries=0)
MATRIX = "body.layers.1.mlp.down_proj"
FP8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}


def quantised(matrix, format, rows=False):
    """Return (codes, scale) as in comfy's layouts: code = w / scale, and scale = amax / largest code."""
    dtype = FP8.get(format, torch.int8)
    largest = torch.finfo(dtype).max if format in FP8 else 127
    wide = matrix.float()
    scale = (wide.abs().amax(1, keepdim=True) if rows else wide.abs().amax()) / largest
    codes = wide / scale
    return (codes if format in FP8 else codes.round()).to(dtype), scale


def marker(settings):
    return torch.tensor(list(json.dumps(settings).encode("utf-8")), dtype=torch.uint8)


def write(folder, format, told="marker", rows=False, prefix="", only=lambda name: True):
    """Write the embedded checkpoint with quantised layers, and return the folder and the dequantised matrices."""
    plain, layers, dense = open_folder(EMBEDDED), {}, {}
    tensors = {name: plain.get(name).clone() for name in plain.shapes}
    shutil.copytree(EMBEDDED, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    for name in [name for name in tensors if ".layers." in name and "body." in name and tensors[name].dim() == 2]:
        if not only(name):
            continue
        module = name.removesuffix(".weight")
        codes, scale = quantised(tensors[name], format, rows)
        dense[name], tensors[name] = codes.float() * scale, codes
        tensors[f"{module}.{'scale_weight' if told == 'scaled_fp8' else 'weight_scale'}"] = scale
        if format in FP8:
            tensors[f"{module}.{'scale_input' if told == 'scaled_fp8' else 'input_scale'}"] = torch.tensor(1.0)
        layers[prefix + module] = {"format": format}
        if told == "marker":
            tensors[f"{module}.comfy_quant"] = marker({"format": format, "full_precision_matrix_mult": True})
    metadata = {"format": "pt"}
    if told == "metadata":
        metadata["_quantization_metadata"] = json.dumps({"format_version": "1.0", "layers": layers})
    elif told == "scaled_fp8":
        tensors["scaled_fp8"] = torch.zeros(2, dtype=FP8[format])
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, folder / "model.safetensors", metadata)
    return folder, dense


CASES = [
    ("int8_tensorwise", "marker", False, ""),
    ("int8_tensorwise", "marker", True, ""),
    ("int8_tensorwise", "metadata", True, "model.talker."),
    ("float8_e4m3fn", "marker", False, ""),
    ("float8_e4m3fn", "metadata", False, ""),
    ("float8_e5m2", "marker", False, ""),
    ("float8_e4m3fn", "scaled_fp8", False, ""),
]


@pytest.mark.parametrize(("format", "told", "rows", "prefix"), CASES)
def test_a_quantised_file_equals_its_dequantised_values(tmp_path, format, told, rows, prefix):
    folder, dense = write(tmp_path / "a", format, told, rows, prefix)
    read = load_talker(inspect(folder), CPU, torch.float32)
    assert torch.equal(read["layers.1.down"], dense[f"{MATRIX}.weight"])
    for name in ("q_proj", "k_proj", "v_proj"):
        assert any(torch.equal(part, dense[f"body.layers.0.self_attn.{name}.weight"]) for part in halves(read, dense))


def halves(read, dense):
    rows = [len(dense[f"body.layers.0.self_attn.{name}.weight"]) for name in ("q_proj", "k_proj", "v_proj")]
    return read["layers.0.qkv"].split(rows)


@pytest.mark.parametrize(("format", "told", "rows", "prefix"), CASES)
def test_auto_picks_int8_and_gives_the_dequantised_model_s_codes(tmp_path, format, told, rows, prefix):
    folder, dense = write(tmp_path / "a", format, told, rows, prefix)
    plain, _ = write(tmp_path / "dense", format, only=lambda name: False)
    save_file(load((plain / "model.safetensors").read_bytes()) | dense, plain / "model.safetensors")
    with Engine(EngineConfig(folder, device="cpu")) as engine:
        assert engine.config.dtype == "int8"
        speech = engine.speak("Good morning.", params=PARAMS)
    # int8 stays as it is; fp8 is rounded as its original is.
    with Engine(EngineConfig(plain, device="cpu", dtype="int8" if format in FP8 else "fp32")) as engine:
        assert torch.equal(speech.codes, engine.speak("Good morning.", params=PARAMS).codes)


def test_doctor_names_layout_bits_and_use(tmp_path):
    report = examine(write(tmp_path / "a", "float8_e4m3fn")[0])
    assert report.dtypes["float8_e4m3fn"] == 49 and report.auto == "int8" and not report.problems
    assert report.packed.startswith(
        "49 matrices float8_e4m3fn (8 bits a weight); rounded once more to int8, which changes layer 0 by "
    )
    percent = float(report.packed.split(" by ")[1].split("%")[0])
    assert 0.2 < percent < 2
    report = examine(write(tmp_path / "b", "int8_tensorwise", only=lambda name: "mlp" in name)[0])
    assert report.packed == "21 matrices int8_tensorwise (8 bits a weight); used unchanged"


def spoil(folder, change):
    tensors = load((folder / "model.safetensors").read_bytes())  # Windows replaces no file that is mapped
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.update({f"{MATRIX}.comfy_quant": marker({"format": "nvfp4"})}), "nvfp4 is not supported"),
        (
            lambda t: t.update({f"{MATRIX}.comfy_quant": marker({"format": "int8_tensorwise", "convrot": True})}),
            "int8_tensorwise with convrot is not supported",
        ),
        (lambda t: t.update({f"{MATRIX}.comfy_quant": torch.ones(3, dtype=torch.uint8)}), "its format is not named"),
        (lambda t: t.pop(f"{MATRIX}.weight_scale"), rf"its scale {MATRIX}\.weight_scale is missing"),
        (lambda t: t.update({f"{MATRIX}.weight_scale": torch.ones(3)}), r"its scale has the shape \[3\]"),
        (lambda t: t.update({f"{MATRIX}.weight": torch.ones(8, 8)}), "it is not a matrix that fits int8_tensorwise"),
        (lambda t: t.pop(f"{MATRIX}.weight"), "it is not a matrix that fits int8_tensorwise"),
    ],
    ids=range(7),
)
def test_unreadable_quantised_tensors_are_named(tmp_path, change, why):
    folder = spoil(write(tmp_path / "a", "int8_tensorwise")[0], change)
    with pytest.raises(HiggsError, match=rf"tensor {MATRIX}\.weight belongs to a quantised model, and {why}"):
        Engine(EngineConfig(folder, device="cpu"))
    assert any(MATRIX in problem for problem in examine(folder).problems)


def test_a_wrong_scale_is_refused_before_any_speech(tmp_path):
    folder = spoil(
        write(tmp_path / "a", "float8_e4m3fn")[0], lambda t: t.update({f"{MATRIX}.weight_scale": torch.tensor(9.0)})
    )
    with pytest.raises(HiggsError, match=rf"converted incorrectly: {MATRIX}\.weight"):
        Engine(EngineConfig(folder, device="cpu")).open()
