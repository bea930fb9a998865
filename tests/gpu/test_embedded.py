"""The embedded checkpoint on the GPU: the same speech as on a CPU, with every runner."""

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, Listener, SamplingParams
from higgs_tts.engine.checkpoint.find_codec import open_codec
from higgs_tts.engine.codec.model import build_decoder
from higgs_tts.tests.device_memory import off

TEXT = "It is 7:45 in Paris."


def say(on_audio=None, **changes):
    config = EngineConfig(**{"model": str(EMBEDDED), "device": "cuda:0", "context": 1024, **changes})
    with Engine(config) as engine:
        return engine.speak(TEXT, params=SamplingParams(seed=1, max_frames=200), listener=Listener(on_audio=on_audio))


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_graph_and_eager_give_the_same_codes(kernels, dtype):
    eager, graph = (say(runner=executor, kernels=kernels, dtype=dtype) for executor in ("eager", "graph"))
    assert graph.stopped == "end of speech" and 1.0 < graph.seconds < 4.0
    assert torch.equal(graph.codes, eager.codes) and torch.equal(graph.wav, eager.wav)


def test_the_streamed_sound_equals_the_whole_decode():
    heard = []
    speech = say(on_audio=heard.append)
    weights = open_codec(EMBEDDED).weights
    whole = (
        build_decoder(weights.config, weights.read("decoder", "cuda"))(speech.codes.cuda().t()[None])[0]
        .clamp(-1, 1)
        .cpu()
    )
    assert len(heard) > 1 and torch.equal(torch.cat(heard), speech.wav)
    assert off(speech.wav, whole) < 5e-3


def test_an_early_stream_has_the_same_codes_and_after_120_ms_the_same_sound():
    heard = {early: [] for early in (False, True)}
    exact, early = (say(on_audio=heard[early].append, early=early) for early in heard)
    assert torch.equal(exact.codes, early.codes) and [*map(len, heard[True])] == [*map(len, heard[False])]
    assert torch.equal(exact.wav[2880:], early.wav[2880:]) and 0 < (exact.wav - early.wav).abs().max() < 0.01
