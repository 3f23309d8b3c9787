"""Experiment scripts: one run end to end at SCALE=smoke, all of them as dry runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import bench
import train_gpt
from reporting import paper
from runtime import cli

EXPERIMENTS = sorted(
    path.name
    for path in (ROOT / "scripts").glob("*.sh")
    if re.search("^experiment ", path.read_text(), re.MULTILINE)
)


def script(name, folder, *words, **settings):
    environment = {
        **os.environ,
        "RUNS": str(folder / "runs"),
        "SCALE": "smoke",
        "VIRTUAL_ENV": sys.prefix,
        "INSTALLED": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / name), *words],
        env=environment | settings,
        text=True,
        capture_output=True,
    )


def test_experiment_runs_end_to_end_and_resumes(tmp_path, data_dir):
    """One encoding fails: the table has the others, and the script lists the failure at its end.

    A second run skips everything that is finished.
    """
    settings = {
        "DATA": str(data_dir),
        "ENCODINGS": "kerple nonsense cable",
        "FLAGS": "--verify_data always",
    }
    first = script("table2_dapev2.sh", tmp_path, **settings)
    runs = tmp_path / "runs" / "smoke"
    assert (
        first.returncode == 1
        and first.stderr.count("error: failed: python train_gpt.py") == 1
        and "--pe nonsense" in first.stderr
    )
    table = (runs / "table2_dapev2" / "perplexity.md").read_text()
    assert "| context |" in table and table.index(" cable |") < table.index(" kerple |")
    assert "at 1x: same order of encodings as CABLE, table 2" in table
    assert (runs / "table2_dapev2" / "perplexity.tex").is_file()
    assert {path.name for path in (runs / "fineweb-edu_small-512").iterdir()} == {"kerple", "cable"}

    second = script("table2_dapev2.sh", tmp_path, **settings)
    for words in ("is already trained", "already evaluated"):
        assert second.stdout.count(words) == 2
    seeds = script(
        "table2_dapev2.sh", tmp_path, **settings | {"ENCODINGS": "cable", "SEEDS": "1 2"}
    )
    assert seeds.returncode == 0, seeds.stderr
    assert re.search(
        r"\| +\d+\.\d\d ± \d+\.\d\d \|", (runs / "table2_dapev2" / "perplexity.md").read_text()
    )


def test_learning_rate_with_lowest_validation_loss_is_chosen(tmp_path, data_dir):
    done = script("reproduction.sh", tmp_path, DATA=str(data_dir), ENCODINGS="rope")
    assert done.returncode == 0, done.stderr
    losses = {}
    for lr in ("2e-3", "4e-3", "8e-3"):
        log = (
            tmp_path / "runs" / "smoke" / f"small-1024-lr{lr}" / "rope" / "log.jsonl"
        ).read_text()
        losses[lr] = float(re.findall(r'"kind": "val".*?"loss": ([\d.]+)', log)[-1])
    best = min(losses, key=losses.get)
    assert (
        f"small-1024-lr{best}/rope/eval_"
        in [line for line in done.stdout.splitlines() if line.startswith("+ python report.py")][0]
    )


@pytest.mark.parametrize(
    "losses, chosen, tried",
    [
        ({"2e-3": 1.8, "4e-3": 1.7, "8e-3": 1.75}, "4e-3", 3),
        ({"2e-3": 1.8, "4e-3": 1.7, "8e-3": 1.65, "0.016": 1.6, "0.032": 1.9}, "0.016", 5),
    ],
)
def test_learning_rates_are_doubled_while_the_highest_is_best(losses, chosen, tried, tmp_path):
    for lr, loss in losses.items():
        run = tmp_path / f"small-lr{lr}" / "cable"
        run.mkdir(parents=True)
        (run / "log.jsonl").write_text(f'{{"kind": "val", "loss": {loss}}}\n')
    # Replaces the training: the logs exist already.
    train = f'train() {{ echo tried; runs=("{tmp_path}/small-lr$4/cable"); }}'
    tune = 'tune_learning_rate small 1024 2e-3 4e-3 8e-3; echo "$lr"'
    command = f"source scripts/common.sh; {train}; {tune}"
    environment = {
        **os.environ,
        "SCALE": "small",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", command, "scripts/common.sh"],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
    )
    assert done.stdout.split() == ["tried"] * tried + [chosen], done.stderr


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_dry_run_prints_commands_and_writes_nothing(
    name, scale, tmp_path, data_dir, capsys, monkeypatch
):
    """The script's calls of `train_gpt.py --dry_run` run in this process, which is faster.

    At full scale, they are parsed only: the shards of this test are bytes.
    """
    if (name, scale) == ("reproduction.sh", "full"):
        pytest.skip("reproduction.sh has no full scale")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho called: "$@"\n')
    python.chmod(0o755)
    done = script(
        name,
        tmp_path,
        DRY_RUN="1",
        SCALE=scale,
        ENCODINGS="cable",
        DATA=str(data_dir),
        NPROC="1",
        PATH=f"{python.parent}:{os.environ['PATH']}",
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "+ python report.py" in done.stdout or "+ python plot.py biases" in done.stdout
    lines = done.stdout.splitlines()
    calls = [line.split()[1:] for line in lines if line.startswith("called:")]
    has_training = name not in ("figure3.sh", "authors_checkpoint.sh")
    assert bool(calls) == has_training
    monkeypatch.chdir(ROOT)
    for program, *flags in calls:
        assert program == "train_gpt.py" and flags[-1] == "--dry_run"
        if scale == "full":
            cli.parse(train_gpt.Config, flags, train_gpt.__doc__)
        else:
            train_gpt.main(flags)
            assert "FLOPs" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_gpu_script_plans_valid_commands(tmp_path):
    """bench.py and train_gpt.py accept its commands; every kind of Triton bias is covered."""
    requirements = (ROOT / "requirements-dev.txt").read_bytes()
    done = script("test_gpu.sh", tmp_path, DRY_RUN="1", LIMIT="100", RESULTS=str(tmp_path / "h100"))
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert (ROOT / "requirements-dev.txt").read_bytes() == requirements
    configs, folders = {}, []
    for _, _, _, _, _, _, limit, _, program, *flags in (
        line.split() for line in done.stdout.splitlines() if " timeout " in line
    ):
        assert int(limit) <= 40
        if program == "bench.py":
            config = cli.parse(bench.Config, flags, bench.__doc__, positional=("what", ""))
            configs[Path(config.out).name] = config
        elif program == "train_gpt.py":
            folders.append(cli.parse(train_gpt.Config, flags, train_gpt.__doc__).out_dir)
    assert list(configs) == [
        f"h100-{part}.json"
        for part in (
            "attention",
            "train-small",
            "train-medium",
            "generate",
            "trained",
            "long",
            "encoders",
        )
    ]
    assert (
        done.stdout.count("tests/triton_attention") == 1
    )  # whose passing both records of attention need
    assert folders == [configs["h100-trained.json"].run]
    every_kind = {"cable", "cable-nw", "fox", "alibi", "k-cable", "kerple", "t5", "t5-clip", "fire"}
    assert (
        every_kind
        <= set(configs["h100-attention.json"].names())
        == set(configs["h100-train-medium.json"].names())
    )
    assert configs["h100-encoders.json"].objective == "mlm" and every_kind <= set(
        configs["h100-encoders.json"].names()
    )
    assert script("test_gpu.sh", tmp_path).stderr == "error: no GPU: use scripts/test.sh\n"
    assert (
        "no part 'speed': use attention"
        in script("test_gpu.sh", tmp_path, "speed", DRY_RUN="1").stderr
    )


def test_unknown_scales_are_refused(tmp_path):
    assert (
        "SCALE=huge is unknown: use full, small or smoke"
        in script("table4.sh", tmp_path, SCALE="huge").stderr
    )
    assert (
        "reproduction.sh has no SCALE=full"
        in script("reproduction.sh", tmp_path, SCALE="full").stderr
    )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_script_states_its_cost_and_names_existing_tables(name):
    text = (ROOT / "scripts" / name).read_text()
    assert "\n# Cost" in text and len(text.splitlines()) <= 40
    for printed in re.findall(r"report (cable_\S+)", text):
        for size in ("small", "tiny", "medium"):
            if (path := paper.FOLDER / f"{printed.replace('$size', size)}.csv").exists():
                break
        assert path.is_file()
