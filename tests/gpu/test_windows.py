"""The codec's windows as captured graphs: their sound, launches, memory, and what happens without them."""

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, Listener, SamplingParams
from higgs_tts.engine.codec import window_graphs
from higgs_tts.engine.codec.model import pack
from higgs_tts.engine.codec.waveform import LENGTHS
from higgs_tts.engine.codec.window_graphs import WindowGraphs
from higgs_tts.engine.device.graph import GraphError
from higgs_tts.tests.device_memory import free_bytes, off
from torch.profiler import ProfilerActivity, profile

TEXT = "One two three four five six seven."
PARAMS = SamplingParams(max_frames=90, seed=3)
LISTENER = Listener(on_audio=lambda wav: None)


@pytest.fixture(scope="module")
def folder(folders):
    return folders["v3"]


def config(folder, **changes):
    return EngineConfig(**{"model": str(folder), "device": "cuda:0", "context": 1024, **changes})


@pytest.fixture(scope="module")
def loaded(folder):
    with Engine(config(folder)) as engine, torch.inference_mode():
        yield engine.loaded


def clips_of(rows, length):
    g = torch.Generator().manual_seed(rows)
    return [torch.randint(0, 1024, (length - row, 8), generator=g) for row in range(rows)]


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_captured_group_sounds_as_op_by_op_and_nearly_as_each_window_alone(loaded, length, rows):
    graphs, clips = WindowGraphs(loaded.decoder, loaded.pool, captures=True), clips_of(rows, length)
    graphs.capture(rows, length)
    assert not graphs.note
    replayed = graphs.decode(clips, rows, length)
    assert torch.equal(replayed, loaded.decoder.decode_packed(pack(clips, rows, length).cuda()))
    for row, clip in enumerate(clips):
        sound = slice(0, len(clip) * 960)
        alone = loaded.windows().decode([clip], 1, length)[0, sound]
        assert off(replayed[row, sound], alone) < 1e-3
    torch.cuda.synchronize()
    graphs.close()


def test_a_window_takes_one_copy_and_one_launch(loaded):
    clips = clips_of(1, 45)
    loaded.windows().decode(clips, 1, 45)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        loaded.windows().decode(clips, 1, 45)
        torch.cuda.synchronize()
    calls = [
        event.name for event in seen.events() if event.name.startswith("cuda") or event.name.startswith("cuLaunch")
    ]
    launches = [name for name in calls if "Launch" in name or "Memcpy" in name]
    assert sorted(launches) == ["cudaGraphLaunch", "cudaMemcpyAsync"]


def test_shapes_of_several_rows_are_captured_when_they_come_again(loaded):
    graphs, clips = WindowGraphs(loaded.decoder, loaded.pool, captures=True), clips_of(2, 45)
    eager = graphs.decode(clips, 2, 45).clone()
    assert not graphs.sizes()
    assert torch.equal(graphs.decode(clips, 2, 45), eager) and graphs.sizes()
    torch.cuda.synchronize()
    graphs.close()
    assert not graphs.sizes()


def test_between_calls_windows_hold_a_tenth_of_a_gib(folder):
    with Engine(config(folder)) as engine:
        engine.speak(TEXT, None, PARAMS, listener=LISTENER)
        windows = engine.loaded.windows()
        planned, before = sum(windows.sizes()), free_bytes()
        windows.close()
        held = free_bytes() - before
    assert 0 < held <= (1 << 30) // 10 + (16 << 20), "working memory, and what the driver takes for two graphs"
    assert planned <= (1 << 30) // 10


def test_without_captures_windows_sound_the_same_and_the_result_says_why(folder, monkeypatch):
    said = []
    for fails in (False, True):
        if fails:

            def refuse(*_):
                raise GraphError("planted failure")

            monkeypatch.setattr(window_graphs, "capture", refuse)
        with Engine(config(folder)) as engine:
            said.append(engine.speak(TEXT, None, PARAMS, listener=LISTENER))
    captured, eager = said
    assert torch.equal(captured.codes, eager.codes) and torch.equal(captured.wav, eager.wav)
    assert any("graphs are off for the codec" in warning and "planted failure" in warning for warning in eager.warnings)
    assert not any("codec" in warning for warning in captured.warnings)


def test_a_batch_that_somebody_listens_to_frees_its_groups(folder):
    text = " ".join(f"This is sentence number {number}." for number in range(12))
    params = SamplingParams(max_frames=60, seed=3, chunk_seconds=2.0, retries=0)
    with Engine(config(folder, batch=8)) as engine:
        heard: list[torch.Tensor] = []
        for _ in range(2):
            heard.clear()
            speech = engine.speak(text, None, params, listener=Listener(on_audio=heard.append))
        assert torch.equal(torch.cat(heard), speech.wav)
        left = free_bytes()
        engine.speak(text, None, params, listener=LISTENER)
        assert free_bytes() == left
