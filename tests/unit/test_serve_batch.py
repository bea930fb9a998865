"""Several texts per call, in the form of SGLang-Omni 0.1.9 and vLLM-Omni 0.30.0."""

import ast
import base64
import json
import pathlib
import socket

import pytest
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig

pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")

from higgs_tts.engine.core.config import CallLimits
from higgs_tts.engine.serve.batch import read_batch
from higgs_tts.engine.serve.calls import BadCall, read_call
from higgs_tts.engine.voice.clip import BUILT_IN_CLIPS
from higgs_tts.tests.published import published_wheel
from higgs_tts.tests.speech_servers import ask, error_of, running, wait_for

BATCH = "/v1/audio/speech/batch"
SHORT = {"seed": 3, "max_new_tokens": 40, "retries": 0}
CLIP, OTHER = (base64.b64encode(data).decode() for data in (b"sound", b"other"))
PUBLISHED = json.loads((pathlib.Path(__file__).parent / "data" / "speech_batches.json").read_text(encoding="utf-8"))
# Every field of theirs, with a value that has an effect elsewhere: what an item says if it comes with it.
REFUSED = {"task_type": "VoiceDesign", "instructions": "gently", "x_vector_only_mode": True, "token_count": 90,
           "stream_codec_output": True, "duration_tokens": 90, "repetition_penalty": 1.2, "sample_rate": 16_000,
           "stage_params": {"vocoder": {"x": 1}}, "stream": True}  # fmt: skip
TOLD = {
    "language": "en",
    "suppress_bootstrap_silence": True,
    "initial_codec_chunk_frames": 9,
    "non_streaming_mode": True,
}
HONOURED = {
    "model": ("any", lambda call: True),
    "input": ("Hi.", lambda call: call.text == "Hi."),
    "items": (None, None),
    "voice": ("anna", lambda call: call.voice == "anna"),
    "response_format": ("mp3", lambda call: call.format == "mp3"),
    "speed": (2, lambda call: call.text.startswith("<|prosody:speed_very_fast|>")),
    "ref_audio": (CLIP, lambda call: call.clip.data == b"sound"),
    "ref_text": ("Words.", lambda call: call.clip.transcript == "Words."),
    "references": ([{"data": CLIP, "text": "Words."}], lambda call: call.clip.data == b"sound"),
    "max_new_tokens": (7, lambda call: call.params.max_frames == 7),
    "temperature": (0.3, lambda call: call.params.temperature == 0.3),
    "top_p": (0.3, lambda call: call.params.top_p == 0.3),
    "top_k": (7, lambda call: call.params.top_k == 7),
    "seed": (7, lambda call: call.params.seed == 7),
}
REQUESTS = [
    (package, model, field)
    for package, told in PUBLISHED.items()
    for model, fields in told["models"].items()
    for field in fields
    if field != "items" and "Result" not in model and "Response" not in model
]


def read(body, most=32):
    return read_batch(body, most, lambda fields: read_call(fields, 100, lambda tag: True))


@pytest.fixture(scope="module")
def port():
    with (
        Engine(EngineConfig(str(EMBEDDED), device="cpu", context=512)) as engine,
        running(engine, limits=CallLimits(max_characters=500, max_calls=8, max_items=6)) as (port, _),
    ):
        yield port


@pytest.mark.parametrize(("package", "model", "field"), REQUESTS)
def test_every_published_field_is_honoured_reported_or_refused(package, model, field):
    shared = {"ref_audio": OTHER} if field == "ref_text" else {}
    value = HONOURED[field][0] if field in HONOURED else {**REFUSED, **TOLD}[field]
    of_item = "Item" in model or field == "input"
    own, beside = ({field: value}, shared) if of_item else ({}, {field: value, **shared})
    body = {**beside, "items": [{"input": "Hello.", **own}]}
    if field in HONOURED:
        (call,) = read(body)
        assert HONOURED[field][1](call)
    elif field in TOLD:
        (call,) = read(body)
        assert call.ignored == (field,)
    else:
        with pytest.raises(BadCall, match=f"{field}|does not stream") as caught:
            (error,) = read(body)  # the body's own is raised, an item's returned
            raise error
        assert caught.value.param == field


def test_what_asks_for_nothing_is_no_fault():
    fields = {
        "repetition_penalty": 1.0,
        "task_type": "Base",
        "sample_rate": 24_000,
        "instructions": "",
        "token_count": 0,
    }
    calls = read({**fields, "items": [{"input": "Hi.", **fields}, {"input": "Hi.", "nonsense": 1}]})
    assert calls[0].text == "Hi." and calls[1].param == "nonsense"


@pytest.mark.parametrize("package", PUBLISHED)
def test_the_fixture_lists_the_published_models_fields(package):
    told = PUBLISHED[package]
    source = ast.parse(published_wheel(told["wheel"]).read(told["file"]))
    classes = {node.name: node for node in ast.walk(source) if isinstance(node, ast.ClassDef)}
    for model, fields in told["models"].items():
        assert [line.target.id for line in classes[model].body if isinstance(line, ast.AnnAssign)] == fields


def test_fields_beside_the_items_are_their_defaults():
    first, second = read(
        {"voice": "anna", "seed": 5, "items": [{"input": "One."}, {"input": "Two.", "seed": 6, "voice": None}]}
    )
    assert (first.text, first.voice, first.format, first.params.seed) == ("One.", "anna", "wav", 5)
    assert (second.text, second.voice, second.params.seed) == ("Two.", "anna", 6)


def test_an_item_uses_its_own_voice_or_the_batch_s():
    items = [{}, {"voice": "anna"}, {"ref_audio": CLIP}, {"ref_text": "Own words."}, {"speaker": "ben"}]
    calls = read({"ref_audio": OTHER, "ref_text": "Words.", "items": [{"input": "Hi.", **item} for item in items]})
    clips = [call.clip and (call.clip.data, call.clip.transcript) for call in calls]
    assert clips == [(b"other", "Words."), None, (b"sound", "Words."), (b"other", "Own words."), None]
    assert calls[0].clip.data is calls[3].clip.data, "decoded once"
    assert [call.voice for call in calls] == ["default", "anna", "default", "default", "ben"]
    (call,) = read({"voice": "anna", "items": [{"input": "Hi.", "ref_audio": CLIP}]})
    assert (call.voice, call.clip.data) == ("default", b"sound")
    (call,) = read({"ref_text": "Words.", "items": [{"input": "Hi.", "ref_audio": CLIP}]})
    assert call.clip.transcript == "Words."


def test_items_have_several_references_or_the_batch_s():
    several = [{"data": CLIP, "text": "One."}, {"data": OTHER}]
    items = [{}, {"references": several[:1]}, {"ref_text": "Own words."}, {"voice": "anna"}]
    first, second, third, fourth = read({"references": several, "items": [{"input": "Hi.", **item} for item in items]})
    assert [one.data for one in first.clip.every] == [b"sound", b"other"]
    assert [one.data for one in second.clip.every] == [b"sound"] and fourth.clip is None
    assert isinstance(third, BadCall) and third.param == "ref_text" and "several references" in str(third)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ([], None, "JSON object"),
        ({}, "items", "must be a list"),
        ({"items": []}, "items", "must be a list"),
        ({"items": {"input": "Hi."}}, "items", "must be a list"),
        ({"items": [{"input": "Hi."}] * 33}, "items", "has 33 texts, but this server accepts at most 32"),
        ({"input": "Hi.", "items": [{"input": "Hi."}]}, "input", "belongs inside each item"),
        ({"items": [{"input": "Hi."}], "stream_format": "sse"}, "stream_format", "does not stream"),
        ({"items": [{"input": "Hi."}], "word_timestamps": True}, "word_timestamps", "has no word times"),
        ({"items": [{"input": "Hi."}], "response_format": "mid"}, "response_format", "Choose one of"),
        ({"items": [{"input": "Hi."}], "seed": -1}, "seed", "number from 0"),
    ],
)
def test_faults_of_a_batch_are_named_by_field(body, param, says):
    with pytest.raises(BadCall, match=says) as caught:
        read(body)
    assert caught.value.param == param


def test_each_text_has_its_own_result_or_error(port):
    items = [
        {"input": "One apple."},
        {"input": ""},
        {"input": "One apple.", "voice": "nobody"},
        5,
        {"input": "Two pears.", "response_format": "pcm", "language": "en"},
        {"input": "..."},
    ]
    status, headers, data = ask(port, path=BATCH, body={**SHORT, "model": "any", "items": items})
    answer = json.loads(data)
    results = answer["results"]
    assert status == 200 and (answer["total"], answer["succeeded"], answer["failed"]) == (6, 2, 4)
    assert answer["id"] == "speech-batch-" + headers["x-request-id"] and headers["x-ignored-fields"] == "language"
    assert [result["index"] for result in results] == list(range(6))
    assert [result["status"] for result in results] == ["success", *["error"] * 3, "success", "error"]
    errors = [result["error"] for result in results if result["status"] == "error"]
    assert [error["param"] for error in errors] == ["input", "voice", "items", "input"]
    assert errors[1]["code"] == "voice_not_found" and "nothing to speak" in errors[3]["message"]
    for item, result in zip(items, results, strict=True):
        if result["status"] == "success":
            kind = item.get("response_format", "wav")
            assert (result["format"], result["media_type"]) == (kind, f"audio/{kind}")
            alone = ask(port, body={**SHORT, "response_format": kind, "stream": False, "input": item["input"]})[2]
            assert base64.b64decode(result["audio_data"]) == alone, "as in a call of its own"
            assert result["finish_reason"] in ("stop", "length") and result["usage"]["seconds"] > 0


def test_a_shared_clip_is_encoded_once(port):
    clip = base64.b64encode((BUILT_IN_CLIPS / "amber.flac").read_bytes()).decode()
    text = (BUILT_IN_CLIPS / "amber.txt").read_text(encoding="utf-8").strip()
    shared = {**SHORT, "ref_audio": clip, "ref_text": text}
    items = [
        {"input": "One apple."},
        {"input": "One apple.", "voice": "amber"},
        {"input": "One apple.", "voice": "alloy"},
    ]
    results = json.loads(ask(port, path=BATCH, body={**shared, "items": items})[2])["results"]
    sounds = [result["audio_data"] for result in results]
    assert sounds[0] == sounds[1] != sounds[2]


def test_bad_batches_are_refused_in_the_error_envelope(port):
    for body, status, param in (
        (b"{", 400, None),
        (b"[" * 9000, 400, None),
        ({"items": [{"input": "Hi."}] * 7}, 400, "items"),
        ({"items": [{"input": "Hi."}], "instructions": "gently"}, 400, "instructions"),
    ):
        answer = ask(port, path=BATCH, body=body)
        assert answer[0] == status and error_of(answer)["param"] == param
        assert error_of(answer)["type"] == "invalid_request_error"


def test_a_leaving_caller_frees_all_rows():
    body = json.dumps({"items": [{"input": "It goes on. " * 30}] * 4, "retries": 0}).encode()
    with (
        Engine(EngineConfig(str(EMBEDDED), device="cpu", context=1024)) as engine,
        running(engine) as (port, speaker),
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            head = f"POST {BATCH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            wait_for(lambda: speaker.speaking >= 4)
        wait_for(lambda: not speaker.speaking)
        assert ask(port, body={**SHORT, "input": "One apple."})[0] == 200
