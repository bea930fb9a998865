"""Infinities and NaN in a weight on the GPU: they reach the logits, and speech stops with a clear error."""

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, HiggsError, Listener, SamplingParams, Voice
from higgs_tts.engine.decode.kernels.batch import BatchKernel
from higgs_tts.engine.decode.kernels.single import SingleKernel
from higgs_tts.tests.device_memory import free_bytes

INF, NAN = float("inf"), float("nan")
SENTENCE = "values that are not numbers .*, so speech was stopped"
SEQUENCES = 8
TEXT = " ".join(f"This is sentence number {number} of eight." for number in range(1, SEQUENCES + 1))
PARAMS = SamplingParams(seed=5, max_frames=60, chunk_seconds=4)
WAYS = {"kernels": {}, "torch's ops": {"kernels": "torch"}, "fp32": {"dtype": "fp32"}}
WEIGHTS = {
    "attn_norm": lambda talker, layer: layer.code.attn_norm[7:8],
    "a query": lambda talker, layer: layer.qkv.data[0, 7:8],
    "a value": lambda talker, layer: layer.qkv.data[-1, 7:8],
    "out": lambda talker, layer: layer.out.data[3, 7:8],
    "mlp_norm": lambda talker, layer: layer.code.mlp_norm[7:8],
    "a gate": lambda talker, layer: layer.code.gate_up.data[3, 7:8],
    "up": lambda talker, layer: layer.code.gate_up.data[-1, 7:8],
    "down": lambda talker, layer: layer.code.down.data[3, 7:8],
    "the last norm": lambda talker, layer: talker.norm[7:8],
    "one code's head": lambda talker, layer: talker.head_codes.data[700, 7:8],
}


def pose(state, positions):
    """Set random cache and input, every row live at its position."""
    g = torch.Generator("cuda").manual_seed(1)
    for tensor in (state.cache.keys, state.cache.values, state.work.x):
        tensor.normal_(generator=g)
    state.delay.done.fill_(False)
    state.cache.position.copy_(torch.tensor(positions, device="cuda"))


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("rows", [1, 8])
def test_kernels_pass_on_values_that_are_not_finite(wide, state_of, family, rows):
    talker = wide(family, torch.bfloat16, 2, 1100)
    state = state_of(talker, rows, 1100)
    kernel = (SingleKernel if rows == 1 else BatchKernel)(talker, state)
    for at in (40, 1000):  # a short context and one that is split otherwise
        for name, weight_of in WEIGHTS.items():
            weight = weight_of(talker, talker.layers[0])
            kept = weight.clone()
            for value in (INF, NAN):
                pose(state, [at + row for row in range(rows)])
                weight.fill_(value)
                kernel.run()
                assert (~state.logits.isfinite()).flatten(1).any(1).all(), (name, value, at)
            weight.copy_(kept)
        pose(state, [at + row for row in range(rows)])
        kernel.run()
        assert state.logits.isfinite().all(), at  # nothing of it stays in what the blocks hand to each other
    kernel.close()


@pytest.fixture(scope="module")
def folders(folders):
    return {**folders, "embedded": EMBEDDED}


def stops(engine, text, voice, value, frames):
    """Check that speech ends with the error if a weight changes before it, or after that many frames."""
    weight = engine.loaded.talker.layers[-1].code.down.data[0, :1]
    kept, heard = weight.clone(), []

    def change(done, expected):
        if done >= frames:
            weight.fill_(value)

    if not frames:
        weight.fill_(value)
        engine.trim()  # what is captured anew meets it too
    with pytest.raises(HiggsError, match=SENTENCE):
        engine.speak(text, voice, PARAMS, listener=Listener(on_frame=change, on_audio=heard.append))
    assert all(wav.isfinite().all() for wav in heard)
    assert engine.loaded.runner().is_captured
    weight.copy_(kept)


def open_stop_and_close(config, rows, is_ours):
    """Speak, stop in several ways, and check that speech in between and after is unchanged."""
    voice = Voice(torch.randint(0, 1024, (60, 8), generator=torch.Generator().manual_seed(1)), "A reference.", "voice")
    text = TEXT if rows > 1 else "One two three four five six seven."
    with Engine(config) as engine:
        expected = engine.speak(text, voice, PARAMS)
        assert "CUDA graph" in expected.how and ("kernel" in expected.how) == is_ours
        assert expected.how.endswith(f", {rows} chunks at a time") == (rows > 1)
        for value in (INF, NAN):
            for frames in (0, 5):  # from the prompt on, and in the midst of speech, where the step alone meets it
                stops(engine, text, voice, value, frames)
                again = engine.speak(text, voice, PARAMS)
                assert torch.equal(again.codes, expected.codes) and torch.equal(again.wav, expected.wav)


@pytest.mark.parametrize("rows", [1, SEQUENCES])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("checkpoint", ["v3", "v2", "embedded"])
def test_values_that_are_not_finite_stop_speech_and_the_engine_stays_usable(folders, checkpoint, way, rows):
    config = EngineConfig(
        model=str(folders[checkpoint]), device="cuda:0", context=1024, batch=rows, runner="graph", **WAYS[way]
    )
    open_stop_and_close(config, rows, way == "kernels")  # whatever the process keeps for good is there after this
    before = free_bytes()
    open_stop_and_close(config, rows, way == "kernels")
    assert free_bytes() == before
