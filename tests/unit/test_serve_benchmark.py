"""benchmarks/serve.py and tests/faults/soak.py with few calls: their parts work, and their counts are right."""

import importlib
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytest.importorskip("aiohttp", reason="aiohttp is not installed")
pytestmark = pytest.mark.matrix  # a minute for what no user runs


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("HIGGS_COMMIT", "abc")
    yield importlib.import_module("serve")
    for name in ("serve", "common"):
        sys.modules.pop(name)


def run(serve, monkeypatch, capsys, out, *given):
    monkeypatch.setattr(sys, "argv", ["serve.py", *given, "--out", str(out)])
    serve.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == json.loads(out.read_text(encoding="utf-8"))
    return json.loads(out.read_text(encoding="utf-8"))


def test_a_load_is_counted_and_keeps_other_results(serve, monkeypatch, capsys, tmp_path):
    out = tmp_path / "serve.json"
    out.write_text('{"soak": {}}', encoding="utf-8")
    load = ["--load", "--device", "cpu", "--clients", "1,3", "--warm", "0.5", "--seconds", "5", "--frames", "4"]
    result = run(serve, monkeypatch, capsys, out, *load)
    assert [row["clients"] for row in result["rows"]] == [1, 3]
    for row in result["rows"]:
        assert row["errors"] == 0 and row["requests"] > 0 and row["audio_s_per_s"] > 0
        assert 0 < row["first_ms_p50"] <= row["first_ms_p99"]
    assert result["commit"] == "abc" and result["checkpoint"] == "embedded" and result["soak"] == {}


def test_arrivals_are_counted_in_two_versions(serve, monkeypatch, capsys, tmp_path):
    out = tmp_path / "serve.json"
    given = ["--open", "--device", "cpu", "--rates", "4", "--seconds", "2", "--frames", "4"]
    before = ["--before", str(ROOT), "--before-commit", "def"]
    old, new, early = run(serve, monkeypatch, capsys, out, *given, *before)["open_loop"]
    assert (old["which"], old["commit"], new["which"], new["commit"]) == ("old", "def", "new", "abc")
    assert [row["first"] for row in (old, new, early)] == ["exact", "exact", "early"] and early["commit"] == "abc"
    for row in (old, new, early):
        assert row["calls"] == old["calls"] > 2 and row["failed"] == 0
        assert 0 < row["first_ms_p50"] <= row["first_ms_p95"] <= row["first_ms_p99"]
        assert row["audio_s_per_s"] > 0 and (row["dry"] > 0) == (row["worst_dry_ms"] > 0)


def test_a_stream_runs_dry_when_its_next_sound_comes_late(serve, monkeypatch):
    callers, now = importlib.import_module("callers"), [0.0]
    monkeypatch.setattr(callers.time, "perf_counter", lambda: now[0])
    stream, answer = callers.Playback(), callers.Answer(0.0)
    for now[0], seconds in ((1.0, 0.04), (1.03, 0.08), (1.125, 0.1), (1.3, 0.1)):
        stream.hear(answer, int(seconds * 48_000))
    assert stream.first == 1000 and round(stream.dry) == 75


def test_a_soak_leaves_nothing_behind(tmp_path):
    out = tmp_path / "serve.json"
    out.write_text('{"rows": []}', encoding="utf-8")
    command = [sys.executable, ROOT / "tests" / "faults" / "soak.py", "--out", out]
    subprocess.run([*command, "--requests", "40", "--warm-calls", "10"], check=True)
    result = json.loads(out.read_text(encoding="utf-8"))
    soak = result["soak"]
    assert result["rows"] == []
    assert soak["spoken"] + soak["cancels"] + soak["bad"] == 40 and soak["cancels"] and soak["bad"]
    assert 0 < soak["batches"] < soak["spoken"] and soak["texts"] and sum(soak["interrupts"].values())
    assert [soak[name] for name in ("wrong", "hung", "leaked_rows", "leaked_threads", "leaked_files")] == [0] * 5


def test_answers_are_compared(serve, tmp_path):
    answers = tmp_path / "answers.json"
    counts = []
    with serve.served("--device", "cpu") as port:
        for change in (lambda length: [length, "another"], lambda length: [length + 2, "another"]):
            counts.append(serve.called(port, "compare", 2, 1, answers))
            wanted = json.loads(answers.read_text(encoding="utf-8"))
            answers.write_text(json.dumps([change(length) for length, _ in wanted]), encoding="utf-8")
        counts.append(serve.called(port, "compare", 2, 1, answers))
    for told, kind in zip(counts, ("right", "wrong", "silent_short"), strict=True):
        others = {name: told[name] for name in ("right", "wrong", "silent_short", "errors") if name != kind}
        assert told[kind] > 0 and not any(others.values())


def test_a_server_that_does_not_start_is_reported(serve, monkeypatch, capsys, tmp_path):
    with pytest.raises(SystemExit, match="the server has ended"):
        run(serve, monkeypatch, capsys, tmp_path / "none.json", "--load", "--model", str(tmp_path / "nowhere"))
    assert not (tmp_path / "none.json").exists()
