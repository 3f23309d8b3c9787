"""The papers' recipes for 15 steps on random tokens: losses, speed and memory."""

import math
import statistics

import pytest
from gpu_kit import DEVICE, VOCABULARY, command, random_data, record, train

STEPS = 15
# The warmup of the recipes is longer than these trainings.
SHORT = f"--steps {STEPS} --warmup_steps 5 --val_tokens 65536"
TINY = (
    "--n_layer 2 --n_head 2 --n_embd 32 --block_size 64 --micro_batch 4 --tokens_per_step 512 "
    "--val_tokens 256 --lr 1e-2"
)
COMPARED = (
    "--size quickstart --n_head 2 --block_size 256 --tokens_per_step 4096 --micro_batch 16 "
    "--val_tokens 4096 --warmup_steps 10 --lr 2e-3 --min_lr 2e-4 --steps 10"
)


@pytest.mark.parametrize("pe", ["cable", "rope"])
@pytest.mark.parametrize("size", ["small", "medium"])
def test_recipe_trains(size, pe, train, record):
    """The loss starts at that of equal probabilities, and falls: only some tokens occur."""
    flags = f"--config configs/fineweb-edu_{size}.yaml --pe {pe} {SHORT}"
    steps, output = train("recipe", flags if DEVICE == "cuda" else f"{flags} {TINY}")
    losses = [step["loss"] for step in steps]
    later = steps[5:]
    record(
        losses=losses,
        tokens_per_second=statistics.median(step["tokens_per_second"] for step in later),
        memory=max(step["memory"] for step in later),
        attention=[line for line in output.splitlines() if "attention" in line],
    )
    assert len(losses) == STEPS and all(map(math.isfinite, losses))
    assert abs(losses[0] - math.log(VOCABULARY)) < 0.3
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("pe", ["rope", "cable"])
@pytest.mark.parametrize("path", ["sdpa", "triton"] if DEVICE == "cuda" else ["sdpa"])
def test_losses_are_those_of_a_cpu_in_float32(pe, path, train, record):
    """Within 0.1% by the dense path, in ten steps: later, rounding errors are amplified."""
    flags = f"--pe {pe} " + (
        COMPARED if DEVICE == "cuda" else f"{TINY} --steps 10 --warmup_steps 5"
    )
    plain = "--device cpu --dtype float32 --compile false --attention dense"
    exact, _ = train("exact", f"{flags} {plain}")
    steps, _ = train("compared", f"{flags} --attention {path}")
    differences = [abs(a["loss"] / b["loss"] - 1) for a, b in zip(steps, exact, strict=True)]
    record(differences=differences)
    assert len(differences) == 10 and max(differences) < 0.001
