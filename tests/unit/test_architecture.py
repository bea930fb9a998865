"""Rules of the house, checked on the source: imports between rooms, names, and lengths."""

import ast
import collections
import functools
import pathlib
import re

from higgs_tts.engine import VERSION

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENGINE, NODES = ROOT / "engine", ROOT / "nodes"
SOURCES = sorted([*ENGINE.rglob("*.py"), *NODES.rglob("*.py"), ROOT / "__init__.py"])

# Rooms, the folders and files of engine/, from the ground up. A room imports only rooms of lower tiers.
TIERS = [
    {"core", "interrupt"},
    {"audio", "cuda", "device", "files"},
    {"codec", "talker", "voice"},
    {"checkpoint", "decode", "prompt"},
    {"speech"},
    {"words"},
    {"book", "engines"},
    {"dubbing", "finetune", "serve"},
    {"__init__", "tools"},
    {"terminal"},
    {"__main__"},
]
TIER_OF = {name: number for number, names in enumerate(TIERS) for name in names}
BANNED_IN_ENGINE = {"comfy", "comfy_api", "comfy_execution", "folder_paths", "server", "nodes"}


@functools.cache
def nodes_of(path):
    """Return all nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))))


def imports_of(path):
    """Yield (level, dotted module, names) of every import in a file."""
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, []


def room_of(path):
    return path.relative_to(ENGINE).parts[0].removesuffix(".py")


def exists(path):
    """True if a file or folder has this name to the letter. Windows finds `voice` as `Voice`, too."""
    places = [path, *path.parents][: len(path.relative_to(ROOT).parts)]
    return path.exists() and all(one.name in {other.name for other in one.parent.iterdir()} for one in places)


def targets(path):
    """Yield the engine's files that one of them imports."""
    for level, module, names in imports_of(path):
        if not level:
            continue
        place = path.parents[level - 1].joinpath(*filter(None, module.split(".")))
        for name in names:
            for found in (place / f"{name}.py", place / name / "__init__.py", place.with_suffix(".py")):
                if exists(found):
                    yield found
                    break
            else:
                yield place / "__init__.py"


def test_engine_imports_point_down():
    wrong = []
    for path in sorted(ENGINE.rglob("*.py")):
        room = room_of(path)
        assert room in TIER_OF, f"{room} has no tier"
        for target in map(room_of, targets(path)):
            if target != room and TIER_OF[target] >= TIER_OF[room]:
                wrong.append(f"{path.relative_to(ROOT)} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_no_import_cycle_exists():
    arrows = {path: set(targets(path)) - {path} for path in ENGINE.rglob("*.py")}
    while free := {path for path, to in arrows.items() if not to & arrows.keys()}:
        for path in free:
            del arrows[path]
    assert not arrows, "a circle is among " + ", ".join(str(path.relative_to(ROOT)) for path in sorted(arrows))


def test_the_engine_never_names_comfyui():
    for path in ENGINE.rglob("*.py"):
        for level, module, _ in imports_of(path):
            assert level or module.split(".")[0] not in BANNED_IN_ENGINE, f"{path} imports {module}"


def test_no_two_classes_share_a_name():
    named = collections.defaultdict(list)
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                named[node.name.lstrip("_")].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: places for name, places in named.items() if len(places) > 1}


def test_nodes_import_only_the_engine_s_public_api():
    for path in NODES.rglob("*.py"):
        for level, module, _ in imports_of(path):
            if level == len(path.relative_to(ROOT).parts):
                assert module == "engine", f"{path} imports {'.' * level}{module}"


SHARED = {"chromium", "listening", "server"}  # of tests/comfyui: a ComfyUI, its page, and what is heard there


def modules_of(path):
    """Yield every module that a file may import, by its dotted name: by a statement or `import_module`."""
    for _, module, names in imports_of(path):
        yield from (module, *(f"{module}.{name}" for name in names))
    for node in nodes_of(path):
        called = getattr(node, "func", None)
        if getattr(called, "id", getattr(called, "attr", "")) in ("import_module", "__import__"):
            yield from (given.value for given in node.args if isinstance(given, ast.Constant))


def test_benchmarks_import_the_engine_s_public_api_and_its_tools_alone():
    """They reach what is on the device through `Engine.loaded`, and may import each other and training/."""
    files = sorted((ROOT / "benchmarks").rglob("*.py"))
    tests = {path.stem for path in (ROOT / "tests").rglob("*.py")} - SHARED - {path.stem for path in files}
    for path in files:
        for module in modules_of(path):
            first, *rest = module.removeprefix("higgs_tts.").split(".")
            place = ROOT.joinpath(first, *rest)
            is_ours = exists(place) or exists(place.with_suffix(".py"))
            may = first == "training" or (first == "engine" and rest[:1] in ([], ["tools"]))
            assert may or not (is_ours or first in tests), f"{path.relative_to(ROOT)} imports {module}"


def test_each_comfyui_module_is_imported_only_by_its_owners():
    """All other files of nodes/ go through these."""
    may = {
        "comfy.model_patcher": {"patcher.py"},  # subclasses ModelPatcher
        # memory.py loads and frees, devices.py asks for ComfyUI's device and flags, node_errors.py for the user's stop.
        "comfy.model_management": {"memory.py", "devices.py", "node_errors.py"},
        "folder_paths": {"folders.py"},  # registers and lists folders
        # Whether it still runs, who listens, routes of our own, a line of text on a node, and the running prompt.
        "server": {"exit_guard.py", "events.py", "routes.py", "progress_text.py", "linked.py"},
    }
    found = {module: set() for module in may}
    for path in NODES.rglob("*.py"):
        for _, module, names in imports_of(path):
            for name in {module, *(f"{module}.{name}" for name in names)} & may.keys():
                found[name].add(path.name)
    assert found == may


def test_risky_calls_are_made_only_by_their_owners():
    owners = {
        r"\btriton\b|_compile_kernel|libnvrtc|nvrtc[A-Z]": lambda p: p.parent == ENGINE / "cuda",
        r"\bCUDAGraph\b|\bMemPool\b|graph_pool_handle": lambda p: p.name in ("memory.py", "graph.py"),
        r"torch\._C|ops\.aten|\._cdata": lambda p: p == ENGINE / "device" / "torch_names.py",
        r"from tokenizers|import tokenizers": lambda p: p.name == "tokenizer.py" or p.parent == ENGINE / "tools",
        r"[\"']waveform[\"']": lambda p: p.name == "audio.py",
        r"\bload_file\b": lambda p: False,  # `read_tensors` leaves no file mapped, which Windows could not replace
    }
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for pattern, owns in owners.items():
            assert owns(path) or not re.search(pattern, text), f"{path} names {pattern}"


READS_ITSELF = {  # all others read files by `read_whole`, with a bound and only if they are files
    "engine/files/whole_file.py": "read_whole",
    "engine/files/gguf_header.py": "a bounded header of a file of any size",
    "engine/checkpoint/digest.py": "checkpoints of any size, block by block",
    "engine/checkpoint/upload.py": "weights, tensor by tensor",
    "engine/checkpoint/places.py": "headers and blocks of weights",
    "engine/checkpoint/tensor_file.py": "writes a repaired file",
    "engine/cuda/cubin_cache.py": "its own cache",
    "engine/cuda/nvrtc.py": "the pack's sources",
    "engine/audio/pcm.py": "writes to memory",
    "engine/tools/new_folder.py": "its own note of moved files",
    "engine/tools/published.py": "a checkpoint that it makes",
    "engine/words/attention.py": "read_text of a prompt",
    "nodes/page/live_sound.py": "its own temporary file",
}


def opens_files(node):
    """True if a call reads or opens a file by itself."""
    name = getattr(node.func, "attr", "")
    mode = next((arg.value for arg in node.args[-1:] if isinstance(arg, ast.Constant)), "")
    reads = name in ("read_bytes", "read_text") or (name == "open" and re.fullmatch(r"[rwa]b?\+?b?", str(mode)))
    return bool(reads) or getattr(node.func, "id", "") == "open"


def test_files_are_read_by_one_function():
    found = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if any(isinstance(node, ast.Call) and opens_files(node) for node in nodes_of(path))
    }
    assert found == READS_ITSELF.keys()


def test_texts_have_the_same_bytes_on_every_system():
    """A model's fingerprint covers its JSON files, so a checkout that changes line ends would change it."""
    texts = [path for path in (ROOT / "engine").rglob("*") if path.suffix in (".py", ".cu", ".cuh", ".json", ".txt")]
    assert not [path for path in texts if b"\r\n" in path.read_bytes()]
    assert "* text=auto eol=lf" in (ROOT / ".gitattributes").read_text(encoding="utf-8").splitlines()


def test_no_module_changes_global_process_state():
    switches = r"sys\.path|os\.environ\[|os\.putenv|set_default_d|set_num_threads|backends\.\w+\.\w+ *="
    for path in SOURCES:
        if path.name == "threads.py":  # for the length of a call, and tested to put it back
            continue
        found = re.search(switches, path.read_text(encoding="utf-8"))
        assert not found, f"{path}: {found.group()}"


def is_broad(handler):
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(name is None or getattr(name, "id", "") in ("Exception", "BaseException") for name in names)


def reraises(handler):
    return any(isinstance(node, ast.Raise) and node.exc is None for node in handler.body)


def test_no_broad_except_but_at_the_patcher_s_edge():
    """An exception that leaves the patcher stops ComfyUI's worker for good, so one place there logs it."""
    caught = []
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.ExceptHandler) and is_broad(node) and not reraises(node):
                caught.append(path)
    assert caught == [NODES / "comfy" / "patcher.py"]


def test_files_and_functions_stay_short():
    for path in SOURCES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, f"{path} is over 400 lines"
        for node in nodes_of(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno - node.lineno < 50, f"{path}:{node.lineno} {node.name} is over 50 lines"


def test_page_scripts_stay_short_and_only_comfy_js_imports_comfyui():
    """ComfyUI imports every script below web/ into its page, so nothing else may be there."""
    scripts = sorted((ROOT / "web").rglob("*.js"))
    assert len(scripts) > 10
    for path in scripts:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 300, f"{path} is over 300 lines"
        assert path.name == "comfy.js" or "/scripts/" not in text, f"{path} imports ComfyUI itself"
        assert ("test" not in path.name) and not (path.parent / "package.json").exists()


def public_functions(body):
    """Return the public functions of a module and the public methods of its classes."""
    for node in body:
        name = getattr(node, "name", "_")
        if name.startswith("_") and not name.startswith("__"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from public_functions(node.body)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


# Still without: to be annotated with the next change to them, and taken off this list.
def test_public_functions_are_annotated():
    for path in [*ENGINE.rglob("*.py"), *NODES.rglob("*.py")]:
        for function in public_functions(nodes_of(path)[0].body):
            given = function.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            bare = [one.arg for one in every if one and not one.annotation and one.arg not in ("self", "cls")]
            bare += [] if function.returns or function.name == "__init__" else ["what it returns"]
            assert not bare, f"{path}:{function.lineno} {function.name} does not annotate {', '.join(bare)}"


def imported_optionally(path):
    """Return modules that a file imports on demand; see optional.py."""
    for node in nodes_of(path):
        is_optional = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_optional"
        if is_optional and isinstance(node.args[0], ast.Constant):
            yield node.args[0].value


def test_the_version_in_code_equals_the_registry_s():
    assert f'version = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


COMFYUI_S = {"aiohttp", "av"}  # ComfyUI has them, few things need them, and those say so where they are missing


# For block types that no published file of Higgs has, and for several machines; a sentence asks for them. And what only
# makes mouth shapes more exact, or measures how alike two voices are.
RARELY_NEEDED = {"gguf", "ray", "phonemizer", "resemblyzer"}


def test_requirements_name_what_is_imported_and_pin_nothing():
    listed = set((ROOT / "requirements.txt").read_text(encoding="utf-8").split())
    assert not [line for line in listed if re.search(r"[<=!~]", line)], "requirements.txt pins a version"
    used = {
        module.split(".")[0]
        for path in ENGINE.rglob("*.py")
        for module in [
            *(module for level, module, _ in imports_of(path) if not level and module),
            *imported_optionally(path),
        ]
    }
    import sys

    assert used - set(sys.stdlib_module_names) - RARELY_NEEDED == listed | COMFYUI_S
    for library, room in (("aiohttp", "serve"), ("ray", "serve/cluster")):
        named = {path.parent for path in ENGINE.rglob("*.py") if library in {m for _, m, _ in imports_of(path)}}
        assert named == {ENGINE / room}


FAMILY_FILES = ("talker/family.py", "talker/v2.py", "talker/v3.py", "checkpoint/talker_layout.py")


def test_few_modules_name_a_family():
    """A new family is a record, its layers and its layout. Tools that write and measure checkpoints do not count."""
    named = []
    for path in SOURCES:
        inside = path.relative_to(ROOT).as_posix().removeprefix("engine/")
        if inside in FAMILY_FILES or inside.startswith("tools/"):
            continue
        for node in nodes_of(path):
            word = getattr(node, "id", getattr(node, "attr", getattr(node, "value", None)))
            if isinstance(word, str) and re.fullmatch(r"v[23](-\w+)?|_?is_v[23]", word):
                named.append(f"{inside}:{node.lineno}")
    for path in [*ENGINE.rglob("*.cu"), *ENGINE.rglob("*.cuh")]:
        named += [path.name for _ in re.findall(r"\bIS_V\d|V2_|V3_", path.read_text(encoding="utf-8"))]
    assert len(named) <= 12, named


# Private names that a test names all the same, by file.
MAY_NAME = {
    "tests/unit/test_torch_names.py": {"_C"},  # torch's, and what the test is about
}


def defined_in(path):
    for node in nodes_of(path):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield getattr(node, "id", getattr(node, "attr", ""))


def reached_for(path):
    """Yield attributes except those of `self`, imported names, and strings, by which monkeypatch names things."""
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") != "self":
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant):
            yield node.value


def test_tests_and_benchmarks_name_nothing_private():
    """They use only what any caller may, so that internals may change. `Engine.loaded` is their entry."""
    ours = {name for folder in ("engine", "nodes", "training", "benchmarks") for path in (ROOT / folder).rglob("*.py")
            for name in defined_in(path) if re.fullmatch(r"_(?!_)\w+", name)}  # fmt: skip
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        inside = path.relative_to(ROOT).as_posix()
        found = set(reached_for(path)) & ours - MAY_NAME.get(inside, set())
        assert path == pathlib.Path(__file__) or not found, f"{inside} names {found}"
