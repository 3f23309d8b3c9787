"""docs/adding_an_encoding.md: short form and continued sums. (test_docs.py trains all classes.)"""

import re

import torch
from conftest import ROOT

import posenc

PAGE = (ROOT / "docs" / "adding_an_encoding.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
RECENCY = next(code for code in BLOCKS if "class Recency(Encoding)" in code)
CONTENT = next(code for code in BLOCKS if "class ContentRecency(Encoding)" in code)
SHORT_FORM = next(code for code in BLOCKS if "class Recency(DistanceBias)" in code)


def test_short_form_of_the_tutorial_is_the_same_encoding(monkeypatch):
    monkeypatch.setattr(posenc, "ENCODINGS", dict(posenc.ENCODINGS))
    scope = {"DistanceBias": posenc.DistanceBias}
    exec(RECENCY, scope)
    general = scope["Recency"](4, 24, 64)
    exec(SHORT_FORM, scope)
    short = scope["Recency"](4, 24, 64)
    q_features, k_features = general.features(torch.randn(1, 9, 24), torch.arange(9))
    q_features = tuple(feature[..., None] for feature in q_features)
    k_features = tuple(feature[..., None, :] for feature in k_features)
    h = torch.arange(4)[:, None, None]
    expected = general.bias(q_features, k_features, h).tril()
    assert torch.equal(short.bias(q_features, k_features, h).tril(), expected)


def test_content_dependent_encoding_of_the_tutorial(monkeypatch):
    """Its formula in float64, computed in one piece and continued from the preceding token."""
    monkeypatch.setattr(posenc, "ENCODINGS", dict(posenc.ENCODINGS))
    scope = {}
    exec(CONTENT, scope)
    torch.manual_seed(0)
    encoding = scope["ContentRecency"](4, 24, 64)
    encoding.r.data.uniform_(0.5, 2)
    x, pos = torch.randn(2, 9, 24), torch.arange(9)
    _, (first,) = encoding.features(x[:, :5], pos[:5])
    _, (second,) = encoding.features(x[:, 5:], pos[5:], previous=(first[..., -1:],))
    s = torch.cat([first, second], -1)  # (B, H, T)
    h = torch.arange(4)[:, None, None]
    bias = encoding.bias((s[..., None],), (s[..., None, :],), h)

    steps = (x.double() @ encoding.step.weight.double().T).exp().log1p()  # (B, T, H)
    expected_s = steps.cumsum(1).mT
    distance = (expected_s[..., None] - expected_s[..., None, :]).abs()
    expected = -encoding.r.double()[:, None, None] * distance.log1p()
    torch.testing.assert_close(bias.double(), expected, atol=1e-5, rtol=1e-5)
