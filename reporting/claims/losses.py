"""Training losses of encoders: their table, and the claims on them (CABLE, figures 6 and 7)."""

import numpy as np

from evaluation import intervals
from evaluation.intervals import MAX_SEGMENTS, Interval
from reporting.claims.claim import Claim, Measured, judge, load
from reporting.claims.verdicts import Verdict, has_verdicts
from reporting.columns import sort_key
from reporting.formatting import Table, mean_and_deviation

Curves = dict[str, dict[int | None, np.ndarray]]  # {encoding: {seed: losses}}
FINAL = 0.1  # fraction of a training whose mean loss is the final one


def judge_losses(record: dict) -> list[Verdict]:
    """Return verdicts on the encoders of a record of `plot.py losses`; [] for decoders.

    Runs are compared at the steps that all of them logged; the interval is over at most 32 segments
    of these steps, and over seeds.
    """
    runs = [run for run in record["runs"] if has_verdicts(run)]
    if not runs or any(run["objective"] != "mlm" for run in runs):
        return []
    return judge(["losses"], _differences, record["training"], losses_by_encoding(runs))


def _differences(claim: Claim, training: str, curves: Curves) -> Measured:
    """Compare with all encodings but those of the same claim, also with others than the paper's."""
    if claim.data != training:
        return
    same = {row.encoding for row in load()["losses"] if row.relation == claim.relation}
    fraction = FINAL if claim.quantity == "final training loss" else 1

    def segments(losses: np.ndarray) -> np.ndarray:
        kept = _last(losses, fraction)
        parts = np.array_split(kept, min(MAX_SEGMENTS, len(kept)) or 1)
        return np.array([part.mean() for part in parts if len(part)])

    def difference(other: str, ours: dict[int | None, np.ndarray]) -> Interval | None:
        theirs = curves[other]
        pairs = [(segments(theirs[seed]), segments(ours[seed])) for seed in ours if seed in theirs]
        return intervals.score_difference(pairs) if pairs and len(pairs[0][0]) else None

    claim = claim.but(others=[pe for pe in curves if pe not in same])
    yield from claim.against(curves, {"": curves.get(claim.encoding)}, difference)


def _last(losses: np.ndarray, fraction: float) -> np.ndarray:
    """Return the last fraction of losses, at least one if there are any."""
    return losses[len(losses) - max(1, round(fraction * len(losses))) :]


def losses_by_encoding(runs: list[dict]) -> Curves:
    """Return the losses at the steps that all runs logged, ascending."""
    shared = set.intersection(*({step for step, _ in run["losses"]} for run in runs))
    curves = {}
    for run in runs:
        losses = [loss for step, loss in run["losses"] if step in shared]
        curves.setdefault(run["pe"], {})[run["seed"]] = np.array(losses)
    return curves


def loss_table(record: dict) -> Table:
    """Return a table of a record of `plot.py losses`: mean ± standard deviation over seeds."""
    cells = [["encoding", "final loss", "mean loss", "seeds"]]
    curves = losses_by_encoding(record["runs"])
    for pe in sorted(curves, key=sort_key):
        seeds = [losses for losses in curves[pe].values() if len(losses)]
        means = [[float(_last(losses, part).mean()) for losses in seeds] for part in (FINAL, 1)]
        cells.append([pe, *(mean_and_deviation(values, 3) for values in means), f"{len(seeds)}"])
    return Table(cells)


def loss_caption(record: dict) -> str:
    """Return what the numbers of loss_table are."""
    return (
        f"Training loss in nats, {record['training']}: mean over the last {FINAL:.0%} of the "
        "training, and over all of it, at the steps that all runs logged."
    )
