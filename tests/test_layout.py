"""Layout of the repository: names at the root and import directions."""

import importlib.metadata
import sys

from conftest import CORE, ROOT, python

sys.path.insert(0, str(ROOT / "scripts"))
from layers import MODULES, RANKS, imported_modules, part_of  # noqa: E402

PROGRAMS = {name for name in MODULES if part_of(name) == "programs"}
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")}
# Folders of the root that can be imported by accident, as namespace packages.
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name.isidentifier()}
IMPORTS = {name: imported_modules(path) for name, path in MODULES.items()}


def test_every_import_points_to_an_earlier_layer():
    """No program imports a program. An import by a string counts."""
    assert {*RANKS} - {"programs"} == PACKAGES - {"tests"} | CORE
    pairs = {(name, other) for name in MODULES for other in IMPORTS[name]}
    ranks = {pair: [RANKS[part_of(name)] for name in pair] for pair in pairs}
    wrong = {pair for pair, (own, other) in ranks.items() if other > own}
    assert not wrong
    assert not {pair for pair in pairs if pair[1] in PROGRAMS}
    data = {other for name, other in pairs if part_of(name) == "text_data"}
    assert not data & {"model", "posenc", "attention"}
    beside = {frozenset(map(part_of, pair)) for pair, (own, other) in ranks.items() if own == other}
    assert not {pair for pair in beside if len(pair) > 1}


def test_root_names_differ_from_other_packages():
    """A module here hides a package of the same name from every dependency that imports it."""
    names = PROGRAMS | PACKAGES | FOLDERS | CORE
    # "scripts" and "tests" are folders that some wheels install by mistake; nothing imports them.
    installed = set(importlib.metadata.packages_distributions()) - {"scripts", "tests", "docs"}
    assert not names & set(sys.stdlib_module_names)
    assert not names & installed
    assert not names & {"kernels", "triton_kernels", "datasets", "evaluate", "distributed"}
    ignored = {line.strip("/\n") for line in (ROOT / ".gitignore").open() if line.strip()}
    assert not (PACKAGES | {path.stem for path in ROOT.glob("*.py")}) & ignored


def test_training_loads_neither_measuring_nor_printing():
    modules = python("-c", "import sys, train_gpt; print(*sys.modules)").stdout.split()
    loaded = {name.partition(".")[0] for name in modules} & RANKS.keys()
    assert loaded >= {"model", "training"}
    assert not {part for part in loaded if RANKS[part] > RANKS["training"]}
