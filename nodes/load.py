"""HiggsTTSLoadModel: turns a checkpoint folder into a HIGGS_TTS_MODEL. Allocates no device memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import comfy.utils
from comfy_api.latest import io

from ..engine import (
    DEFAULT_GRAPHS,
    DTYPES,
    GRAPHS,
    Engine,
    EngineConfig,
    HiggsError,
    download_checkpoint,
    find_whispers,
    whisper_size,
)
from .comfy import folders, progress_text, types, widgets
from .comfy.devices import device_names, resolve_devices, resolve_runner
from .comfy.node_errors import check_interrupt, is_interrupted, node_errors, refusal
from .comfy.sharing import share_patchers
from .library.checkpoint_folders import AUTO, DOWNLOAD, choices, download_root, find_checkpoint, fingerprint

NAME = "Higgs Load Model"
LICENCE = (
    "Licence: the weights of Higgs TTS 3 are for research and non-commercial use. Their licence lets creators use "
    "what they generate, within limits. Read the LICENSE file next to the weights before you publish."
)
BAR_STEPS = 1000  # of a download's progress bar


class HiggsTTSLoadModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSLoadModel",
            display_name=NAME,
            category=types.CATEGORY,
            description="Chooses a Higgs Audio v2 or Higgs TTS 3 checkpoint. The model loads when it first speaks. "
            + LICENCE,
            search_aliases=["higgs audio", "tts", "text to speech", "boson", "load higgs"],
            inputs=[
                io.Combo.Input(
                    "model",
                    options=choices(),
                    default=AUTO,
                    tooltip="The model to use, from models/higgs_tts or the other folders listed in the help (i). "
                    "auto picks Higgs TTS 3 if you have it, then Higgs Audio v2, then the small embedded model. A "
                    f"'{DOWNLOAD}' entry is downloaded to models/higgs_tts when you run the workflow. {LICENCE}",
                ),
                *_advanced_inputs(),
            ],
            outputs=[
                types.Model.Output(
                    display_name="model", tooltip="For Higgs Voice, Higgs Speak and the other nodes that speak."
                )
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, model: str | None) -> bool | str:
        """Make ComfyUI accept names saved on another machine. A linked name (None) is checked when the node runs."""
        if model is None:
            return True
        if not isinstance(model, str):
            return f"{NAME}: model is {str(model)[:80]!r}. Choose a name from the list."
        if model.startswith(DOWNLOAD):
            return True if model in choices() else f"{NAME}: {model[:80]!r} is no longer offered. Choose another entry."
        return refusal(NAME, lambda: find_checkpoint(model))

    @classmethod
    def fingerprint_inputs(cls, model: str | None, **settings: object) -> list:
        """Return the name, the Whisper, and the files' stamps. A download is pinned, so its name is enough."""
        if model is None or model.startswith(DOWNLOAD):  # a linked name is None
            return [model, _smallest_whisper()]
        match = find_checkpoint(model)
        return [match.name, _smallest_whisper(), *fingerprint(match.path)]

    @classmethod
    def execute(
        cls, model: str, device: str = EngineConfig.device, graphs: str = DEFAULT_GRAPHS, **settings: str | int
    ) -> io.NodeOutput:
        with node_errors(NAME):
            folder, name = _resolve_model(str(model), cls.hidden.unique_id)
            files = fingerprint(folder)  # before reading, so a later change is noticed
            devices, warning = resolve_devices(device)
            config = EngineConfig(model=str(folder), runner=resolve_runner(graphs), whisper=_smallest_whisper())
            engines = [Engine(replace(config, device=device, **settings)) for device in devices]
            files += fingerprint(engines[0].checkpoint.codec_folder)
            warnings = " ".join(filter(None, [warning, _slow(engines[0])]))
        return io.NodeOutput(share_patchers(engines, files, name, warnings))


def _slow(engine: Engine) -> str:
    """Return a warning if the weights' format costs speed on the device."""
    if engine.device.type != "cpu" or engine.config.dtype != "int4":
        return ""
    return "int4 saves memory, but on a CPU it is slower than fp32 and int8. Choose one of these for speed."


def _smallest_whisper() -> str | None:
    """Return the folder of the Whisper that costs least, for word times."""
    whispers = find_whispers(folders.registered(folders.WHISPER)).values()
    return str(min(whispers, key=whisper_size)) if whispers else None


def _resolve_model(model: str, node_id: str) -> tuple[Path, str]:
    """Return a choice's folder, downloading it if needed, and the checkpoint's label."""
    if model.startswith(DOWNLOAD):
        folder = download(model, node_id)
        return folder, folder.name
    match = find_checkpoint(model)
    return match.path, match.name


def download(choice: str, node_id: str) -> Path:
    """Return a download entry's folder, downloading it if needed. Raises HiggsError, or ComfyUI's interrupt."""
    label = choice.removeprefix(DOWNLOAD)
    return show_download(lambda on_progress: download_checkpoint(label, download_root(), on_progress), node_id)


def show_download(fetch: Callable[[Callable[[float, str], None]], Path], node_id: str) -> Path:
    """Return `fetch(on_progress)`, showing the node's progress bar and "x of y GB" below it.

    Raises HiggsError, or ComfyUI's interrupt.
    """
    bar = comfy.utils.ProgressBar(BAR_STEPS, node_id=node_id)  # downloading threads have no current node
    below = progress_text.NodeText(node_id)

    def on_progress(fraction: float, text: str) -> None:
        if is_interrupted():  # leaves the request set, so it ends every thread
            raise InterruptedError("stopped by the user")
        bar.update_absolute(round(fraction * BAR_STEPS))
        below.show(text)

    try:
        folder = fetch(on_progress)
    except HiggsError:
        check_interrupt()
        raise
    below.end("downloaded")
    return folder


def _advanced_inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "device",
            options=device_names(),
            default=EngineConfig.device,
            optional=True,
            advanced=True,
            tooltip="The device that runs the model. Change this if you have several GPUs. auto uses the same device "
            "as ComfyUI; all GPUs splits long texts and scripts across them. On Windows, ComfyUI sees only one GPU "
            "unless you start it with --cuda-device all.",
        ),
        io.Combo.Input(
            "dtype",
            options=list(DTYPES),
            default=EngineConfig.dtype,
            optional=True,
            advanced=True,
            tooltip="Precision of the weights. Choose int8 or int4 if you run out of memory: Higgs TTS 3 needs a "
            "12 GB GPU in bf16, 8 GB in int8 and 6 GB in int4. auto uses bf16, or int8 if the GPU is too small for "
            "bf16, or fp32 on a CPU. The sound of int8 and int4 with Higgs's own weights has not been judged yet.",
        ),
        widgets.number(
            EngineConfig,
            "context",
            advanced=True,
            tooltip="Room for text, reference clip and speech together, in tokens (25 per second of audio). Lower it "
            "to save memory; raise it if speech stops at the end of the context.",
        ),
        io.Combo.Input(
            "graphs",
            options=list(GRAPHS),
            default=DEFAULT_GRAPHS,
            optional=True,
            advanced=True,
            tooltip="Speeds up speech on NVIDIA GPUs without changing how it sounds. Choose off if your driver has "
            "trouble with CUDA graphs.",
        ),
        widgets.number(
            EngineConfig,
            "memory",
            advanced=True,
            tooltip="Most GPU memory to use, in GB. Set a limit to leave room for other models. Long texts then "
            "take longer. 0 uses all free memory.",
        ),
    ]
