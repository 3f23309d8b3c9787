"""check_encoding.py: the table of checks, exit statuses. The checks have their tests."""

import re

import pytest

import check_encoding
from evaluation.checks import CHECKS

MINE = '''
"""Two encodings of a user."""

import torch
from torch import nn

from posenc import Encoding


class Recency(Encoding):
    """-r_h log(1 + d)."""

    names = ("my-recency", "my-alias")

    def __init__(self, heads, channels, block_size, *, power: int = 1):
        super().__init__(heads, channels, block_size)
        self.r = nn.Parameter(torch.ones(heads))

    def features(self, x, pos, previous=None):
        p = pos.float()[:, None]
        return (p,), (p,)

    def bias(self, q_features, k_features, h):
        return -self.r[h] * (q_features[0] - k_features[0]).abs().log1p()


class Broken(Recency):
    """log d, which is infinite at distance 0."""

    names = ("my-broken",)

    def bias(self, q_features, k_features, h):
        return -(q_features[0] - k_features[0]).abs().log() * self.r[h]


class Forgetful(Recency):
    """-(S_i - S_j) without `previous`."""

    names = ("my-forgetful",)

    def features(self, x, pos, previous=None):
        s = -x.abs().mean(-1)[:, None].cumsum(-1)
        return (s,), (s,)

    def bias(self, q_features, k_features, h):
        return q_features[0] - k_features[0]


class Slip(Recency):
    names = ("my-slip",)

    def bias(self, q_features, k_features, h):
        return q_features[0] - keys[0]


class Unfinished(Recency):
    names = ("my-unfinished",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        raise RuntimeError("to do")
'''


@pytest.fixture
def mine(tmp_path, monkeypatch, unregistered):
    """A file with three encodings."""
    monkeypatch.setattr(check_encoding.devices, "configure_backends", lambda device: None)
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture
def quick(monkeypatch):
    """Only some of the checks."""
    names = ("options", "finite values", "causality", "formulas", "order")
    checks = {name: CHECKS[name] for name in names}
    monkeypatch.setattr(check_encoding, "CHECKS", checks)


def test_a_failed_check_is_explained_and_the_others_run(mine, quick, capsys):
    with pytest.raises(SystemExit) as stop:
        check_encoding.main([str(mine), "--pe", "my-broken,rope+my-recency:power=2,heads=1"])
    assert stop.value.code == 1
    out = capsys.readouterr().out
    assert "my-broken: log d, which is infinite at distance 0." in out
    message = r"    bias at 33 tokens has NaN or Inf in \S+ of \S+ values\n    usual cause: "
    assert re.search(message, out)
    assert "5 checks of my-broken: 1 ok, 3 failed, 1 not applicable" in out
    assert "5 checks of rope+my-recency:power=2,heads=1: 4 ok, 0 failed" in out


def test_all_checks_are_run(mine, capsys, monkeypatch):
    monkeypatch.setattr(check_encoding, "run_check", lambda *_: check_encoding.Result("ok"))
    check_encoding.main([str(mine), "--pe", "rope+my-recency"])
    out = capsys.readouterr().out
    assert f"{len(CHECKS)} checks of rope+my-recency: {len(CHECKS)} ok, 0 failed" in out


def test_causes_belong_to_the_failures(mine, capsys, monkeypatch):
    """Neither a slip nor what follows from an earlier failure gets the cause of another fault."""
    names = ("options", "shapes", "KV cache", "float64")
    checks = {name: CHECKS[name] for name in names}
    monkeypatch.setattr(check_encoding, "CHECKS", checks)
    causes = {}
    for pe in ("my-slip", "my-forgetful"):
        with pytest.raises(SystemExit):
            check_encoding.main([str(mine), "--pe", pe])
        lines = capsys.readouterr().out.splitlines()
        causes[pe] = [line for line in lines if "usual cause" in line]
    assert causes["my-slip"] == []
    (first,) = causes["my-forgetful"]  # of two failures
    assert "features ignore `previous`" in first


def test_each_class_of_the_file_is_checked_once(mine, quick, capsys):
    with pytest.raises(SystemExit):
        check_encoding.main([str(mine)])
    out = capsys.readouterr().out
    assert "checks of my-recency:" in out
    assert "my-alias" not in out
    line = 1 + MINE.splitlines().index('        raise RuntimeError("to do")')
    assert f"    RuntimeError (to do), {mine}, line {line}" in out
    assert "1 checks of my-unfinished: 0 ok, 1 failed" in out
