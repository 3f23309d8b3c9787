"""The papers' claims (results/claims.yaml), and verdicts on them from measured columns."""

from reporting.claims.by_length import judge_perplexity as judge_perplexity
from reporting.claims.by_length import judge_retrieval as judge_retrieval
from reporting.claims.losses import judge_losses as judge_losses
from reporting.claims.other_data import judge_generalization as judge_generalization
from reporting.claims.receptive_fields import judge_receptive_fields as judge_receptive_fields
from reporting.claims.speed import judge_speed as judge_speed
from reporting.claims.training_lengths import judge_training_lengths as judge_training_lengths
from reporting.claims.verdicts import MIN_STEPS as MIN_STEPS
from reporting.claims.verdicts import Verdict as Verdict
from reporting.claims.verdicts import has_verdicts as has_verdicts
