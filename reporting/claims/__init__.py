"""The papers' claims, each with a fixed criterion, and verdicts on them from measured columns.

A verdict is decided by the 95% interval of the measured quantity (evaluation/intervals.py: paired
over the text, and over seeds where there are several):

- a bound holds if the whole interval is on its side, and fails if the whole interval is beyond it;
- "lower than others", "same order": holds if the intervals of all comparisons are on the right
  side, fails if at least one is on the wrong side. The intervals are not corrected for the number
  of comparisons;
- everything else is not decided, also if the records do not have what an interval needs.

When the criteria were fixed:

- before any run: the bounds of rope and sinusoidal at 16 times the training length, and "cable has
  the lowest perplexity". Also those of dapev2+kerple, sandwich and of receptive fields, before any
  run of these encodings;
- after some of the runs in results/quickstart, before all others: the bounds of alibi, kerple,
  fox, t5 and fire, and all other comparisons;
- after one seed of each: kerple compared with sandwich;
- after all runs in results/: the bound 1 of cable, cable-v1 and dapev2+cable, which is what the
  papers state. It was 1.02 before any run; all measured ratios are below 1. Intervals were added at
  the same time.
"""

from reporting.claims.other_data import judge_generalization
from reporting.claims.perplexity import judge_perplexity
from reporting.claims.receptive_fields import judge_receptive_fields
from reporting.claims.retrieval import judge_retrieval
from reporting.claims.verdicts import MIN_STEPS, Verdict, has_verdicts

__all__ = [
    "MIN_STEPS",
    "Verdict",
    "has_verdicts",
    "judge_generalization",
    "judge_perplexity",
    "judge_receptive_fields",
    "judge_retrieval",
]
