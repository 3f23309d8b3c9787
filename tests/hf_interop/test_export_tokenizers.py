"""Runs with tokenizers of their own: training, sampling, evaluation and export.

The data folder is removed after the training: the run has a copy of its tokenizer.
"""

import json
import shutil

import pytest
import tiktoken
from conftest import TINY
from test_tokenizer import make_hugging_face_folder

import eval_extrapolation
import export_hf
import prepare_text
import sample
import train_gpt
from errors import InputError
from hf_interop.tokenizer import build_tokenizer
from text_data.tokenizer import END_OF_TEXT, TiktokenTokenizer, load_tokenizer

pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import DataCollatorForLanguageModeling  # noqa: E402

NASTY = "naïve  é😀中文\u0301 \r\n\t\x01\ufeff 's'S 12345 \n\n  end  </s> [CLS] "
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"
    r"\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("".join(f"{n}: some lines of text, {n * n}\n" for n in range(500)))
    return path


def train(text, folder, choice, *flags):
    """Prepare, train, remove the data and return the run's folder and its tokenizer."""
    data, run = folder / "data", folder / "run"
    prepare_text.main([str(text), "--tokenizer", choice, "--out_dir", str(data)])
    name = json.loads((data / "meta.json").read_text())["tokenizer"]
    ours = load_tokenizer(name, data)
    train_gpt.main([*TINY, *flags, "--data", str(data), "--out_dir", str(run)])
    shutil.rmtree(data)
    return run, ours


def check_export(run, out, ours):
    """AutoTokenizer gives the tokens of the training. Names of special tokens are an option."""
    from transformers import AutoTokenizer

    export_hf.main([str(run), "--out_dir", str(out)])
    theirs = AutoTokenizer.from_pretrained(out, trust_remote_code=True)
    assert theirs(NASTY, split_special_tokens=True).input_ids == ours.encode(NASTY)
    assert theirs.decode(ours.encode(NASTY)) == ours.decode(ours.encode(NASTY)) == NASTY
    assert theirs(theirs.eos_token + "1: some").input_ids == [ours.eot, *ours.encode("1: some")]
    return theirs


def check_labels(theirs, ours):
    """Padding is not the end of a text, to which collators then give no loss: none, as GPT-2."""
    assert theirs.pad_token is None and theirs.eos_token_id == ours.eot
    theirs.add_special_tokens({"pad_token": "<|pad|>"})
    collate = DataCollatorForLanguageModeling(theirs, mlm=False)
    batch = collate([theirs("1: some" + theirs.eos_token)])
    assert batch["labels"].tolist() == [[*ours.encode("1: some"), ours.eot]]


def test_bpe_run_without_its_data(text, tmp_path, capsys, refused):
    run, ours = train(text, tmp_path, "bpe:300")
    sample.main([str(run), "--prompt", "1: é", "--max_new_tokens", "9", "--device", "cpu"])
    assert "\n1: é" in capsys.readouterr().out
    check_labels(check_export(run, tmp_path / "exported", ours), ours)

    # Other text is evaluated if it is prepared with the run's tokenizer.
    prepare = [str(text), "--out_dir", str(tmp_path / "other"), "--tokenizer"]
    evaluate = [run, "--data", tmp_path / "other", "--lengths", 16, "--device", "cpu"]
    prepare_text.main([*prepare, "bytes"])
    (line,) = refused(eval_extrapolation.main, *evaluate)
    assert line.endswith(f"pass other --data, prepared with --tokenizer {run}")
    shutil.rmtree(tmp_path / "other")
    prepare_text.main([*prepare, str(run)])
    eval_extrapolation.main([str(word) for word in evaluate])

    (run / "tokenizer.json").unlink()
    (line,) = refused(sample.main, run)
    assert "has no tokenizer (" in line and ": copy it from the data set" in line


def test_hugging_face_encoder_with_mask(text, tmp_path):
    """The tokenizer adds <s> and </s> by itself; the exported one does not."""
    make_hugging_face_folder(tmp_path / "tok", "byte-level")
    run, ours = train(text, tmp_path, f"hf:{tmp_path / 'tok'}", "--objective", "mlm")
    assert ours.decode([ours.eot]) == "</s>"
    theirs = check_export(run, tmp_path / "exported", ours)
    assert theirs.mask_token_id == theirs("<|mask|>").input_ids[0] == ours.vocab_size


def like_cl100k(holes: int) -> TiktokenTokenizer:
    """Return an encoding with the pattern and special tokens of cl100k_base, with few merges."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    words = ("34", "thing", " the", "  ", "123", "45", "\r\n", "\n\n", "é", "'s", " me", "end")
    for word in words:
        for end in range(2, len(word.encode()) + 1):
            ranks.setdefault(word.encode()[:end], len(ranks))
    special = {END_OF_TEXT: len(ranks), "<|endofprompt|>": len(ranks) + 1 + holes}
    options = {"mergeable_ranks": ranks, "special_tokens": special}
    return TiktokenTokenizer(tiktoken.Encoding("like_cl100k", pat_str=CL100K, **options))


@pytest.mark.parametrize("which", [0, 7, "bytes", "gpt2"])
def test_tiktoken_encodings_in_transformers(which):
    """0 and 7: ids without tokens between special tokens."""
    try:
        ours = load_tokenizer(which) if isinstance(which, str) else like_cl100k(which)
    except InputError:
        pytest.skip("needs GPT-2's vocabulary: set TIKTOKEN_CACHE_DIR")
    theirs = build_tokenizer(ours)
    check_labels(theirs, ours)
    texts = NASTY, "The thing's 1234567 in  the\n\nend   \n x  ", "  \r\n\n THE'S\n"
    for text in (*texts, "a \n", " \n "):
        assert theirs(text).input_ids == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == text
    assert theirs(f"{END_OF_TEXT}the").input_ids == [ours.eot, *ours.encode("the")]
    assert ours.eot not in ours.encode(END_OF_TEXT)
    if isinstance(which, int):
        assert ours.vocab_size == ours.eot + 2 + which
        holes = range(ours.eot + 1, ours.eot + 1 + which)
        assert ours.decode([*ours.encode("the"), *holes]) == "the"
