"""The workflows fit the nodes' schemas: inputs, widgets, outputs and defaults."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
from higgs_tts.engine import CueParams, EngineConfig, SamplingParams
from higgs_tts.tests.templates import TITLES

ROOT = pathlib.Path(__file__).resolve().parents[3]
TODAY, SAVED = ROOT / "workflows", ROOT / "tests" / "golden" / "workflows_0.1.0"  # as users saved them with 0.1.0
BLUEPRINTS = sorted((ROOT / "subgraphs").glob("*.json"))
NAMES = [*TITLES]
API_ONLY = ["dub"]  # for programs: it needs a film
EVERY = [*NAMES, *API_ONLY]
SPEAKING = {f"HiggsTTS{name}" for name in ("Speak", "Dialogue", "Lines", "Subtitles", "Book")}
BYPASSED = 4  # LiteGraph's mode of a node that is switched off
GRAPHS = [(TODAY, name) for name in NAMES] + [(SAVED, path.stem) for path in sorted(SAVED.glob("*.json"))]
every_graph = pytest.mark.parametrize("folder, name", GRAPHS)
FINISH = ("loudness", "save_as", "filename_prefix")
SINCE = {  # widgets since 0.1.0
    "HiggsTTSLoadModel": ("memory",),
    "HiggsTTSSpeak": (
        "paragraph_gap",
        "pronunciations",
        "retries",
        "srt_words",
        "check",
        "retakes",
        *FINISH,
        "lower_bed",
    ),
    "HiggsTTSVoice": ("start", "length", "clip"),
}
PARAGRAPH_GAP = 0.6  # of a new node
WIDGETS = {"Combo", "Int", "Float", "String", "Boolean"}
# (inputs, widgets, outputs) of the nodes of ComfyUI that the workflows use.
CORE = {
    "LoadAudio": (["audio"], ["audio"], ["AUDIO"]),
    "PreviewAudio": (["audio"], [], []),
    "PreviewAny": (["source"], [], ["STRING"]),
}
DEPRECATED = {"SaveAudio": (["audio", "filename_prefix"], ["filename_prefix"], [])}  # since ComfyUI 0.25


def names_of(socket):
    """Return a socket's name, or all names that a growing one may have."""
    grown = getattr(socket, "template", None)
    return [f"{socket.args[0]}.{name}" for name in grown.names] if grown else [socket.args[0]]


@pytest.fixture
def sockets(schemas):
    """{node id: (inputs in order, widgets in order, output types)}; ComfyUI lists optional inputs last."""
    found = {**CORE, **DEPRECATED}
    for node_id, schema in schemas.items():
        inputs = sorted(schema.inputs, key=lambda socket: getattr(socket, "optional", False))
        names = [name for socket in inputs for name in names_of(socket)]
        own = [socket for socket in inputs if socket.kind in WIDGETS and not getattr(socket, "force_input", False)]
        widgets = [socket.args[0] for socket in own]
        found[node_id] = names, widgets, [output.kind for output in schema.outputs]
    return found


def graph(name, folder=TODAY):
    return json.loads((folder / f"{TITLES[name] if folder == TODAY else name}.json").read_text(encoding="utf-8"))


def api(name, folder=TODAY):
    return json.loads((folder / "api" / f"{name}.json").read_text(encoding="utf-8"))


def test_every_workflow_is_tested():
    assert sorted(path.stem for path in (TODAY / "api").glob("*.json")) == sorted(EVERY)
    assert sorted(path.stem for path in TODAY.glob("*.json")) == sorted(TITLES.values())
    assert sorted(path.stem for path in TODAY.glob("*.jpg")) == sorted(TITLES.values())


def test_voices_named_in_templates_exist():
    voices = {path.name for path in (ROOT / "engine" / "voice" / "built_in").glob("*.flac")}
    inputs = [node["inputs"] for name in EVERY for node in api(name).values() if "Load" in node["class_type"]]
    named = [given["voice"] for given in inputs if "voice" in given]
    assert len(named) == 8 and {name.removeprefix("built-in/") for name in named} <= voices
    assert all((ROOT / "engine" / "voice" / "built_in" / name).with_suffix(".txt").is_file() for name in voices)


@pytest.mark.parametrize("folder, name", [*GRAPHS, *((TODAY, name) for name in API_ONLY)])
def test_api_workflows_fit_the_schemas(folder, name, sockets):
    prompt = api(name, folder)
    for node in prompt.values():
        inputs, _, _ = sockets[node["class_type"]]
        assert set(node["inputs"]) <= set(inputs), node
        assert node["_meta"]["title"]
        for value in node["inputs"].values():
            if isinstance(value, list):
                source, slot = value
                assert slot < len(sockets[prompt[source]["class_type"]][2])


@every_graph
def test_graph_and_api_workflow_agree(folder, name, sockets):
    saved = graph(name, folder)
    links = {link[0]: link for link in saved["links"]}
    bypassed = {node["id"] for node in saved["nodes"] if node["mode"] == BYPASSED}
    made = {}
    for node in saved["nodes"]:
        if node["type"] == "MarkdownNote" or node["mode"] == BYPASSED:
            continue
        _, widgets, _ = sockets[node["type"]]
        values = [value for value in node["widgets_values"] if value not in ("fixed", None)]
        since = () if folder == TODAY else SINCE.get(node["type"], ())
        assert widgets[len(widgets) - len(since) :] == list(since)  # what comes last is what such a workflow may lack
        inputs = dict(zip(widgets[: len(widgets) - len(since)], values, strict=True))
        for slot, socket in enumerate(node["inputs"]):
            if socket["link"] is not None and links[socket["link"]][1] not in bypassed:
                _, source, out, target, into, kind = links[socket["link"]]
                assert (target, into) == (node["id"], slot) and kind in (socket["type"], "STRING")
                inputs[socket["name"]] = [str(source), out]
        made[str(node["id"])] = (node["type"], inputs)
    assert made == {key: (node["class_type"], node["inputs"]) for key, node in api(name, folder).items()}


@pytest.mark.parametrize("name", NAMES)
def test_links_agree_at_both_ends(name):
    saved = graph(name)
    nodes = {node["id"]: node for node in saved["nodes"]}
    for link, source, slot, target, into, kind in saved["links"]:
        assert link in nodes[source]["outputs"][slot]["links"] and nodes[source]["outputs"][slot]["type"] == kind
        assert nodes[target]["inputs"][into]["link"] == link
    assert saved["last_node_id"] == max(nodes) and saved["last_link_id"] == max(link[0] for link in saved["links"])


@pytest.mark.parametrize("name", EVERY)
def test_widget_values_are_the_engine_s_defaults(name):
    for node in api(name).values():
        for key, value in node["inputs"].items():
            if node["class_type"] in SPEAKING and hasattr(SamplingParams, key) and key != "seed":
                assert value == (PARAGRAPH_GAP if key == "paragraph_gap" else getattr(SamplingParams, key)), key
            if node["class_type"] == "HiggsTTSSubtitles" and hasattr(CueParams, key):
                assert value == getattr(CueParams, key), key
            if key == "model" and node["class_type"] == "HiggsTTSLoadModel":
                assert value == "auto"
            elif node["class_type"] == "HiggsTTSLoadModel":
                assert value == getattr(EngineConfig, "runner" if key == "graphs" else key), key


@pytest.mark.parametrize("name", EVERY)
def test_workflows_use_no_deprecated_nodes(name):
    kinds = {node["class_type"] for node in api(name).values()}
    assert {kind for kind in kinds if not kind.startswith("HiggsTTS")} <= CORE.keys()


@pytest.mark.parametrize("name", NAMES)
def test_nodes_do_not_overlap_and_the_note_links_existing_help(name):
    saved = graph(name)
    nodes, groups = saved["nodes"], saved["groups"]
    boxes = [(*node["pos"], *map(sum, zip(node["pos"], node["size"], strict=True))) for node in nodes]
    for place, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[:place]:
            beside = right + 30 <= other[0] or other[2] + 30 <= left
            assert beside or bottom + 40 <= other[1] or other[3] + 40 <= top, (nodes[place]["type"], other)
    width = max(box[2] for box in boxes) - min(box[0] for box in boxes)
    assert width <= 1800, "it is shown as small as fits a page"
    (note,) = [node["widgets_values"][0] for node in nodes if node["type"] == "MarkdownNote"]
    assert note.startswith("# ") and "question mark" not in note and "?" not in note
    assert "`" not in note, "code has its theme's own colour on the note's"
    assert not groups, "the page translates no titles of groups"


@pytest.mark.parametrize("name", NAMES)
def test_wires_lead_to_the_right(name):
    saved = graph(name)
    nodes = {node["id"]: node for node in saved["nodes"]}
    for _, source, _, target, *_ in saved["links"]:
        assert nodes[source]["pos"][0] + nodes[source]["size"][0] < nodes[target]["pos"][0], nodes[target]["type"]


@pytest.mark.parametrize("path", BLUEPRINTS, ids=[path.stem for path in BLUEPRINTS])
def test_wires_of_a_blueprint_lead_to_the_right(path):
    (inner,) = json.loads(path.read_text(encoding="utf-8"))["definitions"]["subgraphs"]
    nodes = {node["id"]: node for node in inner["nodes"]}
    for link in inner["links"]:
        if source := nodes.get(link["origin_id"]):
            target = nodes.get(link["target_id"])
            left = target["pos"][0] if target else inner["outputNode"]["bounding"][0]
            assert source["pos"][0] + source["size"][0] < left


def test_templates_accept_a_user_s_own_clip_by_upload():
    """Higgs Voice alone takes it."""
    prompt = api("clone_voice")
    kinds = {node["class_type"]: number for number, node in prompt.items()}
    voice = prompt[kinds["HiggsTTSVoice"]]["inputs"]
    assert "LoadAudio" not in kinds and "audio" not in voice
    assert (voice["clip"], voice["transcript"]) == ("the audio input", "")
    assert prompt[kinds["HiggsTTSSpeak"]]["inputs"]["voice"] == [kinds["HiggsTTSVoice"], 0]


@pytest.mark.parametrize("name", EVERY)
def test_workflows_hold_no_machine_s_paths(name):
    text = json.dumps([api(name), graph(name) if name in NAMES else {}])
    assert "\\\\" not in text and "/home" not in text and ":/" not in text


@pytest.mark.parametrize("path", BLUEPRINTS, ids=[path.stem for path in BLUEPRINTS])
def test_blueprints_fit_the_schemas(path, sockets):
    saved = json.loads(path.read_text(encoding="utf-8"))
    (outer,), (inner,) = saved["nodes"], saved["definitions"]["subgraphs"]
    assert outer["type"] == inner["id"] and outer["title"] == inner["name"] == path.stem
    assert saved["extra"]["BlueprintDescription"] and saved["links"] == []
    for side in ("inputs", "outputs"):
        assert [socket["name"] for socket in outer[side]] == [socket["name"] for socket in inner[side]]
    widgets = [socket["name"] for socket in outer["inputs"] if "widget" in socket]
    assert [name for _, name in outer["properties"]["proxyWidgets"]] == widgets
    assert len(outer["widgets_values"]) == len(widgets)
    nodes = {node["id"]: node for node in inner["nodes"]}
    for node in nodes.values():
        names, _, kinds = sockets[node["type"]]
        held = {socket["name"] for socket in node["inputs"]}
        # ComfyUI 0.18 adds what is missing to the blueprint itself, and then cannot insert it a second time.
        assert held <= {*names} and {name for name in names if "." not in name} <= held
        growing = {name.partition(".")[0] for name in names if "." in name}
        free = {socket["name"].partition(".")[0] for socket in node["inputs"] if not socket.get("link")}
        assert growing <= free, "one socket of each kind stays free"
        assert [socket["type"] for socket in node["outputs"]] == [*map(str.upper, kinds)]
    ends = {-10: {"outputs": inner["inputs"]}, -20: {"inputs": inner["outputs"]}, **nodes}
    for link in inner["links"]:
        source = ends[link["origin_id"]]["outputs"][link["origin_slot"]]
        target = ends[link["target_id"]]["inputs"][link["target_slot"]]
        assert source["type"] == target["type"] == link["type"]
        assert link["id"] in (source.get("links") or source.get("linkIds"))
        assert link["id"] in (target.get("linkIds") or [target.get("link")])


def test_voices_named_in_blueprints_exist():
    named = [name for path in BLUEPRINTS for name in re.findall(r'"built-in/(.+?)"', path.read_text(encoding="utf-8"))]
    assert named and all((ROOT / "engine" / "voice" / "built_in" / name).is_file() for name in named)
