"""Layers of the repository, computed from its imports.

    python scripts/layers.py        # write the diagram to docs/development.md

An arrow leads to an imported part; those that follow from others are
left out.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
# No module imports one of a later row. Other modules at the root are programs.
LAYERS = (
    *(
        "errors operators setting",
        "losses posenc",
        "attention_cpu more_encodings triton_attention",
    ),
    *("pe_spec", "attention", "kv_cache", "model"),
    *("runtime", "data_loader", "text_data", "training", "generation", "evaluation"),
    *("hf_interop", "reporting", "benchmarking", "retrieval", "programs"),
)
RANKS = {part: rank for rank, layer in enumerate(LAYERS) for part in layer.split()}
FOLDERS = [ROOT / part for part in RANKS]
PATHS = [*ROOT.glob("*.py"), *(path for each in FOLDERS for path in each.glob("**/*.py"))]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PATHS
}
# Functions that get the name of a module.
BY_STRING = ("import_module", "find_spec", "__import__")


def part_of(module: str) -> str:
    """Return the package or the core file of a module, or "programs"."""
    first = module.partition(".")[0]
    return first if first in RANKS else "programs"


def imported_modules(path: Path) -> set[str]:
    """Return our modules that a file imports, also inside functions or by a string."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(BY_STRING):
            names |= {x.value for x in node.args if isinstance(x, ast.Constant)}
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else str(node.module) for name in full}
    return names & MODULES.keys()


def diagram() -> str:
    """Return the import graph of the parts in Mermaid."""
    reachable, lines = {}, ["```mermaid", "flowchart TD"]
    for part in RANKS:  # from the lowest
        paths = [path for name, path in MODULES.items() if part_of(name) == part]
        imported = set().union(*map(imported_modules, paths))
        others = {*map(part_of, imported)} & reachable.keys()
        indirect = set().union(*(reachable[other] for other in others))
        reachable[part] = indirect | others
        lines += [f"    {part} --> {other}" for other in RANKS if other in others - indirect]
    return "\n".join([*lines, "```"])


if __name__ == "__main__":
    page = ROOT / "docs/development.md"
    before, _, rest = page.read_text(encoding="utf-8").partition("```mermaid")
    page.write_text(before + diagram() + rest.partition("```")[2], encoding="utf-8")
