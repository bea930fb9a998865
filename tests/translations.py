"""The English that locales/ translates, and a filler for new translations.

    python tests/translations.py                   # the English without a translation, by language
    python tests/translations.py de < german.json  # adds {"English": "German", ...} to locales/de

Both drop what has no English any more, or another than when it was translated. The filler writes the files in the
code's order, and uses a translation wherever the same English stands.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import itertools
import json
import re
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCALES = ROOT / "locales"
LANGUAGES = ("zh", "zh-TW", "ja", "ko", "fr", "de", "es", "pt-BR", "ru")
DIGESTS = ROOT / "tests" / "unit" / "data" / "translated.json"  # of the English at the time of its translation
FILES = ("nodeDefs", "main", "settings")
Keys = tuple[str, ...]  # file, then the way in it


def english(schemas: Mapping) -> dict[Keys, str]:
    """Return all English by its place. schemas: node id -> schema. Sentences of the server are those in locales/."""
    found: dict[Keys, str] = {}
    for node, schema in schemas.items():
        at = ("nodeDefs", node)
        found |= {(*at, "display_name"): schema.display_name, (*at, "description"): schema.description}
        named = [("inputs", socket.args[0], socket) for socket in schema.inputs]
        named += [("outputs", str(number), socket) for number, socket in enumerate(schema.outputs)]
        for kind, key, socket in named:
            name = socket.args[0] if kind == "inputs" else socket.display_name
            found |= {(*at, kind, key, "name"): name, (*at, kind, key, "tooltip"): socket.tooltip}
    found |= {("main", "higgsTTS", "page", sentence): sentence for sentence in page_sentences()}
    found |= {(*TEMPLATES, text): text for text in template_texts()}
    server = {keys for language in LANGUAGES for keys in translations(language) if keys[:3] in (SERVER, MESSAGES)}
    found |= {keys: keys[-1] for keys in sorted(server)}
    return found | _settings()


SERVER = ("main", "higgsTTS", "server")
MESSAGES = ("main", "higgsTTS", "messages")  # errors and reports, of which the page translates each line
TEMPLATES = ("main", "higgsTTS", "templates")  # what workflows and blueprints say, a line of a note each
_NOT_IN_COMFYUI = ("tools", "serve", "terminal.py")
VALUE = "\u2039value\u203a"  # in place of a value
_OF_SERVERS = ("Broken", "Busy", "Failing", "Lost", "Refusal", "TimedOut")  # errors that continue a server's name


def page_sentences() -> list[str]:
    """Return the sentences that the page's scripts say. Raises ValueError if one is not a literal."""
    found: dict[str, None] = {}
    for path in sorted((ROOT / "web" / "js").glob("*.js")):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"(?<!function )\bsay\(", text):
            argument = _first_argument(text[match.end() :])
            literals = [json.loads(literal) for literal in re.findall(r'"(?:[^"\\]|\\.)*"', argument)]
            if not literals:
                raise ValueError(f"{path.name} says {argument!r}, which is not a literal. Use translated() for it.")
            found |= dict.fromkeys(literals)
    return list(found)


def template_texts() -> list[str]:
    """Return the names of templates and blueprints, the titles and labels in them, and the lines of their notes."""
    found: dict[str, None] = {}
    for path in sorted((*(ROOT / "workflows").glob("*.json"), *(ROOT / "subgraphs").glob("*.json"))):
        found[path.stem] = None
        saved = json.loads(path.read_text(encoding="utf-8"))
        graphs = [saved, *saved.get("definitions", {}).get("subgraphs", ())]
        for node in (node for graph in graphs for node in graph["nodes"]):
            texts = [node.get("title", ""), *(socket.get("label", "") for socket in node["inputs"])]
            lines = node["widgets_values"][0].split("\n") if node["type"] == "MarkdownNote" else []
            found |= dict.fromkeys([text for text in texts if " " in text] + [line for line in lines if line])
    return list(found)


def sources() -> list[Path]:
    """Return the files whose errors and reports users of the nodes see."""
    paths = [*(ROOT / "nodes").rglob("*.py"), *(ROOT / "engine").rglob("*.py")]
    return sorted(path for path in paths if path.relative_to(ROOT).parts[1] not in _NOT_IN_COMFYUI)


def error_texts() -> set[str]:
    """Return the sentences of errors, as far as the code writes them where it raises them, with a word for values."""
    calls = (call for path in sources() for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    found = [call for call in calls if isinstance(call, ast.Call) and call.args and isinstance(call.func, ast.Name)]
    begins = {"HiggsError": "", **dict.fromkeys(_OF_SERVERS, f"{VALUE} ")}
    texts = {begins[call.func.id] + text for call in found if call.func.id in begins for text in _forms(call.args[0])}
    return {text for text in texts if text.replace(VALUE, "").strip(" :.")}


def _forms(node: ast.AST) -> list[str]:
    """Return the texts that an expression may give: both of an either-or, with and without a plural's s."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return [*_forms(node.body), *_forms(node.orelse)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(parts) for parts in itertools.product(*map(_forms, node.values))]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return ["", *_forms(node.left)]
    return _forms(node.value) if isinstance(node, ast.FormattedValue) else [VALUE]


def untranslated(text: str, keys: Iterable[str]) -> list[str]:
    """Return the parts of an error or a report that `translatedLines` of the page cannot translate with these keys."""
    ordered = sorted(keys, key=lambda key: (key.startswith("{"), -len(re.sub(r"\{\w+\}", "", key))))

    def parts(english: str) -> list[str]:
        for key in ordered:
            pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", re.escape(key))
            if match := re.fullmatch(pattern, english):
                values = match.groupdict()
                said = [value for name, value in values.items() if name.startswith("sentence")]
                listed = [value for name, value in values.items() if name.startswith("list")]
                for one in (one for value in listed for one in value.split(", ")):
                    said += [one] if parts(one) != [one] else one.split(" and ")
                return [part for one in said for part in parts(one)]
        return [english]

    return [part for line in text.split("\n") for part in parts(line)]


def _first_argument(text: str) -> str:
    depth, quoted = 0, False
    for at, character in enumerate(text):
        if character == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif character in ",)" and not depth:
            return text[:at]
        else:
            depth += (character in "([{") - (character in ")]}")
    return text


def _settings() -> dict[Keys, str]:
    """Return the English of the page's settings: names, tooltips and their group in ComfyUI's dialog."""
    script = (ROOT / "web" / "js" / "live.js").read_text(encoding="utf-8")
    setting, text = re.search(r'^const SETTING = "(.+)"', script, re.MULTILINE), script.partition("settings: [")[2]
    category = re.search(r'category: \["Higgs TTS", "(.+?)"', text)
    said = [re.search(rf'^\s+{name}:\s+"(.+)",$', text, re.MULTILINE) for name in ("name", "tooltip")]
    assert setting and category and all(said)
    at = ("settings", setting[1].replace(".", "_"))
    found = {(*at, name): match[1] for name, match in zip(("name", "tooltip"), said, strict=True)}
    return {("main", "settingsCategories", category[1]): category[1], **found}


def translations(language: str) -> dict[Keys, str]:
    """Return what locales/ has in a language, by its place."""
    found: dict[Keys, str] = {}
    for file in FILES:
        path = LOCALES / language / f"{file}.json"
        if path.is_file():
            found |= dict(_flat((file,), json.loads(path.read_text(encoding="utf-8"))))
    return found


def _flat(at: Keys, held: Mapping) -> Iterator[tuple[Keys, str]]:
    for key, value in held.items():
        if isinstance(value, str):
            yield (*at, key), value
        else:
            yield from _flat((*at, key), value)


def digests(said: Mapping[Keys, str]) -> dict[str, str]:
    return {"/".join(keys): f"{zlib.crc32(text.encode()):08x}" for keys, text in said.items() if keys[-1] != text}


def stale(said: Mapping[Keys, str]) -> set[Keys]:
    """Return the places whose English has changed since it was translated."""
    then = json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.is_file() else {}
    now = digests(said)
    return {keys for keys in said if (name := "/".join(keys)) in now and then.get(name, now[name]) != now[name]}


def missing(language: str, said: Mapping[Keys, str]) -> list[str]:
    """Return the English that has no translation."""
    known = translations(language)
    return list(dict.fromkeys(text for keys, text in said.items() if keys not in known))


def fill(language: str, new: Mapping[str, str], said: Mapping[Keys, str]) -> None:
    known, old = translations(language), stale(said)
    memory = {text: known[keys] for keys, text in said.items() if keys in known and keys not in old} | dict(new)
    files: dict[str, dict] = {file: {} for file in FILES}
    for keys, text in said.items():
        held: dict = files
        for key in keys[:-1]:
            held = held.setdefault(key, {})
        if translation := new.get(text) or (None if keys in old else known.get(keys)) or memory.get(text):
            held[keys[-1]] = translation
    for file, held in files.items():
        path = LOCALES / language / f"{file}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(held, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    import conftest  # noqa: F401 - imports the pack
    from higgs_tts.tests.unit.nodes.conftest import comfy_modules

    with tempfile.TemporaryDirectory() as folder:
        sys.modules.update(comfy_modules(Path(folder)))
        nodes = asyncio.run(importlib.import_module("higgs_tts.nodes").make_extension().get_node_list())
        said = english({schema.node_id: schema for schema in (node.define_schema() for node in nodes)})
    for language in LANGUAGES if stale(said) else ():
        fill(language, {}, said)
    DIGESTS.write_text(json.dumps(digests(said), indent=2) + "\n", encoding="utf-8")
    if len(sys.argv) > 1:
        new = json.load(sys.stdin)
        said |= {(*place, key): key for place in (SERVER, MESSAGES) for key in new.pop(place[-1], ())}
        fill(sys.argv[1], new, said)
    lacks = {language: missing(language, said) for language in LANGUAGES}
    print(json.dumps({language: texts for language, texts in lacks.items() if texts}, ensure_ascii=False, indent=2))


if __name__ == "__main__":
    main()
