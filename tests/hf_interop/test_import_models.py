"""Imported models of every supported class: logits, cache, padding, and programs on the run."""

import json
import shutil

import numpy as np
import pytest
import torch
from conftest import evaluation
from safetensors.torch import load_file
from torch.nn import functional

import eval_extrapolation
import export_hf
import import_pretrained
import prepare_text
import sample
import train_gpt
from data_loader import Shards
from hf_interop import pretrained
from kv_cache import Cache
from text_data import tokenizer as tokenizers_of_ours
from training import checkpoints

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

CPU = ["--device", "cpu", "--dtype", "float32"]
SHAPE = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
SHAPE |= {"tie_word_embeddings": False, "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
OLDER = {"rope_theta": 500000.0, "rope_scaling": LLAMA3}  # as older files have it
LINEAR = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 9000.0}}
LONG = {"rope_parameters": YARN | {"rope_theta": 1e6}}
WINDOW = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3}
MODELS = {  # name: (model_type, settings, --pe)
    "llama2": ("llama", {"num_key_value_heads": 4}, "rope:base=10000"),
    "llama3": ("llama", OLDER, "rope-llama3:factor=8,length=16,base=500000"),
    "linear": ("llama", LINEAR, "rope-pi:factor=2,base=9000"),
    "smollm2": ("llama", {"tie_word_embeddings": True}, "rope:base=10000"),
    "mistral": ("mistral", {"sliding_window": 12}, "window:w=12+rope:base=10000"),
    "qwen2": ("qwen2", LONG, "yarn:ramp=released,factor=4,length=32,base=1000000"),
    "qwen2-window": ("qwen2", WINDOW, "rope:base=10000@3_window:w=9+rope:base=10000@1"),
    "qwen3": ("qwen3", {"head_dim": 24, "rms_norm_eps": 0.01}, "rope:base=10000"),
    "smollm3": ("smollm3", {"tie_word_embeddings": True}, "rope:base=2000000@3_nope@1"),
    "gpt2": ("gpt2", {"n_positions": 96, "vocab_size": 50300}, "learnable"),
}
SIZES_OF_SHARDS = {"llama2": "60KB"}
DTYPES = {"smollm2": torch.bfloat16, "qwen3": torch.bfloat16}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer of Hugging Face with 270 tokens, fewer than the models have."""
    folder = tmp_path_factory.mktemp("tokenizer")
    trained = tokenizers_of_ours.train_bpe(270, [str(n) for n in range(300)])
    for name, content in trained.files.items():
        (folder / name).write_bytes(content)
    return folder


def save_random_model(folder, kind, dtype=torch.float32, max_shard_size="5GB", **settings):
    """Save a model of transformers with large random weights."""
    config = transformers.CONFIG_MAPPING[kind](**settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name or "ln_" in name else 0.0, 0.2)
    model.save_pretrained(folder, max_shard_size=max_shard_size)


@pytest.fixture(scope="module")
def imported(tokenizer, tmp_path_factory):
    """A function of a name in MODELS that returns transformers' model and two folders.

    They hold the model of transformers, and the imported run; read-only.
    """
    root, done = tmp_path_factory.mktemp("models"), {}

    def make(name):
        if name not in done:
            kind, changes, _ = MODELS[name]
            shape = {} if kind == "gpt2" else SHAPE
            small = {"n_embd": 64, "n_layer": 4, "n_head": 4} if kind == "gpt2" else {}
            folder, run = root / name, root / f"run-{name}"
            dtype, shard_size = DTYPES.get(name, torch.float32), SIZES_OF_SHARDS.get(name, "5GB")
            save_random_model(folder, kind, dtype, shard_size, **(shape | small | changes))
            for path in tokenizer.iterdir():
                (folder / path.name).write_bytes(path.read_bytes())
            import_pretrained.main([str(folder), "--out_dir", str(run)])
            # Casting the model would leave its rotations rounded.
            load = transformers.AutoModelForCausalLM.from_pretrained
            done[name] = load(folder, dtype=torch.float32), folder, run
        return done[name]

    return make


def texts(count=80):
    """Two texts that are longer than the trained context of 32 tokens."""
    return torch.randint(270, (2, count), generator=torch.manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(imported, name):
    """On the whole text, with a cache, and with left padding in an export."""
    theirs, folder, run = imported(name)
    assert (len(list(folder.glob("model-*.safetensors"))) > 3) == (name in SIZES_OF_SHARDS)
    model, checkpoint = checkpoints.load_model(run, torch.device("cpu"))
    assert model.config.pe == MODELS[name][2]
    weights = torch.load(next(run.glob("checkpoint_*.pt")), weights_only=True)["model"]
    assert {x.dtype for x in weights.values()} == {DTYPES.get(name, torch.float32)}
    tokens = texts()
    expected = theirs(tokens, use_cache=False).logits
    assert expected.std() > 0.5
    cache = Cache(model, capacity=80)
    pieces = tokens.split([30, 1, 1, 48], 1)
    cached = torch.cat([model(piece, cache=cache) for piece in pieces], 1)
    for logits in (model(tokens), cached):
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)

    tokenizer = tokenizers_of_ours.run_tokenizer(run, checkpoint)
    export = export_hf.build_hf_model(model, checkpoint, tokenizer)
    mask = torch.ones_like(tokens)
    mask[0, :25] = 0
    logits = export(tokens, attention_mask=mask).logits
    expected = theirs(tokens, attention_mask=mask, use_cache=False).logits
    if name == "gpt2":  # its positions are absolute
        expected[0, 25:] = theirs(tokens[:1, 25:]).logits
    expected = expected[..., : tokenizer.vocab_size]
    torch.testing.assert_close(logits[mask > 0], expected[mask > 0], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def data(imported, tmp_path_factory):
    """A data set with the tokenizer of the run `qwen3`."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").mkdir()
    for number in range(4):
        text = "".join(f"{n}: line {n * number} of {n * n}.\n" for n in range(60))
        (folder / "text" / f"{number}.txt").write_text(text)
    flags = ["--tokenizer", str(imported("qwen3")[2]), "--val_every", "2"]
    prepare_text.main([str(folder / "text"), *flags, "--out_dir", str(folder / "toy")])
    return folder / "toy"


def test_evaluation_and_generation_read_the_run(imported, data, tmp_path, capsys):
    theirs, _, source = imported("qwen3")
    run = shutil.copytree(source, tmp_path / "run")
    flags = [str(run), "--data", str(data), *CPU]
    eval_extrapolation.main([*flags, "--lengths", "1x,4x"])
    lengths = json.loads(evaluation(run).read_text())["lengths"]
    tokens = torch.from_numpy(Shards(data, "val").tokens[0][:].astype(np.int64))
    losses = []
    for start in range(0, len(tokens) - 1, 128):
        with torch.no_grad():
            logits = theirs(tokens[None, start : start + 128]).logits[0, :, :270]
        targets = tokens[start + 1 : start + 129]
        losses.append(functional.cross_entropy(logits[: len(targets)], targets, reduction="none"))
    expected = torch.cat(losses).mean().item()
    assert lengths["128"]["loss"] == pytest.approx(expected, rel=1e-5)
    sample.main([str(run), "--prompt", "3: line", "--max_new_tokens", "40", *CPU])
    assert "3: line" in capsys.readouterr().out


def with_tokens(content: bytes) -> bytes:
    """Return a tokenizer.json with 301 tokens."""
    tokenizer = json.loads(content)
    end = tokenizer["added_tokens"][0]
    added = [end | {"id": n, "content": f"new{n}"} for n in range(270, 301)]
    return json.dumps(tokenizer | {"added_tokens": [end, *added]}).encode()


@pytest.mark.parametrize(
    ("pattern", "change", "message"),
    [
        ("config.json", {"model_type": "gemma3"}, "has model_type gemma3: use one of gpt2, llama,"),
        ("config.json", {"hidden_act": "gelu"}, "has hidden_act gelu, but only silu is supported"),
        ("config.json", {"hidden_size": "a"}, "config.json is wrong (Validation error for field"),
        ("config.json", {"num_key_value_heads": 0}, "expected int >= 1 at n_kv_head"),
        ("config.json", {"num_hidden_layers": 5}, "(missing keys ['model.layers.4.input"),
        ("config.json", {"intermediate_size": 95}, "do not fit its settings"),
        ("config.json", {"num_hidden_layers": 3}, "(unexpected keys ['model.layers.3."),
        ("rope", {"rope_type": "dynamic", "factor": 2.0}, "has the rope_type dynamic: use a model"),
        ("rope", {"rope_type": "linear", "factor": 2.5}, "has factor 2.5 among its rope_param"),
        ("rope", LLAMA3 | {"low_freq_factor": 2.0}, "has low_freq_factor 2.0 among its rope_param"),
        ("rope", YARN | {"beta_fast": 16.0}, "has beta_fast 16.0 among its rope_parameters"),
        (
            "config.json",
            {"rope_theta": None},
            "has rope_theta None among its rope_parameters, which is not",
        ),
        (
            "config.json",
            {"rope_theta": float("inf")},
            "has rope_theta inf among its rope_parameters",
        ),
        ("config.json", {"rope_theta": "10000"}, "has rope_theta 10000 among its rope_parameters"),
        (
            "config.json",
            {"rope_scaling": {"rope_type": "linear", "factor": None}},
            "has factor None among its",
        ),
        (
            "config.json",
            {"rope_scaling": {"rope_type": ["yarn"], "factor": 2.0}},
            "rope_type ['yarn']: use",
        ),
        ("config.json", {"rms_norm_eps": float("nan")}, "expected float"),
        (
            "config.json",
            {"num_hidden_layers": 1001},
            "expected int <= 1000 at n_layer: copy it again",
        ),
        ("config.json", {"num_hidden_layers": 0}, "expected int >= 1 at n_layer"),
        ("config.json", {"vocab_size": 10**30}, "at vocab_size: copy it again"),
        (
            "config.json",
            {"num_key_value_heads": 3},
            "k_proj.weight', torch.Size([64, 64]), torch.Size([48,",
        ),
        (
            "config.json",
            {"quantization_config": {"quant_method": "fp8"}},
            "has quantization_config",
        ),
        (
            "config.json",
            {"model_type": "mistral", "layer_types": []},
            "has model_type ministral: use one of gpt2",
        ),
        ("model*", None, "model.safetensors.index.json does not exist: name a folder with"),
        ("model.safetensors.index.json", lambda content: b'{"weight_map": 1}', "index.json: "),
        ("model-00001*", None, "is missing or corrupt (No such file"),
        ("config.json", None, "config.json does not exist: name another model"),
        ("tokenizer*", None, "has no tokenizer.json: copy it"),
        ("model-00001*", lambda content: content[:-100], "is missing or corrupt"),
        ("model-00001*", lambda content: b"", "is missing or corrupt"),
        ("config.json", lambda content: b"{", "config.json"),
        ("config.json", lambda content: b"[1]", "config.json"),
        ("tokenizer.json", with_tokens, "has a vocabulary of 300 tokens, but its tokenizer"),
    ],
)
def test_wrong_folders_are_refused(imported, refused, tmp_path, pattern, change, message):
    """Files are removed (None) or changed; a dictionary changes config.json."""
    folder = shutil.copytree(imported("llama2")[1], tmp_path / "model")
    if isinstance(change, dict):
        config = json.loads((folder / "config.json").read_text())
        config |= {"rope_parameters": change} if pattern == "rope" else change
        if change.keys() & {"rope_theta", "rope_scaling"}:
            del config["rope_parameters"]
        (folder / "config.json").write_text(json.dumps(config))
    else:
        for path in folder.glob(pattern):
            path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    (line,) = refused(import_pretrained.main, folder, "--out_dir", tmp_path / "run")
    assert message in line and not (tmp_path / "run").exists()
    assert not isinstance(change, dict) or str(folder) in line


@pytest.mark.parametrize(
    "change",
    [
        "",
        "[]",
        "{}",
        {"rms_norm_eps": 0.5},
        {"num_attention_heads": 2},
        {"tie_word_embeddings": True},
    ],
    ids=str,
)
def test_a_changed_copy_of_an_imported_config_is_named(imported, change, tmp_path, refused):
    run = shutil.copytree(imported("llama2")[2], tmp_path / "run")
    copy = run / "pretrained_config.json"
    if isinstance(change, dict):
        change = json.dumps(json.loads(copy.read_text()) | change)
    copy.write_text(change)
    (line,) = refused(export_hf.main, run, "--out_dir", tmp_path / "out")
    assert "pretrained_config.json" in line and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_import_is_the_model_that_was_imported(imported, tmp_path, name):
    theirs, folder, run = imported(name)
    model, checkpoint = checkpoints.load_model(run, torch.device("cpu"))
    config = pretrained.original_config(run, checkpoint["gpt"])
    assert config is not None
    pretrained.save_original(model, config, DTYPES.get(name, torch.float32), tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(theirs)
    known = {"dtype": str(loaded.dtype).removeprefix("torch.")}
    assert loaded.config.to_diff_dict() == theirs.config.to_diff_dict() | known
    saved, expected = (
        {key: value for path in x.glob("*.safetensors") for key, value in load_file(path).items()}
        for x in (tmp_path, folder)
    )
    assert saved.keys() == expected.keys()
    for key, value in saved.items():
        assert value.dtype == expected[key].dtype and torch.equal(value, expected[key])


def test_exports_of_an_imported_run(imported, data, tmp_path):
    """Of its own class if the encoding is unchanged, also after training at another length."""
    theirs, _, source = imported("qwen3")
    for pe, block_size, kind in (
        ("rope:base=10000", 64, "Qwen3ForCausalLM"),
        ("rope:base=10000+alibi", 32, "PosencForCausalLM"),
    ):
        run, out = tmp_path / f"run {kind}", tmp_path / kind
        flags = ["--init_from", source, "--data", data, "--steps", 0, "--val_tokens", 320]
        flags += ["--pe", pe, "--block_size", block_size, "--tokens_per_step", 64]
        train_gpt.main([*map(str, flags), *CPU, "--out_dir", str(run)])
        export_hf.main([str(run), "--out_dir", str(out)])
        is_original = kind == "Qwen3ForCausalLM"
        load = transformers.AutoModelForCausalLM.from_pretrained
        model = load(out, trust_remote_code=not is_original)
        assert type(model).__name__ == kind and model.dtype == torch.float32
        assert any(out.glob("*.py")) == (not is_original)
        code = "trust_remote_code" in (out / "README.md").read_text()
        assert code == (not is_original)
        if is_original:
            assert model.config.max_position_embeddings == 64
            with torch.no_grad():
                logits = model(texts()).logits, theirs(texts()).logits
            torch.testing.assert_close(*logits, rtol=0, atol=1e-4)
