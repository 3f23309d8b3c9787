"""The papers' claims, each with a fixed criterion, and verdicts on them from measured columns.

A verdict is decided by the 95% interval of the measured quantity (evaluation/intervals.py: paired
over the text, and over seeds where there are several):

- a bound holds if the whole interval is on its side, and fails if the whole interval is beyond it;
- "lower than others", "same order": holds if the intervals of all comparisons are on the right
  side, fails if at least one is on the wrong side. The intervals are not corrected for the number
  of comparisons;
- everything else is not decided, also if the records do not have what an interval needs.

The papers print directions, tables and pictures, but few bounds. A bound that no text or table
prints is ours, and the source of its verdict says so ("section 5.1, our bound"). `fox` is the same
encoding as `cable-v1`: claims of CABLE's version 1 are judged on both, except those on speed and on
pairs of training lengths (training_lengths.py).

When the criteria were fixed:

- before any run: the bounds of rope and sinusoidal at 16 times the training length, and "cable has
  the lowest perplexity". Also those of sandwich and of receptive fields, before any run of these
  encodings;
- after some of the runs in results/quickstart, before all others: the bounds of alibi, fox, t5 and
  fire, and all comparisons that are not listed below;
- after all runs in results/, from the papers' text: the bound 1 of cable, cable-v1 and dapev2+cable
  (1.02 before), of cable-nw and dapev2+kerple (1.05 before) and of kerple in the Sandwich paper
  (1.05 before); alibi > 1, kerple > 1.5 and sandwich at 2x; alibi-shift > 1, for the shift that
  scales ALiBi's slopes to the training length (shift 0 before); the claims on one data set only
  (kerple > 1.5 was judged on all data before); kerple against kerple-power; cable-v1's on the
  records of fox; the speeds of section 5.3 at 512 tokens (at all lengths before); the rank
  correlation over windows only (windows and slopes before). cable-nw is compared with alibi at 4x
  and 16x only, because half of the printed tables have it above alibi at 1x. Comparisons that the
  papers state without a length are at every length from the training length on (k-cable: 1x, 4x
  and 16x before). Also stable perplexity of models trained on longer texts (section 5.2 of the
  Sandwich paper);
- on 2026-11-24, after all runs and their verdicts, from an audit of the papers: sandwich against
  alibi-shift with scaled slopes (alibi only before), cable against kerple (section 5.3), rope
  against cable (limitations).
"""

from reporting.claims.losses import judge_losses, loss_caption, loss_table
from reporting.claims.other_data import judge_generalization
from reporting.claims.perplexity import judge_perplexity
from reporting.claims.receptive_fields import judge_receptive_fields
from reporting.claims.retrieval import judge_retrieval
from reporting.claims.seeds import judge_seed_marks
from reporting.claims.speed import judge_speed, paper_speeds
from reporting.claims.training_lengths import judge_training_lengths, training_length_table
from reporting.claims.verdicts import MIN_STEPS, Verdict, has_verdicts

__all__ = [
    "MIN_STEPS",
    "Verdict",
    "has_verdicts",
    "judge_generalization",
    "judge_losses",
    "judge_perplexity",
    "judge_receptive_fields",
    "judge_retrieval",
    "judge_seed_marks",
    "judge_speed",
    "judge_training_lengths",
    "loss_caption",
    "loss_table",
    "paper_speeds",
    "training_length_table",
]
