"""Tests of train_gpt.py: what a run writes, resuming, accumulation, and invalid input."""

import functools
import gc
import json
import shlex
import shutil
import sys
from unittest import mock

from runtime import cli
from runtime.distributed import Processes

import numpy as np
import pytest
import torch
import yaml
from conftest import TINY, contents, log_of, save_checkpoint, write_plugin
from in_process import digest

import data_loader
import posenc
import sample
import train_gpt
from benchmarking import cost
from evaluation.runner import LoadedRun
from model import GPT, GPTConfig
from setting import settings_of
from train_gpt import Config, learning_rate
from training import checkpoints, settings


@pytest.fixture
def train(data_dir, tmp_path):
    """A function of the name of a run and of flags that trains it and returns its folder."""

    def run(name, *flags):
        train_gpt.main([*flags_of(data_dir, tmp_path / name), *map(str, flags)])
        return tmp_path / name

    return run


def flags_of(data_dir, run):
    return [*TINY, "--data", str(data_dir), "--out_dir", str(run)]


def records_of(run, kind):
    return [record for record in log_of(run) if record["kind"] == kind]


def val_losses(run):
    return [record["loss"] for record in records_of(run, "val")]


def weights_of(run):
    return checkpoints.load_checkpoint(run)["model"]


def test_val_loss_is_the_mean_over_evenly_spaced_windows(trained, data_dir):
    """Four windows of 16 tokens, in a separate forward pass."""
    model, _ = checkpoints.load_model(trained("alibi"), torch.device("cpu"))
    val = torch.from_numpy(data_loader.Shards(data_dir, "val").tokens[0][:].astype(np.int64))
    starts = [16 * int(n * ((len(val) - 1) // 16) / 4) for n in range(4)]
    rows = torch.stack([val[start : start + 17] for start in starts])
    with torch.no_grad():
        logits = model(rows[:, :-1]).flatten(0, 1)[:, :257]  # without the vocabulary's padding
        expected = torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten()).item()
    assert val_losses(trained("alibi"))[-1] == pytest.approx(expected, rel=1e-5)


def test_log_line_covers_the_steps_since_the_last_one(train):
    """The mean of their losses, the last gradient norm, and the tokens of a step over its time."""
    runs = [train(str(n), "--checkpoint_every", 3, "--log_every", n) for n in (1, 3)]
    single, mean = (records_of(run, "train") for run in runs)
    expected = [np.mean([single[n + i]["loss"] for i in range(3)]) for n in (0, 3)]
    assert [record["loss"] for record in mean] == pytest.approx(expected)
    expected = [single[n]["grad_norm"] for n in (2, 5)]
    assert [record["grad_norm"] for record in mean] == pytest.approx(expected)
    for record in single + mean:
        assert record["tokens_per_second"] * record["ms"] == pytest.approx(1000 * 64)


def test_seed_changes_initial_weights_and_data_order(trained, train):
    still = ["--steps", 1, "--lr", 0, "--min_lr", 0, "--pe", "nope", "--seed"]
    source = ["--init_from", trained("nope")]
    starts = [weights_of(train(f"seed{seed}", *still, seed))["wte.weight"] for seed in (1, 2)]
    losses = [log_of(train(f"same{seed}", *still, seed, *source))[1]["loss"] for seed in (1, 2)]
    assert not torch.equal(*starts) and losses[0] != losses[1]


def test_grad_clip_0_does_not_clip(train):
    """A norm that no gradient reaches gives the same weights."""
    unclipped, large = (train(clip, "--grad_clip", clip) for clip in ("0", "1e9"))
    assert digest(weights_of(unclipped)) == digest(weights_of(large))


def test_signal_saves_before_a_validation_that_is_due(train, monkeypatch):
    """The sender, such as Slurm, may kill the process during the validation."""
    saved, validate = [], train_gpt.Trainer.validate

    def validate_later(trainer):
        saved.extend(path.name for path in trainer.run.folder.glob("*.pt"))
        validate(trainer)

    monkeypatch.setattr("runtime.distributed.Processes.any", lambda self, received: True)
    monkeypatch.setattr(train_gpt.Trainer, "validate", validate_later)
    run = train("run", "--val_every", 1)
    lines = [f"{record['kind']} {record['step']}" for record in log_of(run)]
    assert lines == ["start 0", "train 1", "val 1"] and saved == ["checkpoint_0000001.pt"]


@pytest.mark.parametrize("flags, loss", [("--pe cable", 2.2), ("--objective mlm", 3.5)])
def test_training_learns_the_text(flags, loss, train):
    batch = ["--tokens_per_step", 512, "--micro_batch", 32]
    run = train("run", *flags.split(), "--steps", 60, "--lr", "2e-2", "--val_every", 60, *batch)
    assert val_losses(run)[-1] < loss


@pytest.mark.parametrize("pe", ["rope+fox", "t5"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_trains_like_float32(dtype, pe, trained, train):
    run = train("run", "--pe", pe, "--dtype", dtype)
    half, full = log_of(run), log_of(trained(pe))
    assert [record["step"] for record in half] == [record["step"] for record in full]
    for a, b in zip(half[1:], full[1:], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=0.01)
        if a["kind"] == "train":  # the norm of the loss's gradient, not of the scaled loss's
            assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=0.05)
    assert [record["loss"] for record in half[1:]] != [record["loss"] for record in full[1:]]
    scaler = checkpoints.load_checkpoint(run)["scaler"]
    if dtype == "float16":  # the scale is halved at an overflow, which is rare
        assert scaler["scale"] >= 2**10
    else:
        assert scaler == {}


def test_compiled_training_learns_like_an_eager_one(train):
    """By Inductor's own code, for one layer."""
    torch._dynamo.reset()
    flags = ["--n_layer", 1, "--steps", 2]
    logs = [log_of(train(name, *flags, "--compile", name)) for name in ("true", "false")]
    compiled, eager = ([record["loss"] for record in log[1:]] for log in logs)
    assert compiled == pytest.approx(eager, rel=1e-4)


def test_compile_and_activation_checkpointing_train_the_same(trained, train, monkeypatch):
    """One graph for all blocks and one for the loss, each compiled once and without a break."""
    torch._dynamo.reset()
    # The code of Inductor takes long to compile; this backend partitions graphs as it does.
    compiled = functools.partial(torch.compile, backend="aot_eager_decomp_partition")
    monkeypatch.setattr(torch, "compile", compiled)
    counters = torch._dynamo.utils.counters
    counters.clear()
    checkpointed = mock.Mock(wraps=torch.utils.checkpoint.checkpoint)
    monkeypatch.setattr("model.checkpoint", checkpointed)
    flags = ["--compile", "--activation_checkpointing", "--deterministic"]
    run = train("run", "--pe", "cable", *flags)
    assert checkpointed.call_count == 6 * 2 * 2  # steps, micro-batches, layers
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"] and not counters["recompile_limit"]
    assert not torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(False)
    losses = [record["loss"] for record in log_of(run)[1:]]
    expected = [record["loss"] for record in log_of(trained("cable"))[1:]]
    assert losses == pytest.approx(expected, rel=1e-5)
    assert not any(name.startswith("_orig_mod") for name in weights_of(run))


def resumable_copy(run, copy, first):
    """Copy a run, as if it was interrupted after the checkpoint of step `first`."""
    shutil.copytree(run, copy)
    for path in checkpoints.list_checkpoints(copy):
        if checkpoints.named_step(path) > first:
            path.unlink()
    return copy


@pytest.mark.parametrize(
    "flags",
    [
        "--dtype float16",
        # Random numbers at every step; of 185 windows, the second epoch begins in step 3.
        "--pe cape+cable --block_size 64 --tokens_per_step 4096 --micro_batch 16",
        "--optimizer muon --schedule wsd",
        "--optimizer muon --schedule wsd --dtype float16",
        "--objective mlm --block_size 32 --tokens_per_step 256",
        "--objective recall --block_size 32 --tokens_per_step 256 --val_tokens 2048",
    ],
)
def test_resume_is_bit_exact(flags, train, tmp_path):
    flags = [*shlex.split(flags), "--keep_checkpoints", 3]
    whole = train("whole", *flags)
    parts = resumable_copy(whole, tmp_path / "parts", 2)  # the log has later steps
    train("parts", *flags, "--resume")
    one, other = (
        [(x["step"], x["loss"], x.get("accuracy")) for x in log_of(run) if "loss" in x]
        for run in (whole, parts)
    )
    assert one == other
    one, other = map(checkpoints.load_checkpoint, (whole, parts))
    for key in ("model", "optimizer", "sampler", "scaler", "rng"):
        assert digest(one[key]) == digest(other[key])


def test_float16_resumes_from_float32_with_its_own_loss_scale(trained, train, tmp_path):
    run = resumable_copy(trained("nope"), tmp_path / "run", 4)
    train("run", "--pe", "nope", "--dtype", "float16", "--resume")
    scaler = checkpoints.load_checkpoint(run)["scaler"]
    assert scaler["scale"] >= 2**10 and scaler["_growth_tracker"] == 2


@pytest.mark.parametrize(
    "pe, other",
    [("rope", "yarn:factor=2,ramp=released"), ("cable", "k-cable"), ("rope", "rope-pi:factor=1")],
)
def test_steps_0_keeps_the_weights_under_another_encoding(pe, other, trained, train, capsys):
    """The loss is that of the weights under the other encoding, which the checkpoint stores."""
    flags = ["--pe", other, "--steps", 0, "--init_from", trained(pe)]
    run = train("run", *flags)
    start, end = checkpoints.load_checkpoint(trained(pe)), checkpoints.load_checkpoint(run)
    assert digest(start["model"]) == digest(end["model"])
    assert end["gpt"]["pe"] == other
    assert end["step"] == 0
    assert end["config"]["init_steps"] == checkpoints.trained_steps(end) == 6
    device = torch.device("cpu")
    loaded = checkpoints.load_model(run, device)
    identity = LoadedRun(str(run), *loaded, Processes(), device, torch.float32).identity()
    assert identity["init_steps"] == 6
    old_loss, new_loss = val_losses(trained(pe))[-1], val_losses(run)[-1]
    assert (old_loss == new_loss) == (other == "rope-pi:factor=1")
    assert f"val loss {new_loss:.4f}" in capsys.readouterr().out
    train("run", *flags, "--resume")
    assert "is already trained: 0 of 0 steps" in capsys.readouterr().out
    train("run", *flags, "--resume", "--steps", 3)
    assert checkpoints.trained_steps(checkpoints.load_checkpoint(run)) == 9  # 6 of the source


def test_init_from_refuses_other_tokens(lines, trained, data_dir, tmp_path):
    other = shutil.copytree(data_dir, tmp_path / "data")
    meta = (other / "meta.json").read_text().replace('"bytes"', '"other"')
    (other / "meta.json").write_text(meta)
    assert lines("--init_from", trained("cable"), "--data", other) == [
        f"error: --init_from: {trained('cable')} was trained on bytes tokens, not other: use other "
        f"data, such as {data_dir}"
    ]


CABLE = [f"{layer}.{kind}" for layer in ("step", "weight") for kind in ("weight", "bias")]
TABLE = {"parts.0.table.weight": "table.weight"}
# Encodings of the source and of the new run, {new: old} names of what is kept in a layer, and what
# the console lists as new.
RETROFITS = [
    ("learnable", "alibi", {}, "none"),
    ("learnable", "learnable+kerple", TABLE, "kerple.r1, kerple.r2"),
    ("cable", "rope+k-cable", {f"parts.1.{name}": name for name in CABLE}, "none"),
    ("rope+cable", "cable", {name: f"parts.1.{name}" for name in CABLE}, "none"),
    ("rope+fox", "cable", {}, ", ".join(f"cable.{name}" for name in CABLE)),
    ("t5", "t5:buckets=8,max_distance=16", {}, "t5.table"),  # another shape
    ("rope+cable", "rope@1_rope+cable@1", {f"parts.1.{name}": f"parts.1.{name}" for name in CABLE})
    + ("none",),
    ("cable", "cable@1_nope@1", {name: name for name in CABLE}, "none"),
]


@pytest.mark.parametrize("source, pe, kept, new", RETROFITS)
def test_another_encoding_keeps_what_both_have(source, pe, kept, new, trained, train, capsys):
    old_run = trained(source)
    old = weights_of(old_run)
    capsys.readouterr()
    run = train("run", "--pe", pe, "--init_from", old_run, "--steps", 0, "--seed", 3)
    out = capsys.readouterr().out
    lines = f"{old_run} has pe {source}, this run has pe {pe}\nnew encoding parameters: {new}\n"
    assert lines in out
    torch.manual_seed(3)
    fresh = GPT(GPTConfig(**checkpoints.load_checkpoint(run)["gpt"])).state_dict()
    for name, value in weights_of(run).items():
        _, layer, rest = name.split(".", 2) if name.startswith("posenc.") else (None, None, name)
        if layer is None:
            assert torch.equal(value, old[name])
        elif rest in kept:
            assert torch.equal(value, old[f"posenc.{layer}.{kept[rest]}"])
        else:
            assert torch.equal(value, fresh[name])


@pytest.mark.parametrize(
    "source, pe, difference",
    [
        ("rope", "rope+cable", 1e-5),
        ("rope", "cable:heads=1+rope", 1e-5),
        ("nope", "cable", 1e-5),
        ("rope", "rope+alibi", None),
        ("rope", "rope+k-cable", None),
        ("rope", "cable", None),  # RoPE is dropped
    ],
)
def test_added_cable_starts_at_zero(source, pe, difference, trained, train, capsys):
    """And learns: the gradients of its steps are not zero. A note names what does not."""
    run = train("run", "--pe", pe, "--init_from", trained(source), "--steps", 0)
    note = f"note: with {pe[5:]} the first logits differ from those of {trained(source)}"
    assert (note in capsys.readouterr().out) == (difference is None and "+" in pe)
    old, new = (checkpoints.load_model(x, torch.device("cpu"))[0] for x in (trained(source), run))
    tokens = torch.randint(257, (2, 16), generator=torch.manual_seed(0))
    distance = (old(tokens) - new(tokens)).abs().max()
    if difference is None:
        assert distance > 1e-4
        return
    assert distance < difference
    new(tokens, tokens.roll(-1, 1)).backward()
    steps = [x.grad for name, x in new.named_parameters() if name.endswith("step.weight")]
    assert len(steps) == 2 and all(grad.abs().min() > 0 for grad in steps)


def test_init_from_provides_what_is_not_given(trained, data_dir, tmp_path):
    """Network, block_size, encoding, objective and data; flags and --config replace them."""
    source = str(trained("rope+cable"))
    flags = ["--init_from", source]

    def parse(*more):
        return cli.parse(Config, [*flags, *more], "", inherit=settings.inherit)

    c = parse()
    assert (c.n_layer, c.n_head, c.n_embd, c.block_size) == (2, 2, 16, 16)
    assert (c.pe, c.objective, c.steps) == ("rope+cable", "clm", 19_000)
    c = parse("--pe=nope", "--block_size", "32", "--n_layer", "3")
    assert (c.n_layer, c.n_head, c.n_embd, c.block_size, c.pe) == (3, 2, 16, 32, "nope")
    (tmp_path / "size.yaml").write_text("size: tiny\npe: alibi\nobjective: mlm")
    c = parse("--config", str(tmp_path / "size.yaml"))
    assert (c.size, c.n_layer, c.block_size) == ("tiny", None, 16)
    assert (c.pe, c.objective) == ("alibi", "mlm")
    assert parse().data == str(data_dir)
    assert parse("--data", "data/other").data == "data/other"
    moved = shutil.copytree(source, tmp_path / "moved")
    checkpoint = checkpoints.load_checkpoint(moved)
    checkpoint["config"]["data"] = str(tmp_path / "removed")
    save_checkpoint(checkpoint, checkpoints.checkpoint_path(moved))
    assert parse("--init_from", str(moved)).data == Config.data


def test_run_started_from_another_resumes_without_it(trained, tmp_path, capsys):
    """Its own checkpoint then provides what is not given."""
    source = shutil.copytree(trained("alibi"), tmp_path / "source")
    run = tmp_path / "run"
    flags = ["--init_from", str(source), "--out_dir", str(run)]
    flags += ["--tokens_per_step", "64", "--val_tokens", "64", "--steps", "1"]
    train_gpt.main(flags)  # on the data of the other run
    shutil.rmtree(source)
    capsys.readouterr()
    train_gpt.main([*flags, "--resume"])
    assert "2 layers x 16, 2 heads, 0.01M parameters; alibi" in capsys.readouterr().out


def test_wandb_gets_the_values_of_the_log(train, monkeypatch):
    wandb = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "wandb.errors", wandb.errors)
    run = train("run", "--logger", "wandb", "--sample_every", 3)
    options = wandb.init.call_args.kwargs
    name = f"{run.parent.name}/run"
    assert (options["dir"], options["id"], options["name"]) == (run, log_of(run)[0]["id"], name)
    logged = [call.args[0] for call in wandb.init.return_value.log.call_args_list]
    for kind in ("train", "val"):
        values = [(each["step"], each[f"{kind}/loss"]) for each in logged if f"{kind}/loss" in each]
        assert values == [(record["step"], record["loss"]) for record in records_of(run, kind)]
    assert sum("sample/text" in each for each in logged) == 2
    # Steps that are repeated go to another run: this one cannot replace their values.
    (run / "checkpoint_0000006.pt").unlink()
    train("run", "--logger", "wandb", "--sample_every", 3, "--resume")
    again = wandb.init.call_args.kwargs["id"]
    assert again != options["id"] and log_of(run)[-1]["step"] == 6
    train("run", "--logger", "wandb", "--sample_every", 3, "--resume", "--steps", 7)
    assert wandb.init.call_args.kwargs["id"] == again


def test_tensorboard_gets_the_values_of_the_log(train):
    """After steps 5 and 6 were repeated with another learning rate; without their old values."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    flags = ["--logger", "tensorboard", "--log_every", 1, "--sample_every", 3]
    run = train("run", *flags)
    (run / "checkpoint_0000006.pt").unlink()
    train("run", *flags, "--resume", "--override", "lr", "--lr", 0.005)
    events = accumulators.EventAccumulator(str(run))
    events.Reload()
    for kind, names in (("train", ("loss", "lr", "grad_norm")), ("val", ("loss",))):
        for name in names:
            found = events.Scalars(f"{kind}/{name}")
            records = records_of(run, kind)
            assert [event.step for event in found] == [record["step"] for record in records]
            values = [record[name] for record in records]
            np.testing.assert_allclose([event.value for event in found], values, rtol=1e-6)
    texts = events.Tensors("sample/text/text_summary")
    assert {text.step for text in texts} == {3, 6}
    session = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    assert all(name in session for name in (b"weight_decay", b"init_from", b"cable"))


@pytest.mark.parametrize("pe", ["cable", "cape", "learnable"])
def test_sampled_texts_are_logged_and_change_nothing(pe, trained, train, capsys):
    """Texts of at most 100 bytes; the weights are those without samples, bit for bit."""
    run = train("run", "--pe", pe, "--sample_every", 2)
    assert digest(weights_of(run)) == digest(weights_of(trained(pe)))
    samples = records_of(run, "sample")
    assert [record["step"] for record in samples] == [2, 4, 6]
    assert all(0 < len(record["text"]) <= 100 for record in samples)
    sample.main([str(run), "--max_new_tokens", "100", "--device", "cpu", "--dtype", "float32"])
    assert capsys.readouterr().out.endswith("\n" + samples[-1]["text"] + "\n")


def test_list_prints_all_encodings(capsys, tmp_path, unregistered):
    """One line each, and one for options, without data; an encoding may have no docstring."""
    plugin = write_plugin(tmp_path / "mine.py", "my-a", "names = ('my-a', 'my-b')")
    train_gpt.main(["--list", "--plugin", str(plugin), "--data", "nodata"])
    listed, *_ = capsys.readouterr().out.split("\n\n")
    lines = listed.splitlines()
    rows = [line for line in lines if not line.startswith(" ")]
    names = [name for row in rows for name in row.split("  ")[0].split(", ")]
    assert sorted(names) == sorted(posenc.ENCODINGS) and "my-b" in names
    assert "  options: factor=4, base=10000, length, ramp=paper or released" in listed


def test_dry_run_prints_the_cost_and_writes_nothing(data_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cost, "measure_cpu", lambda: 1e11)
    run = tmp_path / "run"
    flags = ["--size", "medium", "--pe", "learnable", "--out_dir", str(run), "--dry_run"]
    train_gpt.main([*flags, "--data", str(tmp_path / "nodata")])
    output = capsys.readouterr().out
    assert "354.87M parameters" in output  # Radford et al. 2019, with 50,304 tokens
    assert "19,000 steps of 524,288 tokens = 9,961,472,000 tokens" in output
    assert not run.exists()
    recall = ["--objective", "recall", "--block_size", "32", "--tokens_per_step", "256"]
    train_gpt.main([*TINY, "--data", str(data_dir), "--dry_run", *recall])
    with torch.device("meta"):
        model = GPT(GPTConfig("quickstart", "cable", 64, 32, n_layer=2, n_head=2, n_embd=16))
    flops = model.flops_per_token(32)
    assert f"; {6 * 256 * flops:.2g} FLOPs; ".replace("e+", "e") in capsys.readouterr().out


def test_a_line_comes_early_whatever_log_every_is(train, capsys, monkeypatch):
    monkeypatch.setattr(train_gpt, "SILENT_SECONDS", 0.0)
    capsys.readouterr()
    train("cable", "--log_every", 100, "--checkpoint_every", 100, "--val_every", 100)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert lines[0].startswith("step 1/6 | 1 steps in ")
    assert [line.split(" |")[0] for line in lines[1:]] == ["step 6/6", "step 6/6"]


def test_log_contains_every_step_and_the_provenance(trained):
    records = log_of(trained("cable"))
    lines = " ".join(f"{record['kind']} {record['step']}" for record in records)
    assert lines == "start 0 train 2 val 3 train 4 train 6 val 6"
    assert {"command", "commit", "torch", "device", "data", "parameters"} <= records[0].keys()


def test_flags_override_config_files_in_any_order(tmp_path):
    for name, text in (("a", "pe: rope\nsteps: 7\nlr: 0.5"), ("b", "lr: 0.25")):
        (tmp_path / name).write_text(text)
    argv = ["--config", str(tmp_path / "a"), "--pe", "alibi", f"--config={tmp_path / 'b'}"]
    config = cli.parse(Config, argv, "")
    assert (config.pe, config.steps, config.lr) == ("alibi", 7, 0.25)


def test_config_of_a_run_is_resolved(trained):
    config = yaml.safe_load((trained("cable") / "config.yaml").read_text())
    actions = {"resume", "override", "dry_run", "list"}
    assert config.keys() == settings_of(Config).keys() - actions
    assert (config["pe"], config["block_size"], config["beta2"]) == ("cable", 16, 0.95)


def test_gradient_accumulation_equals_one_large_batch(train, capsys):
    """The gradients of 4 sequences in one pass and in four are equal up to rounding.

    --micro_batch is a maximum: with 3, two sequences at a time divide the 4.
    """
    runs = {}
    for micro_batch, steps, size in ((1, 4, 1), (4, 1, 4), (3, 2, 2)):
        runs[micro_batch] = train(str(micro_batch), "--steps", 2, "--micro_batch", micro_batch)
        passes = f"world size 1 x {steps} micro-batches x {size} sequences"
        assert passes in capsys.readouterr().out
    one, four = log_of(runs[1]), log_of(runs[4])
    assert abs(one[1]["loss"] - four[1]["loss"]) < 1e-5
    assert abs(one[1]["grad_norm"] / four[1]["grad_norm"] - 1) < 1e-4
    ours, theirs = weights_of(runs[1]), weights_of(runs[4])
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-3) for name in ours)


@pytest.mark.parametrize("fraction, decay_steps", [(0.25, 40), (1, 160), (0, 0)])
def test_wsd_is_constant_and_decays_linearly_at_the_end(fraction, decay_steps):
    rates = {"lr": 1.0, "min_lr": 0.1, "schedule": "wsd", "decay_fraction": fraction}
    config = Config(steps=160, warmup_steps=10, tokens_per_step=1024, **rates)
    step = np.arange(160)
    expected = np.minimum(1.0, 0.1 + 0.9 * (160 - step) / max(1, decay_steps))
    expected[:10] = (step[:10] + 1) / 10
    np.testing.assert_allclose([learning_rate(int(each), config) for each in step], expected)


def expected_rates(first, last, steps):
    """Learning rates of TINY's schedule for a total of `steps`, after `first` to `last` steps."""
    step = np.arange(first, last)
    cosine = 0.001 + 0.009 * (1 + np.cos(np.pi * (step - 2) / (steps - 2))) / 2
    return np.where(step < 2, 0.01 * (step + 1) / 2, cosine)


def checkpoint_of(run, step):
    return checkpoints.load_checkpoint(run / f"checkpoint_{step:07d}.pt")


def test_larger_steps_train_a_finished_run_further(train, tmp_path):
    """The schedule is that of the new total from there on, also after an interruption."""
    flags = ["--log_every", 1, "--keep_checkpoints", 9]
    before = checkpoint_of(train("run", *flags), 6)
    run = train("run", *flags, "--resume", "--steps", 12)
    rates = [record["lr"] for record in records_of(run, "train")]
    expected = np.concatenate([expected_rates(0, 6, 6), expected_rates(6, 12, 12)])
    np.testing.assert_allclose(rates, expected, rtol=1e-12)
    starts = [(start["step"], start.get("changed")) for start in records_of(run, "start")]
    assert starts == [(0, None), (6, {"steps": [6, 12]})]

    parts = resumable_copy(run, tmp_path / "parts", 8)
    train("parts", *flags, "--resume", "--steps", 12)
    whole, resumed = checkpoint_of(run, 12), checkpoint_of(parts, 12)
    for key in ("model", "optimizer", "sampler", "rng"):
        assert digest(whole[key]) == digest(resumed[key])

    # Neither a run that was not extended nor one of 12 steps is the same recipe.
    direct = {**whole, "config": {**before["config"], "steps": 12}}
    runs = (before, direct, whole, resumed)
    recipes = [settings.training_settings(each) for each in runs]
    assert recipes[0] != recipes[1] != recipes[2] == recipes[3]
    # Its config starts a new run of 12 steps.
    config = cli.parse(Config, ["--config", str(run / "config.yaml")], "")
    assert settings.recorded(config) == direct["config"]


def test_overridden_settings_apply_from_the_checkpoint_on(train, copied_run):
    override = ["--weight_decay", 0.5, "--beta2", 0.9, "--override", "weight_decay,beta2"]
    run = train("copied", "--resume", "--steps", 8, "--pe", "cable", *override)
    groups = checkpoints.load_checkpoint(run)["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert all(tuple(group["betas"]) == (0.9, 0.9) for group in groups)
    changed = {"steps": [6, 8], "beta2": [0.95, 0.9], "weight_decay": [0.1, 0.5]}
    assert records_of(run, "start")[-1]["changed"] == changed


def test_fewer_steps_need_consent(copied_run, train):
    (copied_run / "checkpoint_0000006.pt").unlink()
    run = train("copied", "--resume", "--steps", 5, "--override", "steps,", "--log_every", 1)
    rates = [record["lr"] for record in records_of(run, "train")]
    np.testing.assert_allclose(rates[-1:], expected_rates(4, 5, 5), rtol=1e-12)


def test_resume_of_a_finished_run_changes_nothing(trained, data_dir, capsys):
    run = trained("rope")
    before = contents(run)
    train_gpt.main([*flags_of(data_dir, run), "--pe", "rope", "--resume"])
    assert "is already trained: 6 of 6 steps" in capsys.readouterr().out
    assert contents(run) == before


@pytest.fixture
def lines(refused, data_dir, tmp_path):
    """A function of flags that returns the error lines; checks that nothing was written."""

    def run(*flags):
        found = refused(train_gpt.main, *flags_of(data_dir, tmp_path / "run"), *flags)
        assert not (tmp_path / "run").exists()
        return found

    return run


@pytest.fixture
def copied_run(trained, tmp_path):
    """A copy of a finished run of cable."""
    return shutil.copytree(trained("cable"), tmp_path / "copied")


def test_resume_on_other_data_is_refused(refused, data_dir, tmp_path, copied_run):
    before = contents(copied_run)
    other = shutil.copytree(data_dir, tmp_path / "toy")
    meta = json.loads((other / "meta.json").read_text())
    meta["splits"]["train"]["shards"] = meta["splits"]["val"]["shards"]
    (other / "meta.json").write_text(json.dumps(meta))
    (line,) = refused(train_gpt.main, *flags_of(other, copied_run), "--resume")
    assert "was not trained on the data in" in line and contents(copied_run) == before


def test_many_passes_over_the_data_are_noted(train, capsys):
    """Of 12,003 targets in windows of 16: 750 windows, 4 of them per step."""
    for steps, is_noted in ((1875, False), (1876, True)):
        flags = ["--steps", steps, "--dry_run"]
        train("run", *flags)
        note = "note: the training passes over its data 10.0 times and may overfit: "
        assert (note in capsys.readouterr().out) == is_noted


def test_nan_in_the_last_validation_is_an_error(refused, data_dir, tmp_path):
    flags = [*flags_of(data_dir, tmp_path / "run"), "--steps", "1", "--lr", "1e18"]
    (line,) = refused(train_gpt.main, *flags)
    assert line.startswith("error: the validation loss after step 1 is NaN or Inf; train again")
    assert not checkpoints.list_checkpoints(tmp_path / "run")
    assert [record["kind"] for record in log_of(tmp_path / "run")] == ["start", "train"]


def test_nan_in_a_parameter_is_not_saved(refused, data_dir, tmp_path, train, monkeypatch):
    """The last good checkpoint is named, and the command that the error suggests works."""
    optimizer_step, norms = train_gpt.optimizer_step, []

    def poison_after_step_4(model, *arguments):
        norms.append(optimizer_step(model, *arguments))
        if len(norms) == 4:
            model.h[1].ln_1.weight.data[3] = torch.nan
        return norms[-1]

    with monkeypatch.context() as patch:
        patch.setattr(train_gpt, "optimizer_step", poison_after_step_4)
        (line,) = refused(train_gpt.main, *flags_of(data_dir, tmp_path / "run"))
    start = "error: h.1.ln_1.weight after step 4 is NaN or Inf; to continue from checkpoint_0000002"
    assert line.startswith(start) and line.endswith("a lower --lr and --override lr")
    gc.collect()  # the traceback of the error holds the lock
    run = train("run", "--resume", "--lr", 5e-3, "--override", "lr")
    assert checkpoints.load_checkpoint(run)["step"] == 6
