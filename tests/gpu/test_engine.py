"""The engine on the GPU: graphs against eager in codes and waveform, memory freed after every fault."""

import threading

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, HiggsError, Listener, SamplingParams
from higgs_tts.engine.codec import snake
from higgs_tts.engine.cuda import kernel
from higgs_tts.engine.cuda.nvrtc import LaunchFailed, read_source
from higgs_tts.engine.decode.kernels import single
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.tools.published import write_hollow
from higgs_tts.tests.device_memory import free_bytes

TEXT = "One two three four five six seven."
PARAMS = SamplingParams(max_frames=60, seed=3)


def config(folder, **changes):
    return EngineConfig(**{"model": str(folder), "device": "cuda:0", "context": 1024, **changes})


@pytest.fixture
def folder(folders):
    with Engine(config(folders["v3"])) as engine:  # whatever the process keeps for good is there after this
        engine.speak(TEXT, params=PARAMS)
    return folders["v3"]


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_graph_and_eager_engines_give_the_same_codes_and_waveform(folders, family, dtype):
    said = {}
    for executor in ("eager", "graph"):
        with Engine(config(folders[family], runner=executor, dtype=dtype)) as engine:
            for seed in (3, 4, 5):
                params = SamplingParams(max_frames=120, seed=seed)
                said[executor, seed] = engine.speak(TEXT, params=params)
                assert not any("CUDA graphs" in warning for warning in said[executor, seed].warnings)
    for seed in (3, 4, 5):
        assert torch.equal(said["eager", seed].codes, said["graph", seed].codes)
        assert torch.equal(said["eager", seed].wav, said["graph", seed].wav)


def test_closing_returns_all_memory_and_the_plan_was_right(folder):
    before = free_bytes()
    engine = Engine(config(folder))
    engine.open()
    engine.speak(TEXT, params=PARAMS)
    torch.cuda.synchronize()
    held = before - torch.cuda.mem_get_info()[0]
    assert abs(held - engine.planned_bytes) < 150 << 20  # graph, prefill and codec scratch
    engine.close()
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == before


@pytest.mark.parametrize(("family", "dtype"), [("v3", "auto"), ("v2", "auto"), ("v3", "int4")])
def test_memory_told_to_comfyui_matches_the_driver_s(folder, tmp_path, family, dtype):
    """Within 2 %, at the published sizes."""
    with Engine(config(folder)) as engine:  # whatever the process keeps for good is there after this
        engine.speak(TEXT, params=PARAMS)
    write_hollow(tmp_path, family)
    before = free_bytes()
    with Engine(config(tmp_path, context=4096, dtype=dtype)) as engine:
        for _ in range(2):
            taken = before - free_bytes()  # ComfyUI counts what torch keeps for later as free
            assert abs(taken - engine.held_bytes) <= 0.02 * taken
            engine.speak(TEXT, params=PARAMS)
        assert engine.held_bytes >= engine.planned_bytes


def test_trim_frees_only_the_cache_and_later_speech_is_the_same(folder):
    with Engine(config(folder, context=4096)) as engine:
        first = engine.speak(TEXT, params=PARAMS)
        held = engine.held_bytes
        freed = engine.trim()
        assert freed > 40 << 20 and engine.held_bytes < held and engine.opened
        assert engine.trim() == 0
        assert torch.equal(engine.speak(TEXT, params=PARAMS).wav, first.wav)
        assert engine.held_bytes == held


def test_graphs_off_never_captures(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", None)
    with Engine(config(folder, runner="eager")) as engine:
        assert engine.speak(TEXT, params=PARAMS).frames == 60


def planted_failure(monkeypatch, when):
    """Make the step raise once, in the given phase of the capture. The first step of all is a warm-up."""
    step, failures = ModelRunner.step, []

    def failing(backend):
        if not failures and torch.cuda.is_current_stream_capturing() == (when == "capture"):
            failures.append(when)
            raise RuntimeError("planted failure")
        step(backend)

    monkeypatch.setattr(ModelRunner, "step", failing)


@pytest.mark.parametrize("when", ["warm-up", "capture"])
def test_a_failed_capture_leaves_the_engine_eager_and_says_why(folder, monkeypatch, when):
    with Engine(config(folder, runner="eager")) as engine:
        expected = engine.speak(TEXT, params=PARAMS)
    before = free_bytes()
    planted_failure(monkeypatch, when)
    with Engine(config(folder)) as engine:
        speech = engine.speak(TEXT, params=PARAMS)
        assert torch.equal(speech.wav, expected.wav)
        assert any("CUDA graphs are off" in note and "planted failure" in note for note in speech.warnings)
    assert free_bytes() == before


def test_torch_s_ops_decode_if_the_driver_refuses_the_kernel(folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise LaunchFailed("the driver could not launch a kernel: not supported")

    monkeypatch.setattr(single, "launch", refuse)
    with Engine(config(folder, kernels="torch")) as engine:
        expected = engine.speak(TEXT, params=PARAMS)
    before = free_bytes()
    with Engine(config(folder)) as engine:
        speech = engine.speak(TEXT, params=PARAMS)
    assert speech.how == "torch ops (the driver could not launch a kernel: not supported), CUDA graph"
    assert torch.equal(speech.codes, expected.codes)
    assert free_bytes() == before


def test_a_stalled_step_is_reported_and_the_engine_stays_usable(folder, monkeypatch):
    """A kernel's block withholds a value from position 100 on. The speech before that is unchanged."""
    short = SamplingParams(max_frames=10, seed=3)
    with Engine(config(folder)) as engine:
        expected = engine.speak(TEXT, params=short)
    found = "publish(s.act + ranges[2].first + j,"
    planted = f"if (!(blockIdx.x == 3 && *s.position >= 100)) {found}"
    monkeypatch.setattr(kernel, "read_source", lambda path: read_source(path).replace(found, planted))
    before = free_bytes()
    with Engine(config(folder)) as engine:
        for _ in range(2):
            assert torch.equal(engine.speak(TEXT, params=short).codes, expected.codes)
            with pytest.raises(HiggsError, match="waited for each other"):
                engine.speak(TEXT, params=SamplingParams(max_frames=400, seed=3))
        assert torch.equal(engine.speak(TEXT, params=short).codes, expected.codes)
    assert free_bytes() == before


def test_torch_s_ops_decode_if_the_kernel_stalls_at_once(folder, monkeypatch):
    with Engine(config(folder, kernels="torch")) as engine:
        expected = engine.speak(TEXT, params=PARAMS)
    found = "publish(s.act + ranges[2].first + j,"
    planted = f"if (blockIdx.x != 3) {found}"
    monkeypatch.setattr(kernel, "read_source", lambda path: read_source(path).replace(found, planted))
    with Engine(config(folder)) as engine:
        speech = engine.speak(TEXT, params=PARAMS)
    assert speech.how.startswith("torch ops (its blocks do not see each other's values")
    assert torch.equal(speech.codes, expected.codes)


def test_torch_s_ops_run_if_the_driver_refuses_the_codec_s_kernel(folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise LaunchFailed("the driver could not launch a kernel: not supported")

    with Engine(config(folder)) as engine:
        expected = engine.speak(TEXT, params=PARAMS)
    monkeypatch.setattr(snake, "launch", refuse)
    before = free_bytes()
    with Engine(config(folder)) as engine:
        speech = engine.speak(TEXT, params=PARAMS)
    why = "the driver could not launch a kernel: not supported"
    assert speech.how == f"CUDA kernel for one row, CUDA graph, the codec by torch ops ({why})"
    assert torch.equal(speech.codes, expected.codes)
    assert torch.allclose(speech.wav, expected.wav, atol=1e-3)
    assert free_bytes() == before


def test_an_interrupt_during_speech_leaves_the_engine_usable(folder):
    def stop(done, expected):
        if done > 20:
            raise KeyboardInterrupt

    before = free_bytes()
    with Engine(config(folder)) as engine:
        first = engine.speak(TEXT, params=PARAMS)
        with pytest.raises(KeyboardInterrupt):
            engine.speak(TEXT, params=PARAMS, listener=Listener(on_frame=stop))
        assert torch.equal(engine.speak(TEXT, params=PARAMS).wav, first.wav)
    assert free_bytes() == before


def test_out_of_memory_while_opening_leaks_nothing(folder):
    before = free_bytes()
    engine = Engine(config(folder))
    hog = torch.empty(before - (300 << 20), dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.cuda.OutOfMemoryError):
        engine.open()
    assert not engine.opened
    del hog
    assert free_bytes() >= before  # PyTorch empties its caches when memory runs out
    with engine:
        assert engine.speak(TEXT, params=PARAMS).frames == 60


def test_out_of_memory_before_the_capture_leaks_nothing(folder, monkeypatch):
    """Other allocations take all memory between the buffers and the capture. The step needs none of it."""
    before = free_bytes()
    hog = []
    capture = ModelRunner.capture

    def starved(*args):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        size = torch.cuda.mem_get_info()[0]
        while size > 2 << 20:
            try:
                hog.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.cuda.OutOfMemoryError:
                size //= 2
        capture(*args)

    monkeypatch.setattr(ModelRunner, "capture", starved)
    engine = Engine(config(folder))
    engine.open()
    hog.clear()
    torch.cuda.empty_cache()
    speech = engine.speak(TEXT, params=PARAMS)
    assert speech.frames == 60 and speech.how.endswith("eager")
    assert any("CUDA graphs are off" in note and "MB of device memory are free" in note for note in speech.warnings)
    engine.close()
    assert free_bytes() >= before  # PyTorch empties its caches when memory runs out


def test_an_exception_inside_the_step_leaks_nothing(folder, monkeypatch):
    before = free_bytes()
    with Engine(config(folder, runner="eager")) as engine:
        first = engine.speak(TEXT, params=PARAMS)
        step, calls = ModelRunner.step, []

        def failing(backend):
            calls.append(1)
            if len(calls) == 10:
                raise RuntimeError("planted failure")
            step(backend)

        monkeypatch.setattr(ModelRunner, "step", failing)
        with pytest.raises(RuntimeError, match="planted"):
            engine.speak(TEXT, params=PARAMS)
        assert torch.equal(engine.speak(TEXT, params=PARAMS).wav, first.wav)
    assert free_bytes() == before


def test_closing_from_another_thread_ends_speech(folder):
    before = free_bytes()
    engine = Engine(config(folder))
    engine.open()
    threads = []

    def close_soon(done, expected):
        if done > 10 and not threads:
            threads.append(threading.Thread(target=engine.close))
            threads[0].start()

    with pytest.raises(HiggsError, match="unloaded while it spoke"):
        engine.speak(TEXT * 5, params=SamplingParams(max_frames=800), listener=Listener(on_frame=close_soon))
    threads[0].join()
    assert not engine.opened and free_bytes() == before
    engine.open()
    assert engine.speak(TEXT, params=PARAMS).frames == 60
    engine.close()


def test_an_engine_dropped_without_closing_leaks_nothing(folder):
    before = free_bytes()
    engine = Engine(config(folder))
    engine.open()
    engine.speak(TEXT, params=PARAMS)
    del engine
    assert free_bytes() == before


def test_closing_one_engine_leaves_the_other_speaking(folder):
    closed_while_another_speaks(folder)  # whatever the driver keeps for two at once is there after this
    before = free_bytes()
    closed_while_another_speaks(folder)
    assert free_bytes() == before


def closed_while_another_speaks(folder):
    """Open two engines, and close one while the other speaks."""
    speaking, other = Engine(config(folder)), Engine(config(folder, context=2048))
    speaking.open()
    other.open()
    first = speaking.speak(TEXT, params=PARAMS)
    assert torch.equal(other.speak(TEXT, params=PARAMS).codes, first.codes)
    threads = []

    def close_other(done, expected):
        if done > 10 and not threads:
            threads.append(threading.Thread(target=other.close))
            threads[0].start()

    again = speaking.speak(TEXT, params=PARAMS, listener=Listener(on_frame=close_other))
    threads[0].join()
    assert torch.equal(again.wav, first.wav)
    assert torch.equal(speaking.speak(TEXT, params=PARAMS).wav, first.wav)
    speaking.close()
