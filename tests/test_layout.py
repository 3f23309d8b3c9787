"""Layout of the repository: names at the root, import directions and the size of packages."""

import ast
import importlib.metadata
import sys
from pathlib import Path

import pytest
from conftest import CORE, ROOT

PROGRAMS = {path.stem for path in ROOT.glob("*.py")} - CORE
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")}
NESTED = {
    str(path.parent.relative_to(ROOT))
    for package in PACKAGES
    for path in ROOT.glob(f"{package}/*/__init__.py")
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in (".", *PACKAGES, *NESTED)
    for path in (ROOT / folder).glob("*.py")
}
# Folders of the root that can be imported by accident, as namespace packages.
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name.isidentifier()}


def imported_modules(path: Path) -> set[str]:
    """Return the modules of this repository that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = node.module or ""
            if node.level:
                parent = path.parent.relative_to(ROOT).parts
                package = ".".join([*parent, *filter(None, [node.module])])
            names = [f"{package}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else package for name in names]
        else:
            continue
        found |= {name for name in names if name in MODULES}
    return found


IMPORTS = {name: imported_modules(path) for name, path in MODULES.items()}


def test_root_has_at_most_24_python_files():
    assert len(list(ROOT.glob("*.py"))) <= 24


@pytest.mark.parametrize("package", sorted(PACKAGES | NESTED))
def test_package_has_at_most_ten_modules(package):
    modules = [path for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"]
    assert 0 < len(modules) <= 10


def test_import_graph_has_no_cycle():
    done, stack = set(), []

    def visit(name):
        assert name not in stack, f"import cycle: {' -> '.join([*stack, name])}"
        if name in done:
            return
        stack.append(name)
        for other in sorted(IMPORTS[name]):
            visit(other)
        done.add(stack.pop())

    for name in MODULES:
        visit(name)


def test_no_module_imports_a_program():
    wrong = {name: programs for name in MODULES if (programs := IMPORTS[name] & PROGRAMS)}
    assert not wrong


def test_core_modules_import_only_what_is_below_them():
    assert IMPORTS["errors"] == set()
    assert IMPORTS["posenc"] == {"errors", "operators.elementary"}
    assert IMPORTS["pe_spec"] == {"errors", "posenc"}
    assert IMPORTS["attention"] <= {"errors", "posenc"}
    above = {"runtime", "text_data", "evaluation", "reporting", "retrieval", "benchmarking"}
    assert not {name.partition(".")[0] for name in IMPORTS["model"]} & above
    for name, imports in IMPORTS.items():
        package = name.partition(".")[0]
        if package in ("more_encodings", "triton_attention") or name == "kv_cache":
            allowed = {package, "errors", "posenc", "pe_spec", "attention", "operators"}
            assert {other.partition(".")[0] for other in imports} <= allowed, name
        if package == "text_data":
            assert not imports & {"model", "posenc", "attention"}, name


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
