"""Training as its user does it: what a run leaves behind, going on after an interruption, and every input it must refuse."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from conftest import ENCODINGS, NAMES, ROOT, TINY, log_of, program

import train_gpt
from errors import InputError
from runtime import checkpoints, cli, devices, loading, run_folder
from text_data import shards
from train_gpt import Config, learning_rate


def digest(state) -> str:
    """A hash over every tensor and number in nested state, in order."""
    total = hashlib.sha256()

    def add(value):
        if isinstance(value, dict):
            for key, item in value.items():
                total.update(str(key).encode())
                add(item)
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        elif isinstance(value, torch.Tensor):
            total.update(
                value.contiguous().view(torch.uint8).numpy().tobytes()
                if value.ndim
                else str(value.item()).encode()
            )
        else:
            total.update(str(value).encode())

    add(state)
    return total.hexdigest()


@pytest.mark.parametrize("pe", ENCODINGS)
def test_every_encoding_trains(pe, trained):
    losses = [record["loss"] for record in log_of(trained(pe)) if record["kind"] == "val"]
    assert len(losses) == 2 and losses[1] < losses[0] < 5.8


def test_val_loss_is_that_of_windows_spread_over_the_val_split(trained, data_dir):
    """Four of 16 tokens, by a forward pass of their own."""
    model, _ = loading.load_model(trained("alibi"), torch.device("cpu"))
    val = torch.from_numpy(shards.Shards(data_dir, "val").tokens[0].astype(np.int64))
    starts = [16 * int(n * ((len(val) - 1) // 16) / 4) for n in range(4)]
    rows = torch.stack([val[start : start + 17] for start in starts])
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(
            model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()
        ).item()
    assert [record["loss"] for record in log_of(trained("alibi")) if record["kind"] == "val"][
        -1
    ] == pytest.approx(expected, rel=1e-5)


def test_what_is_logged_is_of_the_steps_since_the_line_before(data_dir, tmp_path):
    """The mean of their losses, the last one's gradient norm, and the tokens of a step over its time."""
    logs = []
    for every in ("1", "3"):
        train_gpt.main(
            [
                *TINY,
                "--checkpoint_every",
                "3",
                "--log_every",
                every,
                "--data",
                str(data_dir),
                "--out_dir",
                str(tmp_path / every),
            ]
        )
        logs.append([record for record in log_of(tmp_path / every) if record["kind"] == "train"])
    single, mean = logs
    assert [record["loss"] for record in mean] == pytest.approx(
        [np.mean([single[n + i]["loss"] for i in range(3)]) for n in (0, 3)]
    )
    assert [record["grad_norm"] for record in mean] == pytest.approx(
        [single[n]["grad_norm"] for n in (2, 5)]
    )
    assert all(
        record["tokens_per_second"] * record["ms"] == pytest.approx(1000 * 64)
        for record in single + mean
    )


def test_another_seed_is_another_start_and_another_order(trained, data_dir, tmp_path):
    starts, losses = [], []
    still = [
        "--steps",
        "1",
        "--log_every",
        "1",
        "--lr",
        "0",
        "--min_lr",
        "0",
        "--data",
        str(data_dir),
        "--pe",
        "nope",
    ]
    for seed in ("1", "2"):
        train_gpt.main([*TINY, *still, "--seed", seed, "--out_dir", str(tmp_path / seed)])
        starts.append(checkpoints.load_checkpoint(tmp_path / seed)["model"]["wte.weight"])
        train_gpt.main(
            [
                *TINY,
                *still,
                "--seed",
                seed,
                "--init_from",
                str(trained("nope")),
                "--out_dir",
                str(tmp_path / f"same{seed}"),
            ]
        )
        losses.append(log_of(tmp_path / f"same{seed}")[1]["loss"])
    assert not torch.equal(*starts) and losses[0] != losses[1]


def test_no_gradient_is_cut_at_zero(data_dir, tmp_path):
    """0 means none, as in other programs; a norm that no gradient reaches gives the same weights."""
    found = []
    for clip in ("0", "1e9"):
        train_gpt.main(
            [*TINY, "--grad_clip", clip, "--data", str(data_dir), "--out_dir", str(tmp_path / clip)]
        )
        found.append(digest(checkpoints.load_checkpoint(tmp_path / clip)["model"]))
    assert found[0] == found[1]


def test_stopped_at_the_last_step_it_is_validated_still(data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.distributed.Processes.any", lambda self, received: True)
    train_gpt.main(
        [*TINY, "--steps", "1", "--data", str(data_dir), "--out_dir", str(tmp_path / "run")]
    )
    assert [record["kind"] for record in log_of(tmp_path / "run")] == ["start", "train", "val"]


@pytest.mark.parametrize("pe", ["cable", "test-drift"])
def test_training_learns_the_text(pe, data_dir, tmp_path):
    train_gpt.main(
        [
            *TINY,
            "--steps",
            "60",
            "--lr",
            "2e-2",
            "--tokens_per_step",
            "512",
            "--micro_batch",
            "32",
            "--val_every",
            "60",
            "--data",
            str(data_dir),
            "--pe",
            pe,
            "--out_dir",
            str(tmp_path / "run"),
        ]
    )
    assert [record["loss"] for record in log_of(tmp_path / "run") if record["kind"] == "val"][
        -1
    ] < 2.2


@pytest.mark.parametrize("pe", ["cable", "rope+fox", "t5"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_trains_as_float32_does(dtype, pe, trained, data_dir, tmp_path):
    train_gpt.main(
        [
            *TINY,
            "--data",
            str(data_dir),
            "--pe",
            pe,
            "--out_dir",
            str(tmp_path / "run"),
            "--dtype",
            dtype,
        ]
    )
    half, full = (log_of(run) for run in (tmp_path / "run", trained(pe)))
    assert [record["step"] for record in half] == [record["step"] for record in full]
    for a, b in zip(half[1:], full[1:]):
        assert a["loss"] == pytest.approx(b["loss"], rel=0.01)
        if a["kind"] == "train":
            assert a["grad_norm"] == pytest.approx(
                b["grad_norm"], rel=0.05
            )  # of the loss, not of the scaled one
    assert [record["loss"] for record in half[1:]] != [record["loss"] for record in full[1:]]
    scaler = checkpoints.load_checkpoint(tmp_path / "run")["scaler"]
    assert (
        scaler["scale"] >= 2**10 if dtype == "float16" else scaler == {}
    )  # halved when a step overflows, and was not often


def test_compiled_and_checkpointed_it_trains_the_same(trained, data_dir, tmp_path):
    train_gpt.main(
        [
            *TINY,
            "--data",
            str(data_dir),
            "--pe",
            "cable",
            "--out_dir",
            str(tmp_path / "run"),
            "--compile",
            "--activation_checkpointing",
            "--deterministic",
        ]
    )
    torch.use_deterministic_algorithms(False)
    assert [r["loss"] for r in log_of(tmp_path / "run")[1:]] == pytest.approx(
        [r["loss"] for r in log_of(trained("cable"))[1:]], rel=1e-5
    )
    assert not any(
        name.startswith("_orig_mod")
        for name in checkpoints.load_checkpoint(tmp_path / "run")["model"]
    )


def test_activation_checkpointing_is_turned_on(data_dir, tmp_path, monkeypatch):
    blocks, checkpoint = [], torch.utils.checkpoint.checkpoint
    monkeypatch.setattr(
        "model.checkpoint",
        lambda block, *rest, **options: blocks.append(block) or checkpoint(block, *rest, **options),
    )
    for flags, count in (
        ([], 0),
        (["--activation_checkpointing"], 2 * 2),
    ):  # two layers, two micro-batches
        train_gpt.main(
            [
                *TINY,
                "--steps",
                "1",
                "--data",
                str(data_dir),
                "--out_dir",
                str(tmp_path / f"run{count}"),
                *flags,
            ]
        )
        assert len(blocks) == count


def test_a_run_goes_on_in_another_dtype(data_dir, tmp_path):
    """float16 alone scales losses, and finds no scale in a checkpoint of another."""
    flags = [*TINY, "--data", str(data_dir), "--out_dir", str(tmp_path / "run")]
    stopped = program_interrupted_after_save(2, *flags)
    assert stopped.returncode == 130, stopped.stderr
    train_gpt.main([*flags, "--dtype", "float16", "--resume"])
    checkpoint = checkpoints.load_checkpoint(tmp_path / "run")
    assert checkpoint["step"] == 6 and checkpoint["scaler"]["scale"] >= 2**10


def test_loss_scaling_goes_on_where_it_was(data_dir, tmp_path):
    flags = [*TINY, "--data", str(data_dir), "--dtype", "float16"]
    train_gpt.main([*flags, "--out_dir", str(tmp_path / "whole")])
    stopped = program_interrupted_after_save(2, *flags, "--out_dir", tmp_path / "parts")
    assert stopped.returncode == 130, stopped.stderr
    train_gpt.main([*flags, "--out_dir", str(tmp_path / "parts"), "--resume"])
    whole, parts = (checkpoints.load_checkpoint(tmp_path / name) for name in ("whole", "parts"))
    assert whole["scaler"] == parts["scaler"] and 0 < whole["scaler"]["_growth_tracker"] <= 6
    assert digest(whole["model"]) == digest(parts["model"])


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_checkpoints_are_kept(keep, data_dir, tmp_path):
    run = tmp_path / "run"
    train_gpt.main(
        [*TINY, "--data", str(data_dir), "--out_dir", str(run), "--keep_checkpoints", str(keep)]
    )
    assert [
        checkpoints.load_checkpoint(path)["step"] for path in checkpoints.list_checkpoints(run)
    ] == [
        2,
        4,
        6,
    ][-keep:]
    (run / "checkpoint_best.pt").write_bytes(b"a user's own")
    assert checkpoints.checkpoint_path(run).name == "checkpoint_0000006.pt"


def test_what_a_bias_does_is_logged(trained):
    for pe, there in (("cable", True), ("rope", False)):
        records = [record for record in log_of(trained(pe)) if record["kind"] == "val"]
        assert all(("slope" in record) == ("window" in record) == there for record in records)
    cable = [record for record in log_of(trained("cable")) if record["kind"] == "val"][-1]
    assert len(cable["slope"]) == len(cable["window"]) == 2 and all(
        1 <= window <= 16 for window in cable["window"]
    )


def test_a_run_starts_from_the_weights_of_another(trained, data_dir, tmp_path, capsys):
    """At twice the length; its first loss is that of the trained model, and it is a run of its own."""
    flags = [
        *TINY,
        "--data",
        str(data_dir),
        "--pe",
        "cable",
        "--block_size",
        "32",
        "--steps",
        "2",
        "--lr",
        "0",
        "--min_lr",
        "0",
        "--out_dir",
        str(tmp_path / "run"),
        "--init_from",
        str(trained("cable")),
    ]
    train_gpt.main(flags)
    start, end = (
        checkpoints.load_checkpoint(run)["model"] for run in (trained("cable"), tmp_path / "run")
    )
    assert digest(start) == digest(end)
    assert log_of(tmp_path / "run")[0]["step"] == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["init_from"] == str(
        trained("cable")
    )
    train_gpt.main([*flags, "--resume"])
    assert "is already trained: 2 of 2 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    "pe, other", [("rope", "yarn:factor=2"), ("cable", "k-cable"), ("rope", "rope-pi:factor=1")]
)
def test_weights_as_they_are_under_another_encoding(pe, other, trained, data_dir, tmp_path, capsys):
    """No step is taken; the loss is that of the weights under that encoding, and that encoding is what the run has from then on."""
    flags = [
        *TINY,
        "--data",
        str(data_dir),
        "--pe",
        other,
        "--steps",
        "0",
        "--init_from",
        str(trained(pe)),
        "--out_dir",
        str(tmp_path / "run"),
    ]
    train_gpt.main(flags)
    start, end = (checkpoints.load_checkpoint(run) for run in (trained(pe), tmp_path / "run"))
    assert (
        digest(start["model"]) == digest(end["model"])
        and end["gpt"]["pe"] == other
        and end["step"] == 0
    )
    values = [
        [record for record in log_of(run) if record["kind"] == "val"][-1]["loss"]
        for run in (trained(pe), tmp_path / "run")
    ]
    assert (values[0] == values[1]) == (
        other == "rope-pi:factor=1"
    ) and f"val loss {values[1]:.4f}" in capsys.readouterr().out
    train_gpt.main([*flags, "--resume"])
    assert "is already trained: 0 of 0 steps" in capsys.readouterr().out


def test_weights_that_do_not_fit_are_told(trained, refused, data_dir, tmp_path):
    def lines(pe, *flags):
        return refused(
            train_gpt.main,
            *TINY,
            "--data",
            data_dir,
            "--pe",
            pe,
            "--out_dir",
            tmp_path / "run",
            *flags,
        )

    longer = ["--block_size", "32"]
    for pe in ("learnable", "t5-clip"):
        assert lines(pe, "--init_from", trained(pe), *longer) == [
            f"error: --init_from: the tables of {pe} in {trained(pe)} are made for block_size 16, not 32: "
            "use --block_size 16, or an encoding without a length limit"
        ]
    assert lines("rope", "--init_from", trained("alibi"), "--n_layer", 3) == [
        f"error: --init_from: {trained('alibi')} has n_layer 2, not 3: use the same value",
        f"error: --init_from: {trained('alibi')} has pe alibi, not rope: use the same value",
    ]
    assert lines("rope", "--init_from", trained("rope"), "--attn_scale", 1) == [
        f"error: --init_from: {trained('rope')} has attn_scale None, not 1.0: use the same value"
    ]
    assert lines("dapev2", "--init_from", trained("dape")) == [
        f"error: --init_from: {trained('dape')} has pe dape, not dapev2: use the same value"
    ]  # kin, but not in their parameters
    assert lines("mep", "--init_from", trained("mep-learned")) == [
        f"error: --init_from: {trained('mep-learned')} has pe mep-learned, not mep: use the same value"
    ]
    assert lines("fire:width=16", "--init_from", trained("fire"), *longer) == [
        f"error: --init_from: {trained('fire')} has pe fire, not fire:width=16: use the same value"
    ]
    assert lines("rope", "--init_from", trained("rope"), "--objective", "mlm") == [
        f"error: --init_from: {trained('rope')} is a decoder: use --objective clm"
    ]
    assert lines("rope+cable", "--init_from", trained("rope")) == [
        f"error: --init_from: {trained('rope')} has pe rope, not rope+cable: use the same value"
    ]
    assert "steps is 0: it must be at least 1" in lines("rope", "--steps", 0)[0]
    assert "contains no checkpoint" in lines("rope", "--init_from", tmp_path)[0]
    other = shutil.copytree(data_dir, tmp_path / "data")
    (other / "meta.json").write_text(
        (other / "meta.json").read_text().replace('"bytes"', '"other"')
    )
    assert lines("rope", "--init_from", trained("rope"), "--data", other) == [
        f"error: --init_from: {trained('rope')} was trained on bytes tokens, not other: use other data"
    ]
    assert not (tmp_path / "run").exists()
    train_gpt.main(
        [
            *TINY,
            *longer,
            "--data",
            str(data_dir),
            "--pe",
            "t5-clip:k=15",
            "--init_from",
            str(trained("t5-clip")),
            "--out_dir",
            str(tmp_path / "run"),
        ]
    )  # its table as it was


def test_wandb_gets_what_the_log_gets(data_dir, tmp_path):
    """Offline, in a process of its own; read back from the file that `wandb sync` would send."""
    run, flags = tmp_path / "run", [*TINY, "--data", data_dir, "--wandb_project", "tests"]
    done = program("train_gpt.py", *flags, "--out_dir", run, WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    (transaction,) = run.glob("wandb/offline-run-*/run-*.wandb")
    assert log_of(run)[0]["id"] in transaction.name
    content = transaction.read_bytes()
    assert all(
        name in content
        for name in (
            b"train/loss",
            b"train/tokens_per_second",
            b"val/loss",
            b"val/window/1",
            b"val/slope/0",
        )
    )
    longer = program(
        "train_gpt.py", *flags, "--steps", 6, "--out_dir", run, "--resume", WANDB_MODE="offline"
    )
    assert "is already trained" in longer.stdout


def test_without_wandb_the_mend_is_told(refused, data_dir, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    lines = refused(
        train_gpt.main,
        *TINY,
        "--data",
        data_dir,
        "--out_dir",
        tmp_path / "run",
        "--wandb_project",
        "tests",
    )
    assert (
        len(lines) == 1
        and lines[0].startswith("error: --wandb_project needs wandb (import of wandb halted")
        and lines[0].endswith("): pip install wandb")
        and not (tmp_path / "run").exists()
    )


@pytest.mark.parametrize("limit, found", [(100, 12), (5, 4), (1, 1)])
def test_the_largest_micro_batch_that_fits_is_found(limit, found, monkeypatch):
    """The largest divisor of a process's 12 sequences, and the least that any process finds."""
    forward = train_gpt.GPT.forward

    def small_memory(self, tokens, targets):
        if len(tokens) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, tokens, targets)

    monkeypatch.setattr(train_gpt.GPT, "forward", small_memory)
    model = train_gpt.GPT(
        train_gpt.GPTConfig("quickstart", n_layer=1, n_embd=16, vocab_size=64, block_size=8)
    )
    processes = train_gpt.distributed.Processes()
    assert (
        devices.find_micro_batch(model, 12, torch.device("cpu"), torch.float32, processes) == found
    )
    assert all(parameter.grad is None for parameter in model.parameters())
    monkeypatch.setattr(train_gpt.distributed.Processes, "gather", lambda self, value: [value, 0])
    with pytest.raises(InputError, match="not one sequence of 8 tokens fits into the GPU"):
        devices.find_micro_batch(model, 12, torch.device("cpu"), torch.float32, processes)


def test_dry_run_counts_and_does_nothing(data_dir, tmp_path, capsys):
    train_gpt.main(
        [
            "--size",
            "medium",
            "--pe",
            "learnable",
            "--data",
            str(tmp_path / "nodata"),
            "--out_dir",
            str(tmp_path / "run"),
            "--dry_run",
        ]
    )
    output = capsys.readouterr().out
    n = (
        50304 * 1024 + 1024 * 1024 + 24 * (12 * 1024 * 1024 + 13 * 1024) + 2 * 1024
    )  # Radford et al. 2019; 353.8M and P
    assert (
        f"N = {n:,}" in output and "19,000 steps of 524,288 tokens = 9,961,472,000 tokens" in output
    )
    flops = (6 * n + 12 * 24 * 1024 * 1024) * 9_961_472_000
    assert f"{flops:.3g} FLOPs" in output
    assert (
        f"1 H100 {flops / (0.4 * 989e12) / 3600:.2f}, 8 H100 {flops / 8 / (0.4 * 989e12) / 3600:.2f}"
        in output
    )
    assert f"{12 * n / 1e9:.2f} GB a checkpoint" in output and "does not exist yet" in output
    assert not (tmp_path / "run").exists()
    train_gpt.main([*TINY, "--data", str(data_dir), "--dry_run"])
    assert "0.03 epochs of 12,004" in capsys.readouterr().out  # 6 x 64 tokens


@pytest.mark.parametrize("pe", ENCODINGS)
def test_every_encoding_has_a_plan(pe, capsys):
    train_gpt.main(["--pe", pe, "--dry_run"])
    assert "FLOPs" in capsys.readouterr().out


def test_kerple_stays_within_its_bounds(data_dir, tmp_path):
    train_gpt.main(
        [
            *TINY,
            "--lr",
            "1",
            "--data",
            str(data_dir),
            "--pe",
            "kerple-power",
            "--out_dir",
            str(tmp_path / "run"),
        ]
    )
    weights = checkpoints.load_checkpoint(tmp_path / "run")["model"]
    bounded = [weights[f"posenc.{layer}.{name}"] for layer in (0, 1) for name in ("r1", "r2")]
    assert (
        min(r.min() for r in bounded) >= 0.0099
        and max(weights[f"posenc.{layer}.r2"].max() for layer in (0, 1)) <= 2
    )
    assert any((r <= 0.0101).any() or (r >= 2).any() for r in bounded)  # steps of 1 do reach them


def test_log_holds_what_was_done(trained):
    records = log_of(trained("cable"))
    assert [(record["kind"], record["step"]) for record in records] == [
        ("start", 0),
        ("train", 2),
        ("val", 3),
        ("train", 4),
        ("train", 6),
        ("val", 6),
    ]
    assert {"command", "commit", "torch", "device", "data", "parameters"} <= records[0].keys()
    assert {"loss", "lr", "grad_norm", "ms", "tokens_per_second"} <= records[1].keys()
    assert records[2]["tokens"] == 64


def test_flags_overrule_files_wherever_they_stand(tmp_path):
    for name, text in (("a", "pe: rope\nsteps: 7\nlr: 0.5"), ("b", "lr: 0.25")):
        (tmp_path / name).write_text(text)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    for argv in (
        ["--pe", "alibi", "--config", a, f"--config={b}"],
        ["--config", a, "--pe", "alibi", "--config", b],
    ):
        found = cli.parse(Config, argv, "")
        assert (found.pe, found.steps, found.lr) == ("alibi", 7, 0.25)


def test_config_on_disk_is_the_resolved_one(trained):
    config = yaml.safe_load((trained("cable") / "config.yaml").read_text())
    assert config.keys() == Config.__dataclass_fields__.keys() - {"resume", "dry_run"}
    assert (config["pe"], config["block_size"], config["beta2"]) == ("cable", 16, 0.95)


def test_accumulated_micro_batches_are_one_batch(data_dir, tmp_path, capsys):
    """Gradients of 4 sequences in one pass and in four differ by rounding only. A micro-batch is as many at most: two at a time, where
    three are allowed."""
    for micro_batch, passes in (
        (1, "4 micro-batches x 1"),
        (4, "1 micro-batches x 4"),
        (3, "2 micro-batches x 2"),
        (100, "1 micro-batches x 4"),
    ):
        train_gpt.main(
            [
                *TINY,
                "--steps",
                "2",
                "--micro_batch",
                str(micro_batch),
                "--data",
                str(data_dir),
                "--out_dir",
                str(tmp_path / str(micro_batch)),
            ]
        )
        assert f"world size 1 x {passes} sequences" in capsys.readouterr().out
    one, four = (log_of(tmp_path / name) for name in ("1", "4"))
    assert (
        abs(one[1]["loss"] - four[1]["loss"]) < 1e-5
        and abs(one[1]["grad_norm"] / four[1]["grad_norm"] - 1) < 1e-4
    )
    weights = [checkpoints.load_checkpoint(tmp_path / name)["model"] for name in ("1", "4")]
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-3) for name in weights[0])


def test_learning_rate_warms_up_and_falls_as_a_cosine():
    config = Config(steps=110, warmup_steps=10, lr=1.0, min_lr=0.1, tokens_per_step=16 * 1024)
    assert [learning_rate(step, config) for step in (0, 4, 9, 10)] == pytest.approx(
        [0.1, 0.5, 1.0, 1.0]
    )
    assert learning_rate(60, config) == pytest.approx(0.55) and learning_rate(
        110, config
    ) == pytest.approx(0.1)
    assert learning_rate(35, config) == pytest.approx(0.1 + 0.9 * (1 + 0.5**0.5) / 2)


LONG = [
    "--steps",
    "8",
    "--block_size",
    "64",
    "--tokens_per_step",
    "4096",
    "--micro_batch",
    "16",
]  # 64 of 185 windows a step


def test_resumed_in_a_new_process_it_equals_never_having_stopped(data_dir, tmp_path, monkeypatch):
    flags = [
        *TINY,
        *LONG,
        "--data",
        str(data_dir),
        "--pe",
        "cape+cable",
    ]  # cape draws numbers at every step
    done = program("train_gpt.py", *flags, "--out_dir", tmp_path / "whole")
    assert done.returncode == 0, done.stderr

    stops = program_interrupted_after_save(
        2, *flags, "--out_dir", tmp_path / "parts"
    )  # step 4, in the second epoch
    assert stops.returncode == 130 and stops.stderr == "interrupted\n"
    assert checkpoints.load_checkpoint(tmp_path / "parts")["step"] == 4
    assert log_of(tmp_path / "parts")[-1]["step"] == 4
    with open(
        tmp_path / "parts" / "log.jsonl", "a"
    ) as log:  # steps after the checkpoint, the last cut off in writing
        log.write('{"kind": "train", "step": 6, "loss": 0}\n{"kind": "tr')
    done = program("train_gpt.py", *flags, "--out_dir", tmp_path / "parts", "--resume")
    assert done.returncode == 0 and "from step 4" in done.stdout, done.stderr

    whole, parts = (checkpoints.load_checkpoint(tmp_path / name) for name in ("whole", "parts"))
    assert whole["sampler"] == parts["sampler"] and whole["sampler"]["epoch"] == 2
    assert digest(whole["model"]) == digest(parts["model"])
    assert digest(whole["optimizer"]) == digest(parts["optimizer"])
    losses = [
        [(r["step"], r["loss"]) for r in log_of(tmp_path / name) if r["kind"] != "start"]
        for name in ("whole", "parts")
    ]
    assert losses[0] == losses[1]


def program_interrupted_after_save(saves, *flags):
    """train_gpt.py in a process of its own, stopped as by Ctrl-C when it has saved so many times."""
    code = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import train_gpt
from runtime import cli, run_folder
save, count = run_folder.Run.save, []
def save_and_stop(self, **checkpoint):
    save(self, **checkpoint)
    count.append(1)
    if len(count) == {saves}:
        raise KeyboardInterrupt
run_folder.Run.save = save_and_stop
cli.run(train_gpt.main)
"""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, flags)],
        text=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_resume_of_a_finished_run_does_nothing(trained, data_dir, capsys):
    run = trained("rope")
    before = {path: path.read_bytes() for path in run.iterdir()}
    train_gpt.main(
        [*TINY, "--data", str(data_dir), "--pe", "rope", "--out_dir", str(run), "--resume"]
    )
    assert "is already trained: 6 of 6 steps" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_two_processes_never_train_in_one_folder(data_dir, tmp_path):
    command = [
        sys.executable,
        str(ROOT / "train_gpt.py"),
        *TINY,
        "--data",
        str(data_dir),
        "--out_dir",
        str(tmp_path / "run"),
        "--resume",
        "--steps",
        "100000",
    ]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        while "step " not in first.stdout.readline():
            assert first.poll() is None
        second = subprocess.run(
            command, capture_output=True, text=True, timeout=120
        )  # or it would train for long
        assert (
            second.returncode == 2
            and f"another process trains in {tmp_path / 'run'}: wait until it ends"
            in second.stderr.splitlines()[-1]
        )
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()


def test_resume_of_nothing_starts(data_dir, tmp_path, capsys):
    train_gpt.main(
        [
            *TINY,
            "--steps",
            "1",
            "--data",
            str(data_dir),
            "--out_dir",
            str(tmp_path / "run"),
            "--resume",
        ]
    )
    assert "starting at step 0" in capsys.readouterr().out


def test_settings_are_told_wrong_before_anything_is_written(refused, data_dir, tmp_path):
    out = tmp_path / "run"

    def lines(*flags):
        return refused(train_gpt.main, *TINY, "--data", data_dir, "--out_dir", out, *flags)

    assert lines("--pe", "cabel") == [
        "error: unknown positional encoding 'cabel': did you mean cable? choose one of "
        + " ".join(NAMES)
    ]
    assert "unknown size 'smal'" in lines("--size", "smal")[0]
    assert "n_embd 100 gives 3 heads" in lines("--n_embd", 100, "--n_head", 3)[0]
    assert (
        "tokens_per_step 100 is not a multiple of block_size 16 x world size 1 = 16"
        in lines("--tokens_per_step", 100)[0]
    )
    assert len(lines("--steps", 0, "--lr", -1, "--pe", "x", "--size", "y")) == 4
    assert lines("--lr", 1e-4) == ["error: min_lr 0.001 is above lr 0.0001: use a lower --min_lr"]
    assert len(lines("--beta1", 1, "--beta2", 1.5, "--grad_clip", -1, "--weight_decay", -1)) == 4
    assert lines("--n_layer", 0) == ["error: n_layer is 0: it must be at least 1"]
    assert (
        "n_head is 0" in lines("--n_head", 0)[0]
        and "attn_scale is 0.0: it must be above 0" in lines("--attn_scale", 0)[0]
    )
    assert "leaves no logarithmic bucket" in lines("--pe", "t5:max_distance=16")[0]
    assert "leaves no logarithmic bucket" in lines("--pe", "t5:buckets=1")[0]
    assert (
        lines("--stepz", 4, "--learning_rate", 1)[0]
        == "error: flag --stepz is unknown: did you mean steps?"
    )
    assert "Expected a int. Got value: many" in lines("--steps", "many")[0]
    assert "fp8" in lines("--dtype", "fp8")[0]
    assert "--steps: expected one argument" in lines("--steps")[0]
    config = tmp_path / "config.yaml"
    for text, told in (
        (
            "stepz: 3\nsedd: 1",
            [
                "key stepz is unknown: did you mean steps?",
                "key sedd is unknown: did you mean seed?",
            ],
        ),
        ("steps: [1", ["is not YAML"]),
        ("- 1", ["is not a mapping: use lines of the form 'name: value'"]),
        ("steps: many", ["Got value: many"]),
        ("# nothing", ["is not a mapping: use lines of the form"]),
        ("seed: null\nbeta1: null", ["beta1 is null: pass a value", "seed is null: pass a value"]),
    ):
        config.write_text(text)
        found = lines("--config", config)
        assert len(found) == len(told) and all(b in a for a, b in zip(found, told)), found
    assert "cannot be read" in lines("--config", tmp_path / "none.yaml")[0]
    assert "there is no CUDA device" in lines("--device", "cuda")[0]
    assert "unknown device 'gpu'" in lines("--device", "gpu")[0]
    assert (
        "micro_batch auto measures the memory of a GPU: pass a number"
        in lines("--micro_batch", "auto")[0]
    )
    assert (
        "does not exist: create it with prepare_text.py" in lines("--data", tmp_path / "nodata")[0]
    )
    assert (
        "too few for one window of 4096 + 1"
        in lines("--block_size", 4096, "--tokens_per_step", 8192)[0]
    )
    assert (
        "the sdpa attention path cannot compute Drift, because its bias has no factors"
        in lines("--pe", "test-drift", "--attention", "sdpa")[0]
    )
    assert not out.exists()


def test_damaged_data_is_told_before_anything_is_written(refused, data_dir, tmp_path):
    shutil.copytree(data_dir, tmp_path / "toy")
    with open(tmp_path / "toy" / "toy_train_000000.bin", "r+b") as shard:
        shard.seek(2000)
        shard.write(b"?")
    lines = refused(
        train_gpt.main, *TINY, "--data", tmp_path / "toy", "--out_dir", tmp_path / "run"
    )
    assert "toy_train_000000.bin has been changed" in lines[0] and not (tmp_path / "run").exists()


def test_folders_that_cannot_be_taken(refused, trained, data_dir, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained("cable"), run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}

    def lines(*flags):
        return refused(train_gpt.main, *TINY, "--data", data_dir, "--out_dir", run, *flags)

    assert (
        "already contains a run: pass --resume to continue it, or use another --out_dir"
        in lines()[0]
    )
    assert [
        line.split(" was ")[1] for line in lines("--resume", "--pe", "alibi", "--n_layer", 3)
    ] == [
        "trained with n_layer 2, not 3: use the same, or another --out_dir",
        "trained with pe cable, not alibi: use the same, or another --out_dir",
    ]
    for flag, value in (
        ("lr", 1),
        ("seed", 2),
        ("tokens_per_step", 128),
        ("warmup_steps", 3),
        ("beta2", 0.9),
        ("grad_clip", 2),
        ("weight_decay", 0),
        ("steps", 7),
        ("block_size", 8),
    ):
        assert f"was trained with {flag}" in lines("--resume", f"--{flag}", value)[0]
    other = tmp_path / "toy"
    shutil.copytree(data_dir, other)
    meta = json.loads((other / "meta.json").read_text())
    meta["splits"]["train"]["shards"] = meta["splits"]["val"]["shards"]
    (other / "meta.json").write_text(json.dumps(meta))
    assert "was not trained on the data in" in lines("--resume", "--data", other)[0]
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before

    content = (run / "checkpoint_0000006.pt").read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"not a checkpoint"):
        (run / "checkpoint_0000006.pt").write_bytes(damaged)
        told = lines("--resume")[0]
        assert (
            "checkpoint_0000006.pt is corrupt or not a checkpoint" in told
            and "resume from" in told
            and "checkpoint_0000004.pt" in told
        )
    torch.save({"model": {}}, run / "checkpoint_0000006.pt")
    assert "is not a checkpoint of train_gpt.py" in lines("--resume")[0]
    torch.save(torch.nn.Linear(2, 2), run / "checkpoint_0000006.pt")  # would run code on loading
    assert "is corrupt or not a checkpoint" in lines("--resume")[0]

    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("...")
    assert "contains other files" in lines("--out_dir", tmp_path / "thesis")[0]
    assert "cannot write" in lines("--out_dir", tmp_path / "thesis" / "chapter1.tex" / "run")[0]
    assert lines("--seed", 2**63) == [f"error: seed is {2**63}: it must be below 2^63"]


def test_a_validation_that_a_signal_had_no_time_for_is_made_up_for(data_dir, tmp_path):
    flags = [*TINY, "--checkpoint_every", "3", "--data", str(data_dir), "--out_dir", str(tmp_path)]
    train_gpt.main(flags)
    told = log_of(tmp_path)
    (tmp_path / "checkpoint_0000006.pt").unlink()
    lines = (tmp_path / "log.jsonl").read_text().splitlines(keepends=True)
    for kept in (
        lines,
        [line for line in lines if '"val"' not in line],
    ):  # with it, and as a signal leaves it
        (tmp_path / "log.jsonl").write_text("".join(kept))
        train_gpt.main([*flags, "--resume"])
        found = [record for record in log_of(tmp_path) if record["kind"] == "val"]
        assert [(record["step"], record["loss"]) for record in found] == [
            (record["step"], record["loss"]) for record in told if record["kind"] == "val"
        ]
        (tmp_path / "checkpoint_0000006.pt").unlink()


def test_what_an_interrupted_beginning_left_is_in_nobodys_way(data_dir, tmp_path, capsys):
    """A login to Weights & Biases that failed, or a config that was being written. Lines further apart than the end, too."""
    (tmp_path / "wandb").mkdir()
    (tmp_path / "config.yaml.partial").write_text("data: ")
    train_gpt.main(
        [
            *TINY,
            "--data",
            str(data_dir),
            "--warmup_steps",
            "7",
            "--log_every",
            str(10**12),
            "--out_dir",
            str(tmp_path),
        ]
    )
    assert [record["step"] for record in log_of(tmp_path) if record["kind"] == "train"] == [
        2,
        4,
        6,
    ]  # where there is a checkpoint
    assert (
        "note: warmup_steps 7 is above steps 6: the learning rate never reaches lr"
        in capsys.readouterr().out
    )


def test_a_full_disk_is_told_and_the_old_checkpoint_stays(
    refused, trained, data_dir, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    shutil.copytree(trained("cable"), run)
    checkpoint = checkpoints.load_checkpoint(run)
    content = (run / "checkpoint_0000006.pt").read_bytes()
    monkeypatch.setattr(
        "runtime.files.open", lambda path, mode: open("/dev/full", mode), raising=False
    )
    taken = run_folder.Run(run, checkpoint["config"], checkpoint["data"])
    lines = refused(lambda _: taken.save(**checkpoint))
    assert "cannot write" in lines[0] and "No space left on device" in lines[0]
    assert (run / "checkpoint_0000006.pt").read_bytes() == content
