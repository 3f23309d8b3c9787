"""Claims on the training losses of encoders (CABLE, section A.1, figures 6 and 7).

The paper prints curves, so that the criteria are ours. Final loss: mean over the last tenth of the
training. Fastest convergence: lowest loss averaged over the whole training. Runs are compared at
the steps that all of them logged; the interval is over at most 32 segments of these steps, and over
seeds.
"""

import statistics

import numpy as np

from evaluation import intervals
from evaluation.intervals import MAX_SEGMENTS
from reporting.claims.verdicts import CABLE, Verdict, has_verdicts, judge_lowest
from reporting.columns import sort_key
from reporting.formatting import MISSING, Table, standard_deviation

METRIC = "Training loss"  # record["metric"]
FINAL = 0.1  # fraction of the training
ABSOLUTE = ("learnable", "sinusoidal")
PRETRAINING, FINETUNING = "pretraining", "fine-tuning"
FIGURES = {PRETRAINING: "figure 6", FINETUNING: "figure 7"}


def all_claims() -> list[Verdict]:
    """Return the claims of this module, not measured."""
    fastest = _claim(PRETRAINING, "cable", "training loss lower", ())
    final = [
        _claim(training, pe, "final training loss " + relation, ())
        for training in FIGURES
        for pe, relation in (("cable", "lower"), *((pe, "higher") for pe in ABSOLUTE))
    ]
    return [fastest, *final]


def _claim(training: str, pe: str, relation: str, rivals: tuple[str, ...]) -> Verdict:
    others = ", ".join(rivals) or "others"
    return Verdict(f"{pe}, {training}: {relation} than {others}", CABLE, FIGURES[training])


def judge_losses(record: dict) -> list[Verdict]:
    """Return verdicts on the encoders of a record of `plot.py losses`; [] for decoders."""
    runs = [run for run in record["runs"] if has_verdicts(run)]
    if not runs or any(run["objective"] != "mlm" for run in runs):
        return []
    training = record["training"]
    curves = losses_by_encoding(runs)
    verdicts = []
    rivals = tuple(pe for pe in curves if pe != "cable")
    if "cable" in curves and rivals:
        if training == PRETRAINING:
            claim = _claim(training, "cable", "training loss lower", rivals)
            verdicts.append(_judge(claim, curves, "cable", rivals, fraction=1))
        claim = _claim(training, "cable", "final training loss lower", rivals)
        verdicts.append(_judge(claim, curves, "cable", rivals, fraction=FINAL))
    relative = tuple(pe for pe in curves if pe not in ABSOLUTE)
    for pe in ABSOLUTE:
        if pe in curves and relative:
            claim = _claim(training, pe, "final training loss higher", relative)
            verdicts.append(_judge(claim, curves, pe, relative, FINAL, sign=-1))
    return verdicts


def loss_table(record: dict) -> Table:
    """Return a table of a record of `plot.py losses`: mean ± standard deviation over seeds."""
    cells = [["encoding", "final loss", "mean loss", "seeds"]]
    curves = losses_by_encoding(record["runs"])
    for pe in sorted(curves, key=sort_key):
        seeds = [losses for losses in curves[pe].values() if len(losses)]
        texts = []
        for fraction in (FINAL, 1):
            values = [float(last(losses, fraction).mean()) for losses in seeds]
            text = f"{statistics.mean(values):.3f}" if values else MISSING
            if (deviation := standard_deviation(values)) is not None:
                text += f" ± {deviation:.3f}"
            texts.append(text)
        cells.append([pe, *texts, f"{len(seeds)}"])
    return Table(cells)


def loss_caption(record: dict) -> str:
    """Return what the numbers of loss_table are."""
    return (
        f"Training loss in nats, {record['training']}: mean over the last {FINAL:.0%} of the "
        "training, and over all of it, at the steps that all runs logged."
    )


def losses_by_encoding(runs: list[dict]) -> dict[str, dict[int, np.ndarray]]:
    """Return {encoding: {seed: losses}} at the steps that all runs logged, ascending."""
    shared = set.intersection(*({step for step, _ in run["losses"]} for run in runs))
    curves = {}
    for run in runs:
        losses = [loss for step, loss in run["losses"] if step in shared]
        curves.setdefault(run["pe"], {})[run["seed"]] = np.array(losses)
    return curves


def last(losses: np.ndarray, fraction: float) -> np.ndarray:
    """Return the last fraction of losses, at least one."""
    return losses[len(losses) - max(1, round(fraction * len(losses))) :]


def _judge(
    claim: Verdict,
    curves: dict[str, dict[int, np.ndarray]],
    pe: str,
    rivals: tuple[str, ...],
    fraction: float,
    sign: int = 1,
) -> Verdict:
    """Return the verdict that rivals have a higher loss; sign: -1: a lower one."""
    margins = {}
    for rival in rivals:
        pairs = [
            (_segments(curves[rival][seed], fraction), _segments(losses, fraction))
            for seed, losses in curves[pe].items()
            if seed in curves[rival]
        ]
        if pairs and len(pairs[0][0]):
            pairs = [(sign * other, sign * own) for other, own in pairs]
            margins[rival] = intervals.score_difference(pairs)
    return judge_lowest(claim, "smallest difference", margins, bound=0)


def _segments(losses: np.ndarray, fraction: float) -> np.ndarray:
    """Return the mean losses of at most 32 segments of the last fraction of a training."""
    kept = last(losses, fraction) if len(losses) else losses
    parts = np.array_split(kept, min(MAX_SEGMENTS, len(kept)) or 1)
    return np.array([part.mean() for part in parts if len(part)])
