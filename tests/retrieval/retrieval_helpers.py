"""Helpers of the retrieval tests: flags, and writing and reading files."""

import json

from runtime.files import read_json

import torch

WORDS = """
apple bear cloud drum eagle fish grass house ink jelly kite lamp moon nest oak pear quill river
""".split()  # noqa: SIM905
CPU = ["--device", "cpu", "--dtype", "float32"]
FINETUNE = ["--batch", "8", "--mini_batch", "4", "--lr", "1e-2", "--log_every", "1", *CPU]


def write_task(folder, documents, queries, qrels, split="test"):
    """Write a task in BEIR's layout; documents and queries are {id: fields}."""
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps({"_id": key, **fields}) + "\n" for key, fields in texts.items()]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    rows = [("query-id", "corpus-id", "score"), *qrels]
    lines = ["\t".join(map(str, row)) + "\n" for row in rows]
    (folder / "qrels" / f"{split}.tsv").write_text("".join(lines))
    return folder


def run_finetune(encoder, data, out, *flags):
    """Fine-tune an encoder, and return the folder `out`."""
    from retrieval import finetune

    flags = ["--data", data, *FINETUNE, "--out_dir", out, *flags]
    finetune.main([*map(str, [encoder, *flags])])
    return out


def encode(model, texts, length):
    """Return the vectors (texts, C) float64 of texts of bytes, each by a pass of its own."""
    tokens = [torch.tensor([[*text.encode()][:length]]) for text in texts]
    means = [model.hidden(x)[0].mean(0).detach().double() for x in tokens]
    return torch.nn.functional.normalize(torch.stack(means), dim=-1)


def losses_of(folder):
    return read_json(folder / "finetune.json", "")["losses"]


def weights(folder):
    """Return the tensors of an exported or fine-tuned encoder by name."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")
