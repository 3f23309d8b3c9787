"""HellaSwag's scores against a plain loop over single sequences, answers known beforehand, interruption, and refusals."""

import json
import shutil

import pytest
import torch
from conftest import ENCODINGS

import eval_hellaswag
from errors import InputError
from runtime import checkpoints, loading, provenance
from text_data import tokenization

CPU = torch.device("cpu")


def example(context, endings, label=0):
    return {
        "ind": 1,
        "activity_label": "Lines",
        "ctx_a": context,
        "ctx_b": "",
        "endings": endings,
        "label": str(label),
    }


EXAMPLES = [
    example("1: line 7", ["of 49.", "of 7.", "line, line", "x"], 0),
    example("2: line 12 of 144. 2: line", ["13 of 169.", "12", "zzzzzzzz", "é😀"], 1),
    example("3", ["4", "44 44", "444 444", "a"], 2),
    example("a longer text than the others, with words", ["of 1.", "lines", "....", "b c"], 3),
    example("4: line", ["5", "6 of 36.", "8", "[brackets] 9"], 1),
]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "scenes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in EXAMPLES))
    return path


@pytest.fixture
def run(trained, tmp_path):
    """run("cable"): a copy of a finished run, to evaluate."""
    return lambda pe: shutil.copytree(trained(pe), tmp_path / pe)


def evaluate(*flags):
    eval_hellaswag.main([str(flag) for flag in (*flags, "--device", "cpu", "--dtype", "float32")])


def record_of(run):
    return json.loads((run / "eval_hellaswag_scenes.json").read_text())


def plain(model, context, ending):
    """log p(" " + ending | context) of one sequence of bytes, no padding, every token by itself."""
    tokens = list(f"{context} {ending}".encode())
    inputs = tokens[:-1][-(model.max_context or len(tokens)) :]
    log_p = model(torch.tensor([inputs]))[0, :, :257].double().log_softmax(-1)
    count = len(f" {ending}".encode())
    return sum(log_p[i - count, token].item() for i, token in enumerate(tokens[-count:]))


@pytest.mark.parametrize("pe", ENCODINGS)
def test_log_likelihoods_are_those_of_single_sequences(pe, run, source, monkeypatch):
    """Of different lengths in one batch, and in batches of one."""
    folder, expected = run(pe), []
    model, _ = loading.load_model(folder, CPU)
    for row in EXAMPLES:
        context = f"Lines: {row['ctx_a']}"
        expected.append(
            [plain(model, context, ending.replace("[brackets]", "")) for ending in row["endings"]]
        )
    for tokens in (16_384, 100, 1):
        monkeypatch.setattr(eval_hellaswag, "BATCH_TOKENS", tokens)
        evaluate(folder, "--source", source)
        assert record_of(folder)["log_likelihoods"] == [
            pytest.approx(row, abs=2e-4) for row in expected
        ]
        (folder / "eval_hellaswag_scenes.json").unlink()


def test_what_is_too_long_loses_its_beginning(run, source):
    folder = run("learnable")
    evaluate(folder, "--source", source)
    lengths = [
        len(f"Lines: {row['ctx_a']} {ending.replace('[brackets]', '')}".encode())
        for row in EXAMPLES
        for ending in row["endings"]
    ]
    assert (
        record_of(folder)["truncated_sequences"] == sum(length - 1 > 16 for length in lengths) > 0
    )


def test_answers_known_beforehand(run, tmp_path, capsys):
    """A model that repeats its last byte: every change costs, so a long monotonous ending costs least per character."""
    folder = run("nope")
    path = checkpoints.checkpoint_path(folder)
    checkpoint = torch.load(path, weights_only=True)
    for name, weight in checkpoint["model"].items():
        if "c_proj" in name:
            weight.zero_()  # nothing is added to the embedding
    torch.manual_seed(0)
    torch.nn.init.orthogonal_(checkpoint["model"]["wte.weight"])
    checkpoint["model"]["ln_f.weight"].fill_(3)
    torch.save(checkpoint, path)
    (tmp_path / "scenes.jsonl").write_text(
        "".join(
            json.dumps(row) + "\n"
            for row in [
                example("x", ["abcd", "bbbb", "xyxy", "abab"], 1),  # the fewest changes
                example(
                    "x", ["abcd", "aabb", "abab", "a"], 3
                ),  # one change is fewer, but none a character
                example("x", ["abcdefgh", "a", "bbbbbbbbbbbb", "aabbccdd"], 2),
            ]
        )
    )  # best by the character only
    evaluate(folder, "--source", tmp_path / "scenes.jsonl")
    record = record_of(folder)
    best = [row.index(max(row)) for row in record["log_likelihoods"]]
    assert best == [1, 3, 1]
    assert (record["acc"], record["examples"]) == (pytest.approx(2 / 3), 3)
    assert record["acc_se"] == pytest.approx(
        (2 / 3 * 1 / 3 / 2) ** 0.5
    )  # sqrt(p (1 - p) / (n - 1))
    assert record["acc_norm"] == pytest.approx(
        2 / 3
    )  # the second: "aabb" costs less a character than "a"
    assert "| 66.67 ± 33.33 | 66.67 ± 33.33 |        3 |" in capsys.readouterr().out


def test_lengths_are_characters_not_tokens():
    logs = [[-6.0, -4.0]]
    assert (
        eval_hellaswag.accuracies(logs, [{"endings": ["abcd", "éé"], "label": 0}])["acc_norm"] == 1
    )  # -1.5, -2; of bytes, -1
    assert eval_hellaswag.accuracies(logs, [{"endings": ["abcd", ""], "label": 0}])["acc_norm"] == 1
    assert eval_hellaswag.accuracies(logs, [{"endings": ["abcd", "éé"], "label": 1}]) == {
        "acc": 1,
        "acc_se": None,
        "acc_norm": 0,
        "acc_norm_se": None,
    }


@pytest.mark.parametrize(
    "text, expected",
    [
        (" A man  is here. ", "A man is here."),
        ("Step one [title] Cut it. [step] Then  wait", "Step one. Cut it. Then wait"),
        ("[header] How to [title] cut [substeps] it", " How to. cut it"),
        ("a   b", "a  b"),
    ],
)
def test_preprocess(text, expected):
    assert eval_hellaswag.preprocess(text) == expected


def test_contexts_are_put_together_as_the_harness_does(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        json.dumps(
            {
                "activity_label": "Cutting",
                "ctx_a": "A man [title] stands",
                "ctx_b": "the Man",
                "endings": [" cuts. ", "[x] goes"],
                "label": 1,
            }
        )
    )
    assert eval_hellaswag.load_examples(str(tmp_path / "a.jsonl")) == [
        {"context": "Cutting: A man. stands The man", "endings": ["cuts.", " goes"], "label": 1}
    ]


def test_spaces_at_the_contexts_end_belong_to_what_follows():
    assert eval_hellaswag.encode_pair(tokenization.tiktoken_encoding("bytes"), "ab ", " c") == (
        [*b"ab"],
        [*b"  c"],
    )


def test_pairs_of_bpe_tokens():
    try:
        gpt2 = tokenization.tiktoken_encoding("gpt2")
    except InputError:
        pytest.skip("needs GPT-2's vocabulary: set TIKTOKEN_CACHE_DIR")
    word = gpt2.encode_single_token
    assert eval_hellaswag.encode_pair(gpt2, "The man", " cuts") == (
        [word("The"), word(" man")],
        [word(" cuts")],
    )
    assert eval_hellaswag.encode_pair(gpt2, "The man ", "cuts") == (
        [word("The"), word(" man")],
        [word(" cuts")],
    )  # the space moves
    # "ham" is one token: the context's is "h", and what both have beyond one token is nothing.
    assert eval_hellaswag.encode_pair(gpt2, "h", "am") == ([word("h")], [])
    # Where the context alone has other tokens than the whole begins with, they stay, and the rest is counted off.
    whole = gpt2.encode_ordinary("unhappiness")
    context = gpt2.encode_ordinary("unh")
    assert eval_hellaswag.encode_pair(gpt2, "unh", "appiness") == (context, whole[len(context) :])


def test_interrupted_it_goes_on(run, source, monkeypatch, capsys):
    folder, scored = run("cable"), []
    log_likelihoods = eval_hellaswag.log_likelihoods

    def until(limit):
        def counted(model, pairs, *rest):
            if len(scored) >= limit:
                raise KeyboardInterrupt
            scored.extend(pairs)
            return log_likelihoods(model, pairs, *rest)

        monkeypatch.setattr(eval_hellaswag, "log_likelihoods", counted)

    monkeypatch.setattr(eval_hellaswag, "BLOCK", 2)
    until(8)
    with pytest.raises(KeyboardInterrupt):
        evaluate(folder, "--source", source)
    assert record_of(folder)["examples"] == 2
    until(100)
    evaluate(folder, "--source", source)
    in_two = record_of(folder)
    assert len(scored) == 20 and in_two["examples"] == 5
    evaluate(folder, "--source", source, "--max_examples", 3)
    out = capsys.readouterr().out
    assert len(scored) == 20 and "already evaluated" in out and "|        3 |" in out
    (folder / "eval_hellaswag_scenes.json").unlink()
    evaluate(folder, "--source", source)
    at_once = record_of(folder)
    assert {**at_once, "provenance": 0} == {**in_two, "provenance": 0}

    path = checkpoints.checkpoint_path(folder)
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["model"]["wte.weight"] *= 2
    torch.save(checkpoint, path)
    evaluate(
        folder, "--source", source, "--max_examples", 2
    )  # another checkpoint: from the beginning
    assert (
        len(scored) == 48 and record_of(folder)["log_likelihoods"] != at_once["log_likelihoods"][:2]
    )


def test_record_says_where_it_comes_from(run, source):
    folder = run("cable")
    evaluate(folder, "--source", source)
    record = record_of(folder)
    assert (record["run"], record["pe"], record["step"]) == ("cable", "cable", 6)
    assert record["checkpoint_sha256"] == provenance.sha256_of(folder / "checkpoint_0000006.pt")
    assert (
        record["data"].keys() == {"dataset", "split", "tokenizer", "sha256"}
        and record["data"]["split"] == "scenes"
    )
    assert {"command", "commit", "torch", "device", "time"} <= record["provenance"].keys()


def test_one_table_for_several_checkpoints(run, source, capsys):
    evaluate(run("rope"), run("cable"), "--source", source)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in table[2:]] == ["cable", "rope"]


def test_refusals(refused, run, source, tmp_path):
    folder, main, bad = run("cable"), eval_hellaswag.main, tmp_path / "bad.jsonl"
    assert "no run named" in refused(main)[0]
    assert "max_examples is 0" in refused(main, folder, "--max_examples", 0)[0]
    assert "contains no checkpoint: train first" in refused(main, tmp_path, "--source", source)[0]
    assert (
        "is no .jsonl or .parquet file"
        in refused(main, folder, "--source", tmp_path / "none.jsonl")[0]
    )
    for row in (
        {"text": "x"},
        {**EXAMPLES[0], "label": ""},
        {**EXAMPLES[0], "label": 4},
        {**EXAMPLES[0], "ctx_b": None},
    ):
        bad.write_text(json.dumps(EXAMPLES[1]) + "\n" + json.dumps(row) + "\n")
        assert "example 2 is none of HellaSwag's" in refused(main, folder, "--source", bad)[0]
    bad.write_text(json.dumps(example("x", ["a" * 16])) + "\n")
    assert (
        "an ending of 17 tokens is longer than the 16 that learnable takes"
        in refused(main, run("learnable"), "--source", bad)[0]
    )
    assert not list(tmp_path.glob("*/eval_*"))
