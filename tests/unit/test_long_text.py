"""Long text through the engine: batched sequences, in the text's order, and all memory freed afterwards."""

import contextlib
import weakref

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, HiggsError, Listener, SamplingParams, Voice
from higgs_tts.engine.audio.assembly import FADE
from higgs_tts.engine.codec import waveform
from higgs_tts.engine.codec.stream import InlineWindows
from higgs_tts.engine.decode import model_runner
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.decode.scheduler import Scheduler
from higgs_tts.engine.engines import device_decoder
from higgs_tts.engine.engines.loaded_model import CPU_BATCH
from higgs_tts.engine.prompt.builder import PromptBuilder
from higgs_tts.engine.prompt.chunking import estimate_frames, split_text
from higgs_tts.tests.watched import ending

PARAMS = SamplingParams(seed=3, max_frames=20, chunk_seconds=3, retries=0)
TEXT = " ".join(f"The sentence with the number {word} is here." for word in "one two three four five six seven".split())
LINES = 7


@pytest.fixture(scope="module", params=["v3", "v2"])
def folder(request, written):
    return str(written[request.param])


@pytest.fixture
def opened(folder):
    """opened(batch) -> an open engine whose sequences end at different frames; the fourth one never does."""
    ends = torch.tensor([16, 13, 9, 1000, 14, 0, 12])
    with contextlib.ExitStack() as stack:

        def make(batch=0):
            engine = stack.enter_context(Engine(EngineConfig(model=folder, device="cpu", context=1024, batch=batch)))
            stack.enter_context(ending(engine.loaded.talker, lambda sampler: ends[sampler.sequence_index % LINES]))
            return engine

        yield make


def a_voice():
    codes = torch.randint(0, 1024, (30, 8), generator=torch.Generator().manual_seed(1))
    return Voice(codes, "A reference.", "somebody")


@pytest.mark.parametrize("voice", [None, a_voice()], ids=["no voice", "a voice"])
def test_codes_and_sound_do_not_depend_on_the_batch_size(opened, voice):
    alone = opened(batch=1).speak(TEXT, voice, PARAMS)
    assert alone.chunks == LINES and "at a time" not in alone.how
    assert "20 frames" in alone.stopped and "chunk 4 of 7" in alone.stopped
    most = LINES if voice else LINES - 1  # without a voice the first is spoken alone
    assert most <= CPU_BATCH
    for batch, rows in ((2, 2), (3, 3), (0, most)):
        speech = opened(batch).speak(TEXT, voice, PARAMS)
        assert speech.how == f"{alone.how}, {rows} chunks at a time"
        assert torch.equal(speech.codes, alone.codes) and torch.equal(speech.wav, alone.wav)
        assert (speech.chunks, speech.stopped, speech.warnings) == (LINES, alone.stopped, alone.warnings)
    assert len(alone.wav) == 960 * alone.frames


@pytest.mark.parametrize("is_slow", [False, True])
def test_what_a_listener_hears_soon_is_spoken_in_order_on_a_cpu(opened, monkeypatch, is_slow):
    """For 20 seconds, one chunk at a time. A model slower than real time speaks in batches; the codes are the same."""
    monkeypatch.setattr(device_decoder, "is_slow", lambda *_: is_slow)
    engine, live = opened(), []
    decode = engine.loaded.talker.decode
    engine.loaded.talker.decode = lambda state: live.append(int((~state.delay.done).sum())) or decode(state)
    silent = engine.speak(TEXT, a_voice(), PARAMS)
    assert max(live) == LINES
    live.clear()
    heard = engine.speak(TEXT, a_voice(), PARAMS, listener=Listener(on_audio=lambda wav: None))
    assert torch.equal(heard.codes, silent.codes)
    assert max(live) == (LINES if is_slow else 1), "the last chunk begins after 18 seconds"


def test_a_chunk_of_a_long_text_sounds_as_alone(opened):
    """In the text's order, though shorter lines are done sooner."""
    engine, voice = opened(), a_voice()
    speech = engine.speak(TEXT, voice, PARAMS)
    loaded, said = engine.loaded, []
    builder = PromptBuilder(engine.checkpoint.tokenizer, engine.checkpoint.config)
    for number, chunk in enumerate(split_text(TEXT, PARAMS.chunk_seconds)):
        sequence = builder.build(chunk, voice, params=PARAMS, index=number)
        scheduler = Scheduler(loaded.runner())
        scheduler.add(sequence)
        while scheduler.is_busy:
            scheduler.step()
        said += sequence.codes
    assert torch.equal(torch.cat(said), speech.codes)


@pytest.mark.parametrize("voice", [None, a_voice()], ids=["no voice", "a voice"])
def test_chunks_are_short_enough_for_the_context(opened, monkeypatch, voice):
    engine, text = opened(), TEXT * 6
    prompts, build = [], PromptBuilder.build
    monkeypatch.setattr(PromptBuilder, "build", lambda self, said, *others, **more: (
        prompts.append((said, build(self, said, *others, **more))), prompts[-1][1])[1])  # fmt: skip
    engine.speak(text, voice, SamplingParams(chunk_seconds=120, max_frames=9, retries=0))
    chunks = [(said, len(prompt)) for said, prompt in prompts]
    assert "".join("".join(said for said, _ in chunks).split()) == "".join(text.split())
    assert max(map(estimate_frames, split_text(text, 120))) > engine.planner.context, "as asked for, they would not fit"
    first = 0 if voice else estimate_frames(chunks[0][0])  # it ended early here, and could have been a longer voice
    assert all(positions + first + estimate_frames(said) < engine.planner.context for said, positions in chunks)
    assert engine.speak(TEXT, voice, SamplingParams(chunk_seconds=0, max_frames=30)).chunks == 1, "0 never splits"


@pytest.mark.parametrize("voice", [None, a_voice()], ids=["no voice", "a voice"])
def test_a_first_chunk_used_as_voice_is_at_most_ten_seconds(folder, voice):
    with Engine(EngineConfig(model=folder, device="cpu", context=2048)) as engine:
        speech = engine.speak(TEXT * 2, voice, SamplingParams(chunk_seconds=20, max_frames=3, retries=0))
    seconds = [estimate_frames(chunk.text) / 25 for chunk in speech.said]
    assert (6 < seconds[0] <= 10) == (voice is None) and max(seconds[1:]) > 10


def test_a_first_chunk_that_runs_on_leaves_room_for_the_others(folder):
    with Engine(EngineConfig(model=folder, device="cpu", context=512)) as engine:
        speech = engine.speak(TEXT, params=SamplingParams(chunk_seconds=3, retries=0))
    assert speech.chunks == LINES and "context" in speech.stopped


def test_a_full_context_and_the_frame_limit_are_reported_differently(folder):
    with Engine(EngineConfig(model=folder, device="cpu", context=256)) as engine:
        speech = engine.speak("No end.", params=SamplingParams(max_frames=1000, retries=0))
        assert "context" in speech.stopped and "256" in speech.stopped
        assert "did not end" in speech.warnings[-1], "there was time for these two words many times over"
        limited = engine.speak("No end.", params=SamplingParams(max_frames=speech.frames, retries=0))
        assert "frame limit" in limited.stopped and "context" not in limited.warnings[-1]
        with pytest.raises(HiggsError, match=r"context.*chunk_seconds") as refusal:
            engine.speak("There is more text here than fits. " * 40, params=SamplingParams(chunk_seconds=0))
        assert "clip" not in str(refusal.value)


def test_progress_rises_to_the_frames_spoken(opened):
    seen = []
    speech = opened().speak(
        TEXT, params=PARAMS, listener=Listener(on_frame=lambda done, expected: seen.append((done, expected)))
    )
    assert all(done <= expected for done, expected in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[0][0] == 0
    assert seen[-1] == (speech.frames, speech.frames) and seen[0][1] > 7 * 25


@pytest.mark.parametrize("voice", [None, a_voice()], ids=["no voice", "a voice"])
def test_a_listener_hears_sound_early_and_all_of_it_once(opened, voice):
    engine, heard, done = opened(), [], []
    silent = engine.speak(TEXT, voice, PARAMS)
    speech = engine.speak(
        TEXT,
        voice,
        PARAMS,
        listener=Listener(
            on_frame=lambda frames, expected: done.append(frames),
            on_audio=lambda wav: heard.append((wav.clone(), len(done))),
        ),
    )
    assert torch.equal(speech.codes, silent.codes)
    assert torch.allclose(speech.wav, silent.wav, atol=1e-5)
    assert torch.equal(torch.cat([wav for wav, _ in heard]), speech.wav)
    assert [len(wav) for wav, _ in heard[:3]] == [960 - FADE, 2 * 960, 3 * 960]
    assert heard[0][1] <= 22  # one prompt, and the steps that 11 frames take
    assert all(wav.dtype == torch.float32 and wav.device.type == "cpu" for wav, _ in heard)


class Late(InlineWindows):
    """Gives a window's sound only to callers that wait for it, or at the end, like a device that is never ready."""

    def __init__(self, decoder):
        super().__init__(decoder)
        self.late = []

    def poll(self, wait=False):
        self.late += super().poll()
        return [self.late.pop(0)] if wait else []

    def finish(self):
        self.poll()
        late, self.late = self.late, []
        return late


def test_only_the_first_sound_is_waited_for(opened, monkeypatch):
    engine, heard, done = opened(), [], []
    plain = engine.speak(TEXT, params=PARAMS)
    monkeypatch.setattr(waveform, "make_windows", lambda decoder, *_: Late(decoder))
    speech = engine.speak(
        TEXT,
        params=PARAMS,
        listener=Listener(
            on_frame=lambda frames, expected: done.append(frames),
            on_audio=lambda wav: heard.append((len(wav), len(done))),
        ),
    )
    assert heard[0][0] == 960 - FADE and heard[0][1] <= 22
    assert heard[1][1] > heard[0][1] + 4, "the rest of the first chunk, when it is judged"
    assert torch.allclose(speech.wav, plain.wav, atol=1e-5)


class Stop(Exception):
    pass


@pytest.mark.parametrize("by", ["on_frame", "on_audio", "step"])
def test_a_batch_that_ends_early_leaves_nothing_behind(opened, monkeypatch, left_behind, by):
    engine, watched = opened(), []
    expected = engine.speak(TEXT, a_voice(), PARAMS)

    class Watched(ModelRunner):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            self.steps = 0
            watched.extend(weakref.ref(tensor) for tensor in self.state.tensors())

        def step(self):
            self.steps += 1
            stop(self.steps if by == "step" else 0)
            super().step()

    def stop(count):
        if count > 15:
            raise Stop

    monkeypatch.setattr(model_runner, "ModelRunner", Watched)
    listeners = {"on_frame": lambda done, expected: stop(done), "on_audio": lambda wav: stop(len(wav))}
    with pytest.raises(Stop):
        engine.speak(
            TEXT,
            a_voice(),
            PARAMS,
            listener=Listener(**{name: given for name, given in listeners.items() if name == by}),
        )
    assert watched and not [ref for ref in watched if ref() is not None]
    assert not left_behind()
    monkeypatch.undo()
    assert torch.equal(engine.speak(TEXT, a_voice(), PARAMS).wav, expected.wav)


def test_a_finished_long_text_leaves_nothing_behind(opened, left_behind):
    engine, voice = opened(), a_voice()
    engine.speak(TEXT, voice, PARAMS)
    engine.speak("Hello.", params=PARAMS)
    held, live = engine.held_bytes, engine.loaded.pool.live_bytes()
    kept = len(engine.loaded.prefixes)
    engine.speak(TEXT, voice, PARAMS)
    engine.speak(TEXT, params=PARAMS)  # the voice of its first line is of no use to others
    assert engine.held_bytes == held and engine.loaded.pool.live_bytes() == live
    assert len(engine.loaded.prefixes) == kept and not left_behind()


def test_a_chunk_that_does_not_fit_is_refused_before_any_speech(opened):
    engine = opened()
    engine.planner.context = 90
    frames = []
    text = TEXT + " " + "word " * 200 + "."
    with pytest.raises(HiggsError, match="larger context"):
        engine.speak(
            text,
            a_voice(),
            SamplingParams(chunk_seconds=20),
            listener=Listener(on_frame=lambda *seen: frames.append(seen)),
        )
    assert not frames


def test_punctuation_between_sentences_does_not_end_speech(opened):
    """Alone they are refused, so no chunk may hold nothing else."""
    engine, params = opened(), SamplingParams(seed=3, max_frames=10, chunk_seconds=1)
    speech = engine.speak(
        "...\n\nThe first one is here. ... !!! ???\n\n***\n\n— — —\n\n😀😀😀\n\nThe last one. …", params=params
    )
    assert speech.chunks > 1
    with pytest.raises(HiggsError, match="no letters or digits"):
        engine.speak("... !!! ???\n\n***\n\n— — —\n\n😀😀😀", params=params)
