"""docs/adding_an_encoding.md: its plugins train, are exported, and have the formulas they state."""

import numpy as np
import pytest
import torch
from conftest import TINY, run_outside, unregister_plugins
from test_docs import python_code, tutorial_plugins

import export_hf
import pe_spec
import posenc
import train_gpt
from evaluation.layer_checks import dense_bias
from training import checkpoints, plugins

LOADED = """
import sys
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
tokens = torch.tensor([[256, *b"12: line 7 of 4"]])
generated, uncached = (
    model.generate(tokens, max_new_tokens=6, use_cache=cached).tolist() for cached in (True, False))
results = {"logits": model(tokens).logits.detach(), "same text": generated == uncached}
torch.save(results, sys.argv[2] + "/results.pt")
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{name of a file: its path}"""
    folder = tmp_path_factory.mktemp("plugins")
    for name, code in tutorial_plugins().items():
        (folder / name).write_text(code)
    return {name: folder / name for name in tutorial_plugins()}


@pytest.mark.parametrize(
    "name, pe",
    [("content_recency.py", "rope+content-recency"), ("stick_breaking.py", "stick-breaking")],
)
def test_plugins_of_the_tutorial_are_exported(name, pe, files, data_dir, tmp_path, unregistered):
    """tests/test_docs.py checks all of them."""
    run, plugin, out = tmp_path / "run", ["--plugin", str(files[name])], tmp_path / "exported"
    with unregister_plugins():
        flags = ["--data", str(data_dir), "--pe", pe, "--out_dir", str(run)]
        train_gpt.main([*TINY, *flags, *plugin])
        export_hf.main([str(run), "--out_dir", str(out), *plugin])
    loaded = run_outside(LOADED, tmp_path, out)
    module = plugins.load_plugin(files[name])
    model, _ = checkpoints.load_model(run, torch.device("cpu"))
    with torch.no_grad():
        logits = model(torch.tensor([[256, *b"12: line 7 of 4"]]))[..., :257]
    torch.testing.assert_close(loaded["logits"], logits, atol=1e-5, rtol=1e-5)
    assert loaded["same text"]
    readme = (out / "README.md").read_text()
    assert f"`{module.module}.py` defines" in readme and module.sha256 in readme


# Formulas


def instance(files, name, pe, heads=4, width=24):
    plugins.load_plugin(files[name])
    torch.manual_seed(0)
    return pe_spec.build(pe, heads, width, 64, 1)[0]


def test_stick_breaking(files, unregistered):
    """The weights are proportional to beta_ij times the product of 1 - beta_it, t = j+1..i."""
    encoding = instance(files, "stick_breaking.py", "stick-breaking")
    logits, mask = torch.randn(1, 4, 9, 9), torch.ones(9, 9, dtype=torch.bool).tril()
    bias = torch.zeros(1, 1, 1, 1)
    added = encoding.logits_transform(logits, bias, None, None, None, None, mask, (), ())
    weights = (logits + added).exp().double()
    beta = logits.double().sigmoid()
    for i in range(9):
        for j in range(i + 1):
            expected = beta[..., i, j] * (1 - beta[..., i, j + 1 : i + 1]).prod(-1)
            torch.testing.assert_close(weights[..., i, j], expected, atol=1e-6, rtol=1e-4)


def test_short_form_is_the_same_encoding(files, unregistered):
    general = instance(files, "my_encoding.py", "recency")
    blocks = python_code("adding_an_encoding.md")
    short_form = next(code for code in blocks if "class Recency(DistanceBias)" in code)
    scope = {"DistanceBias": posenc.DistanceBias, "nn": torch.nn, "torch": torch}
    exec(short_form, scope)
    x = torch.randn(1, 9, 24)
    short, expected = (dense_bias(each, x) for each in (scope["Recency"](4, 24, 64), general))
    assert np.array_equal(np.tril(short), np.tril(expected))
