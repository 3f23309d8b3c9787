"""Run the tests of the Triton kernels for one kind of bias, in a process of its own.

    python -m benchmarking.gpu_session.kernels --out FOLDER core decay
    python -m benchmarking.gpu_session.kernels --out FOLDER rest decay

core: about 20 cases of all kinds together. rest: the others, unless a core case of the kind failed.
A process for each kind, because a faulty kernel can make the GPU unusable for the process. Writes
kernels/SCOPE_KIND.json after each test: a test that did not run is neither passed nor failed.
"""

import argparse
import sys
from pathlib import Path

from runtime.files import read_json, write_json

import torch

import more_encodings  # noqa: F401, registers further encodings
import posenc
import triton_attention
from triton_attention.bias import KINDS, bias_from_encoding

CORE = (
    "test_values_and_gradients",
    "test_half_precision_keeps_the_bias_exact",
    "test_fewer_queries_than_keys",
    "test_results_are_deterministic",
)
ANY_KIND = "any-kind"  # tests that name no kind and no encoding of the kernels
FLEX = "flex"  # tests of FlexAttention, which uses none of the kernels
PROCESSES = (*KINDS, ANY_KIND, FLEX)
ROOT = Path(__file__).parents[2]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("scope", choices=("core", "rest"))
    parser.add_argument("kind", choices=PROCESSES)
    arguments = parser.parse_args(argv)
    scope, kind = arguments.scope, arguments.kind
    if scope == "rest":
        failed = read_results(arguments.out, "core", kind).get("failed", [])
        if failed:
            print(f"not run: core cases failed: {', '.join(failed)}")
            sys.exit(1)
    selection = Selection(scope, kind, results_path(arguments.out, scope, kind))
    sys.exit(run_tests(selection))


def run_tests(selection: "Selection") -> int:
    """Run the selected tests and return pytest's exit status; 0 if none exists."""
    import pytest

    folder = ROOT / "tests" / "triton_attention"
    status = pytest.main(["-q", "-p", "no:cacheprovider", str(folder)], plugins=[selection])
    no_tests = pytest.ExitCode.NO_TESTS_COLLECTED
    return 0 if status == no_tests else int(status)


def results_path(out: Path, scope: str, kind: str) -> Path:
    return out / "kernels" / f"{scope}_{kind}.json"


def read_results(out: Path, scope: str, kind: str) -> dict:
    """Return the results of a scope and a kind: passed, failed and total; {} if there are none."""
    path = results_path(out, scope, kind)
    return read_json(path, "remove it") if path.exists() else {}


def encoding_kind(pe: str) -> str:
    """Return the kind of bias that the kernels compute for an encoding; else ANY_KIND."""
    if len(posenc.layer_specs(pe)) > 1:
        return ANY_KIND
    encoding = posenc.build(pe, 2, 8, 8, 1)[0]
    if not triton_attention.supports(encoding):
        return ANY_KIND
    features = encoding.features(torch.zeros(1, 4, 8), torch.arange(4))
    return bias_from_encoding(encoding, *features, 2).kind


def kind_of_test(item) -> str:
    """Return the kind of bias that a collected test is about, ANY_KIND or FLEX."""
    if item.path.name == "test_flex.py":
        return FLEX
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params if callspec else {}
    if "kind" in parameters:
        return parameters["kind"]
    if "pe" in parameters:
        return encoding_kind(parameters["pe"])
    return ANY_KIND


class Selection:
    """Plugin of pytest that selects the tests of a scope and a kind, and writes their results."""

    def __init__(self, scope: str, kind: str, path: Path):
        self.scope, self.kind, self.path = scope, kind, path
        self.results = {"passed": 0, "failed": [], "total": 0}

    def pytest_collection_modifyitems(self, config, items) -> None:
        selected = [item for item in items if self.selects(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in selected])
        items[:] = selected
        self.results["total"] = len(selected)
        write_json(self.path, self.results)

    def selects(self, item) -> bool:
        is_core = item.originalname in CORE
        return is_core == (self.scope == "core") and kind_of_test(item) == self.kind

    def pytest_runtest_logreport(self, report) -> None:
        is_skipped = report.skipped and report.when == "setup"
        if report.failed:
            self.results["failed"].append(report.nodeid)
        elif report.when == "call" or is_skipped:
            self.results["passed"] += 1
        write_json(self.path, self.results)


if __name__ == "__main__":
    main()
