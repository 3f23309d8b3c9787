"""Golden values of some cases; `python tests/golden/golden.py` compares all, in five minutes."""

import warnings

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
import golden  # noqa: E402

import posenc  # noqa: E402

CASES = [
    *(f"{spec} decoder" for spec in ("alibi", "cope", "dape+cable", "fire", "cable@1_rope@1")),
    *(f"{spec} encoder" for spec in ("cable", "transformer-xl")),
    "fox decoder triton",
]


@pytest.mark.parametrize("case", CASES)
def test_results_equal_the_golden_values(case):
    with warnings.catch_warnings(action="ignore"):
        problems, worst = golden.check([case])
    assert worst and not problems, "\n".join(problems)


def test_wrong_values_are_reported(monkeypatch):
    """A slope of one head that is 1e-6 too large, and an encoding that no longer exists."""
    exponents = posenc.alibi_exponents
    monkeypatch.setattr(posenc, "alibi_exponents", lambda heads: exponents(heads) + 1e-6)
    problems, _ = golden.check(["alibi decoder"])
    assert len(problems) > 100 and "differs by" in problems[0]
    monkeypatch.setattr(golden, "results", lambda case: ())
    assert "no longer computed" in golden.check(["alibi decoder"])[0][0]
