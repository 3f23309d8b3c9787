"""Tests of eval_hellaswag.py: scores of single sequences, known answers, resuming, errors."""

import json

from runtime.distributed import Processes

import numpy as np
import pytest
import torch
from conftest import KINDS

import eval_hellaswag
from errors import InputError
from evaluation.runner import LoadedRun
from text_data.tokenizer import load_tokenizer
from training import checkpoints

CPU = torch.device("cpu")


def example(context, endings, label=0):
    row = {"ind": 1, "activity_label": "Lines", "ctx_a": context, "ctx_b": ""}
    return {**row, "endings": endings, "label": str(label)}


EXAMPLES = [
    example("1: line 7", ["of 49.", "of 7.", "line, line", "x"], 0),
    example("2: line 12 of 144. 2: line", ["13 of 169.", "12", "zzzzzzzz", "é😀"], 1),
    example("3", ["4", "44 44", "444 444", "a"], 2),
    example("a longer text than the others, with words", ["of 1.", "lines", "....", "b c"], 3),
    example("4: line", ["5", "6 of 36.", "8", "[brackets] 9"], 1),
]
# Contexts and endings as the harness forms them.
PAIRS = [
    [(f"Lines: {row['ctx_a']}", ending.replace("[brackets]", "")) for ending in row["endings"]]
    for row in EXAMPLES
]


def write_examples(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def source(tmp_path):
    return write_examples(tmp_path / "scenes.jsonl", EXAMPLES)


def evaluate(*flags):
    """Run the program in float32 on the CPU."""
    eval_hellaswag.main([str(flag) for flag in (*flags, "--device", "cpu", "--dtype", "float32")])


def record_path(run):
    return run / "eval_hellaswag_scenes.json"


def read_record(run):
    return json.loads(record_path(run).read_text())


def single_log_likelihood(model, context, ending):
    """log p(" " + ending | context) of one sequence of bytes, without padding."""
    tokens = list(f"{context} {ending}".encode())
    inputs = tokens[:-1][-(model.max_context or len(tokens)) :]
    log_p = model(torch.tensor([inputs]))[0, :, :257].double().log_softmax(-1)
    count = len(f" {ending}".encode())
    return sum(log_p[n - count, token].item() for n, token in enumerate(tokens[-count:]))


@pytest.mark.parametrize("pe", KINDS)
def test_log_likelihoods_equal_those_of_single_sequences(pe, run, source):
    """Also of those that are longer than the encoding's longest context."""
    folder = run(pe)
    model, _ = checkpoints.load_model(folder, CPU)
    expected = [[single_log_likelihood(model, *pair) for pair in row] for row in PAIRS]
    evaluate(folder, "--source", source)
    record = read_record(folder)
    assert record["data"].keys() == {"dataset", "split", "tokenizer", "sha256"}
    scores = record["log_likelihoods"]
    assert scores == [pytest.approx(row, abs=2e-4) for row in expected]
    right = sum(max(row) == row[int(x["label"])] for x, row in zip(EXAMPLES, scores, strict=True))
    error = (right / 5 * (1 - right / 5) / 4) ** 0.5  # sqrt(p (1 - p) / (n - 1))
    assert (record["acc"], record["acc_se"]) == pytest.approx((right / 5, error))


def test_acc_norm_divides_by_characters():
    """-6 / 4 = -1.5 and -4 / 2 = -2 by character, but -4 / 4 = -1 by byte."""
    rows = [{"endings": ["abcd", end], "label": n} for end, n in (("éé", 0), ("", 0), ("éé", 1))]
    right = eval_hellaswag.answered(np.array(3 * [[-6.0, -4.0]]), rows)
    assert right["acc_norm"].tolist() == [True, True, False]
    assert right["acc"].tolist() == [False, False, True]


def test_texts_are_formed_as_in_the_harness(tmp_path):
    endings = {  # before and after
        " A man  is here. ": "A man is here.",
        "Step one [title] Cut it. [step] Then  wait": "Step one. Cut it. Then wait",
        "[header] How to [title] cut [substeps] it": " How to. cut it",
        "a   b": "a  b",
    }
    row = example("A man [title] stands", [*endings]) | {"ctx_b": "the Man", "label": 1}
    path = write_examples(tmp_path / "a.jsonl", [row])
    context = "Lines: A man. stands The man"
    expected = {"context": context, "endings": [*endings.values()], "label": 1}
    assert eval_hellaswag.load_examples(str(path)) == [expected]


def test_spaces_at_the_end_of_the_context_belong_to_the_continuation():
    tokenizer = load_tokenizer("bytes")
    assert eval_hellaswag.encode_pair(tokenizer, "ab ", " c") == ([*b"ab"], [*b"  c"])


def test_pairs_of_bpe_tokens():
    try:
        gpt2 = load_tokenizer("gpt2")
    except InputError:
        pytest.skip("needs GPT-2's vocabulary: set TIKTOKEN_CACHE_DIR")
    word, encode_pair = gpt2.encoding.encode_single_token, eval_hellaswag.encode_pair
    man_cuts = ([word("The"), word(" man")], [word(" cuts")])
    assert encode_pair(gpt2, "The man", " cuts") == man_cuts
    assert encode_pair(gpt2, "The man ", "cuts") == man_cuts  # the space moves
    # The context's tokens are not the first ones of the whole: only their number counts.
    whole, context = gpt2.encode("unhappiness"), gpt2.encode("unh")
    assert encode_pair(gpt2, "unh", "appiness") == (context, whole[len(context) :])


def test_an_empty_continuation_has_log_likelihood_zero(trained):
    model, _ = checkpoints.load_model(trained("nope"), CPU)
    pairs = [([1, 2, 3], []), ([1, 2], [3])]
    loaded = LoadedRun("test", model, {}, Processes(), CPU, torch.float32)
    scores = eval_hellaswag.log_likelihoods(loaded, pairs)
    assert scores[0] == 0 and scores[1] < 0


def test_scores_are_computed_once(run, source, monkeypatch, capsys):
    folder, scored = run("cable"), []
    log_likelihoods = eval_hellaswag.log_likelihoods

    def noting(loaded, pairs):
        scored.extend(pairs)
        return log_likelihoods(loaded, pairs)

    monkeypatch.setattr(eval_hellaswag, "log_likelihoods", noting)
    evaluate(folder, "--source", source, "--max_examples", 2)
    assert read_record(folder)["examples"] == 2
    evaluate(folder, "--source", source)
    first = read_record(folder)
    assert len(scored) == 8 + 20 and first["examples"] == 5
    evaluate(folder, "--source", source, "--max_examples", 3)
    assert len(scored) == 28 and "of 3 examples" in capsys.readouterr().out
    evaluate(folder, "--source", source, "--max_examples", 1)
    assert "± —% of 1 examples" in capsys.readouterr().out  # one example has no known error
    evaluate(folder, "--source", source, "--max_examples", 2, "--attention", "dense")
    assert len(scored) == 36 and read_record(folder)["attention"] == "dense"  # another identity
