"""Hand-made scores: every number of a score file follows from a few levels."""

import msgspec
import numpy as np

from scores.score_file import Score

SEEDS = (1, 2, 3)
TRIALS = 40
SEGMENTS = 32
PROTOCOL = {"passage": 64, "trials": TRIALS, "span": 4096}


def make_score(
    pe: str,
    loss: float = 1.5,
    gained: float = 0.01,
    accuracies: tuple[float, float] = (100.0, 95.0),
    speed: float = 1.0,
    spread: float = 1e-4,
    seeds: tuple[int, ...] = SEEDS,
) -> dict:
    """Return a score with small noise, the same for all encodings, and differences between them.

    loss: at 16 times the training length, in nats. gained: what a trial of recall gains at every
    distance, in nats. accuracies: in percent, at 1 and 16 times the training length. speed:
    relative to rope. spread: standard deviation over seeds, and over segments and trials.
    """
    noise = np.random.default_rng(0)
    hardness = noise.normal(0, 0.1, SEGMENTS)  # of the text, shared
    hardness -= hardness.mean()
    own = np.random.default_rng(sum(map(ord, pe)))
    perplexity, recall, trained = {}, {}, {"passage random": {}, "passage text": {}}
    for seed in map(str, seeds):
        shift = own.normal(0, spread)
        blocks = loss + shift + hardness + own.normal(0, spread, SEGMENTS)
        trials = gained + own.normal(0, spread, TRIALS)
        perplexity[seed] = {
            length: {
                "loss": float(blocks.mean()),
                "loss_se": float(blocks.std(ddof=1) / SEGMENTS**0.5),
                "tokens": 128 * SEGMENTS,
                "blocks": blocks.tolist(),
                "block_tokens": [128] * SEGMENTS,
            }
            for length in ("256", "4096")
        }
        ratio = float(np.exp(-trials.mean()))
        recall[seed] = {
            length: {
                "recall": 100 * (1 - ratio),
                "recall_se": float(100 * ratio * trials.std(ddof=1) / TRIALS**0.5),
                "by_trial": trials.tolist(),
            }
            for length in ("1024", "4096")
        }
        for by_seed in trained.values():
            by_seed[seed] = {
                length: {"accuracy": accuracy, "accuracy_se": 0.0}
                for length, accuracy in zip(("64", "1024"), accuracies, strict=True)
            }
    step = own.normal(1, 1e-3, 20)
    return {
        "pe": pe,
        "commits": ["c"],
        "python": "3.11.7",
        "torch": "2.13.0",
        "processor": "a CPU",
        "text": {"dataset": "toy", "split": "val", "tokenizer": "bytes", "sha256": "1" * 64},
        "training_text": "3" * 64,
        "budget": {
            "seeds": list(seeds),
            "training": {"lr": 2e-3, "steps": 500, "block_size": 256},
            "recall_training": {"lr": 3e-3, "steps": 1800, "block_size": 64},
            "recall": PROTOCOL,
            "trained_recall": {kind: {"trials": TRIALS} for kind in trained},
        },
        "parameters": 838_432,
        "attention_path": "sdpa",
        "dtype": "bfloat16",
        "cache_bytes_per_token": 4096.0,
        "perplexity": perplexity,
        "recall": recall,
        "trained_recall": trained,
        "steps_to_95": dict.fromkeys(map(str, seeds), 450),
        "speed": {"seconds": (0.1 * step / speed).tolist(), "rope": [0.1] * 20},
    }


def example(*args, **changes) -> Score:
    """Return make_score(...) as it is read from a file."""
    return msgspec.convert(make_score(*args, **changes), Score)
