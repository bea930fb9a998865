"""The pool's count and the order of loading, as far as a CPU shows them."""

import contextlib
import dataclasses
import gc
import weakref

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, Listener, SamplingParams
from higgs_tts.engine.codec.model import CodecEncoder
from higgs_tts.engine.decode.model_runner import ModelRunner, open_runner
from higgs_tts.engine.device.graph import GraphError
from higgs_tts.engine.device.memory import PrivatePool, device_bytes
from higgs_tts.engine.engines import loaded_model

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_frames=12, seed=1)


@pytest.fixture(scope="module")
def folder(written):
    return str(written["v3"])


def test_the_pool_counts_live_bytes_and_frees_referenced_tensors(left_behind):
    pool = PrivatePool(CPU)
    with pool.allocate():
        kept, dropped = torch.zeros(100), torch.zeros(50)
    pool.adopt([kept, dropped, kept.view(10, 10)])
    assert pool.live_bytes() == 400 + 200
    del dropped
    assert pool.live_bytes() == 400
    pool.close()
    assert pool.live_bytes() == 0 and kept.shape == (0,)
    assert left_behind() == [(400, CPU)]
    pool.close()
    assert len(left_behind()) == 1


def test_bytes_on_a_gpu_count_what_the_allocator_s_segments_waste():
    megabytes, gpu = 1 << 20, torch.device("cuda")
    for sizes, taken in (
        ([1, 1], 2),
        ([11], 12),
        ([8, 8], 20),
        ([8, 8, 5], 40),  # 4 are left of the first segment
        ([8, 8, 5, 4], 40),
        ([12, 8, 8, 3.5, 2], 12 + 40),  # the half of a megabyte that is left serves nobody
    ):
        assert device_bytes([round(size * megabytes) for size in sizes], gpu) == taken * megabytes
    assert device_bytes([8 * megabytes, 11 * megabytes], CPU) == 19 * megabytes


def test_closing_an_engine_leaves_no_tensor_behind(folder, left_behind):
    engine = Engine(EngineConfig(model=folder, device="cpu"))
    engine.open()
    engine.speak("Hello.", params=PARAMS)
    loaded = engine.loaded
    held = [*loaded.talker.tensors(), *loaded.runner().state.tensors(), *loaded.decoder.parameters()]
    watched = [weakref.ref(tensor) for tensor in held]
    assert loaded.pool.live_bytes() + loaded.spare.live_bytes() > 0.99 * engine.planned_bytes
    del held
    del loaded
    engine.close()
    gc.collect()
    assert not [ref for ref in watched if ref() is not None]
    assert not left_behind()


@pytest.mark.parametrize("fails", [False, True], ids=["encoded", "failed"])
def test_a_clip_s_encoder_is_freed_without_garbage_collection(folder, monkeypatch, fails):
    """A module under torch's weight norm is part of a cycle. On a GPU its 18 MiB stayed until garbage collection."""
    made, encode = [], CodecEncoder.encode

    def watched(encoder, clip):
        made.extend(weakref.ref(tensor) for tensor in (*encoder.parameters(), *encoder.buffers()))
        if fails:
            raise torch.cuda.OutOfMemoryError("no memory for the clip")
        return encode(encoder, clip)

    monkeypatch.setattr(CodecEncoder, "encode", watched)
    gc.disable()
    try:
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            Engine(EngineConfig(model=folder, device="cpu")).encode_voice(torch.rand(48000) - 0.5, 24000)
        assert len(made) > 50 and not sum(tensor.nbytes for ref in made if (tensor := ref()) is not None)
    finally:
        gc.enable()


def test_trim_keeps_the_weights_and_the_next_speech_is_the_same(folder):
    with Engine(EngineConfig(model=folder, device="cpu")) as engine:
        first = engine.speak("Hello.", params=PARAMS)
        held, weights, spare = engine.held_bytes, engine.loaded.talker, engine.loaded.spare
        assert spare.live_bytes() and engine.trim() == held - engine.held_bytes > 0
        assert not spare.live_bytes() and engine.loaded.pool.live_bytes()
        assert engine.trim() == 0 and engine.opened
        assert torch.equal(engine.speak("Hello.", params=PARAMS).wav, first.wav)
        assert engine.held_bytes == held and engine.loaded.talker is weights
    assert engine.held_bytes == 0


def test_a_capture_that_fails_leaves_an_eager_engine_that_says_so(folder, monkeypatch):
    def failing(runner, stream):
        raise GraphError("no room\nand more")

    def captured(talker, config, *args):
        return open_runner(talker, dataclasses.replace(config, runner="graph"), *args)

    monkeypatch.setattr(ModelRunner, "capture", failing)
    monkeypatch.setattr(PrivatePool, "capture_stream", lambda pool: None)
    monkeypatch.setattr(loaded_model, "open_runner", captured)
    with Engine(EngineConfig(model=folder, device="cpu")) as engine:
        speech = engine.speak("Hello.", params=PARAMS)
    assert speech.how == "torch ops, eager" and speech.frames == 12
    (told,) = (warning for warning in speech.warnings if "CUDA graph" in warning)
    assert "no room" in told and "and more" not in told


def test_a_batch_uses_memory_only_while_it_lasts(folder):
    with Engine(EngineConfig(model=folder, device="cpu", context=512)) as engine:
        loaded = engine.loaded
        for lines, slots, shape in ((2, 100, (2, 128)), (16, 64, (8, 64)), (17, 64, (6, 64)), (3, 4000, (3, 512))):
            with loaded.runner_for(lines, slots) as runner:
                assert (runner.state.batch, runner.state.max_seq_len) == shape
                watched = [weakref.ref(tensor) for tensor in runner.state.tensors()]
            assert not hasattr(runner, "state") and not [ref for ref in watched if ref() is not None]
        with loaded.runner_for(1, 100) as runner:
            assert runner is loaded.runner() and runner.state.max_seq_len == 512
        assert loaded.runner().state is not None
    few = EngineConfig(model=folder, device="cpu", batch=3)
    with Engine(few) as engine, engine.loaded.runner_for(9, 64) as runner:
        assert runner.state.batch == 3


def test_a_batch_that_does_not_fit_is_retried_with_half_the_rows(folder, monkeypatch):
    tried = []

    def crowded(talker, config, rows, *args):
        tried.append(rows)
        if rows > 1:
            raise torch.cuda.OutOfMemoryError("planted")
        return open_runner(talker, config, rows, *args)

    with Engine(EngineConfig(model=folder, device="cpu")) as engine:
        monkeypatch.setattr(loaded_model, "open_runner", crowded)
        with engine.loaded.runner_for(8, 64) as runner:
            assert tried == [8, 4, 2] and runner is engine.loaded.runner()


def test_a_failed_open_leaves_nothing_behind(folder, monkeypatch):
    def failing(*args):
        raise MemoryError("planted")

    monkeypatch.setattr(loaded_model, "build_decoder", failing)
    engine = Engine(EngineConfig(model=folder, device="cpu"))
    with pytest.raises(MemoryError):
        engine.open()
    assert not engine.opened and engine.held_bytes == 0
    monkeypatch.undo()
    with engine:
        assert engine.speak("Hello.", params=PARAMS).frames == 12


class Cancel(BaseException):
    """Like ComfyUI's own, which is not an Exception."""


@pytest.fixture
def no_gc():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("listener", ["on_frame", "on_audio"])
@pytest.mark.parametrize("text", ["Hello.", "One is here. Two is here. Three is here. Four is here."])
def test_a_referenced_cancel_exception_keeps_no_model_memory(folder, left_behind, listener, text):
    """ComfyUI keeps the exception while it loads the next model. The test collects no garbage and clears no frame."""
    engine = Engine(EngineConfig(model=folder, device="cpu"))
    engine.open()
    loaded = engine.loaded
    pools = [loaded.pool, loaded.spare]
    watched = [
        weakref.ref(part) for part in (loaded.talker, loaded.decoder, loaded.runner().state, *loaded.talker.layers)
    ]
    del loaded

    def cancel(*_):
        raise Cancel

    with pytest.raises(Cancel) as kept:
        engine.speak(
            text, params=SamplingParams(max_frames=40, chunk_seconds=2), listener=Listener(**{listener: cancel})
        )
    assert kept.value.__traceback__.tb_next is not None
    engine.close()
    assert not [ref() for ref in watched if ref() is not None]
    assert not sum(pool.live_bytes() for pool in pools) and not left_behind()


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("where", ["decode", "fill"])
def test_a_referenced_network_error_keeps_no_model_memory(folder, monkeypatch, where):
    engine = Engine(EngineConfig(model=folder, device="cpu"))
    engine.open()
    pools, talker = [engine.loaded.pool, engine.loaded.spare], engine.loaded.talker
    weight = talker.layers[0].out.data

    def failing(*_, **__):
        raise RuntimeError("planted")

    monkeypatch.setattr(type(talker), where, lambda self, *args: failing(self.layers, *args))
    with pytest.raises(RuntimeError, match="planted"):
        engine.speak("Hello.", params=PARAMS)
    assert weight.numel()
    engine.close()
    assert not sum(pool.live_bytes() for pool in pools) and not weight.numel()
    monkeypatch.undo()
    with engine:
        assert engine.speak("Hello.", params=PARAMS).frames == 12
