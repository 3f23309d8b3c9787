"""Claims by paired t-tests over seeds (Sandwich, table 3)."""

from evaluation.significance import BETTER, WORSE
from reporting.claims.verdicts import FAILS, HOLDS, UNDECIDED, Verdict
from reporting.columns import Column
from reporting.paper import MARKS_REFERENCE, SANDWICH, PaperTable
from reporting.tables import seed_marks

RELATIONS = {BETTER: "better", WORSE: "worse"}
DATASETS = ("openwebtext2", "arxiv", "github")  # of the table


def all_claims() -> list[Verdict]:
    """Return the claims of this module, not measured."""
    return [_claim(mark, dataset) for dataset in DATASETS for mark in RELATIONS]


def _claim(mark: str, dataset: str) -> Verdict:
    claim = (
        f"{MARKS_REFERENCE} is significantly {RELATIONS[mark]} where the table on {dataset} marks "
        f"another encoding {mark} (paired t-test over seeds)"
    )
    return Verdict(claim, SANDWICH, "table 3")


def judge_seed_marks(columns: list[Column], printed: PaperTable) -> list[Verdict]:
    """Return whether the encodings have the marks of the paper's table, one verdict for each mark.

    A mark is compared at the same multiple of the training length. It agrees if ours is the same,
    and disagrees if ours is the opposite. Cells without a mark are no claim.
    """
    columns = [column for column in columns if printed.covers(column.pe)]
    marks = seed_marks(columns, MARKS_REFERENCE)
    verdicts = []
    for mark in RELATIONS:
        verdict = _claim(mark, printed.dataset)
        found = []
        for column in columns:
            for context in printed.contexts():
                length = context * column.trained_at / printed.training_length(column.pe)
                ours = marks.get((column.label, length))
                if ours is not None and printed.mark(column.pe, context) == mark:
                    found.append(ours)
        if found:
            agree, undecided = found.count(mark), found.count("")
            disagree = len(found) - agree - undecided
            verdict.measured = (
                f"{agree} of {len(found)} agree, {disagree} disagree, "
                f"{undecided} are not significant"
            )
            verdict.outcome = UNDECIDED if undecided else HOLDS
            if disagree:
                verdict.outcome = FAILS
        verdicts.append(verdict)
    return verdicts
