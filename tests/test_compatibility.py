"""Files written by commit a1990bd still load: runs, checkpoints, records, exports, shards.

No names in these files have changed since, so nothing maps old names to new ones.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tarfile

from runtime import checkpoints, loading

import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, log_of

import eval_extrapolation
import report
import train_gpt
from model import GPT, GPTConfig
from text_data.shards import Shards
from training import settings

FIXTURES = ROOT / "tests" / "fixtures" / "a1990bd"
DATA = FIXTURES / "toy"
ENCODINGS = json.loads((FIXTURES / "encodings.json").read_text())
CPU = torch.device("cpu")


@pytest.fixture
def finished(tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(FIXTURES / "finished", tmp_path / "a1990bd" / "finished")


def test_interrupted_run_resumes_and_equals_the_finished_run(tmp_path):
    """Its checkpoint is of step 4 and its log ends with step 5, which is repeated."""
    run = shutil.copytree(FIXTURES / "interrupted", tmp_path / "run")
    config = str(run / "config.yaml")
    flags = ["--data", str(DATA), "--out_dir", str(run), "--resume"]
    train_gpt.main(["--config", config, *flags])

    ours = checkpoints.load_checkpoint(run)
    theirs = checkpoints.load_checkpoint(FIXTURES / "finished")
    assert ours.keys() == theirs.keys()
    for key in ("format", "scaler", "step", "sampler", "data"):
        assert ours[key] == theirs[key]
    assert theirs["gpt"]["attention"] == "auto"  # now checkpoints store what that means
    assert ours["gpt"] == theirs["gpt"] | {"attention": "sdpa"}
    assert torch.equal(ours["rng"][0]["cpu"], theirs["rng"][0]["cpu"])
    assert list(ours["model"]) == list(theirs["model"])
    for name, weight in theirs["model"].items():
        torch.testing.assert_close(ours["model"][name], weight, rtol=0, atol=1e-6)
    assert ours["optimizer"]["state"].keys() == theirs["optimizer"]["state"].keys()
    for number, state in theirs["optimizer"]["state"].items():
        assert ours["optimizer"]["state"][number]["step"] == state["step"] == 6
        for moment in ("exp_avg", "exp_avg_sq"):
            ours_now = ours["optimizer"]["state"][number][moment]
            torch.testing.assert_close(ours_now, state[moment], rtol=0, atol=1e-6)

    our_log, their_log = log_of(run), log_of(FIXTURES / "finished")
    assert our_log[0]["id"] == log_of(FIXTURES / "interrupted")[0]["id"]
    starts = [record["step"] for record in our_log if record["kind"] == "start"]
    assert starts == [0, 4]
    our_log = [record for record in our_log if record["kind"] != "start"]
    for mine, other in zip(our_log, their_log[1:], strict=True):
        assert mine.keys() - {"data_ms"} == other.keys()  # which earlier versions did not log
        assert (mine["kind"], mine["step"]) == (other["kind"], other["step"])
        assert mine.get("lr") == other.get("lr")
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-6)


def test_config_of_a_run_is_accepted_with_the_same_values():
    theirs = yaml.safe_load((FIXTURES / "finished" / "config.yaml").read_text())
    config = train_gpt.Config(**theirs)
    assert theirs == {name: getattr(config, name) for name in theirs}
    new = {"plugin", "logger", *settings.NOT_RECORDED}
    assert theirs.keys() | new == vars(config).keys()


def test_finished_run_counts_as_trained(finished, capsys):
    config = str(finished / "config.yaml")
    flags = ["--data", str(DATA), "--out_dir", str(finished), "--resume"]
    train_gpt.main(["--config", config, *flags])
    assert "is already trained: 6 of 6 steps" in capsys.readouterr().out


def evaluate(run):
    flags = ["--lengths", "16,32", "--data", str(DATA), "--device", "cpu", "--dtype", "float32"]
    eval_extrapolation.main([str(run), *flags])
    return json.loads((run / "eval_toy_val.json").read_text())


def test_checkpoint_evaluates_to_the_record(finished):
    """Whole windows have the same losses. A shorter window at the end of the split is new."""
    theirs = json.loads((finished / "eval_toy_val.json").read_text())
    (finished / "eval_toy_val.json").unlink()
    ours = evaluate(finished)
    assert ours.keys() == theirs.keys()
    assert ours.pop("protocol") == theirs.pop("protocol") | {"remainder": "counted"}
    for key in theirs.keys() - {"lengths", "provenance"}:  # the identity, with its hashes
        assert ours[key] == theirs[key]
    assert ours["lengths"].keys() == theirs["lengths"].keys() == {"16", "32"}
    for length, result in theirs["lengths"].items():
        mine = ours["lengths"][length]
        assert mine.keys() == result.keys()
        assert mine["windows"] == result["windows"] + 1
        assert result["tokens"] < mine["tokens"] < result["tokens"] + int(length)
        assert mine["blocks"][:-1] == pytest.approx(result["blocks"], rel=1e-6)
        loss = np.average(mine["blocks"][:-1], weights=mine["block_tokens"][:-1])
        assert loss == pytest.approx(result["loss"], rel=1e-6)


def test_record_that_dropped_text_is_refused(finished, refused):
    before = (finished / "eval_toy_val.json").read_bytes()
    flags = ["--lengths", "16", "--data", str(DATA), "--device", "cpu", "--dtype", "float32"]
    (line,) = refused(eval_extrapolation.main, finished, *flags)
    assert "is a record of another protocol: rename it or remove it" in line
    assert (finished / "eval_toy_val.json").read_bytes() == before


def test_report_reads_the_record(finished, tmp_path):
    report.main([str(finished / "eval_toy_val.json"), "--out_dir", str(tmp_path / "report")])
    table = (tmp_path / "report" / "perplexity.md").read_text()
    assert "Protocol: segments, whole windows only, " in table
    record = json.loads((finished / "eval_toy_val.json").read_text())
    for result in record["lengths"].values():
        assert f"{math.exp(result['loss']):.2f}" in table


def test_exported_folder_loads_outside_the_repository(tmp_path):
    """The export brings its own code, so it must not depend on today's."""
    pytest.importorskip("transformers")
    with tarfile.open(FIXTURES / "export.tar.gz") as archive:
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from 3.11.4 on
        archive.extractall(tmp_path, **filters)
    tokens = torch.from_numpy(Shards(DATA, "val").tokens[0][:49].astype(np.int64))[None]
    torch.save(tokens, tmp_path / "tokens.pt")
    code = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("export", trust_remote_code=True)
with torch.no_grad():
    torch.save(model(torch.load("tokens.pt")).logits, "logits.pt")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    model, _ = loading.load_model(FIXTURES / "finished", CPU)
    with torch.no_grad():
        expected = model(tokens)
    logits = torch.load(tmp_path / "logits.pt")
    torch.testing.assert_close(logits, expected[..., : logits.size(-1)], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pe", ENCODINGS)
def test_encoding_keeps_its_state_dict_and_its_loss(pe):
    """The initial weights of a seed, their names and what the network computes from them."""
    torch.manual_seed(1)
    config = GPTConfig(
        size="quickstart", n_layer=2, n_head=2, n_embd=16, block_size=16, vocab_size=64, pe=pe
    )
    model = GPT(config).eval()
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    assert shapes == ENCODINGS["nope"]["state_dict"] | ENCODINGS[pe]["state_dict"]
    torch.manual_seed(2)
    tokens = torch.randint(64, (2, 17))
    with torch.no_grad():
        loss = model.losses(tokens[:, :-1], tokens[:, 1:]).mean().item()
    assert loss == pytest.approx(ENCODINGS[pe]["loss"], rel=1e-6)
