"""The papers' claims (results/claims.yaml), and verdicts on them from measured columns."""

from reporting.claims.other_data import judge_generalization
from reporting.claims.perplexity import judge_perplexity
from reporting.claims.receptive_fields import judge_receptive_fields
from reporting.claims.speed import judge_speed
from reporting.claims.tasks import judge_losses, judge_retrieval
from reporting.claims.training_lengths import judge_training_lengths
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
    "judge_speed",
    "judge_training_lengths",
]
