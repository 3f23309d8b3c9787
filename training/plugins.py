"""Plugins: positional encodings in a user's own Python file.

    load_plugin("my_encoding.py")              # its encodings are registered
    plugins_of(config.encodings)               # the plugins that define them
    check_loaded(checkpoint["config"], run)    # raise unless those are loaded

Only files passed as --plugin are imported. A run records name and SHA-256 of its plugins, and its
folder has copies.
"""

import hashlib
import inspect
import re
import sys
import traceback
import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runtime import cli
from runtime.validation import Versions, check

import more_encodings  # noqa: F401, whose names are taken
from errors import InputError
from posenc import ENCODINGS, Encoding

MODULE_PREFIX = "plugin_"
LOADED: dict[str, "Plugin"] = {}  # by the name of their modules
HOOKS = {  # of posenc.Encoding, with the arguments that they are called with
    "__init__": "heads, channels, block_size",
    "embed": "x, pos",
    "features": "x, pos, previous=None",
    "rotate": "q, k, pos, q_features, k_features",
    "bias": "q_features, k_features, h",
    "factors": "q_features, k_features",
    "triton_bias": "q_features, k_features, h",
    "distance_bias": "d, h",
    "logits_transform": "logits, bias, q, k, scale, d, mask, q_features, k_features",
}


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin."""

    path: Path
    module: str  # name of its module: plugin_my_encoding
    source: bytes  # content of the file
    sha256: str
    names: tuple[str, ...]  # of its encodings


def load_plugin(path: str | Path) -> Plugin:
    """Import a file and return the plugin; its encodings are registered.

    The same file is imported once. Raises OSError if it cannot be read, InputError if it cannot be
    imported, has no encoding with `names`, uses one that is taken, or a hook has other arguments.
    """
    path = Path(path)
    source = path.read_bytes()
    if path.suffix != ".py":
        raise InputError(f"{path} is not a Python file: use a name that ends in .py")
    module = MODULE_PREFIX + re.sub(r"\W", "_", path.stem)  # my-encoding.py is allowed
    if loaded := LOADED.get(module):
        if (loaded.path.name, loaded.source) == (path.name, source):
            return loaded
        what = f"{path} and the plugin {loaded.path} have the same module name"
        raise InputError(f"{what}: rename one of them, or run the program once for each")
    before = {*ENCODINGS}
    imported = sys.modules[module] = types.ModuleType(module)
    imported.__file__ = str(path)
    try:
        # Not by importlib, which could run bytecode of an older version.
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(imported))
    except (Exception, SystemExit) as error:
        place = [str(path), *_lines(error, [str(path)])][-1]
        remedy = "fix the file"
        if isinstance(error, ImportError):
            remedy += "; it cannot import other files of yours"
        raise InputError(f"{place}: {reason(error)}: {remedy}") from None
    classes = [cls for cls in vars(imported).values() if isinstance(cls, type)]
    own = [cls for cls in classes if cls.__module__ == module and issubclass(cls, Encoding)]
    names: tuple[str, ...] = ()
    for cls in dict.fromkeys(own):
        problem = _naming_problem(cls.names, before.union(names)) or _hook_problem(cls)
        if problem:
            raise InputError(f"{path}: {cls.__name__}{problem}")
        names += cls.names
    if not names:
        remedy = 'write a subclass of posenc.Encoding with names = ("my-encoding",)'
        raise InputError(f"{path} has no encoding with names: {remedy}")
    sha256 = hashlib.sha256(source).hexdigest()
    LOADED[module] = Plugin(path, module, source, sha256, names)
    return LOADED[module]


def _naming_problem(names, taken: set[str]) -> str | None:
    """Return what is wrong with an encoding's `names`, and the fix."""
    if not isinstance(names, tuple):
        return f'.names is {names!r}, no tuple: write names = ("my-encoding",)'
    for name in names:
        if not (isinstance(name, str) and re.fullmatch(r"[\w.-]+", name)):
            return f".names has {name!r}: use letters, digits, -, _ and . only"
        if name in taken:
            return f".names has {name}, which is in use: choose another name"
    return None


def _hook_problem(cls) -> str | None:
    """Return which hook has other arguments, and the fix."""
    instance = cls.__new__(cls)
    for name, arguments in HOOKS.items():
        hook = getattr(instance, name)
        try:
            if hook is not None:
                inspect.signature(hook).bind(*arguments.split(", "))
        except TypeError as error:
            return f".{name} has other arguments ({error}): use def {name}(self, {arguments})"
    return None


def _lines(error: BaseException, paths: Iterable[str]) -> list[str]:
    """Return the lines of an exception that are in some files."""
    lines = [(x.filename, x.lineno) for x in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        lines.append((error.filename or "", error.lineno))
    # torch.compile's text has many lines, which quote the user's code.
    lines += re.findall(r'File "(.*)", line (\d+)', str(error))
    return [f"{path}, line {line}" for path, line in lines if path in paths]


def lines_in_plugins(error: BaseException) -> list[str]:
    """Return the lines of an exception that are in loaded plugins."""
    return _lines(error, [str(plugin.path) for plugin in LOADED.values()])


def reason(error: BaseException) -> str:
    """Return an exception's type and message, in one line."""
    return f"{type(error).__name__} ({' '.join(str(error).split())[:200] or 'no message'})"


def plugins_of(encodings: Iterable[tuple[type, dict]]) -> list[Plugin]:
    """Return the plugins that define encodings (from pe_spec.parse), or bases."""
    modules = {base.__module__ for cls, _ in encodings for base in cls.__mro__}
    return [plugin for module, plugin in LOADED.items() if module in modules]


def recorded(encodings: Iterable[tuple[type, dict]]) -> dict[str, str] | None:
    """Return `plugin` of a run's settings: file name -> SHA-256, or None."""
    return {plugin.path.name: plugin.sha256 for plugin in plugins_of(encodings)} or None


def check_loaded(settings: dict, folder: str | Path) -> None:
    """Raise InputError unless the plugins that settings record are loaded.

    settings: of a run, or its config.yaml; may be foreign. folder: with copies.
    """
    entry = settings.get("plugin")
    check(entry, Versions, f"{folder}: plugin", "use settings that train_gpt.py wrote")
    loaded = {plugin.sha256: plugin.path.name for plugin in LOADED.values()}
    problems = []
    for name, sha256 in (entry or {}).items():
        if sha256 in loaded:
            continue
        copy = Path(folder) / name
        remedy = f"read the copy {copy} and pass --plugin {copy}"
        # --override plugin replaces the copy.
        if not copy.is_file() or hashlib.sha256(copy.read_bytes()).hexdigest() != sha256:
            remedy = f"{copy} differs, pass the file with this SHA-256 as --plugin"
        version = "another version of the" if name in loaded.values() else "the"
        plugin = f"{version} plugin {name} (SHA-256 {sha256[:12]})"
        problems.append(f"{folder} was trained with {plugin}: {remedy}")
    if problems:
        raise InputError(*problems)


def describe_error(error: BaseException) -> str | None:
    """Return one line for an exception in the code of a plugin, else None."""
    lines = lines_in_plugins(error)
    if not lines or type(error).__name__ == "OutOfMemoryError":
        return None
    path = lines[-1].rpartition(",")[0]
    remedy = f"fix the plugin; `python check_encoding.py {path}` explains more"
    return f"{lines[-1]}: {reason(error)}: {remedy}"


cli.DESCRIBE.insert(0, describe_error)
