"""Imports of unusual folders and of GGUF files, compared with what transformers reads."""

import json
import os

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from test_import_models import save_random_model

import export_hf
import import_pretrained
import sample
from errors import InputError
from text_data.tokenizer import load_tokenizer
from training import checkpoints

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

V, C = 120, 32
TOKENS = torch.arange(40)[None] * 7 % V


def save(folder, kind="llama", **settings):
    """Save a model of transformers with two layers and large random weights."""
    shape = {"vocab_size": V, "hidden_size": C, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64}
    if kind == "gpt2":
        shape = {"vocab_size": V, "n_embd": C, "n_layer": 2, "n_head": 2, "n_positions": 64}
    shape |= {"bos_token_id": 118, "eos_token_id": 119, "pad_token_id": None} | settings
    save_random_model(folder, kind, **shape)
    vocabulary = {chr(33 + n): n for n in range(94)} | {f"<{n}>": n for n in range(94, 117)}
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary | {"<s>": 118, "</s>": 119, "<pad>": 117}, [])
    )
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(
        folder
    )
    return folder


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, {"format": "pt"})


@torch.no_grad()
def logits_of(folder, **arguments):
    """Return transformers' logits of TOKENS."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, dtype=torch.float32, **arguments).eval()(TOKENS).logits


@torch.no_grad()
def check_import(folder, run, expected=None):
    """The imported run and its export have the logits of transformers."""
    import_pretrained.main([str(folder), "--out_dir", str(run)])
    model, _ = checkpoints.load_model(run, torch.device("cpu"))
    expected = logits_of(folder) if expected is None else expected
    assert expected.std() > 0.5
    torch.testing.assert_close(model(TOKENS), expected, rtol=0, atol=1e-4)
    out = run.with_name("export")
    export_hf.main([str(run), "--out_dir", str(out)])
    torch.testing.assert_close(logits_of(out), expected, rtol=0, atol=1e-4)
    return model


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("llama", {"sliding_window": 8}),
        ("llama", {"sliding_window": 8, "use_sliding_window": False}),
        ("llama", {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}),
        ("llama", {"no_rope_layers": [1, 0]}),
        ("llama", {"layer_norm_epsilon": 0.5, "n_inner": 24, "activation_function": "relu"}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "factor": 4.0}}),
        ("llama", {"rope_theta": 3580165449.0, "rope_parameters": None}),
        ("mistral", {"sliding_window": 8, "no_rope_layers": [0, 1], "use_sliding_window": False}),
        ("qwen3", {"sliding_window": 8, "use_sliding_window": False, "no_rope_layers": [0, 0]}),
        ("gpt2", {"rms_norm_eps": 0.5, "head_dim": 8, "num_key_value_heads": 1}),
    ],
)
def test_keys_of_other_model_types_are_ignored(tmp_path, kind, keys):
    """A config.json may have any key; the class of transformers reads its own."""
    folder = save(tmp_path / "model", kind)
    change_config(folder, **keys)
    check_import(folder, tmp_path / "run")


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("file", ["both", "equal", "only the output layer"])
def test_output_layers_of_tied_models(tmp_path, kind, file, capsys):
    """Two that differ are kept; a single one is both."""
    folder = save(tmp_path / "model", kind, tie_word_embeddings=True)
    embedding = {"llama": "model.embed_tokens.weight", "gpt2": "transformer.wte.weight"}[kind]
    head = torch.randn(V, C, generator=torch.manual_seed(1)) / 5

    def change(weights):
        if file == "only the output layer":
            del weights[embedding]
        weights["lm_head.weight"] = weights[embedding].clone() if file == "equal" else head

    change_weights(folder, change)
    model = check_import(folder, tmp_path / "run")
    assert model.config.tied == (file != "both")
    assert ("differs from its embedding" in capsys.readouterr().out) == (file == "both")


def test_only_files_of_the_model_are_read(tmp_path):
    """As transformers: model.safetensors, or the files of the index."""
    folder = save(tmp_path / "model")
    other = save(tmp_path / "other", initializer_range=0.5)
    change_weights(other, lambda weights: weights.update({k: -x for k, x in weights.items()}))
    stray = (other / "model.safetensors").read_bytes()
    (folder / "model_old.safetensors").write_bytes(stray)
    (folder / "model-00001-of-00001.safetensors").write_bytes(stray)
    expected = logits_of(folder)
    assert (expected - logits_of(other)).abs().max() > 1
    check_import(folder, tmp_path / "run")
    sharded = tmp_path / "sharded"
    load = transformers.AutoModelForCausalLM.from_pretrained
    load(folder).save_pretrained(sharded, max_shard_size="20KB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (sharded / name).write_bytes((folder / name).read_bytes())
    (sharded / "model_old.safetensors").write_bytes(stray)
    (tmp_path / "second").mkdir()
    check_import(sharded, tmp_path / "second" / "run", expected)


def tokenizer_of_run(run):
    _, checkpoint = checkpoints.load_model(run, torch.device("cpu"))
    return load_tokenizer(checkpoint["data"]["tokenizer"], run)


@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.json and merges.txt", "none"])
def test_gpt2_with_its_own_tokenizer(tmp_path, files, refused):
    """As German or Russian GPT-2: its tokens are not OpenAI's."""
    folder, run = save(tmp_path / "model", "gpt2", vocab_size=50300), tmp_path / "run"
    for path in folder.glob("*token*"):
        path.unlink()
    if files == "none":
        (line,) = refused(import_pretrained.main, folder, "--out_dir", run)
        assert line.endswith("has no tokenizer.json: copy it from the model's source")
        return
    backend = tokenizers.ByteLevelBPETokenizer()
    text = ["der Hund und die Katze, das Haus und der Baum"] * 3
    backend.train_from_iterator(text, 300, special_tokens=["</s>"], show_progress=False)
    if files == "tokenizer.json":
        backend.save(str(folder / files))
    else:
        backend.save_model(str(folder))
    config = {"eos_token": "</s>", "bos_token": "</s>", "unk_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    import_pretrained.main([str(folder), "--out_dir", str(run)])
    ours = tokenizer_of_run(run)
    text = "die Katze und das Haus"
    assert ours.encode(text) == theirs(text).input_ids
    assert len(ours.encode(text)) < 8 and ours.eot == theirs.eos_token_id


def test_gpt2_of_openai_keeps_the_name_of_its_tokenizer(tmp_path):
    """Runs and data sets with the tokenizer `gpt2` then belong together."""
    try:
        encoding = load_tokenizer("gpt2")
    except InputError:
        pytest.skip("needs GPT-2's vocabulary: set TIKTOKEN_CACHE_DIR")
    from hf_interop.tokenizer import build_tokenizer

    folder = save(tmp_path / "model", "gpt2", vocab_size=50304)
    build_tokenizer(encoding).save_pretrained(folder)
    import_pretrained.main([str(folder), "--out_dir", str(tmp_path / "run")])
    assert tokenizer_of_run(tmp_path / "run").name == "gpt2"


def test_an_export_has_the_special_tokens_of_the_imported_model(tmp_path):
    """Also under another encoding; lm_eval begins texts with BOS."""
    folder, run = save(tmp_path / "model"), tmp_path / "run"
    check_import(folder, run)
    theirs, ours = map(transformers.AutoTokenizer.from_pretrained, (folder, tmp_path / "export"))
    for name in ("bos_token", "eos_token", "pad_token"):
        assert getattr(ours, name) == getattr(theirs, name)
        assert getattr(ours, f"{name}_id") == getattr(theirs, f"{name}_id") is not None


def test_mistral_tokenizers_are_repaired(tmp_path):
    """transformers says that the files of some Mistral models split numbers wrongly."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: n for n, char in enumerate(alphabet)} | {"12": 256, "</s>": 257}
    vocabulary |= {f"<{n}>": n for n in range(258, 100_010)}
    backend = Tokenizer(models.BPE(vocabulary, [("1", "2")]))
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    folder = save(tmp_path / "model", "mistral", vocab_size=100_010)
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    change_config(folder, transformers_version="4.50.0")
    load = transformers.AutoTokenizer.from_pretrained
    wrong, right = load(folder), load(folder, fix_mistral_regex=True)
    text = "in 12 of 312 cases"
    assert wrong(text).input_ids != right(text).input_ids
    import_pretrained.main([str(folder), "--out_dir", str(tmp_path / "run")])
    assert tokenizer_of_run(tmp_path / "run").encode(text) == right(text).input_ids


def write_gguf(path, change=lambda writer: None, without=(), kind="llama"):
    """Write a Llama of one layer; change: adds to it."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    generator, writer = np.random.default_rng(0), gguf.GGUFWriter(path, kind)
    width, heads = 64, 2
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(128)
    writer.add_head_count(heads)
    if "head_count_kv" not in without:
        writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width // heads)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([chr(33 + n) for n in range(94)] + ["ab", "<s>", "</s>"])
    writer.add_token_types([1] * 95 + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(95)
    writer.add_eos_token_id(96)
    shapes = {"token_embd": (97, width), "output": (97, width), "output_norm": (width,)}
    shapes |= {f"blk.0.attn_{x}": (width, width) for x in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{x}": (128, width) for x in ("gate", "up")}
    shapes |= {"blk.0.ffn_down": (width, 128)}
    shapes |= {f"blk.0.{x}_norm": (width,) for x in ("attn", "ffn")}
    for name, shape in shapes.items():
        if name not in without:
            tensor = generator.standard_normal(shape) / 5
            writer.add_tensor(f"{name}.weight", tensor.astype(np.float32))
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_has_the_logits_and_the_tokens_of_transformers(tmp_path):
    path, run = write_gguf(tmp_path / "model.gguf"), tmp_path / "run"
    import_pretrained.main([str(path), "--out_dir", str(run)])
    model, _ = checkpoints.load_model(run, torch.device("cpu"))
    load = {"pretrained_model_name_or_path": tmp_path, "gguf_file": path.name}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(**load, dtype=torch.float32)
    tokens = TOKENS % 97
    with torch.no_grad():
        expected = theirs.eval()(tokens).logits
        torch.testing.assert_close(model(tokens), expected, rtol=0, atol=1e-4)
        export_hf.main([str(run), "--out_dir", str(tmp_path / "export")])
        exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export")
        torch.testing.assert_close(exported(tokens).logits, expected, rtol=0, atol=1e-4)
    ours = tokenizer_of_run(run)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
    assert ours.encode("cabba") == tokenizer("cabba").input_ids
    assert (ours.eot, ours.vocab_size) == (96, 97)


def add_linear(writer):
    import gguf

    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def add_factors(writer):  # as Llama 3.1
    writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 16).astype(np.float32))


def add_bias(writer):
    writer.add_tensor("blk.0.attn_q.bias", np.ones(64, np.float32))


@pytest.mark.parametrize(
    ("change", "without", "message"),
    [
        (
            add_linear,
            (),
            "model.gguf (llama.rope.scaling.factor 4.0, llama.rope.scaling.type linear)",
        ),
        (
            add_factors,
            (),
            "model.gguf (rope_freqs.weight): name a folder",
        ),
        (None, (), "model.gguf cannot be read ("),
        (lambda writer: writer.add_sliding_window(8), (), "attention.sliding_window 8)"),
        (add_bias, (), "model.gguf (1 tensors): name"),
        (
            lambda writer: None,
            ("blk.0.ffn_up",),
            "(missing keys ['model.layers.0.mlp.up_proj.weight'])",
        ),
        (lambda writer: None, ("head_count_kv",), "(no llama.attention.head_count_kv)"),
    ],
)
def test_a_gguf_that_transformers_reads_wrongly_is_refused(
    tmp_path, refused, change, without, message
):
    path = write_gguf(tmp_path / "model.gguf", change or (lambda writer: None), without)
    if change is None:
        path.write_bytes(path.read_bytes()[:3000])
    (line,) = refused(import_pretrained.main, path, "--out_dir", tmp_path / "run")
    assert message in line and not (tmp_path / "run").exists()


def test_samples_keep_the_space_after_the_prompt(tmp_path, monkeypatch, capsys):
    """Decoders of SentencePiece's kind remove the space before the first word."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ["</s>", "▁river", "▁stone", "▁cloud", "▁music"]
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "</s>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    folder, run = save(tmp_path / "model"), tmp_path / "run"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>"
    ).save_pretrained(folder)
    import_pretrained.main([str(folder), "--out_dir", str(run)])
    monkeypatch.setattr(sample, "generate", lambda *_: iter([{0: 4}, {0: 2}]))
    for prompt, text in (
        ("river stone cloud", "river stone cloud music stone"),
        ("", "music stone"),
    ):
        capsys.readouterr()
        sample.main([str(run), "--prompt", prompt, "--device", "cpu", "--dtype", "float32"])
        assert capsys.readouterr().out.splitlines()[-1] == text


LAYER = "model.layers.0."
Q, K = f"{LAYER}self_attn.q_proj.weight", f"{LAYER}self_attn.k_proj.weight"
GATE, UP = f"{LAYER}mlp.gate_proj.weight", f"{LAYER}mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {Q: torch.zeros(16, C), K: torch.zeros(48, C)},
            "q_proj.weight', torch.Size([16, 32]), torch.Size([32, 32])",
        ),
        ({Q: torch.zeros(C, 16)}, "q_proj.weight', torch.Size([32, 16]), torch.Size([32, 32])"),
        (
            {GATE: torch.zeros(48, C), UP: torch.zeros(80, C)},
            "mismatched keys [('model.layers.0.mlp.gate_proj.weight'",
        ),
        ({UP: torch.zeros(64, C, 1)}, "mlp.up_proj.weight', torch.Size([64, 32, 1])"),
        ({K: torch.zeros(C, C).to(torch.float8_e4m3fn)}, "has weights of F8_E4M3: name"),
        ({K: torch.zeros(C, C, dtype=torch.int8)}, "has weights of I8: name"),
        ({UP: torch.zeros(64, C, dtype=torch.bool)}, "has weights of BOOL: name"),
        ({"model.norm.weight": torch.full((C,), torch.nan)}, "contain NaN or Inf (ln_f.weight)"),
        ({K: None}, "(missing keys ['model.layers.0.self_attn.k_proj.weight'])"),
        ({"lm_head.weight": None}, "(missing keys ['lm_head.weight'])"),
    ],
)
def test_wrong_tensors_are_named(tmp_path, refused, changes, message):
    folder = save(tmp_path / "model")

    def change(weights):
        weights |= changes
        for name in [name for name, tensor in weights.items() if tensor is None]:
            del weights[name]

    change_weights(folder, change)
    (line,) = refused(import_pretrained.main, folder, "--out_dir", tmp_path / "run")
    assert message in line and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_files_that_never_end_are_refused(tmp_path, refused, name):
    folder = save(tmp_path / "model")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    (line,) = refused(import_pretrained.main, folder, "--out_dir", tmp_path / "run")
    assert str(folder) in line


def test_an_import_on_a_full_disk_is_repeated(tmp_path, refused, monkeypatch):
    """The run appears when it is whole, and nothing else stays."""
    folder, run = save(tmp_path / "model"), tmp_path / "runs" / "run"

    def fail(file, checkpoint):
        assert not run.exists()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_checkpoint", fail)
        (line,) = refused(import_pretrained.main, folder, "--out_dir", run)
    assert "No space left on device" in line and not [*run.parent.iterdir()]
    check_import(folder, run)
    (line,) = refused(import_pretrained.main, folder, "--out_dir", run)
    assert line.endswith("already holds files: remove it, or choose another --out_dir")


def test_an_export_has_no_code_of_others(tmp_path):
    """With trust_remote_code, transformers runs what auto_map names."""
    folder, run = save(tmp_path / "model"), tmp_path / "run"
    code = {"AutoModelForCausalLM": "someone/repository--modeling.Model"}
    change_config(folder, auto_map=code)
    import_pretrained.main([str(folder), "--out_dir", str(run)])
    copy = run / "pretrained_config.json"
    content = json.loads(copy.read_text())
    assert "auto_map" not in content
    copy.write_text(json.dumps(content | {"auto_map": code}))  # as earlier versions
    export_hf.main([str(run), "--out_dir", str(tmp_path / "export")])
    assert not [x for x in (tmp_path / "export").iterdir() if "auto_map" in x.read_text("latin1")]
