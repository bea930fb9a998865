"""Malicious bodies: each is answered with an error, and others are served meanwhile."""

import base64
import json
import socket
import threading
import time

import numpy as np
import pytest
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig

pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")

from higgs_tts.engine.serve import bodies, clips, connections
from higgs_tts.engine.serve.bodies import parse_form, parse_json
from higgs_tts.engine.serve.calls import BadCall
from higgs_tts.engine.voice.clip import BUILT_IN_CLIPS
from higgs_tts.tests.speech_servers import ask, error_of, running, wav_file

SHORT = {"input": "One apple.", "max_new_tokens": 20, "retries": 0, "response_format": "pcm"}
VOICES = "/v1/audio/voices"
FORM = "Content-Type: multipart/form-data; boundary=edge"
HUGE = b"9" * 5000
CHUNKED = b"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with (
        Engine(EngineConfig(str(EMBEDDED), device="cpu", context=512)) as engine,
        running(engine, tmp_path_factory.mktemp("voices")) as (port, _),
    ):
        yield port


def is_well(port):
    return ask(port, "GET", "/health")[0] == 200


def assert_refused(answer, status, param=None):
    assert answer[0] == status and answer[1]["content-type"].startswith("application/json")
    error = error_of(answer)
    assert error["type"] == "invalid_request_error" and error["param"] == param and len(error["message"]) < 300
    return error["message"]


@pytest.mark.parametrize("value", [HUGE, b"-" + HUGE, b"1e" + HUGE, b"NaN", b"Infinity", b"-Infinity"])
@pytest.mark.parametrize("field", ["seed", "temperature", "index", "top_k", "speed", "max_new_tokens", "top_p"])
def test_numbers_out_of_range_are_refused(port, field, value):
    answer = ask(port, body=b'{"input": "Hi", "%s": %s}' % (field.encode(), value))
    assert f"{field} is " in assert_refused(answer, 400, field) and is_well(port)


@pytest.mark.parametrize("charset", ["foo", "hex", "undefined", "utf-16", "latin-1"])
@pytest.mark.parametrize("path", ["/v1/audio/speech", VOICES])
def test_unknown_charsets_are_refused(port, charset, path):
    kind = "application/json" if path != VOICES else "application/x-www-form-urlencoded"
    answer = ask(port, path=path, body=SHORT, headers=[f"Content-Type: {kind}; charset={charset}"])
    assert f"charset is '{charset}'" in assert_refused(answer, 415) and is_well(port)


def test_utf8_is_accepted_by_all_its_names_and_with_a_byte_order_mark(port):
    for charset in ("utf-8", "UTF8", "us-ascii"):
        body = b"\xef\xbb\xbf" + json.dumps(SHORT).encode()
        assert ask(port, body=body, headers=[f"Content-Type: application/json; charset={charset}"])[0] == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "foo"])
def test_content_encodings_are_refused(port, coding, caplog):
    answer = ask(port, body=SHORT, headers=[f"Content-Encoding: {coding}"])
    assert "Content-Encoding" in assert_refused(answer, 415) and is_well(port)
    assert not caplog.records


@pytest.mark.parametrize("key", ["a\rb", "a\nb", "a\0b"])
def test_a_key_that_is_no_header_is_refused_without_a_traceback(port, key, caplog):
    answer = ask(port, body=SHORT, headers=[f"Authorization: Bearer {key}"])
    assert answer[0] == 400 and is_well(port) and not caplog.records


def test_an_oversized_body_is_not_read(port):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n{")
        assert b" 413 " in connection.recv(1 << 12) and is_well(port)


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
@pytest.mark.parametrize(
    "begins",
    [b"[", b'{"input": "', b'{"scene": "', b'{"ref_text": "ref_audio ', b'{"audio": "', b'{"items": [{"input": "', b" ",
     b'{"ref_audi\\u006f": "', b'{"input": "", "ref_audi": "'],
)  # fmt: skip
def test_a_body_without_a_clip_has_the_size_of_texts(port, path, begins):
    most = 12 * 20_000 * (33 if path.endswith("batch") else 2) + (1 << 16)
    body = begins + b"a" * (most + 100_000)
    assert "has no clip" in assert_refused(ask(port, path=path, body=body), 413) and is_well(port)


def test_the_longest_texts_fit_in_the_size_of_texts(port):
    """Letters of 12 bytes each. They are refused because none of them is said."""
    text = "\U0001f600" * 20_000
    assert_refused(ask(port, body={**SHORT, "input": text, "scene": text}), 400, "input")


def test_a_body_whose_chunks_are_wrong_is_refused_without_a_traceback(port, caplog):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(CHUNKED + b"5\r\n{{{{{\r\nzz\r\n{{\r\n")
        assert b" 400 " in connection.recv(1 << 12)
    assert is_well(port) and not caplog.records


def test_a_wrong_chunk_behind_a_whole_one_ends_the_body(port, monkeypatch, caplog):
    """aiohttp may tell nobody of it, so the time for a body ends the wait."""
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(CHUNKED + b"5\r\n{{{{{\r\n")
        time.sleep(0.1)
        connection.sendall(b"zz\r\n{{\r\n")
        answer = connection.recv(1 << 12)
        assert b" 400 " in answer or b" 408 " in answer
    assert is_well(port) and not caplog.records


@pytest.mark.parametrize("depth", [600, 100_000, 9_000_000])
@pytest.mark.parametrize(("before", "after"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_bodies_are_refused_before_they_are_parsed(monkeypatch, depth, before, after):
    monkeypatch.setattr(bodies.json, "loads", lambda *given, **more: pytest.fail("parsed"))
    with pytest.raises(BadCall, match="more than 500 values"):
        parse_json(b'{"input": "Hi", "seed": ' + before * depth + b"1" + after * depth + b"}")


@pytest.mark.parametrize("value", [b"[],", b'"",', b"1,", b'"\\\\",', b'"\\"[",'])
def test_wide_bodies_are_refused_before_they_are_parsed(monkeypatch, value):
    monkeypatch.setattr(bodies.json, "loads", lambda *given, **more: pytest.fail("parsed"))
    with pytest.raises(BadCall, match="more than 500 values"):
        parse_json(b'{"input": "Hi", "x": [' + value * 1_000_000 + b"1]}")


@pytest.mark.parametrize("text", ["[laughs], {yes}, " * 500, '"quoted", ' * 500, "back\\slash, " * 500, '\\"[' * 2000])
def test_brackets_inside_a_text_are_not_counted(text):
    assert parse_json(json.dumps({"input": text, "seed": 3}).encode()) == {"input": text, "seed": 3}


def test_field_names_are_stripped_of_characters_that_headers_cannot_hold(port):
    status, told, _ = ask(port, body={**SHORT, "a\r\nX-Evil: 1": 2, "\ud800é": 3})
    assert status == 200 and told["x-ignored-fields"] == "a??X-Evil: 1, ??" and "x-evil" not in told


def test_a_text_of_pauses_is_refused_by_its_field(port):
    for text in ("One. " + "[pause 60] " * 1800, "[pause 60]" * 2000, "One [pause 60] two. " * 900):
        message = assert_refused(ask(port, body={**SHORT, "input": text}), 400, "input")
        assert "s of pauses" in message and "this server accepts at most 20000" in message


@pytest.mark.parametrize(
    "part",
    [
        b"A: b\r\n\r\nx",
        b'Content-Disposition: form-data; name="name"\r\nContent-Type: text/plain; charset=hex\r\n\r\nx',
        b'Content-Disposition: form-data; name="name"\r\nContent-Transfer-Encoding: foo\r\n\r\nx',
        b'Content-Disposition: form-data; name="name"\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\nx',
        b'Content-Disposition: form-data; name="name"\r\n\r\n\xff\xfe\r\n'
        b'--edge\r\nContent-Disposition: form-data; name="audio_sample"; filename="a"\r\n\r\nx',
        b"\r\n" * 1_000_000,
        b'Content-Disposition: form-data; name="x"\r\n\r\n\r\n--edge\r\n' * 10_000,
    ],
)
def test_malformed_forms_are_refused(port, part, caplog):
    answer = ask(port, path=VOICES, body=b"--edge\r\n" + part + b"\r\n--edge--\r\n", headers=[FORM])
    assert_refused(answer, 400)
    assert is_well(port) and not caplog.records


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data", 'multipart/form-data; boundary=""'])
def test_bodies_that_are_no_form_are_refused(port, kind):
    answer = ask(port, path=VOICES, body=b"a=b", headers=[f"Content-Type: {kind}"])
    assert "multipart/form-data" in assert_refused(answer, 400)


def test_the_fields_of_a_form_are_read():
    parts = b'--e\r\nContent-Disposition: form-data; name="a"\r\n\r\none\r\n\r\ntwo\r\n'
    parts += (
        b'--e\r\nContent-Type: audio/wav\r\ncontent-disposition: form-data; filename="name=x"; name=b\r\n\r\n--\r\n'
    )
    assert parse_form(parts + b"--e--\r\n", "multipart/form-data; boundary=e") == {"a": b"one\r\n\r\ntwo", "b": b"--"}


def test_a_name_that_no_file_can_have_is_refused(port):
    clip = (BUILT_IN_CLIPS / "amber.flac").read_bytes()
    parts = [b'name="name"\r\n\r\n' + "\U00020000".encode() * 64, b'name="audio_sample"; filename="a"\r\n\r\n' + clip]
    body = b"".join(b"--edge\r\nContent-Disposition: form-data; %s\r\n" % part for part in parts) + b"--edge--\r\n"
    assert "a voice name" in assert_refused(ask(port, path=VOICES, body=body, headers=[FORM]), 400, "name")


def test_a_clip_that_is_too_long_is_refused_by_its_field(port):
    clip = wav_file(np.zeros(31 * 24_000, "float32"))
    answer = ask(port, body={**SHORT, "ref_audio": base64.b64encode(clip).decode()})
    assert "31.0 s" in assert_refused(answer, 400, "ref_audio")
    parts = [b'name="name"\r\n\r\nlong', b'name="audio_sample"; filename="a.wav"\r\n\r\n' + clip]
    body = b"".join(b"--edge\r\nContent-Disposition: form-data; %s\r\n" % part for part in parts) + b"--edge--\r\n"
    assert "31.0 s" in assert_refused(ask(port, path=VOICES, body=body, headers=[FORM]), 400, "audio_sample")


def test_other_calls_are_served_while_a_body_is_handled(port, monkeypatch):
    """A clip whose decoding does not end, and a body that does not."""
    begun, end, decode = threading.Event(), threading.Event(), clips.decode_clip

    def slow(data):
        begun.set()
        assert end.wait(600)
        return decode(data)

    monkeypatch.setattr(clips, "decode_clip", slow)
    clip = base64.b64encode((BUILT_IN_CLIPS / "amber.flac").read_bytes()).decode()
    answers = []
    body = {**SHORT, "ref_audio": clip, "ref_text": "What it says."}
    hostile = threading.Thread(target=lambda: answers.append(ask(port, body=body)))
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999999\r\n\r\n[[[[")
        hostile.start()
        assert begun.wait(600)
        assert is_well(port) and ask(port, body=SHORT)[0] == 200
        end.set()
        hostile.join()
    assert answers[0][0] == 200
