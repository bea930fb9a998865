"""Windows' behaviour with files and pipes, simulated on any system."""

import errno
import io
import os
import types

import pytest
import torch
from higgs_tts.engine import HiggsError
from higgs_tts.engine.files import file_list, whole_file
from higgs_tts.engine.files.tensors import read_tensors
from higgs_tts.engine.tools import arriving
from safetensors.torch import save

WINDOWS = types.SimpleNamespace(platform="win32")


@pytest.fixture
def replaces(monkeypatch):
    """replaces(times): `os.replace` is refused so many times, as while another program has the file open."""
    real = os.replace

    def begin(times):
        left = [None] * times

        def replace(source, target):
            if left:
                left.pop()
                raise PermissionError(errno.EACCES, "Access is denied", str(target))
            real(source, target)

        monkeypatch.setattr(whole_file.os, "replace", replace)
        monkeypatch.setattr(whole_file.time, "sleep", lambda seconds: None)

    return begin


def test_a_file_that_another_program_holds_for_a_moment_is_replaced_on_windows(tmp_path, monkeypatch, replaces):
    monkeypatch.setattr(whole_file, "sys", WINDOWS)
    replaces(3)
    whole_file.write_whole(tmp_path / "a", b"1")
    assert (tmp_path / "a").read_bytes() == b"1"
    replaces(9)
    with pytest.raises(PermissionError):
        whole_file.write_whole(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"1" and len([*tmp_path.iterdir()]) == 1


def test_elsewhere_a_refusal_is_final(tmp_path, monkeypatch, replaces):
    monkeypatch.setattr(whole_file, "sys", types.SimpleNamespace(platform="linux"))
    replaces(1)
    with pytest.raises(PermissionError):
        whole_file.write_whole(tmp_path / "a", b"1")


@pytest.mark.parametrize(("length", "told"), [(100, "Choose a folder you can write to"), (300, "Windows takes 259")])
def test_a_path_that_is_too_long_for_windows_says_so(tmp_path, monkeypatch, length, told):
    monkeypatch.setattr(file_list, "sys", WINDOWS)
    path = tmp_path.joinpath(*["x" * 50] * (length // 50), "a.flac")
    with pytest.raises(HiggsError, match=told), file_list.write_errors(path):
        raise FileNotFoundError(errno.ENOENT, "The system cannot find the path specified", str(path))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EINVAL])  # Windows has the second for a closed pipe
def test_a_closed_pipe_ends_the_sound_with_a_sentence(monkeypatch, number):
    class Closed(io.BytesIO):
        def flush(self):
            raise OSError(number, "closed")

    read, write = os.pipe()
    stdout = types.SimpleNamespace(buffer=Closed(), fileno=lambda: write)
    monkeypatch.setattr(arriving.sys, "stdout", stdout)
    with pytest.raises(HiggsError, match="reads the sound has ended"):
        arriving.to_stdout(torch.zeros(9))
    os.close(read)
    os.close(write)


def test_another_error_of_stdout_is_not_taken_for_a_closed_pipe(monkeypatch):
    class Full(io.BytesIO):
        def flush(self):
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(arriving.sys, "stdout", types.SimpleNamespace(buffer=Full()))
    with pytest.raises(OSError, match="full"):
        arriving.to_stdout(torch.zeros(9))


def test_tensors_that_were_read_keep_no_file_mapped_which_windows_could_not_replace(tmp_path):
    path = tmp_path / "kept.safetensors"
    ones = {"a": torch.ones(9, 9), "b": torch.ones(0)}
    path.write_bytes(save(ones, {"told": "é"}))
    tensors, metadata = read_tensors(path)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert metadata == {"told": "é"} and all(torch.equal(tensors[name], one) for name, one in ones.items())
    whole_file.write_whole(path, b"")
    assert path.read_bytes() == b""
