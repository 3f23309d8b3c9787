"""benchmarking/cost.py: costs by hand, other machines, stages that share jobs."""

import shlex
from collections import Counter

import pytest
import torch

from benchmarking import cost

VOCABULARY, LAYERS, HEADS, WIDTH, LENGTH, STEPS, STEP_TOKENS = 50304, 2, 2, 16, 32, 3, 64
TRAIN = (
    "train_gpt.py --config smoke.yaml --data data/wikitext103 --n_layer 2 --n_head 2 --n_embd 16 "
    "--block_size 32 --tokens_per_step 64 --steps 3 --pe {pe} --out_dir runs/{pe}"
)
PREPARE = "prepare_wikitext.py --out_dir data/wikitext103"
WEIGHTS = LAYERS * (12 * WIDTH**2 + 13 * WIDTH) + 2 * WIDTH + VOCABULARY * WIDTH


@pytest.fixture
def costs(tmp_path, monkeypatch):
    """Return a function of commands that returns the cost of the last one, without any data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost, "measure_cpu", lambda: 1e12)
    (tmp_path / "smoke.yaml").write_text("size: quickstart")

    def estimate(*commands):
        made = {}
        return [cost.estimate(shlex.split(command), made)[1] for command in commands][-1]

    return estimate


def describe(*commands):
    return cost.describe_costs([shlex.split(command) for command in commands])


def pair_flops(length: int) -> int:
    """Return FLOPs of the products of all queries with keys and weights with values, forward."""
    pairs = sum(1 for _ in range(LAYERS) for _ in range(length) for _ in range(length))
    return pairs * 2 * 2 * WIDTH


def test_trainings_and_evaluations_by_hand(costs):
    training = costs(PREPARE, TRAIN.format(pe="nope"))
    _, text, _ = describe(PREPARE, TRAIN.format(pe="nope"))
    expected = 6 * WEIGHTS * STEPS * STEP_TOKENS
    expected += 3 * pair_flops(LENGTH) * STEPS * STEP_TOKENS // LENGTH
    assert training["FLOPs"] == expected
    assert text.startswith("0.00 epochs of 118,000,000 tokens; ")
    assert training["disk"] == 3 * 12 * WEIGHTS
    # The test split of WikiText-103 has 0.29M tokens, not the 100M of --max_tokens.
    command = "eval_extrapolation.py runs/nope --data data/wikitext103 --split test --lengths 1x,64"
    evaluation = costs(PREPARE, TRAIN.format(pe="nope"), f"{command} --max_tokens 100000000")
    expected = sum(290_000 * (2 * WEIGHTS + pair_flops(each) / each) for each in (32, 64))
    assert evaluation["FLOPs"] == pytest.approx(expected)
    data = costs(PREPARE)
    assert 0.2e9 < data["disk"] < 0.3e9 and data["download"] == 0.3e9


def test_dapev2_is_billed_for_its_network_on_each_pair(costs):
    """Two convolutions over three keys, from biases and logits of all heads to 32 to all heads."""
    plain, with_network = (
        costs(PREPARE, TRAIN.format(pe=pe)) for pe in ("kerple", "dapev2+kerple")
    )
    products = 3 * (2 * HEADS * 32) + 3 * (32 * HEADS)
    per_pair = 3 * LAYERS * 2 * products
    expected = STEPS * STEP_TOKENS * LENGTH * per_pair
    assert with_network["FLOPs"] - plain["FLOPs"] == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    "words, length, tokens",
    [
        ("eval_extrapolation.py runs/nope --protocol same-targets --targets 1 --windows 9 "
         "--lengths 64 --data data/wikitext103 --split test", 64, 9 * 64),
        ("eval_extrapolation.py runs/nope --lengths 64 --max_tokens 640", 64, 640),
        ("eval_extrapolation.py runs/nope --lengths 64 --max_tokens 640 --cache_window 16",
         16, 640),
        ("eval_recall.py runs/nope --trials 5 --distances 64", 64, 2 * 5 * 64),
        ("eval_receptive_field.py runs/nope --windows 7 --lengths 64", 64, 2 * 7 * 64),
        ("eval_hellaswag.py runs/nope", 100, 4 * 10_042 * 100),
        ("-m retrieval.finetune runs/nope --samples 9", 200, 4 * 9 * 200),
        ("-m retrieval.evaluate runs/nope --lengths 64", 64, 200_000 * 64),
        ("-m retrieval.evaluate runs/nope --lengths 64 --data data/task", 64, 500 * 64),
    ],
)  # fmt: skip
def test_evaluations_by_hand(costs, words, length, tokens):
    """tokens: of all forward passes, a backward pass counting as two."""
    task = "-m retrieval.prepare data/wikitext103 --documents 500 --out_dir data/task"
    found = costs(PREPARE, task, TRAIN.format(pe="nope"), words)
    assert found["FLOPs"] == pytest.approx(tokens * (2 * WEIGHTS + pair_flops(length) / length))


def test_further_trainings_inherit_settings_and_unknown_programs_cost_no_hours(costs):
    further = (
        "train_gpt.py --config runs/nope/config.yaml --init_from runs/nope --pe rope --steps 6"
    )
    training = costs(PREPARE, TRAIN.format(pe="nope"))
    twice = costs(PREPARE, TRAIN.format(pe="nope"), f"{further} --out_dir runs/rope")
    assert twice["FLOPs"] == 2 * training["FLOPs"]
    found = describe("bench.py train --out a.json", "eval_recall.py unknown")
    kinds = "bench.py (not estimated): 1, eval_recall.py (not estimated): 1"
    assert found == ["", "", f"total: {kinds}"]


def test_a_job_of_several_stages_counts_once(costs, tmp_path, monkeypatch):
    ledger = tmp_path / "ledger"
    ledger.touch()
    monkeypatch.setenv("COST_LEDGER", str(ledger))
    training = TRAIN.format(pe="nope")
    *_, first = describe(PREPARE, training)
    assert first.startswith("total: data sets: 1, trainings: 1; ")
    *_, total = describe(PREPARE, training, "eval_hellaswag.py runs/nope")
    assert total.startswith("total: data sets: 1, trainings: 1, evaluations: 1; ")
    assert total.partition("; disk")[2] == first.partition("; disk")[2]
    # A stage without the training finds its settings.
    *_, total = describe("eval_recall.py runs/nope --distances 64")
    assert total.startswith("total: data sets: 1, trainings: 1, evaluations: 2; ")


@pytest.mark.parametrize(
    "hours, text",
    [(0.0054, "0.0054 h of one H100; 0.0086"), (10, "10 h of one H100; 16"),
     (1_139_220.9, "1,100,000 h of one H100; 1,800,000")],
)  # fmt: skip
def test_time_on_the_gpus_of_this_machine_has_two_digits(hours, text, monkeypatch):
    """Two A100 have 2 x 312 TFLOP/s, an H100 989."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-SXM4-80GB")
    found = cost.describe("", Counter(FLOPs=int(0.4 * 989e12 * 3600 * hours)))
    assert found.endswith(f" FLOPs; {text} h of 2 NVIDIA A100-SXM4-80GB")
