"""Long text on the GPU: equal codes for any number of rows, and a batch's memory freed after every end."""

import dataclasses

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, Listener, SamplingParams, Voice
from higgs_tts.engine.decode.kernels.batch import BatchKernel
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.decode.prompts import Prefill
from higgs_tts.engine.engines import loaded_model
from higgs_tts.tests.device_memory import free_bytes, off

SEQUENCES = 40
TEXT = " ".join(f"This is sentence number {number} of forty." for number in range(1, SEQUENCES + 1))
PARAMS = SamplingParams(seed=5, max_frames=90, chunk_seconds=4, retries=0)
FRAMES = [20 + 29 * number % 61 for number in range(SEQUENCES)]  # where each sequence ends


def config(folder, **changes):
    return EngineConfig(**{"model": str(folder), "device": "cuda:0", "context": 1024, **changes})


def a_voice():
    codes = torch.randint(0, 1024, (60, 8), generator=torch.Generator().manual_seed(1))
    return Voice(codes, "A reference.", "somebody")


def memory():
    """Return (free, allocated) bytes."""
    return free_bytes(), torch.cuda.memory_stats()["allocated_bytes.all.current"]


def are_alike(wav, expected):
    """True within the bound of grouped windows, and without a click."""
    return off(wav, expected) < 1e-3 and float((wav - expected).abs().max()) < 5e-3


def rows_of(speech):
    return int(speech.how.rsplit(", ", 1)[1].split(" chunks")[0])


@pytest.fixture(autouse=True)
def _uneven(monkeypatch):
    """Give every sequence its own limit, so that rows are refilled at different times."""

    begin = Prefill.begin

    def uneven(prompts, state, admitted, *args):
        for _, sequence in admitted:
            sequence.params = dataclasses.replace(sequence.params, max_frames=FRAMES[sequence.index % SEQUENCES])
        return begin(prompts, state, admitted, *args)

    monkeypatch.setattr(Prefill, "begin", uneven)


WAYS = {
    "bf16": {},
    "bf16, torch's ops": {"kernels": "torch"},
    "fp32": {"dtype": "fp32"},
    "int8": {"dtype": "int8"},
    "int4": {"dtype": "int4"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_codes_do_not_depend_on_the_batch_size(folders, family, way):
    said, hows = {}, {}
    for batch in (2, 3, 8, 64):
        with Engine(config(folders[family], batch=batch, **WAYS[way])) as engine:
            speech = engine.speak(TEXT, a_voice(), PARAMS)
            assert speech.chunks == SEQUENCES and speech.frames == sum(FRAMES)
            said[batch], hows[batch] = speech, speech.how
            assert torch.equal(engine.speak(TEXT, a_voice(), PARAMS).codes, speech.codes)
    assert all("CUDA graph" in how for how in hows.values())
    assert hows[8].endswith(", 8 chunks at a time") and hows[64].endswith(", 40 chunks at a time")
    assert (BatchKernel.name in hows[8]) == (way in ("bf16", "int8", "int4"))
    if way == "bf16, torch's ops":
        return  # cuBLAS adds up in another order for another number of rows, and in bf16 that changes codes
    for speech in said.values():
        assert torch.equal(speech.codes, said[8].codes)
        assert are_alike(speech.wav, said[8].wav)  # windows have other company, and cuDNN uses TF32


@pytest.mark.parametrize("rows", [2, 3, 8, 33, 64])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_every_batch_size_is_captured(folders, rows, dtype):
    with Engine(config(folders["v3"], dtype=dtype)) as engine, torch.inference_mode():
        with engine.loaded.runner_for(rows, 200) as runner:
            assert (runner.state.batch, runner.state.max_seq_len, runner.is_captured) == (rows, 256, True)
            assert runner.describe().startswith(BatchKernel.name) == (dtype == "bf16")
        assert engine.loaded.runner().is_captured


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_returns_its_memory_to_the_byte(folders, way):
    class Stop(Exception):
        pass

    def cancel(done, expected):
        if done > 300:
            raise Stop

    with Engine(config(folders["v3"], **WAYS[way])) as engine:
        engine.speak("Hello.", a_voice(), PARAMS)
        first = engine.speak(TEXT, a_voice(), PARAMS)  # whatever the process keeps for good is there after this
        before = memory()
        assert torch.equal(engine.speak(TEXT, a_voice(), PARAMS).wav, first.wav)
        assert memory() == before
        cancelled = []
        for _ in range(3):
            with pytest.raises(Stop):
                engine.speak(TEXT, a_voice(), PARAMS, listener=Listener(on_frame=cancel))
            cancelled.append(memory())
        # A text that came to its end has a cuBLAS workspace more: its last sound is decoded after the batch is gone.
        assert cancelled == 3 * cancelled[:1] and cancelled[0][0] >= before[0] and cancelled[0][1] <= before[1]
        short = engine.speak("Hello.", a_voice(), PARAMS)
        assert torch.equal(engine.speak(TEXT, a_voice(), PARAMS).wav, first.wav)
        assert memory() == before
        assert torch.equal(engine.speak("Hello.", a_voice(), PARAMS).wav, short.wav)


def cost_of_rows(talker):
    """Return the fixed bytes of a batch of 4096 slots, and the bytes of each row."""
    two, three = (
        sum(ModelRunner.planned_sizes(talker.config, rows, 4096, talker.device, talker.dtype, "auto"))
        for rows in (2, 3)
    )
    return 3 * two - 2 * three, three - two


def test_low_memory_gives_fewer_rows_and_the_same_codes(folders, monkeypatch):
    big = dataclasses.replace(PARAMS, max_frames=3900)
    with Engine(config(folders["v3"], context=4096)) as engine:
        expected = engine.speak(TEXT, a_voice(), big)
        _, row = cost_of_rows(engine.loaded.talker)
        hog = torch.empty(free_bytes() - loaded_model.RESERVE - 12 * row, dtype=torch.uint8, device="cuda")
        speech = engine.speak(TEXT, a_voice(), big)
        assert rows_of(expected) == SEQUENCES and 8 <= rows_of(speech) <= 12
        assert torch.equal(speech.codes, expected.codes)
        del hog
        monkeypatch.setattr(loaded_model, "RESERVE", -(64 << 30))  # a wrong guess: memory runs out on the way
        hog = torch.empty(free_bytes() - 18 * row, dtype=torch.uint8, device="cuda")
        before = free_bytes()
        speech = engine.speak(TEXT, a_voice(), big)
        assert rows_of(speech) == 10 and torch.equal(speech.codes, expected.codes)
        assert free_bytes() >= before  # PyTorch empties its caches when memory runs out
        del hog


def test_a_memory_limit_reduces_rows_and_is_respected(folders):
    big = dataclasses.replace(PARAMS, max_frames=3900)
    with Engine(config(folders["v3"], context=4096)) as engine:
        free = engine.speak(TEXT, a_voice(), big)
        base, row = cost_of_rows(engine.loaded.talker)
        limit = engine.held_bytes + loaded_model.RESERVE + base + 12 * row
    with Engine(config(folders["v3"], context=4096, memory=limit / 1e9)) as engine:
        limited = engine.speak(TEXT, a_voice(), big)
    assert 8 <= rows_of(limited) <= 12 and rows_of(free) == SEQUENCES
    assert torch.equal(limited.codes, free.codes)
    assert engine.planned_bytes < limited.peak_bytes < limit and limited.peak_bytes < free.peak_bytes


def test_listeners_hear_the_returned_sound(folders):
    with Engine(config(folders["v3"])) as engine:
        silent, heard = engine.speak(TEXT, a_voice(), PARAMS), []
        speech = engine.speak(
            TEXT, a_voice(), PARAMS, listener=Listener(on_audio=lambda wav: heard.append(wav.clone()))
        )
        assert torch.equal(speech.codes, silent.codes)
        assert torch.equal(torch.cat(heard), speech.wav) and len(heard[0]) < 960 * 8
        assert are_alike(speech.wav, silent.wav)
