"""Matrices in 8 and 4 bits: their error, their storage, and a model loaded so."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from higgs_tts.engine import EMBEDDED, QUANTIZED, Engine, EngineConfig, HiggsError, SamplingParams
from higgs_tts.engine.checkpoint.dtypes import auto_dtype
from higgs_tts.engine.checkpoint.load import inspect, load_talker, talker_sizes
from higgs_tts.engine.talker.quantize import BLOCK
from higgs_tts.engine.talker.weight import FORMATS, SCRATCH, Weight, scratch_bytes
from higgs_tts.tests.traced import tracing

CPU = torch.device("cpu")
FORMATS_OF_FEW_BITS = tuple(name for name, format in FORMATS.items() if format.quantize)
LENGTH = {"int8": None, "q8_0": 32, "int4": 64}  # of a group; None: the whole row


def stored(matrix, name):
    format = FORMATS[name]
    data = torch.empty(len(matrix), format.row_bytes(matrix.shape[1]) // format.dtype.itemsize, dtype=format.dtype)
    format.quantize(matrix, data)
    return Weight(data, torch.empty(scratch_bytes(matrix.shape, torch.float32), dtype=torch.uint8))


def relative(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize(
    ("name", "error", "row"),
    [("int8", 0.009, 3 * BLOCK + 16), ("q8_0", 0.006, 3 * 544), ("int4", 0.095, 3 * 272)],
)
def test_normal_weights_are_quantised_within_the_expected_error(name, error, row):
    matrix = torch.randn(300, 3 * BLOCK, generator=torch.Generator().manual_seed(0))
    weight = stored(matrix, name)
    assert weight.shape == tuple(matrix.shape) and weight.format == name
    assert weight.nbytes == len(matrix) * row
    assert error / 2 < relative(weight.dense(torch.float32), matrix) < error


@pytest.mark.parametrize("name", FORMATS_OF_FEW_BITS)
def test_groups_are_rounded_independently(name):
    """A large weight lowers the resolution of its own group only. Zeros stay zeros."""
    matrix = torch.randn(4, 2 * BLOCK, generator=torch.Generator().manual_seed(1))
    calm = stored(matrix, name).dense(torch.float32).clone()
    group = slice(192, 192 + LENGTH[name]) if LENGTH[name] else slice(None)
    matrix[2, 197] = 1000.0
    matrix[1, group] = 0.0
    wild = stored(matrix, name).dense(torch.float32)
    same = torch.ones_like(matrix, dtype=torch.bool)
    same[2, group] = same[1, group] = False
    assert torch.equal(wild[same], calm[same])
    assert not wild[1, group].any() and abs(float(wild[2, 197]) - 1000) < 5


@pytest.mark.parametrize("name", FORMATS_OF_FEW_BITS)
def test_representable_weights_are_kept_exactly(name):
    """Codes times a power of two: the exact scale is among the candidates."""
    top = FORMATS[name].largest
    codes = torch.randint(-top, top, (5, BLOCK), generator=torch.Generator().manual_seed(2)).float()
    codes.view(5, -1, LENGTH[name] or BLOCK)[..., 0] = -top
    assert torch.equal(stored(codes / 64, name).dense(torch.float32), codes / 64)


@pytest.mark.parametrize("name", FORMATS_OF_FEW_BITS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_quantising_in_pieces_gives_the_same_matrix(name, dtype, monkeypatch):
    matrix = torch.randn(70, BLOCK, generator=torch.Generator().manual_seed(3)).to(dtype)
    whole = stored(matrix, name).data
    monkeypatch.setattr("higgs_tts.engine.talker.quantize.ROWS_AT_ONCE", 7 * BLOCK)
    assert torch.equal(stored(matrix, name).data, whole)


@pytest.mark.parametrize("name", FORMATS_OF_FEW_BITS)
def test_a_checkpoint_is_quantised_on_load(name):
    checkpoint = inspect(EMBEDDED)
    plain, tensors = (load_talker(checkpoint, CPU, torch.float32, weights) for weights in ("", name))
    on_device = {id(tensor): tensor.nbytes for key, tensor in tensors.items() if key != "embed_text"}
    assert sum(on_device.values()) == sum(talker_sizes(checkpoint, torch.float32, name))
    for key, tensor in plain.items():
        if key.rpartition(".")[2] in ("qkv", "o", "gate_up", "down"):
            assert torch.equal(tensors[key], stored(tensor, name).data), key
        else:
            assert torch.equal(tensors[key], tensor), key
    assert set(tensors) - set(plain) == {SCRATCH}


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantised_step_can_be_captured(name):
    said = []
    for steps in (contextlib.nullcontext, tracing):
        with steps(), Engine(EngineConfig(EMBEDDED, device="cpu", dtype=name)) as engine:
            said.append(engine.speak("Hello.", params=SamplingParams(max_frames=30)).codes)
    assert torch.equal(*said)


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantised_speech_works_and_names_its_format(name):
    params = SamplingParams(max_frames=120, seed=3)
    with Engine(EngineConfig(EMBEDDED, device="cpu", dtype=name)) as engine:
        speech = engine.speak("Your computer can speak now.", params=params)
        again = engine.speak("Your computer can speak now.", params=params)
    assert speech.complete and speech.wav.abs().max() > 0.05
    assert torch.equal(speech.codes, again.codes)
    assert f"{name} weights" in speech.how


@pytest.mark.parametrize(("gib", "dtype"), [(2.5, "int8"), (2.7, "bf16"), (24, "bf16")])
def test_auto_depends_on_the_card_s_whole_memory(monkeypatch, gib, dtype):
    card = SimpleNamespace(total_memory=round(gib * (1 << 30)))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    assert auto_dtype(inspect(EMBEDDED), torch.device("cuda", 0)) == dtype
    assert auto_dtype(inspect(EMBEDDED), CPU) == "fp32"


def test_auto_picks_bf16_if_widths_cannot_be_quantised(monkeypatch, written):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1 << 20))
    assert auto_dtype(inspect(written["v3"]), torch.device("cuda", 0)) == "bf16"


def test_auto_is_settled_when_the_engine_is_made():
    assert Engine(EngineConfig(EMBEDDED, device="cpu")).config.dtype == "fp32"


def test_widths_that_do_not_fit_are_named(written):
    with pytest.raises(HiggsError, match=r"int8 .*512.*auto, bf16 or fp32"):
        Engine(EngineConfig(written["v3"], device="cpu", dtype="int8"))
