"""Code of exported folders: imports, rewritten for a flat folder.

    source = flatten_imports(source, modules)       # a module of this repository
    check_plugin(plugin, modules)                   # raise unless a plugin can be exported
    write_modules(folder, exported)                 # MODULES and plugins

modules: names of those that the folder contains, each under its `flat_name`.
"""

import ast
import importlib.util
import re
from collections.abc import Collection
from pathlib import Path

from errors import InputError
from training.plugins import MODULE_PREFIX, Plugin

ROOT = Path(__file__).parent.parent
Import = ast.Import | ast.ImportFrom
FURTHER_ENCODINGS = sorted(
    f"more_encodings.{path.stem}"
    for path in (ROOT / "more_encodings").glob("*.py")
    if path.stem != "__init__"
)
# The modules that compute the network.
MODULES = (
    "hf_interop.modeling",
    "model",
    "kv_cache",
    "attention",
    "attention_cpu",
    "pe_spec",
    "posenc",
    "losses",
    "operators.elementary",
    "more_encodings",
    *FURTHER_ENCODINGS,
    "triton_attention",
    "errors",
    "setting",
)


def auto_map(auto_class: str) -> dict[str, str]:
    """Return the auto_map of a config.json; auto_class: AutoModelForMaskedLM, …."""
    return {
        "AutoConfig": "modeling.PosencConfig",
        "AutoModel": "modeling.PosencModel",
        auto_class: f"modeling.{auto_class.replace('AutoModel', 'Posenc')}",
    }


def set_default_permissions(folder: Path) -> None:
    """Let those who can read a folder read the files of safetensors in it."""
    mode = folder.stat().st_mode & 0o644
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def flat_name(module: str) -> str:
    """Return a module's name in an exported folder: the last part."""
    return module.rpartition(".")[2]


def flatten_imports(source: str, modules: Collection[str]) -> str:
    """Return a source whose imports of `modules` are relative."""
    text = source
    for node in _imports(source):
        old = ast.get_source_segment(source, node) or ""
        new = _flatten(node, modules)
        if "from ." in new:  # not inside of another import
            pattern = rf"(?<![\w.] ){re.escape(old)}(?![\w.,])"
            text = re.sub(pattern, new, text)
    return text


def _flatten(node: Import, modules: Collection[str]) -> str:
    """Return the statements that import the same in a flat folder."""
    package: str = getattr(node, "module", "")
    statements: dict[str, list[str]] = {}  # start -> what it imports
    for alias in node.names:
        name = _imported_name(node, alias)
        start = f"from {package} import" if package else "import"
        # "import a.b" binds the package.
        if name in modules and (package or alias.asname or "." not in name):
            start, alias.name = "from . import", flat_name(name)
        elif package in modules:
            start = f"from .{flat_name(package)} import"
        statements.setdefault(start, []).append(ast.unparse(alias))
    return "; ".join(f"{start} {', '.join(names)}" for start, names in statements.items())


def _imports(source: str) -> list[Import]:
    nodes = ast.walk(ast.parse(source))
    return [x for x in nodes if isinstance(x, Import) and not getattr(x, "level", 0)]


def _imported_name(node: Import, alias: ast.alias) -> str:
    """Return the full name of what is imported, as "posenc.Encoding"."""
    return ".".join(filter(None, (getattr(node, "module", None), alias.name)))


def check_plugin(plugin: Plugin, modules: Collection[str]) -> None:
    """Raise InputError if a plugin has imports that cannot be rewritten."""
    problems = []
    for node in _imports(importlib.util.decode_source(plugin.source)):
        left = _imports(_flatten(node, modules))
        for name in (_imported_name(x, alias) for x in left for alias in x.names):
            if _is_of_repository(name):
                problems.append(
                    f"{plugin.path}, line {node.lineno} imports {name}, which is not exported: "
                    "copy what you need into the plugin, or import only from posenc, attention, "
                    "errors or more_encodings, as in `from more_encodings import dape`"
                )
    if problems:
        raise InputError(*problems)


def _is_of_repository(name: str) -> bool:
    """Return whether a module is of this repository, or a plugin."""
    first = name.partition(".")[0]
    is_ours = (ROOT / f"{first}.py").is_file() or (ROOT / first / "__init__.py").is_file()
    return is_ours or first.startswith(MODULE_PREFIX)


def modules_with(exported: list[Plugin]) -> list[str]:
    """Return the names of all modules of a folder."""
    return [*MODULES, *(plugin.module for plugin in exported)]


def write_modules(folder: Path, exported: list[Plugin]) -> None:
    """Write MODULES and plugins to an exported folder."""
    modules = modules_with(exported)
    sources = {name: _source_path(name).read_text(encoding="utf-8") for name in MODULES}
    for plugin in exported:
        sources[plugin.module] = importlib.util.decode_source(plugin.source)
    # transformers copies the files of lines "from .x import y"; plugins register encodings.
    for name in modules[1:]:
        sources[MODULES[0]] += f"from .{flat_name(name)} import __name__ as _  # noqa: E402\n"
    for module, source in sources.items():
        text = flatten_imports(source, modules)
        (folder / f"{flat_name(module)}.py").write_text(text, encoding="utf-8")


def _source_path(module: str) -> Path:
    """Return a module's file; a package's __init__.py."""
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
