"""docs/adding_an_encoding.md: its plugins train, are exported, and have the formulas they state."""

from runtime import checkpoints, plugins

import pytest
import torch
from conftest import TINY, run_outside, unregister_plugins
from test_docs import python_code, tutorial_plugins

import export_hf
import pe_spec
import posenc
import train_gpt

# Plugins that are exported: file of the tutorial -> --pe. tests/test_docs.py checks all of them.
PLUGINS = {"content_recency.py": "rope+content-recency", "stick_breaking.py": "stick-breaking"}
LOADED = """
import pathlib, sys
import torch
from transformers import AutoModelForCausalLM

results = {}
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokens = torch.tensor([[256, *b"12: line 7 of 4"]])
    generated = model.generate(tokens, max_new_tokens=6)
    uncached = model.generate(tokens, max_new_tokens=6, use_cache=False)
    same = generated.tolist() == uncached.tolist()
    results[folder.name] = {"logits": model(tokens).logits.detach(), "same text": same}
torch.save(results, sys.argv[2] + "/results.pt")
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{name of a file: its path}"""
    folder = tmp_path_factory.mktemp("plugins")
    for name, code in tutorial_plugins().items():
        (folder / name).write_text(code)
    return {name: folder / name for name in tutorial_plugins()}


@pytest.fixture(scope="module")
def root(files, data_dir, tmp_path_factory):
    """Folder with `runs` and `exports`, one of each plugin."""
    root = tmp_path_factory.mktemp("tutorial")
    for name, pe in PLUGINS.items():
        run, plugin = str(root / "runs" / name), ["--plugin", str(files[name])]
        flags = ["--data", str(data_dir), "--pe", pe, "--out_dir", run]
        with unregister_plugins():
            train_gpt.main([*TINY, *flags, *plugin])
            export_hf.main([run, "--out_dir", str(root / "exports" / name), *plugin])
    return root


def test_plugins_of_the_tutorial_are_exported(root, files, tmp_path, unregistered):
    loaded = run_outside(LOADED, tmp_path, root / "exports")
    for name in PLUGINS:
        plugin = plugins.load_plugin(files[name])
        model, _ = checkpoints.load_model(root / "runs" / name, torch.device("cpu"))
        with torch.no_grad():
            logits = model(torch.tensor([[256, *b"12: line 7 of 4"]]))[..., :257]
        torch.testing.assert_close(loaded[name]["logits"], logits, atol=1e-5, rtol=1e-5)
        assert loaded[name]["same text"]
        readme = (root / "exports" / name / "README.md").read_text()
        assert f"`{plugin.module}.py` defines" in readme and plugin.sha256 in readme


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
    short = scope["Recency"](4, 24, 64)
    q_features, k_features = general.features(torch.randn(1, 9, 24), torch.arange(9))
    q_features = tuple(feature[..., None] for feature in q_features)
    k_features = tuple(feature[..., None, :] for feature in k_features)
    h = torch.arange(4)[:, None, None]
    expected = general.bias(q_features, k_features, h).tril()
    assert torch.equal(short.bias(q_features, k_features, h).tril(), expected)
