"""Text that streams in over a WebSocket: sentences in one voice, interrupts, errors, callers that go."""

import ast
import asyncio
import base64
import io
import json
import pathlib
import queue
import socket
import threading

import numpy as np
import pytest
import torch
from higgs_tts.engine import EMBEDDED, SAMPLE_RATE, Engine, EngineConfig, HiggsError, SamplingParams
from higgs_tts.engine.voice.voice import voice_of_speech

aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed")

from higgs_tts.engine.core.config import CallLimits  # noqa: E402
from higgs_tts.engine.serve import text_stream  # noqa: E402
from higgs_tts.engine.serve.speaker import SpeakerThread, SpeechJob  # noqa: E402
from higgs_tts.engine.serve.text_session import read_session  # noqa: E402
from higgs_tts.engine.voice.clip import BUILT_IN_CLIPS  # noqa: E402
from higgs_tts.tests.published import published_wheel  # noqa: E402
from higgs_tts.tests.speech_servers import ask, error_of, running, wait_for  # noqa: E402

PUBLISHED = json.loads((pathlib.Path(__file__).parent / "data" / "speech_sessions.json").read_text(encoding="utf-8"))
PATH = "/v1/audio/speech/stream"
SENTENCES = ["One apple.", "It is red.", "Who ate it?"]
TEXT = " ".join(SENTENCES)
CONFIG = {"type": "session.config", "seed": 3, "max_new_tokens": 60, "retries": 0}
DONE, CANCEL = {"type": "input.done"}, {"type": "input.cancel"}


def text(said):
    return {"type": "input.text", "text": said}


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu", context=1024)) as engine:
        yield engine


@pytest.fixture(scope="module")
def served(engine):
    with running(engine, limits=CallLimits(max_characters=500, max_calls=4)) as served:
        yield served


class Caller:
    """A connection. told: its JSON messages; sounds: bytes of each sentence, by index in the connection."""

    def __init__(self, socket):
        self.socket, self.told, self.sounds = socket, [], []

    async def send(self, *messages):
        for message in messages:
            await self.socket.send_str(message if isinstance(message, str) else json.dumps(message))

    async def until(self, kind):
        """Read until a message of this type, and return it."""
        while True:
            got = await self.socket.receive(120)
            if got.type is aiohttp.WSMsgType.BINARY:
                self.sounds[-1] += got.data
                continue
            assert got.type is aiohttp.WSMsgType.TEXT, got
            self.told.append(message := got.json())
            if message["type"] == "audio.start":
                self.sounds.append(b"")
            if message["type"] == kind:
                return message

    async def closed(self):
        """True if the server closes the connection, with nothing else before."""
        return (await self.socket.receive(60)).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)

    def all(self, kind):
        return [message for message in self.told if message["type"] == kind]


def calling(served, talk, **given):
    """Run talk(caller) on one connection, and return the caller."""

    async def run():
        url = f"http://127.0.0.1:{served[0]}{PATH}"
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0, **given) as opened:
            await talk(caller := Caller(opened))
            return caller

    return asyncio.run(run())


@pytest.fixture(scope="module")
def alone():
    """Each sentence by an engine alone, in the voice of the first 3 s."""
    with Engine(EngineConfig(str(EMBEDDED), device="cpu", context=1024)) as engine:
        speaker, params = SpeakerThread(engine), SamplingParams(seed=3, max_frames=60, retries=0)
        spoken = []

        def say(index, voice):
            ends = queue.Queue()
            voices = {} if voice is None else {"": voice}
            speaker.speak(SpeechJob(SENTENCES[index], ends.put, voices, params, index=index))
            spoken.append(ends.get(timeout=120)())

        def voice_so_far():
            whole = all(one.complete for one in spoken)
            codes = torch.cat([one.codes for one in spoken])
            return voice_of_speech(codes, " ".join(SENTENCES[: len(spoken)]) if whole else None, "")

        try:
            say(0, None)
            assert spoken[0].frames < 3 * 25, "so that the second sentence is part of the voice"
            say(1, voice_so_far())
            say(2, voice_so_far())
            return [pcm(one.wav) for one in spoken]
        finally:
            speaker.close()


def pcm(wav):
    return (wav.clamp(-1, 1) * 32767).round().numpy().astype(int)


def assert_sounds(caller, wanted):
    assert len(caller.sounds) == len(wanted)
    for data, samples in zip(caller.sounds, wanted, strict=True):
        heard = np.frombuffer(data, "<i2").astype(int)
        assert len(heard) == len(samples) and np.abs(heard - samples).max() <= 1


@pytest.mark.parametrize(("size", "streams"), [(1, True), (7, False), (1000, True)])
def test_sentences_have_one_voice_however_the_text_arrives(served, alone, size, streams):
    async def talk(caller):
        await caller.send({**CONFIG, "stream_audio": streams})
        await caller.send(*(text(TEXT[at : at + size]) for at in range(0, len(TEXT), size)), DONE)
        await caller.until("session.done")

    caller = calling(served, talk)
    assert [one["sentence_text"] for one in caller.all("audio.start")] == SENTENCES
    assert_sounds(caller, alone)
    kinds = [message["type"] for message in caller.told]
    assert kinds == ["session.configured", *["audio.start", "audio.done"] * 3, "session.done"]
    for number, (start, done) in enumerate(zip(caller.all("audio.start"), caller.all("audio.done"), strict=True)):
        assert (start["utterance_index"], start["sentence_index"], start["format"]) == (0, number, "pcm")
        assert start["sample_rate"] == 24_000 and start["id"] == done["id"]
        assert not done["error"] and done["total_bytes"] == len(caller.sounds[number])
    assert caller.told[-1]["total_sentences"] == 3 and caller.told[-1]["utterance_index"] == 0


def test_a_sentence_is_heard_before_the_text_ends(served, alone):
    async def talk(caller):
        await caller.send(CONFIG, text(SENTENCES[0] + " An"))
        assert (await caller.until("audio.done"))["sentence_index"] == 0

    assert_sounds(calling(served, talk), alone[:1])


def test_words_come_after_the_sound_of_a_sentence(served, engine, monkeypatch):
    async def talk(caller):
        await caller.send({**CONFIG, "stream_audio": True, "word_timestamps": timed}, text(said), DONE)
        await caller.until("session.done")

    timed, said = False, " ".join(SENTENCES[:2])
    plain = calling(served, talk)
    timed = True
    caller = calling(served, talk)
    assert not any(caller.sounds) and not plain.all("audio.chunk")
    assert all(message["word_timestamps"] for message in caller.all("audio.start"))
    for at, (sentence, sound) in enumerate(zip(SENTENCES[:2], plain.sounds, strict=True)):
        chunks = [message for message in caller.all("audio.chunk") if message["sentence_index"] == at]
        assert b"".join(base64.b64decode(chunk["audio_b64"]) for chunk in chunks) == sound
        assert [chunk["chunk_id"] for chunk in chunks] == list(range(len(chunks)))
        *sounds, last = chunks
        assert all(chunk["timestamps"] is None and chunk["sample_rate"] == SAMPLE_RATE for chunk in sounds)
        assert sounds[0]["chunk_start_ms"] == 0 and last["audio_b64"] == ""
        assert sounds[-1]["chunk_end_ms"] == last["chunk_end_ms"] == round(len(sound) / 2 / SAMPLE_RATE * 1000)
        words = last["timestamps"]
        assert " ".join(word["word"] for word in words) == sentence
        times = [word[side] for word in words for side in ("start_ms", "end_ms")]
        assert times == sorted(times) and times[0] >= 0 and times[-1] <= last["chunk_end_ms"]

    def fail(speech):
        raise HiggsError("The words were lost.")

    monkeypatch.setattr(engine, "words", fail)
    said = SENTENCES[0]
    failed = calling(served, talk)
    assert {message["error"] for message in failed.all("audio.done")} == {False}
    assert [chunk["timestamps"] for chunk in failed.all("audio.chunk")] == [None] * len(failed.all("audio.chunk"))


def test_commit_and_done_flush_and_the_connection_stays(served):
    async def talk(caller):
        short = {**CONFIG, "max_new_tokens": 5}
        await caller.send(short, text("One apple"), {"type": "input.commit"}, text("Two. Thr"), text("ee."), DONE)
        await caller.until("session.done")
        await caller.send(short, text("Four"), DONE, {"type": "session.close"})
        await caller.until("session.done")
        assert await caller.closed()

    caller = calling(served, talk)
    assert [one["sentence_text"] for one in caller.all("audio.start")] == ["One apple", "Two.", "Three.", "Four"]
    (committed,) = caller.all("input.committed")
    assert (committed["segment_index"], committed["segment_sentences"], committed["total_sentences"]) == (0, 1, 1)
    totals = [(one["utterance_index"], one["total_sentences"]) for one in caller.all("session.done")]
    assert totals == [(0, 3), (1, 1)] and len({one["id"] for one in caller.all("audio.start")}) == 4


@pytest.mark.parametrize(
    ("granularity", "wanted"),
    [
        ("none", ["Well, yes. So it is."]),
        ("sentence", ["Well, yes.", "So it is."]),
        ("clause", ["Well,", "yes.", "So it is."]),
    ],
)
def test_split_granularity_decides_the_units(served, granularity, wanted):
    async def talk(caller):
        config = {**CONFIG, "max_new_tokens": 5, "split_granularity": granularity}
        fields = {name: value for name, value in config.items() if name != "type"}
        await caller.send({"type": "session.config", "session": fields}, text("Well, yes. So it is."), DONE)
        await caller.until("session.done")

    caller = calling(served, talk)
    assert caller.told[0]["split_granularity"] == granularity
    assert [one["sentence_text"] for one in caller.all("audio.start")] == wanted


def test_a_given_voice_speaks_one_file_per_sentence(served):
    soundfile = pytest.importorskip("soundfile")
    clip = base64.b64encode((BUILT_IN_CLIPS / "amber.flac").read_bytes()).decode()
    words = (BUILT_IN_CLIPS / "amber.txt").read_text(encoding="utf-8").strip()
    short = {**CONFIG, "max_new_tokens": 16}

    def say(**voice):
        async def talk(caller):
            await caller.send({**short, **voice, "response_format": "wav"}, text(" ".join(SENTENCES[:2])), DONE)
            await caller.until("session.done")

        return calling(served, talk).sounds

    named, cloned = say(voice="amber"), say(ref_audio=clip, ref_text=words)
    assert named == cloned and len(named) == 2
    body = {**short, "voice": "amber", "input": SENTENCES[1], "index": 1, "response_format": "wav", "stream": False}
    samples, alone = (soundfile.read(io.BytesIO(data))[0] for data in (named[1], ask(served[0], body=body)[2]))
    assert len(samples) == len(alone) and np.abs(samples - alone).max() < 1e-4


def test_a_clip_without_speech_is_warned_of(served):
    soundfile, made = pytest.importorskip("soundfile"), io.BytesIO()
    soundfile.write(made, np.sin(np.arange(48_000) / 9) / 2, 24_000, format="WAV")

    async def talk(caller):
        await caller.send({**CONFIG, "ref_audio": base64.b64encode(made.getvalue()).decode()})
        await caller.until("session.configured")

    (warning,) = calling(served, talk).told[0]["warnings"]
    assert "does not sound like speech" in warning


class Gate:
    """Lets the model make so many steps, then holds it until `go_on`."""

    def __init__(self, before_steps, free):
        self.held, self.go_on, self.steps = threading.Event(), threading.Event(), 0

        def hold(backend):
            if self.steps >= free and not self.go_on.is_set():
                self.held.set()
                if not self.go_on.wait(120):
                    raise HiggsError("Nobody opened the gate.")
            self.steps += 1

        before_steps(hold)


def test_an_interrupt_takes_effect_within_a_step_and_frees_the_row(served, before_steps, alone):
    gate = Gate(before_steps, free=24)

    async def talk(caller):
        await caller.send({**CONFIG, "stream_audio": True}, text(TEXT + " And so"))
        await caller.until("audio.start")
        assert await asyncio.to_thread(gate.held.wait, 120)
        await caller.send(CANCEL)
        cancelled = await caller.until("input.cancelled")  # while the step still runs
        cut = caller.all("audio.done")[-1]
        assert cut["cancelled"] and cut["total_bytes"] == len(caller.sounds[-1]) > 0
        before, steps = len(caller.told), gate.steps
        gate.go_on.set()
        await asyncio.to_thread(wait_for, lambda: not served[1].speaking)
        assert gate.steps <= steps + 1
        assert cancelled["utterance_index"] == 0
        await caller.send(text("Yes."), DONE)
        done = await caller.until("session.done")
        assert done["utterance_index"] == 1 and done["total_sentences"] == 1
        assert [one["sentence_text"] for one in caller.told[before:] if one["type"] == "audio.start"] == ["Yes."]

    caller = calling(served, talk)
    cut = np.frombuffer(caller.sounds[0], "<i2").astype(int)
    assert len(cut) < len(alone[0]) and np.abs(cut - alone[0][: len(cut)]).max() <= 1, "what was said stays"


def test_after_an_interrupt_the_voice_stays(served, alone):
    async def talk(caller):
        await caller.send(CONFIG, text(SENTENCES[0] + " Now"))
        await caller.until("audio.done")
        await caller.send(CANCEL, text(SENTENCES[1]), DONE)
        await caller.until("session.done")

    assert_sounds(calling(served, talk), alone[:2])


def test_an_interrupt_is_answered_with_nothing_to_stop_and_before_a_close(served):
    async def talk(caller):
        await caller.send(CONFIG, CANCEL, text(TEXT), {"type": "session.close"}, CANCEL)
        await caller.until("input.cancelled")
        await caller.until("input.cancelled")
        assert await caller.closed()

    calling(served, talk)


@pytest.mark.parametrize("phase", ["configured", "waiting", "speaking"])
def test_a_leaving_caller_leaves_nothing_running(served, phase):
    async def talk(caller):
        await caller.send({**CONFIG, "max_new_tokens": 2000, "stream_audio": True})
        await caller.until("session.configured")
        if phase != "configured":
            await caller.send(text("It goes on " * (3 if phase == "waiting" else 30) + ". " + "It"))
        if phase == "speaking":
            await caller.until("audio.start")
            caller.sounds[-1] += (await caller.socket.receive(120)).data
        caller.socket.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    calling(served, talk)
    wait_for(lambda: not served[1].speaking)
    for _ in range(5):  # more than its limit of calls
        calling(served, lambda caller: caller.send(CONFIG))
    wait_for(lambda: ask(served[0], body={**CONFIG, "input": "Yes."})[0] == 200)


REFUSED = {
    "task_type": "VoiceDesign", "instructions": "Gently.", "x_vector_only_mode": True, "stream_codec_output": True,
    "token_count": 5, "duration_tokens": 5, "repetition_penalty": 1.1, "stage_params": {"talker": {}},
    "speaker_embedding": [0.5],
}  # fmt: skip
IGNORED = {
    "language": "en", "suppress_bootstrap_silence": True, "initial_codec_chunk_frames": 5, "non_streaming_mode": True,
}  # fmt: skip


HONOURED = {
    "model": "any", "voice": "amber", "response_format": "wav", "speed": 1.0, "stream_audio": True,
    "split_granularity": "clause", "ref_audio": base64.b64encode(b"sound").decode(), "ref_text": "Words.",
    "references": [{"data": base64.b64encode(b"sound").decode(), "text": "Words."}], "max_new_tokens": 5,
    "temperature": 0.5, "top_p": 0.5, "top_k": 5, "seed": 5, "word_timestamps": True,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_field_is_honoured_told_or_refused(name):
    assert set(PUBLISHED[name]["fields"]) <= HONOURED.keys() | REFUSED.keys() | IGNORED.keys()


def test_ignored_fields_are_told(served):
    async def talk(caller):
        await caller.send({**CONFIG, **IGNORED})
        assert (await caller.until("session.configured"))["ignored"] == sorted(IGNORED)

    calling(served, talk)


def test_honoured_fields_have_an_effect():
    def read(**fields):
        return read_session({"type": "session.config", **fields}, 100, lambda tag: True)

    plain = read()
    for field, value in HONOURED.items():
        extra = {"ref_audio": HONOURED["ref_audio"]} if field == "ref_text" else {}
        extra |= {"stream_audio": True} if field == "word_timestamps" else {}
        value = 2.0 if field == "speed" else value
        session = read(**extra, **{field: value})
        if field == "model":  # any name is this server's model
            continue
        told = [(one.granularity, one.streams, one.call_for("A word.")) for one in (read(**extra), session)]
        assert told[0] != told[1], field
    assert (plain.granularity, plain.streams, plain.call_for("A.").format) == ("sentence", False, "pcm")


def test_fields_without_a_request_are_accepted():
    fields = dict.fromkeys(REFUSED) | {"word_timestamps": False, "instructions": "", "repetition_penalty": 1.0}
    fields |= {"task_type": "Base", "sample_rate": 24_000, "stage_params": {}}
    assert read_session({"type": "session.config", **fields}, 100, bool).granularity == "sentence"


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_fixture_lists_the_published_model_s_fields(name):
    source = PUBLISHED[name]
    (model,) = (
        node
        for node in ast.parse(published_wheel(source["wheel"]).read(source["file"])).body
        if isinstance(node, ast.ClassDef) and node.name == source["model"]
    )
    assert [node.target.id for node in model.body if isinstance(node, ast.AnnAssign)] == source["fields"]


@pytest.mark.parametrize(
    ("config", "param"),
    [
        *(({name: value}, name) for name, value in REFUSED.items()),
        ({"word_timestamps": True}, "word_timestamps"),  # as in vLLM-Omni, without stream_audio
        ({"word_timestamps": True, "stream_audio": True, "response_format": "wav"}, "word_timestamps"),
        ({"word_timestamps": "yes"}, "word_timestamps"),
        ({"voice": "nobody"}, "voice"),
        ({"speed": 9}, "speed"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 0.5}, "top_k"),
        ({"response_format": "mid"}, "response_format"),
        ({"split_granularity": "word"}, "split_granularity"),
        ({"split_granularity": []}, "split_granularity"),
        ({"stream_audio": "yes"}, "stream_audio"),
        ({"ref_audio": "/etc/passwd"}, "ref_audio"),
        ({"references": [1]}, "references"),
        ({"stream": True}, "stream"),
        ({"input": "Hello."}, "input"),
        ({"session": 5}, "session"),
        ({"session": {"seed": 1}, "voice": "amber"}, "voice"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_bad_configuration_is_refused_by_name(served, config, param):
    async def talk(caller):
        own = {"type": "session.config"} if "session" in config else CONFIG
        await caller.send({**own, **config})
        told = await caller.until("error")
        assert told["error"]["param"] == told["param"] == param and told["message"] == told["error"]["message"]
        assert told["error"]["type"] == "invalid_request_error" and await caller.closed()
        assert len(caller.told) == 1

    calling(served, talk)


@pytest.mark.parametrize(
    ("message", "param", "says"),
    [
        ("{", None, "not JSON"),
        ("[]", None, "JSON object"),
        ("[" * 600, None, "500 values"),
        ({"type": "input.speak"}, "type", "does not know"),
        ({}, "type", "does not know"),
        ({"type": ["input.text"]}, "type", "does not know"),
        ({"type": "input.text"}, "text", "must be a string"),
        (text("x" * 501), "text", "more than 500 characters"),
        (text("One [pause 9] two [pause 9] three [pause 9] four [pause 9].\n"), "text", "pauses"),
        ({**CONFIG, "voice": "nobody"}, "voice", "no voice"),
        ({**CONFIG, "instructions": "Gently."}, "instructions", "does not support"),
    ],
)
def test_a_bad_message_is_refused_and_the_connection_stays(served, message, param, says):
    async def talk(caller):
        await caller.send({**CONFIG, "max_new_tokens": 5, "split_granularity": "none"}, message, DONE)
        told = await caller.until("error")
        assert told["param"] == told["error"]["param"] == param and says in told["message"]
        await caller.send(text("Yes."), DONE)
        while (await caller.until("session.done"))["total_sentences"] == 0:
            pass

    calling(served, talk)


def test_messages_at_the_wrong_time_are_refused(served, before_steps):
    gate = Gate(before_steps, free=0)  # the connection closes once "One." is spoken

    async def first(caller):
        await caller.send(text("Yes."))
        assert (await caller.until("error"))["param"] == "type" and await caller.closed()

    async def amid(caller):
        await caller.send(CONFIG, text("One. And"), CONFIG, {"type": "session.close"}, text("Two"))
        said = [(await caller.until("error"))["message"] for _ in range(2)]
        assert "before another session.config" in said[0] and "session.close was already sent" in said[1]
        gate.go_on.set()

    calling(served, first)
    calling(served, amid)


def test_a_failed_sentence_is_reported_and_the_next_spoken(served, before_steps):
    errors = [HiggsError("The model produced values that are not numbers.")]

    def fail(backend):
        if errors:
            raise errors.pop()

    before_steps(fail)

    async def talk(caller):
        await caller.send({**CONFIG, "max_new_tokens": 5}, text("One. Two."), DONE)
        await caller.until("session.done")

    caller = calling(served, talk)
    (told,) = caller.all("error")
    assert "not numbers" in told["message"] and told["error"]["type"] == "server_error" and told["sentence_index"] == 0
    assert [done["error"] for done in caller.all("audio.done")] == [True, False] and caller.sounds[1]


def test_an_error_of_the_server_closes_the_connection(served, monkeypatch, caplog):
    async def talk(caller):
        await caller.send({**CONFIG, "max_new_tokens": 5}, text("One."), DONE)
        while (got := await caller.socket.receive(60)).type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            pass
        assert got.data == aiohttp.WSCloseCode.INTERNAL_ERROR

    def fail(speech):
        raise RuntimeError("a bug")

    monkeypatch.setattr(text_stream, "finish_reason", fail)
    calling(served, talk)
    assert "A stream of text failed" in caplog.text


def test_silence_ends_a_connection_but_speech_does_not(served, monkeypatch):
    async def talk(caller):
        await caller.send(CONFIG, text(SENTENCES[0]), DONE)
        told = await caller.until("error")
        assert told["code"] == "timeout" and await caller.closed()
        assert [one["type"] for one in caller.told[-2:]] == ["session.done", "error"]

    monkeypatch.setattr(text_stream, "IDLE_SECONDS", 0.05)
    calling(served, talk)


def test_other_sites_pages_and_callers_without_a_key_are_refused(engine, served):
    for origin, status in (("http://evil.example", 403), ("null", 403), (f"http://127.0.0.1:{served[0]}", None)):
        if status is None:
            calling(served, lambda caller: caller.send(CONFIG), headers={"Origin": origin})
            continue
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            calling(served, lambda caller: caller.send(CONFIG), headers={"Origin": origin})
        assert refused.value.status == status
    assert error_of(ask(served[0], "GET", PATH))["type"] == "invalid_request_error"


def test_a_server_that_stops_finishes_sentences_and_closes_connections():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu", context=1024)) as engine, running(engine, key="k") as served:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            calling(served, lambda caller: caller.send(CONFIG))
        assert refused.value.status == 401
        ready, codes = threading.Event(), []

        async def talk(caller):
            await caller.send(CONFIG, text(TEXT))
            await caller.until("audio.start")
            ready.set()
            await caller.until("audio.done")
            while (got := await caller.socket.receive(60)).type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                pass
            codes.append(got.data)
            assert not caller.all("error") and not caller.all("audio.done")[0]["error"]

        waits = threading.Thread(target=calling, args=(served, talk), kwargs={"headers": {"Authorization": "Bearer k"}})
        waits.start()
        assert ready.wait(60)
    waits.join(60)
    assert codes == [aiohttp.WSCloseCode.GOING_AWAY]
