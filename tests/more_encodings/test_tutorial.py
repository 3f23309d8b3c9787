"""docs/adding_an_encoding.md: the short form is the same encoding. (test_docs.py trains both.)"""

import re

import torch
from conftest import ROOT

import posenc

PAGE = (ROOT / "docs" / "adding_an_encoding.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
RECENCY = next(code for code in BLOCKS if "class Recency(Encoding)" in code)
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
