"""Plugins: positional encodings in a user's own Python file.

    load_plugin("my_encoding.py")              # import the file; its encodings are registered
    plugins_of(config.encodings)               # the plugins that define these encodings
    check_loaded(checkpoint["config"], run)    # raise unless the run's plugins are loaded

A program imports a plugin only if the file is passed as --plugin. A run records the name and the
SHA-256 of the plugins that define its encoding, and its folder has a copy of their files.
"""

import hashlib
import re
import sys
import traceback
import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runtime.schema import PythonFile, Sha256, find_mismatch, nullable

from errors import InputError

MODULE_PREFIX = "plugin_"
LOADED: dict[str, "Plugin"] = {}  # by the name of their modules
VERSIONS = nullable(dict[PythonFile, Sha256])  # "plugin" in the settings of a run


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin."""

    path: Path
    module: str  # name of its module: plugin_my_encoding
    source: bytes  # content of the file
    names: tuple[str, ...]  # of its encodings

    @property
    def sha256(self) -> str:
        return _sha256(self.source)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def load_plugin(path: str | Path) -> Plugin:
    """Import a file and return the plugin; its encodings are registered under their names.

    The same file is imported once. Raises InputError if the file cannot be imported, defines no
    encoding with `names`, or uses the name of another encoding or plugin.
    """
    path = Path(path)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"--plugin {path} cannot be read ({error.strerror}): pass a Python file with a "
            "subclass of posenc.Encoding"
        ) from None
    if path.suffix != ".py":
        raise InputError(f"--plugin {path} is not a Python file: use a name that ends in .py")
    module = MODULE_PREFIX + re.sub(r"\W", "_", path.stem)  # my-encoding.py is allowed
    if module in LOADED:
        loaded = LOADED[module]
        if (loaded.path.name, loaded.source) == (path.name, source):
            return loaded
        raise InputError(
            f"--plugin {path}: the plugin {loaded.path} with the same module name is loaded: "
            "rename one of them, or run the program once for each"
        )
    registry = _registry()
    before = dict(registry)
    try:
        names = _import_file(path, module, source, before)
    except BaseException:
        sys.modules.pop(module, None)
        registry.clear()
        registry.update(before)
        raise
    LOADED[module] = Plugin(path, module, source, names)
    return LOADED[module]


def _registry() -> dict[str, type]:
    """Return the classes of all encodings by name, those of the repository included."""
    import more_encodings  # noqa: F401  # late: torch takes seconds
    import posenc

    return posenc.ENCODINGS


def _import_file(path: Path, module: str, source: bytes, before: dict) -> tuple[str, ...]:
    """Import a file and return its encodings' names; InputError has the line of an error."""
    imported = types.ModuleType(module)
    imported.__file__ = str(path)
    sys.modules[module] = imported
    try:
        # Not by importlib, which could run bytecode of an older version of the file.
        exec(compile(source, str(path), "exec", dont_inherit=True), imported.__dict__)
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError) and error.filename == str(path):
            line = error.lineno
        else:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == str(path)]
            line = lines[-1] if lines else None
        reason = " ".join(str(error).split()) or "no message"
        where = f" in line {line}" if line else ""
        remedy = "fix the file"
        if isinstance(error, ModuleNotFoundError):
            remedy = "install the package; your own code must be in the plugin, a single file"
        raise InputError(
            f"--plugin {path}: {type(error).__name__}{where} ({reason}): {remedy}"
        ) from None
    return _new_names(path, imported, before)


def _new_names(path: Path, imported: types.ModuleType, before: dict) -> tuple[str, ...]:
    """Return the names that were registered since `before`; raise InputError if they clash."""
    registry = _registry()
    classes = [cls for cls in vars(imported).values() if isinstance(cls, type)]
    classes = [cls for cls in classes if cls.__module__ == imported.__name__]
    if any(isinstance(getattr(cls, "names", ()), str) for cls in classes):
        raise InputError(f'--plugin {path}: `names` is a string: write `names = ("my-encoding",)`')
    # A subclass without names of its own inherits those of its parent.
    own = [(name, cls) for cls in classes for name in getattr(cls, "names", ())]
    taken = [name for name, cls in (*before.items(), *own) if registry.get(name, cls) is not cls]
    if taken:
        raise InputError(
            f"--plugin {path}: the encoding name {' '.join(dict.fromkeys(taken))} is already in "
            "use: give each class `names` of its own"
        )
    names = tuple(name for name in registry if name not in before)
    if not names:
        raise InputError(
            f"--plugin {path} defines no encoding: write a subclass of posenc.Encoding with "
            '`names = ("my-encoding",)`'
        )
    invalid = [name for name in names if not re.fullmatch(r"[\w.-]+", name)]
    if invalid:
        raise InputError(
            f"--plugin {path}: the encoding name '{invalid[0]}' is invalid: "
            "use letters, digits and hyphens"
        )
    return names


def plugins_of(encodings: Iterable[tuple[type, dict]]) -> list[Plugin]:
    """Return the plugins that define the classes, or their base classes, of a parsed encoding.

    encodings: from pe_spec.parse. The plugins are in the order of loading.
    """
    modules = {base.__module__ for cls, _ in encodings for base in cls.__mro__}
    return [plugin for module, plugin in LOADED.items() if module in modules]


def recorded(encodings: Iterable[tuple[type, dict]]) -> dict[str, str] | None:
    """Return the entry `plugin` of a run's settings: file name -> SHA-256; None without plugins."""
    found = {plugin.path.name: plugin.sha256 for plugin in plugins_of(encodings)}
    return found or None


def recorded_versions(settings: dict, where: str | Path) -> dict[str, str]:
    """Return file name -> SHA-256 of the plugins in a run's settings or in its config.yaml.

    where: what the error names. Raises InputError unless the names are those of Python files
    without a folder: they become paths, and settings may be somebody else's.
    """
    entry = settings.get("plugin")
    if problem := find_mismatch(entry, VERSIONS):
        raise InputError(f"{where}: plugin: {problem}: use settings that train_gpt.py wrote")
    return entry or {}


def check_loaded(settings: dict, folder: str | Path, what: str = "was trained with") -> None:
    """Raise InputError unless the plugins that a run's settings record are loaded, unchanged.

    settings: of the run, or the content of its config.yaml. folder: has the copies of the plugins.
    """
    loaded = {plugin.sha256: plugin.path.name for plugin in LOADED.values()}
    problems = []
    for name, sha256 in recorded_versions(settings, folder).items():
        if sha256 in loaded:
            continue
        copy = Path(folder) / name
        remedy = f"read the copy {copy} and pass --plugin {copy}"
        if not copy.is_file() or _sha256(copy.read_bytes()) != sha256:  # --override replaces it
            remedy = f"{copy} is not that version, pass the file with this SHA-256 as --plugin"
        version = "another version of the" if name in loaded.values() else "the"
        problems.append(
            f"{folder} {what} {version} plugin {name} (SHA-256 {sha256[:12]}): {remedy}"
        )
    if problems:
        raise InputError(*problems)


def describe_error(error: BaseException) -> str | None:
    """Return one line for an exception in the code of a plugin; None if it is from other code."""
    if type(error).__name__ == "OutOfMemoryError":
        return None
    paths = {str(plugin.path) for plugin in LOADED.values()}
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(frame.filename, frame.lineno) for frame in frames if frame.filename in paths]
    if not lines:
        return None
    path, line = lines[-1]
    reason = " ".join(str(error).split())[:200]
    return (
        f"{path}, line {line}: {type(error).__name__} ({reason}): fix the plugin; "
        f"`python check_encoding.py {path}` explains more"
    )
