"""A missing or broken library gives an error of one sentence."""

import builtins
import importlib
import sys

import pytest
from higgs_tts.engine.core import optional
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.engine.core.optional import import_optional


def test_an_optional_class_is_imported():
    assert import_optional("collections", "Counter").__name__ == "Counter"


@pytest.mark.parametrize(
    "module, name", [("no_such_library.parts", "Thing"), ("collections", "NoSuchThing")], ids=["library", "name"]
)
def test_a_missing_module_or_name_is_reported(module, name):
    with pytest.raises(HiggsError, match=f"^{name} of {module.partition('.')[0]} .*[^.]\\. Install"):
        import_optional(module, name)


def test_an_error_without_a_message_is_named_by_its_type(monkeypatch):
    def silent(name):
        raise ImportError

    monkeypatch.setattr(importlib, "import_module", silent)
    monkeypatch.setattr(optional, "installed_version", lambda name: "")  # no torchaudio to blame
    with pytest.raises(HiggsError, match=r"^X of transformers cannot be used: ImportError\. Install transformers 4"):
        import_optional("transformers", "X")


def test_a_torchaudio_that_cannot_be_imported_is_blamed_for_transformers(monkeypatch):
    def broken(name):
        raise RuntimeError("compiled with different CUDA versions.")

    monkeypatch.setattr(importlib, "import_module", broken)
    monkeypatch.setattr(optional, "installed_version", {"torchaudio": "2.11.0", "torch": "2.15.0"}.get)
    with pytest.raises(HiggsError, match=r"torchaudio 2\.11\.0.*torch 2\.15\.0.*pip uninstall torchaudio"):
        import_optional("transformers", "WhisperFeatureExtractor")
    with pytest.raises(HiggsError, match=r"^read of soundfile cannot be used: .*different CUDA"):
        import_optional("soundfile", "read")


def test_the_deepest_cause_is_reported(monkeypatch):
    """transformers raises so over a torchaudio of another CUDA version."""
    real = builtins.__import__

    def broken(name, *args, **kwargs):
        if name == "fractions":
            try:
                raise RuntimeError("compiled with different CUDA versions.")
            except RuntimeError as error:
                raise ModuleNotFoundError("Could not import module") from error
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "statistics", raising=False)
    monkeypatch.delitem(sys.modules, "fractions", raising=False)
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(HiggsError, match="different CUDA versions"):
        import_optional("statistics", "mean")
