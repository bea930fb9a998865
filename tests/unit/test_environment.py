"""The pack's needs of its environment: when libraries are imported, and the effect of broken ones.

Each case runs the terminal or an import in a process of its own, in the environment the tests run in.
"""

import io
import pathlib
import re
import subprocess
import sys

import pytest
from higgs_tts.engine.tools.text_files import print_any_letter

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTIONAL = set("transformers torchaudio torchvision torchcodec soundfile triton librosa comfy aiohttp av ray".split())
SPEAK = """
import sys
from engine.__main__ import main
hello, voice, again = (f"{sys.argv[1]}/{name}" for name in ("hello.wav", "me.safetensors", "again.wav"))
say = ["say", "Hello there, how are you today?", "--greedy", "--max-frames", "60", "--out"]
assert main([*say, hello]) == 0
assert main(["voice", hello, "--out", voice]) == 0
assert main([*say, again, "--voice", hello]) == 0
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def python(*args):
    """Run Python in the repository's root. Returns (exit code, stdout, stderr)."""
    done = subprocess.run([sys.executable, *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


def imported_by(code, *args):
    status, printed, said = python("-c", code, *args)
    assert status == 0, said
    return set(printed.splitlines()[-1].split())


def test_importing_the_engine_imports_nothing_optional():
    names = imported_by("import sys, engine; print(*sorted({name.partition('.')[0] for name in sys.modules}))")
    assert "engine" in names and not names & OPTIONAL


def test_the_terminal_runs_as_a_folder_too(tmp_path):
    """The Python of Windows portable is isolated: it does not search the current folder."""
    status, _, said = python("-I", "-m", "engine", "--help")
    assert status and "No module named engine" in said
    folder = tmp_path / "here"
    status, _, said = python("-I", ROOT / "engine", "tiny", folder, "--family", "v3")
    assert status == 0 and (folder / "config.json").is_file(), said


def speak_and_make_a_voice(folder):
    """Return what a process imports to speak, to make a voice of that, and to speak with a clip."""
    names = imported_by(SPEAK, folder)
    assert (folder / "hello.wav").stat().st_size > 10_000
    assert (folder / "again.wav").stat().st_size > 10_000 and (folder / "me.safetensors").is_file()
    return names


def test_speech_and_voices_need_no_transformers_and_no_torchaudio(tmp_path):
    assert not speak_and_make_a_voice(tmp_path) & (OPTIONAL - {"soundfile"})


def test_opening_an_engine_does_not_import_torchs_compiler():
    """Arithmetic on the meta device would: seconds before a model is even priced, on every start."""
    code = "import sys; from engine import Engine, EngineConfig; engine = Engine(EngineConfig(model='engine/embedded'))"
    code += "; engine.planned_bytes; engine.open(); engine.close(); print('torch._dynamo' in sys.modules)"
    assert imported_by(code) == {"False"}


@pytest.fixture
def broken_torchaudio(tmp_path, monkeypatch):
    """A torchaudio 2.11 that raises at import, as beside a newer torch. It declares no torch of its own."""
    package, metadata = tmp_path / "torchaudio", tmp_path / "torchaudio-2.11.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('compiled with different CUDA versions')\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torchaudio\nVersion: 2.11.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("broken_torchaudio")
def test_a_broken_torchaudio_disables_only_transcripts(tmp_path):
    """Speech and voices work. Whisper works with transformers 4, and with 5 raises one sentence with the remedy."""
    speak_and_make_a_voice(tmp_path)
    code = "import transformers; print(transformers.__version__); from engine.core.optional import import_optional; "
    code += "import_optional('transformers', 'WhisperFeatureExtractor')"
    status, printed, said = python("-c", code)
    if printed.startswith("4."):
        assert status == 0, said
    else:
        assert re.search(r"HiggsError: A clip .* transcribed.* torchaudio 2\.11\.0 .*pip uninstall torchaudio", said)


def test_paths_print_with_letters_that_the_terminal_s_encoding_lacks(monkeypatch):
    """Windows writes redirected output in an old code page."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "cp1252"))
    print_any_letter()
    print("Grüße 第一章.wav", flush=True)
    assert sys.stdout.buffer.getvalue().split() == ["Grüße".encode("cp1252"), rb"\u7b2c\u4e00\u7ae0.wav"]
