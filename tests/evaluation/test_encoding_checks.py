"""The checks of check_encoding.py, over all encodings and on wrong ones."""

import re

import pytest
from conftest import ENCODINGS, KINDS, NAMES

import posenc
from check_encoding import CHECKS, measure, run_check
from evaluation import model_checks
from evaluation.checks import CheckFailed
from training import plugins

CAUSAL_ONLY = ("cope", "rope+cope", "logn", "ssmax", "rope+ssmax", "path", "path+fox", "wall")
WITHOUT_ORDER = ("nope", "dape", "logn", "ssmax", "sink")
NOT_APPLICABLE = {"order": WITHOUT_ORDER, "encoder: padding": CAUSAL_ONLY}
# Compiling takes a second: of the combinations, those of KINDS and one on some heads.
COMPILING = ("one compiled graph", "fixed-shape decoding")
COMPILED = {*NAMES, *KINDS, "cable:heads=2"}
OPTIONAL = ("formulas",)  # of what the encoding has
# Each class once, without aliases. tests/test_posenc.py has the formulas.
ALIASES = [pe for pe, cls in posenc.ENCODINGS.items() if pe != cls.names[0]]


@pytest.mark.parametrize(
    "pe, name",
    [
        (pe, name)
        for pe in ENCODINGS
        for name in CHECKS
        if pe not in ALIASES and (pe in COMPILED or name not in COMPILING)
    ],
)
def test_encoding(name, pe):
    expected = "not applicable" if pe in NOT_APPLICABLE.get(name, ()) else "ok"
    result = run_check(name, pe)
    is_left_out = name in OPTIONAL and result.status == "not applicable"
    assert result.status == expected or is_left_out, result


@pytest.mark.parametrize("pe", ["k-cable", "t5", "fire", "mep-learned", "diet-abs"])
def test_other_biases_on_some_heads(pe):
    for name in ("formulas", "gradients", "finite values", "attention paths"):
        result = run_check(name, f"{pe}:heads=1")
        assert result.status != "failed", result


def test_order_fails_without_an_encoding(monkeypatch):
    """The last logits of one layer without an encoding depend on the set of tokens only."""
    monkeypatch.setattr(model_checks, "WITHOUT_ORDER", ())
    with pytest.raises(CheckFailed, match=r"logits by .*e-\d\d only"):
        measure("order", "nope")


# Wrong encodings. Each differs in one place from Right, -r_h S with S a running sum of steps.
# A line "# CHECK; CHECK" starts the code of one that fails these checks.
WRONG_CODE = """
# options
    def __init__(self, heads, channels, block_size, *, slopes: tuple = (1, 2)):
        super().__init__(heads, channels, block_size)
# options
    option_words = {"growth": ("log", "root")}
    def __init__(self, heads, channels, block_size, *, growth: str = "linear"):
        super().__init__(heads, channels, block_size)
# options
    option_words = {"grwth": ("log", "root")}
    def __init__(self, heads, channels, block_size, *, growth: str = "log"):
        super().__init__(heads, channels, block_size)
# shapes
    def features(self, x, pos, previous=None):
        s = running_sum(self.steps(x)) if previous is None else self.steps(x)
        return (s.mT,), (s,)
# shapes
    def rotate(self, q, k, pos, q_features=(), k_features=()):
        return torch.cat([q, q], -1), torch.cat([k, k], -1)
# KV cache
    running_features = (0,)
# shapes
    def features(self, x, pos, previous=None):
        return super().features(x.tanh_(), pos, previous)
# shapes
    def factors(self, q_features, k_features):
        r = self.r[None, :, None]
        return (r * q_features[0].neg_(), None), (r, k_features[0])
# device
    def bias(self, q_features, k_features, h):
        return super().bias(q_features, k_features, h) * torch.ones(len(self.r), 1, 1)
# formulas
    def reference_bias(self, x):
        return np.zeros((1, 1, x.shape[1], x.shape[1]))
# formulas
    def factors(self, q_features, k_features):
        r = self.r[None, :, None]
        return (r * q_features[0], None), (r, k_features[0])
# KV cache
    def features(self, x, pos, previous=None):
        return super().features(x, pos)
# KV cache
    def features(self, x, pos, previous=None):
        s = x[..., :1].mean(1, keepdim=True).mT.contiguous()
        return (s,), (s,)
# formulas
    def triton_bias(self, q_features, k_features, h):
        return "log_decay", {"s_i": q_features[0], "g": self.r[None, :, None], "s_j": k_features[0]}
# formulas
    def triton_bias(self, q_features, k_features, h):
        numbers = {"s_i": q_features[0], "g": self.r[None, :, None], "s_j": k_features[0]}
        return "decay", numbers | {"other": self.r}
# gradients
    def bias(self, q_features, k_features, h):
        r = self.r[h]
        return -(r.detach() + r) / 2 * (k_features[0] - q_features[0]).abs()
# gradients
    def bias(self, q_features, k_features, h):
        return -self.r[h].round() * (k_features[0] - q_features[0]).abs()
# gradients
    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.without_effect = nn.Parameter(torch.ones(heads))
    def bias(self, q_features, k_features, h):
        return super().bias(q_features, k_features, h) + 0 * self.without_effect[h]
# gradients
    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.unused = nn.Parameter(torch.ones(heads))
# gradients
    def bias(self, q_features, k_features, h):
        return -self.r[h] * (k_features[0] - q_features[0]).abs().sqrt()
# finite values
    def bias(self, q_features, k_features, h):
        distance = (k_features[0] - q_features[0]).abs()
        return -self.r[h] * distance * (distance / distance)
# finite values
    def clamp_parameters_(self):
        self.r = nn.Parameter(self.r.detach().clamp(min=0.1))
# attention paths; causality; KV cache of a window
    def bias(self, q_features, k_features, h):
        return super().bias(q_features, k_features, h) / k_features[0].size(-1)
# KV cache of a window
    def bias(self, q_features, k_features, h):
        return super().bias(q_features, k_features, h) * k_features[0][..., :1].cos()
# causality
    def features(self, x, pos, previous=None):
        return super().features(x - x.mean(1, keepdim=True), pos, previous)
# order
    bias = None
    def biass(self, q_features, k_features, h):
        return super().bias(q_features, k_features, h)
# KV cache
    def features(self, x, pos, previous=None):
        s = running_sum(self.steps(x))
        return (s,), (s,)
# fixed-shape decoding
    def features(self, x, pos, previous=None):
        (s,), _ = super().features(x, pos, previous)
        s = s + pos[0, 0].item() * 1e-3
        return (s,), (s,)
# one compiled graph
    def bias(self, q_features, k_features, h):
        bias = super().bias(q_features, k_features, h)
        return bias if bias.max() < 1e6 else bias.clamp(max=1e6)
# determinism
    calls = 0
    def bias(self, q_features, k_features, h):
        type(self).calls += 1
        return super().bias(q_features, k_features, h) * type(self).calls
# float64
    def features(self, x, pos, previous=None):
        (s,), _ = super().features(x, pos, previous)
        return (s.float(),), (s.float(),)
# bfloat16, far tokens
    def rotate(self, q, k, pos, q_features=(), k_features=()):
        angle = (pos.to(q.dtype) / 3)[:, None, :, None]
        return q * angle.cos(), k * angle.cos()
# attention paths
    def bias(self, q_features, k_features, h):
        return -self.r[h] * (k_features[0] - q_features[0])
# attention paths
    def factors(self, q_features, k_features):  # only for earlier keys
        r = self.r[None, :, None]
        return (r * q_features[0], None), (-r, k_features[0])
# attention paths
    def bias(self, q_features, k_features, h):
        return -self.r[h] * (k_features[0] - q_features[0] + 1).log1p()
# encoder: padding
    def features(self, x, pos, previous=None):
        return super().features(x * (pos < pos[:, -1:])[..., None], pos, previous)
# attention paths
    def set_bidirectional(self):
        pass
# determinism
    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.noise = torch.rand(heads)
    def bias(self, q_features, k_features, h):
        return super().bias(q_features, k_features, h) * self.noise[h]
# determinism
    def bias(self, q_features, k_features, h):
        bias = super().bias(q_features, k_features, h)
        return bias * torch.rand_like(bias)
# training
    def embed(self, x, pos):
        return torch.zeros_like(x)
"""
_, *PARTS = re.split(r"^# (.+)$", WRONG_CODE, flags=re.MULTILINE)
WRONG = [
    (name, code)
    for names, code in zip(PARTS[::2], PARTS[1::2], strict=True)
    for name in names.split("; ")
]
RIGHT = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from posenc import DistanceBias, Encoding, running_sum


class Right(Encoding):
    \"\"\"r_h S_d, S a sum of steps.\"\"\"

    names = ("right",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.r = nn.Parameter(torch.ones(heads))
        self.step = nn.Linear(channels, heads)

    def steps(self, x):
        return -F.softplus(self.step(x)).mT.contiguous()

    def features(self, x, pos, previous=None):
        s = running_sum(self.steps(x))
        s = s if previous is None else s + previous[0]
        return (s,), (s,)

    def bias(self, q_features, k_features, h):
        return -self.r[h] * (k_features[0] - q_features[0]).abs()

    def clamp_parameters_(self):
        with torch.no_grad():
            self.r.clamp_(min=0.1)

    def reference_bias(self, x):
        steps = x @ self.step.weight.detach().double().numpy().T
        steps = np.log1p(np.exp(steps + self.step.bias.detach().double().numpy()))
        s = steps.cumsum(1).transpose(0, 2, 1)  # (B, H, T)
        r = self.r.detach().double().numpy()[:, None, None]
        return -r * np.abs(s[..., :, None] - s[..., None, :])


class Wrong(Right):
    \"\"\"Differs in one place.\"\"\"

    names = ("wrong",)
"""


@pytest.fixture
def plugin(tmp_path, unregistered):
    """plugin(code): a file with the encodings `right` and `wrong`; `wrong` has this code."""

    def write(code):
        path = tmp_path / "mine.py"
        path.write_text(RIGHT + code)
        return path

    return write


@pytest.mark.parametrize("name, code", WRONG)
def test_wrong_encoding_fails(name, code, plugin):
    plugins.load_plugin(plugin(code))
    result = run_check(name, "wrong")
    assert result.status == "failed", result
    assert result.message and result.cause


HARMLESS = """
class Windowed(DistanceBias):
    \"\"\"-max(0, d - w_h): a kink at d = w_h, and w_h >= 0.\"\"\"

    names = ("windowed",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.w = nn.Parameter(torch.full((heads,), 4.0))

    def distance_bias(self, d, h):
        return -(d.abs() - self.w[h]).clamp(min=0)

    def clamp_parameters_(self):
        self.w.data.clamp_(min=0)
"""


def test_gradients_pass_on_a_bound(plugin):
    plugins.load_plugin(plugin(HARMLESS))
    assert run_check("gradients", "windowed").status == "ok"
