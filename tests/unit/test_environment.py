"""What the pack needs of its environment: which libraries are imported when, and what one that is broken costs.

Each case runs the terminal or an import in a process of its own, in the environment the tests run in.
"""

import io
import pathlib
import subprocess
import sys

import pytest
from higgs_tts.engine import optional
from higgs_tts.engine.tools.text_files import print_any_letter

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTIONAL = set("transformers torchaudio torchvision torchcodec soundfile triton librosa comfy aiohttp av ray".split())
SPEAK = """
import sys
from engine.__main__ import main
assert main(["say", "Hello there, how are you today?", "--out", sys.argv[1], "--greedy", "--max-frames", "60"]) == 0
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def python(*args):
    """(exit code, what was printed, what was said on stderr) of a Python in the repository's root."""
    done = subprocess.run([sys.executable, *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


def imported_by(code, *args):
    status, printed, said = python("-c", code, *args)
    assert status == 0, said
    return set(printed.splitlines()[-1].split())


def test_importing_the_engine_brings_in_nothing_optional():
    names = imported_by("import sys, engine; print(*sorted({name.partition('.')[0] for name in sys.modules}))")
    assert "engine" in names and not names & OPTIONAL


def test_the_terminal_runs_as_a_folder_too(tmp_path):
    """As with the Python of Windows portable, which is isolated: the current folder is not looked into."""
    status, _, said = python("-I", "-m", "engine", "--help")
    assert status and "No module named engine" in said
    folder = tmp_path / "here"
    status, _, said = python("-I", ROOT / "engine", "tiny", folder, "--family", "v3")
    assert status == 0 and (folder / "config.json").is_file(), said


def test_speaking_needs_no_transformers_and_no_torchaudio(tmp_path):
    names = imported_by(SPEAK, tmp_path / "hello.wav")
    assert not names & (OPTIONAL - {"soundfile"})
    assert (tmp_path / "hello.wav").stat().st_size > 10_000


def test_opening_an_engine_does_not_import_torchs_compiler():
    """Arithmetic on the meta device would: seconds before a model is even priced, on every start."""
    code = "import sys; from engine import Engine, EngineConfig; engine = Engine(EngineConfig(model='engine/embedded'))"
    code += "; engine.planned_bytes; engine.open(); engine.close(); print('torch._dynamo' in sys.modules)"
    assert imported_by(code) == {"False"}


def test_a_torchaudio_that_does_not_fit_costs_voices_from_clips_alone(tmp_path):
    """Whatever torchaudio is here: speech works, and a voice is made or the reason is told in one sentence."""
    imported_by(SPEAK, tmp_path / "clip.wav")
    status, _, said = python("-m", "engine", "voice", tmp_path / "clip.wav", "--out", tmp_path / "v.safetensors")
    misfit = optional.torchaudio_misfit()
    if misfit:
        sentence = said.strip().splitlines()[-1]
        assert status == 2 and "uninstall torchaudio" in sentence and misfit in sentence
    else:
        assert status == 0, said
        assert (tmp_path / "v.safetensors").is_file()


@pytest.fixture
def broken_torchaudio(tmp_path, monkeypatch):
    """A torchaudio 2.11 that raises at import, as it does beside a newer torch."""
    package, metadata = tmp_path / "torchaudio", tmp_path / "torchaudio-2.11.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('compiled with different CUDA versions')\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torchaudio\nVersion: 2.11.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("broken_torchaudio")
def test_a_broken_torchaudio_is_told_with_its_remedy(tmp_path):
    code = "from engine.optional import torchaudio_misfit; print(torchaudio_misfit())"
    status, printed, said = python("-c", code)
    assert status == 0, said
    assert "torchaudio 2.11.0" in printed and "pip uninstall torchaudio" in printed
    imported_by(SPEAK, tmp_path / "hello.wav")


def test_a_path_is_printed_with_letters_that_a_redirected_terminal_lacks(monkeypatch):
    """Windows writes what is redirected in an old code page."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "cp1252"))
    print_any_letter()
    print("Grüße 第一章.wav", flush=True)
    assert sys.stdout.buffer.getvalue().split() == ["Grüße".encode("cp1252"), rb"\u7b2c\u4e00\u7ae0.wav"]
