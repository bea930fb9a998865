"""The same cases for every decoder: one device, two, two servers of others and of ours, and two Ray workers."""

import contextlib
import functools
import os
import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest
import torch
from higgs_tts.engine import (
    EMBEDDED,
    Engine,
    EngineConfig,
    Engines,
    HiggsError,
    Listener,
    RemoteEngine,
    SamplingParams,
    ServerConfig,
    Turn,
)
from higgs_tts.engine.codec.waveform import Sound
from higgs_tts.engine.core.codes import EOC
from higgs_tts.engine.decode.philox import round_keys
from higgs_tts.engine.decode.scheduler import MAX_HELD
from higgs_tts.engine.engines.pool import pool
from higgs_tts.engine.speech.decoder import ReferenceClip, Stage
from higgs_tts.engine.speech.drive import Drive
from higgs_tts.engine.speech.speech_input import SpeechInput
from higgs_tts.tests.ray_workers import ray_workers
from higgs_tts.tests.speech_servers import Fake, Reply, running_loop, spoken, streamed, wav_file
from higgs_tts.tests.watched import watching

PARAMS = SamplingParams(seed=3, max_frames=24, chunk_seconds=3, retries=0)
TEXT = " ".join(f"The sentence with the number {word} is here." for word in "one two three four".split())
TURNS = [Turn(("Ann", "Bob")[number % 2], f"This is turn number {number}.") for number in range(4)]


class Stop(Exception):
    pass


@functools.cache
def alone(folder):
    """TEXT as an engine alone speaks it."""
    with Engine(EngineConfig(folder, device="cpu", context=512)) as engine:
        return engine.speak(TEXT, None, PARAMS)


class Two:
    """A decoder of one or two members, and ways to lose them.

    lose(member, when): "before" its first sound, "during" it, or "after" it; hang(member): it never answers.
    """

    members = 2

    def __init__(self, folder, monkeypatch, stack):
        self.folder, self.monkeypatch, self.stack = folder, monkeypatch, stack

    def config(self):
        return EngineConfig(self.folder, device="cpu", context=512)

    def expected(self):
        """TEXT as it is to be spoken."""
        return self.api.speak(TEXT, None, PARAMS)

    def clip(self):
        """A clip for a voice."""
        return torch.rand(36_000, generator=torch.Generator().manual_seed(4)) - 0.5, 24_000


class Devices(Two):
    def __init__(self, *given, members=2):
        super().__init__(*given)
        self.members = members
        self.cards = [self.stack.enter_context(Engine(self.config())) for _ in range(members)]
        self.api = Engines(self.cards) if members > 1 else self.cards[0]
        self.steps = {}

        def count(backend):
            if backend.talker in self.steps:
                self.steps[backend.talker] -= 1
                if self.steps[backend.talker] == 0:
                    self.fail(backend.talker)

        self.stack.enter_context(watching(count))

    def expected(self):
        return alone(self.folder)

    def fail(self, talker):
        raise torch.cuda.OutOfMemoryError("planted")

    def lose(self, member, when):
        self.steps[self.cards[member].loaded.talker] = {"before": 3, "during": 23, "after": (36, 30)[member]}[when]


class Servers(Two):
    def __init__(self, *given):
        super().__init__(*given)
        self.monkeypatch.setattr(pool, "FIRST_REST", 0.01)
        self.monkeypatch.setattr(pool, "LONGEST_REST", 0.02)
        self.failing, self.wait = {}, lambda: None  # what a stream waits for in its middle
        self.fakes = [
            self.stack.enter_context(Fake(kind, reply=lambda number, body, at=at: self.reply(at, number, body)))
            for at, kind in enumerate(("sglang", "vllm"))
        ]
        addresses = "\n".join(fake.address for fake in self.fakes)
        self.api = RemoteEngine(ServerConfig(addresses, timeout=5.0, calls=2))

    def reply(self, at, number, body):
        when = self.failing.get(at)
        is_first = body.get("stream") is True
        if when == "hang":
            return Reply(hangs=True)
        if when == "before" or (when == "after" and not is_first):
            return Reply(status=401, headers={"Content-Type": "application/json"})
        if is_first:
            return streamed(body, self.wait, cut=when == "during")
        reply = spoken(body)
        reply.headers = {**reply.headers, "X-Finish-Reason": "stop"}
        return reply

    def lose(self, member, when):
        self.failing[member] = when


class Ours(Devices):
    """Servers of ours, over an engine each."""

    def __init__(self, *given):
        pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")
        super().__init__(*given)
        self.monkeypatch.setattr(pool, "FIRST_REST", 0.01)
        self.monkeypatch.setattr(pool, "LONGEST_REST", 0.02)
        servers = [self.stack.enter_context(running_loop(card)) for card in self.cards]
        self.ends = {card.loaded.talker: kill for card, (*_, kill) in zip(self.cards, servers, strict=True)}
        self.api = RemoteEngine(ServerConfig("\n".join(f"127.0.0.1:{port}" for port, *_ in servers), timeout=20.0))

    def fail(self, talker):
        self.ends[talker]()


class Workers(Two):
    def __init__(self, *given):
        super().__init__(*given)
        self.api = self.stack.enter_context(ray_workers(EngineConfig(self.folder, context=512), 2))

    def lose(self, member, when):
        """Kill a worker after a delay."""
        about = self.api.seats.all[member].about
        delay = {"before": 0.0, "during": 0.3, "after": 0.6}[when]
        timer = threading.Timer(delay, lambda: os.kill(about.process, signal.SIGKILL))
        timer.start()
        self.stack.callback(timer.join)  # before the cluster ends its workers


KINDS = {
    "one device": lambda *given: Devices(*given, members=1),
    "two devices": Devices,
    "two servers": Servers,
    "two servers of ours": Ours,
    "two workers": Workers,
}


@pytest.fixture(params=KINDS)
def two(request, written, monkeypatch):
    with contextlib.ExitStack() as stack:
        yield KINDS[request.param](str(written["v3"]), monkeypatch, stack)


def listened(api, text=TEXT, params=PARAMS, **more):
    """Return (result, heard parts, reasons for restarts)."""
    heard, void, begun = [], [], more.pop("begun", threading.Event())

    def hear(wav):
        heard.append(wav.clone())
        begun.set()

    def restart(why):
        heard.clear()
        void.append(why)

    listener = Listener(more.pop("on_frame", None), hear, restart)
    return api.speak(text, None, params, listener=listener), heard, void


def same(one, other):
    return torch.equal(one.codes, other.codes) and torch.allclose(one.wav, other.wav, atol=1e-5)


def test_sound_is_heard_once_in_order_and_the_first_chunk_while_spoken(two):
    silent = two.expected()
    speech, heard, void = listened(two.api)
    assert torch.equal(torch.cat(heard), speech.wav) and same(speech, silent) and not void
    assert speech.chunks == 4 and len(heard[0]) < speech.said[0].stop // 2


@pytest.mark.parametrize("phase", ["at first", "once something is heard", "later"])
def test_a_cancel_in_any_phase_leaves_all_members_usable(two, phase):
    expected, heard, before = two.expected(), [], threading.active_count()

    def on_frame(done, expected):
        if {"at first": True, "once something is heard": bool(heard), "later": done > 40}[phase]:
            raise Stop

    with pytest.raises(Stop):
        two.api.speak(TEXT, None, PARAMS, listener=Listener(on_frame, heard.append))
    if type(two) is Devices:
        assert threading.active_count() == before, "no thread goes on"
    assert same(two.api.speak(TEXT, None, PARAMS), expected)


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("who", [0, 1])
def test_a_lost_member_loses_no_speech(two, who, when):
    if two.members == 1:
        pytest.skip("one device is all there is")
    expected = two.expected()
    two.lose(who, when)
    speech, heard, _ = listened(two.api)
    assert same(speech, expected) and torch.equal(torch.cat(heard), speech.wav)
    if isinstance(two, Devices):
        assert max(two.steps.values()) <= 0, "it was lost"


def test_losing_all_members_is_a_clear_error(two):
    if isinstance(two, Workers):
        pytest.skip("Ray starts them again")
    for member in range(two.members):
        two.lose(member, "before")
    with pytest.raises((HiggsError, torch.cuda.OutOfMemoryError)):
        two.api.speak(TEXT, None, PARAMS)


def test_sound_that_cannot_continue_is_an_error_without_on_restart(written, monkeypatch):
    """It is never joined with another server's speech."""
    with contextlib.ExitStack() as stack:
        two = Servers(str(written["v3"]), monkeypatch, stack)
        two.lose(0, "during")
        two.lose(1, "during")
        heard, begun = [], threading.Event()
        two.wait = lambda: begun.wait(60)
        with pytest.raises(HiggsError, match=r"Playback cannot continue: .*Run it again"):
            two.api.speak(TEXT, None, PARAMS, listener=Listener(on_audio=lambda wav: (heard.append(wav), begun.set())))
        assert heard


def test_a_server_failing_midway_restarts_the_heard_sound(written, monkeypatch):
    with contextlib.ExitStack() as stack:
        two = Servers(str(written["v3"]), monkeypatch, stack)
        expected = two.api.speak(TEXT, None, PARAMS)
        two.lose(0, "during")
        two.failing[1] = "before"
        first, begun = two.fakes[0].reply, threading.Event()
        two.wait = lambda: begun.wait(60)
        two.fakes[0].reply = lambda number, body: (first(number, body), two.failing.clear())[0]
        speech, heard, void = listened(two.api, begun=begun)
        assert same(speech, expected) and torch.equal(torch.cat(heard), speech.wav)
        assert len(void) == 1 and "closed the connection before its answer" in void[0]


def test_a_silent_server_is_abandoned(written, monkeypatch):
    with contextlib.ExitStack() as stack:
        two = Servers(str(written["v3"]), monkeypatch, stack)
        expected = two.api.speak(TEXT, None, PARAMS)
        two.api = RemoteEngine(ServerConfig(two.api.config.addresses, timeout=0.5))
        two.lose(0, "hang")
        speech = two.api.speak(TEXT, None, PARAMS)
        assert same(speech, expected) and any("did not answer within" in warning for warning in speech.warnings)


def test_a_bad_take_is_spoken_again_and_its_heard_sound_discarded(two):
    text = " ".join(f"Here is number {word}." for word in "one two three four".split())
    params = SamplingParams(seed=5, max_frames=40, chunk_seconds=1.5, retries=1)
    if isinstance(two, Servers):
        silence = Reply(wav_file(np.zeros(48_000, "float32")))
        spoiled, reply = set(), two.reply

        def once(at, number, body):
            is_new = body["input"] not in spoiled
            spoiled.add(body["input"])
            return silence if is_new else reply(at, number, body)

        two.reply = once
    speech, heard, _ = listened(two.api, text, params)
    assert speech.spoken_again and torch.equal(torch.cat(heard), speech.wav)
    if not isinstance(two, Servers):
        assert same(two.api.speak(text, None, params), speech)


def test_repeated_speech_is_reused_from_kept_codes(two):
    first, again = (two.api.speak_turns(TURNS, {}, PARAMS) for _ in range(2))
    assert first.reused == 0 and again.reused == len(TURNS) and same(again, first)
    assert again.how == "none, as all speech was reused" or isinstance(two, Servers)
    edited = two.api.speak_turns([*TURNS, Turn("Ann", "Another.")], {}, PARAMS)
    assert edited.reused == len(TURNS) and edited.chunks == len(TURNS) + 1


def test_a_clip_is_encoded_while_others_speak(two):
    alone, seen = two.api.encode_voice(*two.clip()), []
    what = SpeechInput((Turn("", TEXT),), {"": alone}, PARAMS)
    with torch.inference_mode(), two.api.decoding() as decoder, decoder.session(Stage(4, 400)) as session:
        drive = Drive(session)
        request = two.api.planner.request(what, Listener())
        drive.add(request, (sequences for _, sequences in request.stages()))
        voices = [session.encode_voice(ReferenceClip(*two.clip(), "What it says.")) for _ in range(2)]
        while drive.is_busy:
            seen += drive.step()
        assert [one.request for one in seen] == [request]
        voices.append(session.encode_voice(ReferenceClip(*two.clip(), "What it says.")))
        while drive.is_busy:  # nobody speaks now
            drive.step()
    made = [voice.result(60) for voice in voices]
    assert all(torch.equal(voice.codes, alone.codes) and voice.transcript == "What it says." for voice in made)


@pytest.mark.parametrize("two", ["one device", "two devices"], indirect=True)
def test_closing_during_speech_ends_it_with_a_clear_error(two):
    def close(done, expected):
        if done > 5:
            for card in two.cards:
                threading.Thread(target=card.close).start()
            while not all(card.is_closing for card in two.cards):
                time.sleep(0)

    with pytest.raises(HiggsError, match="unloaded"):
        two.api.speak(TEXT, None, PARAMS, listener=Listener(close))


@pytest.mark.parametrize("two", ["one device", "two devices"], indirect=True)
def test_the_first_sound_needs_as_many_steps_as_on_one_device(two, before_steps):
    """Nothing waits for a poll: the parts come as they are made. The last step may be half a one, not counted here.

    The other member may be any number of steps further by then.
    """
    steps = []

    def stop(wav):
        raise Stop

    before_steps(steps.append)
    with pytest.raises(Stop):
        two.api.speak(TEXT, None, PARAMS, listener=Listener(on_audio=stop))
    counts = Counter(map(id, steps)).values()
    assert any(17 <= count <= 20 + 4 * (two.members - 1) for count in counts), counts


@pytest.mark.parametrize("two", ["one device"], indirect=True)
def test_a_prompt_waits_for_a_stream_that_may_run_dry(two, monkeypatch, before_steps):
    """But not for one that is far ahead, and not for long."""
    steps, waited = [], []
    before_steps(steps.append)
    for is_short in (False, True):
        monkeypatch.setattr(Sound, "is_short", is_short)
        with torch.inference_mode(), two.api.decoding() as decoder, decoder.session(Stage(4, 400)) as session:
            drive, sounds = Drive(session), ([], [])

            def add(sound, drive=drive):
                spoken = SpeechInput((Turn("", "A sentence of some length is said here."),), {}, PARAMS)
                request = two.api.planner.request(spoken, Listener(on_audio=sound.append))
                drive.add(request, (sequences for _, sequences in request.stages()))

            add(sounds[0])
            while not sounds[0]:
                drive.step()
            add(sounds[1])
            began = len(steps)
            while not sounds[1]:
                drive.step()
            waited.append(len(steps) - began)
    assert waited[1] - waited[0] == MAX_HELD


@pytest.fixture(scope="module")
def broken_off():
    """broken_off(kind) -> speech of which each chunk breaks off within its second sentence, made once."""
    text = "The boat came in. Nobody had seen it. It was full. They slept in a row."
    params = SamplingParams(seed=3, max_frames=200, chunk_seconds=3)

    def break_off(backend):
        state, first = backend.state, round_keys(params.seed)
        is_first = (state.sampler.round_keys == first).flatten(1).all(1)
        state.logits[:, 0, EOC].add_((is_first & (state.delay.num_generated > 28)) * 1e4)

    @functools.cache
    def spoken(kind):
        with pytest.MonkeyPatch.context() as monkeypatch, contextlib.ExitStack() as stack:
            two = KINDS[kind](str(EMBEDDED), monkeypatch, stack)
            stack.enter_context(watching(break_off))
            speech, heard, void = listened(two.api, text, params)
        assert torch.equal(torch.cat(heard), speech.wav) and not void
        return speech

    return spoken


@pytest.mark.parametrize("kind", ["one device", "two devices", "two servers of ours"])
def test_a_sentence_spoken_again_is_the_same_on_all_decoders(broken_off, kind):
    """Each chunk's second sentence is spoken again by itself."""
    speech = broken_off(kind)
    assert same(speech, broken_off("one device"))
    again = {one.text for one in speech.retried if one.kept > 1}
    assert again == {"Nobody had seen it.", "They slept in a row."}
