"""Code in the folders of encoders: fine-tuning and evaluation never execute it."""

import shutil

from runtime.files import read_json, write_json

import pytest
import torch
from conftest import TINY, run_outside, unregister_plugins, write_plugin
from retrieval_helpers import CPU, FINETUNE, run_finetune, weights

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from retrieval import evaluate, finetune, sentence_encoder  # noqa: E402

pytest_plugins = ["retrieval_fixtures"]

RECORD = "eval_retrieval_toy_test.json"
OUTSIDE = """
import sys
import torch
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
with torch.no_grad():
    hidden = model(**tokenizer("a text", return_tensors="pt")).last_hidden_state
torch.save(hidden.mean(1), sys.argv[2] + "/results.pt")
"""


def poison(folder, marker):
    """Make every way to execute the code of a folder create the file `marker`."""
    code = f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n"
    for path in [*folder.glob("*.py"), folder / "tokenizing.py"]:
        path.write_text(code)
    config = read_json(folder / "config.json", "")
    auto_map = {**config["auto_map"], "AutoTokenizer": ["tokenizing.Mine", "tokenizing.Mine"]}
    write_json(folder / "config.json", {**config, "auto_map": auto_map})
    tokenizer = read_json(folder / "tokenizer_config.json", "")
    write_json(folder / "tokenizer_config.json", {**tokenizer, "auto_map": auto_map})
    kinds = ["modeling.Mine", "sentence_transformers.sentence_transformer.modules.Pooling"]
    modules = [
        {"idx": number, "name": str(number), "path": "", "type": kind}
        for number, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    return folder


def run_evaluate(run, task, *flags):
    evaluate.main([str(run), "--data", str(task), "--lengths", "16", *CPU, *flags])
    return read_json(run / RECORD, "")["lengths"]["16"]


def test_code_in_an_export_is_not_executed(exported, triplets, task, tmp_path, refused):
    """Nor that of its tokenizer, nor that of classes in modules.json."""
    marker = tmp_path / "executed"
    encoder = poison(shutil.copytree(exported("cable"), tmp_path / "encoder"), marker)
    expected = run_finetune(exported("cable"), triplets, tmp_path / "expected")
    out = run_finetune(encoder, triplets, tmp_path / "out")
    for name, weight in weights(out).items():
        assert torch.equal(weight, weights(expected)[name])
    # The output has the code of this repository, and names no other.
    for name in ("modeling.py", "posenc.py"):
        assert (out / name).read_text() == (expected / name).read_text()
    for name in ("config.json", "tokenizer_config.json"):
        assert read_json(out / name, "") == read_json(expected / name, "")

    before = run_evaluate(expected, task)
    assert run_evaluate(poison(out, marker), task) == before
    # transformers has no processor for the network, so that of the folder would be needed.
    write_json(out / "processor_config.json", {"auto_map": {"AutoProcessor": "tokenizing.Mine"}})
    (line,) = refused(evaluate.main, out, "--data", task, *CPU)
    assert "cannot be read" in line
    config = read_json(encoder / "config.json", "")
    write_json(encoder / "config.json", {**config, "model_type": "bert"})
    (line,) = refused(finetune.main, encoder, "--data", triplets, "--out_dir", tmp_path / "bert")
    assert "holds no encoder of this repository" in line
    write_json(encoder / "config.json", config)
    assert not marker.exists()

    from transformers import AutoTokenizer

    with pytest.raises(AttributeError):
        AutoTokenizer.from_pretrained(encoder, trust_remote_code=True)
    assert marker.exists()  # the check above can fail


def test_fine_tuned_folder_loads_outside_the_repository(finetuned, tmp_path):
    """With the code that fine-tuning wrote."""
    theirs = run_outside(OUTSIDE, tmp_path, finetuned("kerple"))
    options = torch.float32, torch.device("cpu")
    model = sentence_encoder.load_finetuned(str(finetuned("kerple")), *options)
    ours = model.encode(["a text"], convert_to_tensor=True)
    torch.testing.assert_close(theirs, ours)


def test_encoding_of_a_plugin_needs_the_plugin(data_dir, triplets, task, tmp_path, refused):
    import export_hf
    import train_gpt

    plugin = write_plugin(tmp_path / "steep.py", "my-steep")
    run, encoder, out = (str(tmp_path / name) for name in ("run", "encoder", "out"))
    flags = ["--objective", "mlm", "--data", str(data_dir), "--pe", "my-steep"]
    flag = ["--plugin", str(plugin)]
    tune = [encoder, "--data", str(triplets), *FINETUNE, "--samples", "16", "--out_dir", out]
    measure = [out, "--data", str(task), "--lengths", "16", *CPU]
    with unregister_plugins():
        train_gpt.main([*TINY, *flags, *flag, "--out_dir", run])
        export_hf.main([run, *flag, "--out_dir", encoder])
    (line,) = refused(finetune.main, *tune)
    assert f"{encoder} was trained with the plugin steep.py (SHA-256 " in line
    assert line.endswith("pass the file with this SHA-256 as --plugin")
    with unregister_plugins():
        finetune.main([*tune, *flag])
    assert "names = ('my-steep',)" in (tmp_path / "out" / "plugin_steep.py").read_text()
    (line,) = refused(evaluate.main, *measure)
    assert f"{out} was trained with the plugin steep.py (SHA-256 " in line
    with unregister_plugins():
        evaluate.main([*measure, *flag])


def test_parameters_with_other_names_are_refused(exported, triplets, tmp_path, refused):
    """transformers draws them at random, with a warning."""
    encoder = shutil.copytree(exported("cable"), tmp_path / "encoder")
    config = read_json(encoder / "config.json", "")
    write_json(encoder / "config.json", {**config, "pe": "kerple"})
    (line,) = refused(finetune.main, encoder, "--data", triplets, "--out_dir", tmp_path / "out")
    assert "its parameters are not those of this version's encoding: model." in line
