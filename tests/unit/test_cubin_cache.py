"""Compiled kernels on disk: keyed by exactly what they were compiled from; failures are harmless."""

import errno
import importlib.util
import os
import pathlib
import sys

import pytest
import torch
from higgs_tts.engine.cuda import cubin_cache, nvrtc

SOURCE = 'extern "C" __global__ void nothing() {}'


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(cubin_cache, "folder", lambda: tmp_path / "cubins")
    return tmp_path / "cubins"


@pytest.fixture
def process(compiler, place, monkeypatch):
    """process() -> (compile, compiled), as in a new process: `compiled` lists what it had to compile."""
    save, compiled = cubin_cache.save, []
    monkeypatch.setattr(cubin_cache, "save", lambda key, cubin: compiled.append(key) or save(key, cubin))

    def start():
        nvrtc.compile_cubin.cache_clear()
        compiled.clear()
        return nvrtc.compile_cubin, compiled

    yield start
    nvrtc.compile_cubin.cache_clear()


def test_a_second_process_compiles_nothing(process):
    build, compiled = process()
    cubin = build(SOURCE, "80", ("-DA=1",))
    assert len(compiled) == 1 and cubin
    build, compiled = process()
    assert build(SOURCE, "80", ("-DA=1",)) == cubin and not compiled


def test_source_card_options_and_compiler_decide_the_entry(process, monkeypatch, place):
    build, compiled = process()
    build(SOURCE, "80", ("-DA=1",))
    build(SOURCE + " ", "80", ("-DA=1",))
    build(SOURCE, "90", ("-DA=1",))
    build(SOURCE, "80", ("-DA=2",))
    monkeypatch.setattr(torch, "__version__", "1.0")  # and with it the compiler that it brings
    nvrtc.compile_cubin.cache_clear()
    build(SOURCE, "80", ("-DA=1",))
    assert len(compiled) == 5 == len(list(place.iterdir()))


@pytest.mark.parametrize("damage", [b"", b"short", None], ids=["empty", "short", "one bit"])
def test_a_damaged_entry_is_recompiled(process, place, damage):
    build, _ = process()
    cubin = build(SOURCE, "80", ())
    (entry,) = place.iterdir()
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(data if damage is None else damage)
    build, compiled = process()
    assert build(SOURCE, "80", ()) == cubin and len(compiled) == 1
    build, compiled = process()
    assert build(SOURCE, "80", ()) == cubin and not compiled


def test_an_unwritable_folder_does_not_prevent_compiling(process, place, caplog):
    caplog.set_level("DEBUG", "higgs_tts")
    place.write_text("a file in its place", encoding="utf-8")
    build, compiled = process()
    assert build(SOURCE, "80", ()) and len(compiled) == 1
    assert str(place) in caplog.text


def test_a_missing_home_folder_does_not_prevent_compiling(monkeypatch):
    monkeypatch.setattr(cubin_cache, "folder", lambda: None)
    cubin_cache.save("key", b"cubin")
    assert cubin_cache.load("key") is None


def test_a_folder_that_takes_no_files_is_tried_once(place, monkeypatch, caplog):
    """Python's own names of temporary files are tried two billion times there on Windows."""
    tried = []

    def refuse(path, data):
        tried.append(path)
        raise PermissionError(errno.EACCES, "Access is denied")

    monkeypatch.setattr(pathlib.Path, "write_bytes", refuse)
    caplog.set_level("DEBUG", "higgs_tts")
    cubin_cache.save("key", b"cubin")
    assert len(tried) == 1 and "Access is denied" in caplog.text


def test_the_newest_entries_are_kept(place, monkeypatch):
    monkeypatch.setattr(cubin_cache, "MOST", 50)
    saved = [f"key{number}" for number in range(cubin_cache.MOST)] + ["last"]
    for number, key in enumerate(saved):
        cubin_cache.save(key, b"cubin")
        if key != "last":
            os.utime(place / f"{key}.cubin", (number, number))
    kept = {path.stem for path in place.iterdir()}
    assert kept == set(saved[1:])


def test_the_user_s_cache_folder_is_used(monkeypatch, tmp_path):
    name = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    monkeypatch.setenv(name, str(tmp_path))
    plain = importlib.util.module_from_spec(cubin_cache.__spec__)  # the tests' own has another folder
    cubin_cache.__spec__.loader.exec_module(plain)
    assert plain.folder() == tmp_path / "higgs_tts" / "cubins"
