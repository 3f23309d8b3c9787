"""Code of exported folders: imports, rewritten for a flat folder.

    source = flatten_imports(source, modules)       # a module of this repository
    check_plugin(plugin, modules)                   # raise unless a plugin can be exported
    write_modules(folder, exported)                 # MODULES and plugins

modules: names of those that the folder contains, each under its `flat_name`.
"""

import ast
import importlib.util
from collections.abc import Collection
from pathlib import Path

from runtime.plugins import MODULE_PREFIX, Plugin

from errors import InputError

ROOT = Path(__file__).parent.parent
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
    "operators.elementary",
    "more_encodings",
    *FURTHER_ENCODINGS,
    "triton_attention",
    "errors",
)


def auto_map(auto_class: str) -> dict[str, str]:
    """Return the auto_map of a config.json; auto_class: AutoModelForMaskedLM, …."""
    return {
        "AutoConfig": "modeling.PosencConfig",
        "AutoModel": "modeling.PosencModel",
        auto_class: f"modeling.{auto_class.replace('AutoModel', 'Posenc')}",
    }


def flat_name(module: str) -> str:
    """Return a module's name in an exported folder: the last part."""
    return module.rpartition(".")[2]


def flatten_imports(source: str, modules: Collection[str]) -> str:
    """Return a source whose imports of `modules` are relative.

    transformers copies the files of lines "from .x import y": an import of a
    module becomes two.
    """
    lines = source.encode().split(b"\n")  # ast counts columns in bytes
    nodes = [node for node in _imports(source) if _changes(node, modules)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        assert node.end_lineno is not None  # ast.parse sets it
        before = lines[node.lineno - 1][: node.col_offset]
        after = lines[node.end_lineno - 1][node.end_col_offset :]
        separator = b"; " if before.strip() else b"\n" + before
        new = separator.join(line.encode() for line in _flat_statements(node, modules))
        lines[node.lineno - 1 : node.end_lineno] = [before + new + after]
    return b"\n".join(lines).decode()


def _imports(source: str) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(source)
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def _imported_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return full names of what is imported, as "posenc.Encoding"."""
    package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return [package + alias.name for alias in node.names]


def _changes(node: ast.Import | ast.ImportFrom, modules: Collection[str]) -> bool:
    is_from = isinstance(node, ast.ImportFrom) and node.module in modules
    return is_from or any(name in modules for name in _imported_names(node))


def _flat_statements(node: ast.Import | ast.ImportFrom, modules: Collection[str]) -> list[str]:
    """Return the statements that replace an import."""
    statements, objects = [], []
    for alias, name in zip(node.names, _imported_names(node), strict=True):
        if name in modules:
            flat = flat_name(name)
            suffix = f" as {alias.asname}" if alias.asname else ""
            statements += [
                f"from . import {flat}{suffix}",
                f"from .{flat} import __name__ as _",
            ]
        elif isinstance(node, ast.ImportFrom):
            objects.append(ast.unparse(alias))
        else:
            statements.append(f"import {ast.unparse(alias)}")
    if isinstance(node, ast.ImportFrom) and objects:
        assert node.module is not None  # `from . import x` is not changed
        statements.append(f"from .{flat_name(node.module)} import {', '.join(objects)}")
    return statements


def check_plugin(plugin: Plugin, modules: Collection[str]) -> None:
    """Raise InputError if a plugin has imports that cannot be rewritten."""
    problems = []
    for node in _imports(importlib.util.decode_source(plugin.source)):
        for alias, name in zip(node.names, _imported_names(node), strict=True):
            is_full_name = isinstance(node, ast.Import) and "." in name and not alias.asname
            if _is_of_repository(name) and (is_full_name or not _changes(node, modules)):
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
        # Importing it registers the encodings.
        sources[MODULES[0]] += f"\nimport {plugin.module}  # noqa: E402, F401\n"
    for module, source in sources.items():
        text = flatten_imports(source, modules)
        (folder / f"{flat_name(module)}.py").write_text(text, encoding="utf-8")


def _source_path(module: str) -> Path:
    """Return a module's file; a package's __init__.py."""
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
