"""The server as programs use it: OpenAI's own client, and sockets that misbehave."""

import base64
import gc
import io
import json
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, Engines, HiggsError, SamplingParams
from higgs_tts.engine.audio.loudness import integrated_loudness
from higgs_tts.engine.engines import engine as engine_module

web = pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")

from higgs_tts.engine.core.config import CallLimits  # noqa: E402
from higgs_tts.engine.serve.serve import ServeSettings, is_loopback, serve  # noqa: E402
from higgs_tts.engine.serve.speaker import SpeakerThread, SpeechJob  # noqa: E402
from higgs_tts.engine.serve.streams import RawStream  # noqa: E402
from higgs_tts.engine.serve.timestamps import word_headers  # noqa: E402
from higgs_tts.engine.speech.request import SpeechRequest  # noqa: E402
from higgs_tts.engine.voice.clip import BUILT_IN_CLIPS  # noqa: E402
from higgs_tts.tests.speech_servers import ask, error_of, running, wait_for  # noqa: E402

SHORT = {"model": "tts-1", "voice": "alloy", "input": "One apple.", "seed": 3, "max_new_tokens": 40, "retries": 0}
LONG = {**SHORT, "input": "This sentence goes on. " * 60, "max_new_tokens": 2000}
PARAMS = SamplingParams(seed=3, max_frames=40, retries=0)


@pytest.fixture(scope="module")
def config(written):
    return EngineConfig(str(written["v3"]), device="cpu", context=1024)


@pytest.fixture(scope="module")
def engine(config):
    with Engine(config) as engine:
        yield engine


@pytest.fixture
def another(config):
    """A second engine: the batch of the module's server keeps the first to itself, until it has idled for long."""
    with Engine(config) as engine:
        yield engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("voices")


@pytest.fixture(scope="module")
def served(engine, folder):
    with running(engine, folder, limits=CallLimits(max_characters=5000, max_calls=4)) as (port, speaker):
        yield port, speaker


@pytest.fixture(scope="module")
def alone(config):
    """An engine's own speech, as 16-bit samples."""
    with Engine(config) as engine:
        return (engine.speak(SHORT["input"], params=PARAMS).wav.clamp(-1, 1) * 32767).round().numpy().astype(np.int16)


def test_a_whole_answer_says_when_each_word_is_heard():
    body, config = {**SHORT, "response_format": "wav"}, EngineConfig(str(EMBEDDED), device="cpu", context=1024)
    with Engine(config) as engine, running(engine) as (port, _):
        status, headers, data = ask(port, body=body | {"word_timestamps": True})
        _, told, plain = ask(port, body=body | {"stream": False})
    words = json.loads(headers["x-word-timestamps"])
    assert status == 200 and [word["word"] for word in words] == ["One", "apple."]
    times = [word[side] for word in words for side in ("start_ms", "end_ms")]
    assert times == sorted(times) and times[-1] <= (len(data) - 44) / 48 + 1
    assert plain == data and not [name for name in told if "word" in name]
    with Engine(config) as one, Engine(config) as other, running(Engines([one, other])) as (port, speaker):
        assert speaker.ask("", lambda engine: engine).result(60) in (one, other), "else the next call waits for ever"
        assert ask(port, body=body | {"word_timestamps": True})[1]["x-word-timestamps"] == headers["x-word-timestamps"]


def test_words_that_a_header_cannot_hold_are_named():
    times = [{"word": "é", "start_ms": 0, "end_ms": 1}]
    assert word_headers(times) == {"X-Word-Timestamps": '[{"word": "\\u00e9", "start_ms": 0, "end_ms": 1}]'}
    size = len(json.dumps(100 * times))
    assert word_headers(100 * times) == {"X-Word-Timestamps-Omitted": f"oversize; bytes={size}; limit=4096"}
    assert word_headers(None) == {} and word_headers([]) == {"X-Word-Timestamps": "[]"}


class TestOpenAIClient:
    @pytest.fixture(scope="class")
    def client(self, served):
        openai = pytest.importorskip("openai", reason="the openai package is not installed")
        return openai.OpenAI(base_url=f"http://127.0.0.1:{served[0]}/v1", api_key="any", max_retries=0)

    def say(self, client, **given):
        extra = {"seed": 3, "max_new_tokens": 40, "retries": 0, "stream": False}
        asked = {"model": "tts-1", "voice": "nova", "input": SHORT["input"], **given}
        return client.audio.speech.create(**asked, extra_body=extra)

    @pytest.mark.parametrize("sound", ["wav", "flac", "mp3", "opus"])
    def test_every_format_is_served(self, client, sound, alone):
        soundfile = pytest.importorskip("soundfile")
        samples, rate = soundfile.read(io.BytesIO(self.say(client, response_format=sound).content), dtype="int16")
        exact = sound in ("wav", "flac")
        assert rate == (48000 if sound == "opus" else 24000) or not exact
        if exact:
            assert np.abs(samples.astype(int) - alone).max() <= 1
        else:
            assert abs(len(samples) / rate - len(alone) / 24000) < 0.2 and np.abs(samples).max() > 1000

    def test_a_stream_equals_the_whole_sound(self, client, alone):
        with client.audio.speech.with_streaming_response.create(
            model="x", voice="coral", input=SHORT["input"], response_format="pcm",
            extra_body={"seed": 3, "max_new_tokens": 40, "retries": 0, "stream": True},
        ) as answer:  # fmt: skip
            parts = list(answer.iter_bytes(4096))
            request = answer.headers["x-request-id"]
            assert (answer.headers["x-sample-rate"], answer.headers["x-model"]) == ("24000", "embedded")
        heard = np.frombuffer(b"".join(parts), "<i2").astype(int)
        assert len(heard) == len(alone) and np.abs(heard - alone).max() <= 1
        assert client.get(f"/audio/speech/{request}", cast_to=object)["finish_reason"] in ("stop", "length")

    def test_models_are_listed_and_bad_calls_refused(self, client):
        openai = pytest.importorskip("openai")
        assert [model.id for model in client.models.list()] == ["embedded"]
        with pytest.raises(openai.NotFoundError, match=r"no voice 'nobody'.*Known voices: default, amber"):
            self.say(client, voice="nobody")
        with pytest.raises(openai.BadRequestError, match="input has 6000 characters"):
            self.say(client, input="x" * 6000)


def test_a_whole_answer_has_its_loudness_and_a_stream_stays_as_it_is(another, alone):
    def level(data):
        return integrated_loudness(torch.from_numpy(np.frombuffer(data, "<i2") / 32768).float())

    body = {**SHORT, "response_format": "pcm", "stream": False}
    with running(another, loudness="-23 LUFS") as (port, _):
        for loudness, expected in ((None, -23), ("-16 LUFS", -16)):
            status, headers, data = ask(port, body=body | {"loudness": loudness})
            assert status == 200 and headers["x-loudness"] == f"{expected} LUFS"
            assert level(data) == pytest.approx(expected, abs=0.2)
        _, headers, data = ask(port, body=body | {"loudness": "as is"})
        assert headers["x-loudness"] == "as is"
        stream = ask(port, body=body | {"stream": True})[2]
        whole, parts = (np.frombuffer(one, "<i2").astype(int) for one in (data, stream))
        assert np.abs(whole - parts).max() <= 1, "nobody knows a stream's loudness before its end"
        items = {"items": [{"input": SHORT["input"], "loudness": "-16 LUFS"}, {"input": SHORT["input"]}]}
        defaults = {name: value for name, value in SHORT.items() if name != "input"}
        batch = json.loads(
            ask(port, path="/v1/audio/speech/batch", body=defaults | {"response_format": "pcm"} | items)[2]
        )
        made = [base64.b64decode(one["audio_data"]) for one in batch["results"]]
        assert [round(level(one)) for one in made] == [-16, -23]


def test_events_carry_the_sound(served, alone):
    status, told, body = ask(served[0], body={**SHORT, "response_format": "pcm", "stream_format": "sse"})
    assert status == 200 and told["content-type"] == "text/event-stream"
    events = [dict(line.split(": ", 1) for line in event.split("\n")) for event in body.decode().strip().split("\n\n")]
    content = [json.loads(event["data"]) for event in events]
    assert [event["event"] for event in events] == [part["type"] for part in content]
    assert content[-1]["type"] == "speech.audio.done" and content[-1]["finish_reason"] in ("stop", "length")
    heard = np.frombuffer(b"".join(base64.b64decode(part["audio"]) for part in content[:-1]), "<i2")
    assert len(content) > 2 and np.abs(heard.astype(int) - alone).max() <= 1


def test_concurrent_calls_sound_as_alone(served, alone):
    answers = [None] * 4

    def call(number):
        body = {**SHORT, "response_format": "pcm", "stream": False, "seed": 3 if number else 4}
        answers[number] = ask(served[0], body=body)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer[0] for answer in answers] == [200] * 4
    for answer in answers[1:]:
        assert np.abs(np.frombuffer(answer[2], "<i2").astype(int) - alone).max() <= 1
    assert answers[0][2] != answers[1][2] and answers[1][1]["x-finish-reason"] in ("stop", "length")


def test_voices_are_listed_made_used_and_deleted(served, folder):
    port, _ = served
    clip = (BUILT_IN_CLIPS / "amber.flac").read_bytes()
    text = (BUILT_IN_CLIPS / "amber.txt").read_text(encoding="utf-8").strip()

    def form(name, sample=clip):
        fields = [("name", name.encode(), ""), ("ref_text", text.encode(), ""), ("audio_sample", sample, "a.flac")]
        parts = [
            b'--edge\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
            % (key.encode(), f'; filename="{file}"'.encode() if file else b"", value)
            for key, value, file in fields
        ]
        headers = ["Content-Type: multipart/form-data; boundary=edge"]
        return ask(port, "POST", "/v1/audio/voices", b"".join(parts) + b"--edge--\r\n", headers)

    def names():
        return [voice["id"] for voice in json.loads(ask(port, "GET", "/v1/audio/voices")[2])["voices"]]

    before = names()
    assert before == ["default", *sorted(path.stem for path in BUILT_IN_CLIPS.glob("*.flac"))]
    assert form("my voice")[0] == 200 and names() == sorted([*before, "my voice"], key=lambda n: (n != "default", n))
    assert (folder / "my voice.safetensors").is_file()
    said = {
        voice: ask(port, body={**SHORT, "voice": voice, "response_format": "pcm"}) for voice in ("my voice", "amber")
    }
    assert said["my voice"][0] == 200 and said["my voice"][2] == said["amber"][2], "the same clip and words"
    for name, status in (("my voice", 409), ("Amber", 409), ("../up", 400), ("", 400)):
        assert form(name)[0] == status
    assert form("broken", b"no sound")[0] == 400 and form("short", clip[:200])[0] == 400
    assert ask(port, "DELETE", "/v1/audio/voices/my%20voice")[0] == 200 and names() == before
    assert ask(port, "DELETE", "/v1/audio/voices/my%20voice")[0] == 404
    assert ask(port, "DELETE", "/v1/audio/voices/amber")[0] == 400 and (BUILT_IN_CLIPS / "amber.flac").is_file()


def test_a_call_may_carry_a_clip(served):
    clip = base64.b64encode((BUILT_IN_CLIPS / "oliver.flac").read_bytes()).decode()
    text = (BUILT_IN_CLIPS / "oliver.txt").read_text(encoding="utf-8").strip()
    body = {**SHORT, "response_format": "pcm", "ref_audio": f"data:audio/flac;base64,{clip}", "ref_text": text}
    given, named = (
        ask(served[0], body=body),
        ask(served[0], body={**SHORT, "voice": "oliver", "response_format": "pcm"}),
    )
    assert given[0] == 200 and given[2] == named[2]


def test_a_clip_that_ran_out_of_memory_is_encoded_by_the_next_call(served, monkeypatch):
    clip = base64.b64encode((BUILT_IN_CLIPS / "ruth.flac").read_bytes()).decode()
    body = {**SHORT, "ref_audio": f"data:audio/flac;base64,{clip}", "ref_text": "A text."}

    def short_of_memory(*given):
        raise torch.OutOfMemoryError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "open_encoder", short_of_memory)
        assert ask(served[0], body=body)[0] == 503
    assert ask(served[0], body=body)[0] == 200


def test_server_faults_are_not_blamed_on_the_clip(served, monkeypatch):
    clip = base64.b64encode((BUILT_IN_CLIPS / "amber.flac").read_bytes()).decode()

    def fail(*given):
        raise HiggsError("transformers is missing.")

    monkeypatch.setattr(engine_module, "open_encoder", fail)
    answer = ask(served[0], body={**SHORT, "ref_audio": f"data:audio/flac;base64,{clip}", "ref_text": "Another text."})
    assert answer[0] == 500 and error_of(answer)["message"] == "transformers is missing."


def test_any_error_of_a_clip_is_that_of_its_call_alone(served, monkeypatch):
    """Such as that of a codec whose folder was moved while the server runs."""
    clip = base64.b64encode((BUILT_IN_CLIPS / "oliver.flac").read_bytes()).decode()
    body = {**SHORT, "ref_audio": f"data:audio/flac;base64,{clip}", "ref_text": "A third text."}

    def gone(*given):
        raise FileNotFoundError(2, "No such file or directory", "codec.safetensors")

    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "open_encoder", gone)
        assert ask(served[0], body=body)[0] == 500
    assert ask(served[0], body=body)[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "not JSON"),
        (b"\xff\xfe{", 400, "not JSON"),
        (b"[" * 100_000, 400, "more than 500 values"),
        (b"[]", 400, "JSON object"),
        (b'{"input": "..."}', 400, "nothing to speak"),
        (b'{"input": "Hi", "response_format": "mid"}', 400, "Choose one of"),
        (b'{"input": "Hi", "ref_audio": "UklGRg=="}', 400, "cannot be read as audio"),
        (b'{"input": "' + b"x" * (21 << 20) + b'"}', 413, "larger than 20 MB"),
    ],
)
def test_bad_bodies_get_clear_errors(served, body, status, says):
    answer = ask(served[0], body=body)
    assert answer[0] == status and says in error_of(answer)["message"]
    assert error_of(answer)["type"] == "invalid_request_error"
    assert ask(served[0], "GET", "/v1/nothing")[0] == 404 and ask(served[0], "GET", "/health")[0] == 200


def test_a_leaving_caller_frees_its_row(served):
    port, speaker = served
    data = json.dumps({**LONG, "response_format": "pcm", "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(
            b"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(data) + data
        )
        assert b"200 OK" in connection.recv(1 << 12)
        assert speaker.speaking == 1
    wait_for(lambda: not speaker.speaking)
    assert ask(port, body=SHORT)[0] == 200


def test_a_caller_leaving_during_a_write_is_no_error(another, monkeypatch, caplog):
    async def gone(self, wav):
        raise ConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(RawStream, "hear", gone)
    with running(another) as (port, speaker):
        ask(port, body={**SHORT, "response_format": "pcm"})
        wait_for(lambda: not speaker.speaking)
        assert ask(port, body=SHORT)[0] == 200
    assert not caplog.records


def test_an_answered_call_is_freed(another):
    def alive():
        gc.collect()
        return [one for one in gc.get_objects() if type(one) is SpeechRequest]

    gc.freeze()  # what there is already is not looked at
    try:
        with running(another) as (port, _):
            assert [ask(port, body=body)[0] for body in (SHORT, b"{}", SHORT)] == [200, 400, 200]
            wait_for(lambda: not alive(), 15)  # sooner than a batch that nobody uses goes
    finally:
        gc.unfreeze()


def test_calls_beyond_the_limit_are_refused(another):
    with running(another, limits=CallLimits(max_calls=1)) as (port, speaker):
        waits = threading.Thread(target=ask, args=(port,), kwargs={"body": {**SHORT, "max_new_tokens": 80}})
        waits.start()
        wait_for(lambda: speaker.speaking)
        answer = ask(port, body=SHORT)
        waits.join()
        assert answer[0] == 503 and error_of(answer)["code"] == "overloaded" and answer[1]["retry-after"] == "1"
        assert ask(port, body=SHORT)[0] == 200


def test_a_key_is_required(another):
    with running(another, key="secret") as (port, _):
        for headers, status in (
            ((), 401),
            (["Authorization: Bearer wrong"], 401),
            (["Authorization: Bearer \udcff"], 401),
            (["Authorization: Bearer secret"], 200),
        ):
            assert ask(port, "GET", "/v1/models", headers=headers)[0] == status
        assert ask(port, "GET", "/health")[0] == 200
        assert error_of(ask(port, body=SHORT))["code"] == "invalid_key"


def test_a_key_of_bytes_that_are_not_text_works(another):
    """Python reads such bytes from the environment."""
    with running(another, key="\udcff") as (port, _):
        for key, status in (("wrong", 401), ("\udcff", 200)):
            assert ask(port, "GET", "/v1/models", headers=[f"Authorization: Bearer {key}"])[0] == status


def test_a_failing_engine_answers_waiting_calls_and_serves_the_next(another, before_steps):
    speaker, ends, errors = SpeakerThread(another), [], [HiggsError("The model produced values that are not numbers.")]

    def fail(backend):
        if errors:
            raise errors.pop()

    before_steps(fail)
    try:
        speaker.speak(SpeechJob("One apple.", ends.append, params=PARAMS))
        wait_for(lambda: len(ends) == 1)
        assert "not numbers" in str(ends[0])
        speaker.speak(SpeechJob("One apple.", ends.append, params=PARAMS))
        wait_for(lambda: len(ends) == 2)
        assert ends[1]().frames
    finally:
        speaker.close()
    speaker.speak(SpeechJob("One apple.", ends.append))
    assert "shutting down" in str(ends[2])


def test_a_job_without_memory_to_begin_ends_alone(another, monkeypatch):
    ends, begin = {}, SpeechJob.begin

    def fail(job, planner):
        if job.text == "Two.":
            raise torch.OutOfMemoryError("planted")
        return begin(job, planner)

    monkeypatch.setattr(SpeechJob, "begin", fail)
    speaker = SpeakerThread(another)
    try:
        for text in ("One.", "Two."):
            speaker.speak(SpeechJob(text, lambda end, text=text: ends.update({text: end}), params=PARAMS))
        wait_for(lambda: len(ends) == 2)
    finally:
        speaker.close()
    assert isinstance(ends["Two."], torch.OutOfMemoryError) and ends["One."]().frames


class TestStarting:
    def test_serving_other_machines_needs_a_key(self, engine, monkeypatch):
        monkeypatch.delenv("HIGGS_TTS_API_KEY", raising=False)
        with pytest.raises(HiggsError, match=r"0\.0\.0\.0 can be reached from other machines.*--api-key"):
            serve(engine, ServeSettings("0.0.0.0", 0), print)
        names = ["127.0.0.1", "::1", "localhost", "127.8.8.8", "0.0.0.0", "192.168.0.1", "example.org", "::"]
        assert [is_loopback(name) for name in names] == [True] * 4 + [False] * 4

    def test_a_bad_port_is_refused(self):
        engine = Engine(EngineConfig(str(EMBEDDED), device="cpu", context=1024))
        with engine, pytest.raises(HiggsError, match=r"cannot use 127\.0\.0\.1:99999 .*Choose another --port"):
            serve(engine, ServeSettings("127.0.0.1", 99999), print)

    def test_a_model_in_the_current_folder_has_a_name(self, monkeypatch):
        monkeypatch.chdir(EMBEDDED)
        assert Engine(EngineConfig(".", device="cpu")).planner.model == EMBEDDED.name

    def test_a_missing_folder_is_refused(self, engine, tmp_path):
        with pytest.raises(HiggsError, match="nowhere is not a folder"):
            serve(engine, ServeSettings("127.0.0.1", 0, tmp_path / "nowhere"), print)

    def test_the_command_serves_and_stops(self, pytestconfig):
        command = [sys.executable, "-m", "engine", "serve", "--device", "cpu", "--port", "0"]
        with subprocess.Popen(command, cwd=pytestconfig.rootpath, stdout=subprocess.PIPE, text=True) as process:
            said = process.stdout.readline()
            process.terminate()
            assert process.wait(60) in (0, -15, 1, 130, 143)  # 1: Windows ends a process at once
        assert "embedded at http://127.0.0.1:" in said
