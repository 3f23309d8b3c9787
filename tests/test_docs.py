"""The documentation: links, commands, code blocks, and numbers that are copied from results.

`python tests/test_docs.py` refreshes what is generated: text between `<!-- copy FILE A-B -->` and
`<!-- end -->` (paragraphs A to B of FILE), and between `<!-- output COMMAND -->` and `<!-- end -->`
(what the command prints).
"""

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from conftest import search_path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from runtime import cli  # noqa: E402

import torch  # noqa: E402

from errors import InputError  # noqa: E402
from model import GPT, GPTConfig  # noqa: E402
from training import plugins  # noqa: E402

RESULTS = ROOT / "results"
HIDDEN = {".git", ".venv", ".ruff_cache", ".pytest_cache", "__pycache__", "data", "runs"}
ALL_MARKDOWN = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not HIDDEN & set(path.relative_to(ROOT).parts[:-1]) and path.is_file()
)
GENERATED = [path for path in RESULTS.rglob("*.md") if path.name != "README.md"]
PAGES = [path for path in ALL_MARKDOWN if path not in GENERATED]

COPY = re.compile(r"<!-- copy (\S+) (\d+)-(\d+) -->\n(.*?)<!-- end -->", re.DOTALL)
OUTPUT = re.compile(r"<!-- output python (.+?) -->\n(.*?)<!-- end -->", re.DOTALL)
FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
INDENTED_COMMAND = re.compile(
    r"^ {4,}((?:[A-Z_]+=\S+ )*(?:python|torchrun|bash|sbatch) .*(?:\\\n.*)*)", re.MULTILINE
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def fences(text: str) -> list[tuple[str, str, str]]:
    """Return (language, mark, code) of the fenced blocks of a page."""
    return [
        (language, mark.strip(), textwrap.dedent(code))
        for _, language, mark, code in FENCE.findall(text)
    ]


# Links


def test_index_of_the_documentation_lists_all_pages():
    links = re.findall(r"^\| \[.+?\]\((.+?)\)", (ROOT / "docs/README.md").read_text(), re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(links) == sorted(pages)


def anchors(path: Path) -> set[str]:
    """Return GitHub's anchors of the headings of a Markdown file."""
    text = FENCE.sub("", path.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", ALL_MARKDOWN, ids=name_of)
def test_relative_links_exist(page):
    text = FENCE.sub("", page.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link):
            continue  # a URL
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{link} does not exist"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def test_files_on_the_map_of_the_readme_exist():
    tree = (ROOT / "README.md").read_text().split("```text\n")[1].split("```")[0]
    listed = {*re.findall(r"(?<![\w/])[\w-]+(?:\.py|/)", tree)}
    assert listed and all((ROOT / name).exists() for name in listed)


def test_released_models_are_built():
    page = (ROOT / "docs" / "pretrained_models.md").read_text().partition("## Released models")[2]
    rows = re.findall(r"^\| ([\w].*?) \| `(.*?)` \|", page, re.MULTILINE)[1:]
    assert rows
    for _, pe in rows:
        model = GPT(GPTConfig("custom", pe, 64, 16, 12, 4, 64, block="llama", n_kv_head=2))
        assert model(torch.arange(20)[None]).isfinite().all(), pe


# Commands


class Parsed(Exception):
    """Raised in place of running a program whose command line is valid."""


def tutorial_plugins() -> dict[str, str]:
    """Return the plugins of adding_an_encoding.md: blocks that begin with the name of a file."""
    blocks = python_code("adding_an_encoding.md")
    named = [(re.match(r'"""(\w+\.py): ', block), block) for block in blocks]
    return {match[1]: block for match, block in named if match}


@pytest.fixture
def stop_after_parsing(monkeypatch, tmp_path, unregistered):
    """Make `cli.parse` raise Parsed after it has accepted a command line.

    Plugins of the tutorial are found in a temporary folder.
    """
    parse, load_plugin = cli.parse, plugins.load_plugin

    def find_plugin(path):
        """Load a committed plugin, or the tutorial's of this name."""
        committed = ROOT / path
        return load_plugin(committed if committed.is_file() else tmp_path / Path(path).name)

    for name, code in tutorial_plugins().items():
        (tmp_path / name).write_text(code)
    monkeypatch.setattr(plugins, "load_plugin", find_plugin)

    def parse_and_stop(*arguments, **options):
        options.pop("inherit", None)  # would read the run of --init_from
        parse(*arguments, **options)
        raise Parsed

    monkeypatch.setattr(cli, "parse", parse_and_stop)
    monkeypatch.chdir(ROOT)


def command_blocks(text: str) -> list[str]:
    """Return the shell code of a page that no test runs: fenced blocks and indented commands."""
    fenced = [
        code
        for language, mark, code in fences(text)
        if language in ("bash", "sh") and mark != "test"
    ]
    return fenced + INDENTED_COMMAND.findall(FENCE.sub("", text))


def commands(code: str) -> list[list[str]]:
    """Split shell code into commands, each a list of words."""
    found = []
    for line in code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        words = [[]]
        for word in lexer:
            if set(word) <= set(";&|"):
                words.append([])
            else:
                words[-1].append("cable" if word == "$pe" else word.replace("$pe", "cable"))
        found += words
    return [command for command in found if command]


def check_command(words: list[str]) -> None:
    """Raise AssertionError or InputError if a documented command cannot be valid."""
    program, *arguments = [
        word for word in words if not re.fullmatch(r"[A-Z_]+=.*|do|then", word)
    ] or ["cd"]
    if program in ("python", "python3"):
        check_python(arguments)
    elif program == "torchrun":
        start = next(number for number, word in enumerate(arguments) if word.endswith(".py"))
        check_python(arguments[start:])
    elif program in ("bash", "sbatch"):
        if arguments[0].startswith("--nodes="):
            del arguments[0]
        check_script(arguments)


def check_python(arguments: list[str]) -> None:
    if arguments[0] == "-c":
        return
    if arguments[0] == "-m":
        _, module, *flags = arguments
        if module in ("pytest", "venv"):
            return
    else:
        assert (ROOT / arguments[0]).is_file(), f"{arguments[0]} does not exist"
        module, *flags = arguments
        if module.startswith(("tests/", "scripts/")):
            return
        module = module.removesuffix(".py")
    if "--config" in flags:
        position = flags.index("--config")
        if flags[position + 1].startswith("runs/"):
            del flags[position : position + 2]  # made by an earlier command
    with pytest.raises(Parsed):
        importlib.import_module(module).main(flags)


def check_script(arguments: list[str]) -> None:
    path, *flags = arguments
    assert (ROOT / path).is_file(), f"{path} does not exist"
    text, name = (ROOT / path).read_text(), Path(path).name
    if name == "slurm.sh" and flags[0].endswith(".sh"):
        check_script(flags)
    elif name == "slurm.sh":
        check_python(["train_gpt.py", *flags])
    elif re.search(r"experiment(\.py)? ", text) or name == "all_tables.sh":
        if name in ("authors_checkpoint.sh", "half_hour.sh"):
            flags = flags[1:]
        end = flags.index("--") if "--" in flags else len(flags)
        check_python(["run_experiment.py", "--train", "quickstart", *flags[:end]])
        if end < len(flags):
            check_python(["train_gpt.py", *flags[end + 1 :]])


@each_page
def test_commands_are_valid(page, stop_after_parsing):
    problems = []
    for code in command_blocks(page.read_text()):
        for command in commands(code):
            try:
                check_command(list(command))
            except (AssertionError, InputError, pytest.fail.Exception) as error:
                problems.append(f"{' '.join(command)}: {error}")
    assert not problems, "\n".join(problems)


# Code that is run


@pytest.fixture(scope="module")
def copy(tmp_path_factory, data_dir):
    """Return a copy of the repository, with a small data/stdlib, to run documented code in."""
    target = tmp_path_factory.mktemp("copy") / "repository"
    ignored = shutil.ignore_patterns(*HIDDEN, "results", "tests")
    shutil.copytree(ROOT, target, ignore=ignored)
    (target / "results").symlink_to(RESULTS)
    shutil.copytree(data_dir, target / "data" / "stdlib")
    return target


def blocks_to_run() -> Iterator:
    """Yield commands for the blocks fenced as `bash test`, and for whole programs in Python."""
    for page in PAGES:
        for number, (language, mark, code) in enumerate(fences(page.read_text())):
            command = []
            if language == "python" and re.match(r"(#.*\n)*(import|from) ", code):
                command = ["python", "-c"]
            elif (language, mark) == ("bash", "test"):
                command = ["bash", "-euo", "pipefail", "-c"]
            if command:
                yield pytest.param([*command, code], id=f"{name_of(page)}-{number}")


@pytest.mark.parametrize("command", [*blocks_to_run()])
def test_blocks_run(command, copy):
    environment = os.environ | {"PATH": search_path()}
    done = subprocess.run(command, cwd=copy, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def python_code(page: str) -> list[str]:
    """Return the Python blocks of a page under docs/."""
    text = (ROOT / "docs" / page).read_text()
    return [code for language, _, code in fences(text) if language == "python"]


# Numbers


def paragraphs(path: Path, first: int, last: int) -> str:
    """Return paragraphs `first` to `last`, counted from 1, of a generated file."""
    found = path.read_text().strip().split("\n\n")
    assert last <= len(found), f"{path} has {len(found)} paragraphs"
    return "\n\n".join(found[first - 1 : last]) + "\n"


def printed_by(command: str) -> str:
    """Return what a program of the repository prints, run in a folder without data."""
    script, *flags = shlex.split(command)
    flags = [str(ROOT / flag) if flag.startswith("configs/") else flag for flag in flags]
    program = importlib.import_module(script.removesuffix(".py"))
    with (
        contextlib.redirect_stdout(io.StringIO()) as text,
        contextlib.chdir(ROOT / "tests"),
        mock.patch("benchmarking.cost.measure_cpu", return_value=None),  # differs between CPUs
    ):
        program.main(flags)
    return f"```text\n{text.getvalue()}```\n"


@each_page
def test_tables_of_results_are_copied_from_generated_files(page):
    """A table against context or distance is one of those that report.py wrote."""
    generated = "\n".join(path.read_text() for path in GENERATED)
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
        if re.match(r"\| +(context|distance|training lengths) \|.*\n\|-+:", table):
            assert table in generated


def refresh() -> None:
    """Rewrite the generated parts of all pages."""

    def copied(part):
        text = paragraphs(ROOT / part[1], int(part[2]), int(part[3]))
        return f"<!-- copy {part[1]} {part[2]}-{part[3]} -->\n{text}<!-- end -->"

    def printed(part):
        return f"<!-- output python {part[1]} -->\n{printed_by(part[1])}<!-- end -->"

    for page in PAGES:
        old = page.read_text()
        text = OUTPUT.sub(printed, COPY.sub(copied, old))
        if text != old:
            page.write_text(text)
            print(f"updated: {name_of(page)}")


if __name__ == "__main__":
    refresh()
