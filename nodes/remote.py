"""HiggsTTSServer: turns server addresses into a HIGGS_TTS_MODEL. Loads nothing."""

from __future__ import annotations

from comfy_api.latest import io

from ..engine import KEY_VARIABLE, RemoteEngine, ServerConfig
from .comfy import types, widgets
from .comfy.allowed import check_keys
from .comfy.node_errors import check_interrupt, node_errors, refusal
from .comfy.remote_model import ServerModel

NAME = "Higgs TTS Server"
ADDRESS = "127.0.0.1:8000"


class HiggsTTSServer(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSServer",
            display_name=NAME,
            category=types.CATEGORY,
            description="Speaks on servers instead of this machine: this pack's own (python -m engine serve), "
            "SGLang-Omni, vLLM-Omni or Boson's hosted API. With several servers, each takes the next chunk as it "
            "becomes free.",
            search_aliases=["remote", "api", "sglang", "vllm", "openai", "boson", "cluster", "higgs audio", "tts"],
            inputs=[
                io.String.Input(
                    "addresses",
                    multiline=True,
                    default=ADDRESS,
                    tooltip="Server addresses, one per line: 127.0.0.1:8000, http://gpu-box:8000 or "
                    "https://api.boson.ai. Your texts and voice clips are sent to them.",
                ),
                io.String.Input(
                    "model",
                    default=ServerConfig.model,
                    optional=True,
                    tooltip="The model's name on the servers. Leave empty to use each server's first model.",
                ),
                io.String.Input(
                    "voice",
                    default=ServerConfig.voice,
                    optional=True,
                    tooltip="The name of a voice on the servers, for speakers without a connected voice. If empty, "
                    "the rest of a text follows the voice of its first chunk.",
                ),
                *_advanced_inputs(),
            ],
            outputs=[
                types.Model.Output(display_name="model", tooltip="For Higgs Voice and the nodes that speak."),
                io.String.Output(display_name="info", tooltip="The servers found, and what they cannot do."),
            ],
        )

    @classmethod
    def validate_inputs(cls, addresses: str | None) -> bool | str:
        """True if the addresses are valid, else the error. A linked input (None) is checked when the node runs.

        So is the key's variable: ComfyUI repeats an error for each input named here.
        """
        if addresses is None:
            return True
        return refusal(NAME, lambda: RemoteEngine(ServerConfig(addresses, key_variable=KEY_VARIABLE)))

    @classmethod
    def execute(
        cls,
        addresses: str,
        model: str = ServerConfig.model,
        voice: str = ServerConfig.voice,
        key_variable: str = ServerConfig.key_variable,
        calls: int = ServerConfig.calls,
        timeout: float = ServerConfig.timeout,
    ) -> io.NodeOutput:
        with node_errors(NAME):
            names = model.strip(), voice.strip(), key_variable.strip()
            check_keys(addresses, key_variable.strip())
            engine = RemoteEngine(ServerConfig(addresses, *names, calls, timeout))
            connected = engine.connect(check_interrupt)
        servers = [f"{server.label}: {server.model or 'no model named'}" for server in connected.servers]
        report = "\n".join([*servers, *(f"Warning: {warning}" for warning in connected.warnings)])
        return io.NodeOutput(ServerModel(engine), report)


def _advanced_inputs() -> list[io.Input]:
    return [
        io.String.Input(
            "key_variable",
            default=ServerConfig.key_variable,
            optional=True,
            advanced=True,
            tooltip="Set this if your servers need a key: the name of the environment variable that holds it, "
            "starting with HIGGS_TTS_. Never enter the key itself, since workflows get shared. If one server has a "
            "different key, put its variable after that server's address. Keys go only to servers listed in "
            "user/higgs_tts/servers.txt.",
        ),
        widgets.number(
            ServerConfig,
            "calls",
            advanced=True,
            tooltip="Chunks sent to each server at a time. Lower this if a server is overloaded; more at once is "
            "usually faster.",
        ),
        widgets.number(
            ServerConfig,
            "timeout",
            advanced=True,
            tooltip="Seconds to wait for an answer before giving up on a server. Raise this if the first call after a "
            "server starts takes minutes.",
        ),
    ]
