"""A small record of each kind, and the paths of its values."""

NAMES = {"run": "cable", "folder": "runs", "pe": "cable", "size": "quickstart"}
TRAINING = {"block_size": 256, "step": 6, "seed": 1, "settings": {"lr": 1e-3}}
HASHES = {"training_text": "0" * 64, "checkpoint_sha256": "0" * 64}
MODEL = NAMES | TRAINING | HASHES | {"parameters": 800_000}
MODEL |= {"dtype": "float32", "attention": "dense"}
DATA = {"dataset": "toy", "split": "val", "tokenizer": "bytes", "sha256": "0" * 64}
SEGMENTS = {"name": "segments", "stride": None, "targets": None, "span": None, "overlap": 0.5}
BATCH = {"model": "tiny", "micro_batch": 2, "device": "cpu", "dtype": "bfloat16"}
SETUP = BATCH | {"compile": False, "repeats": 3}
HARDWARE = {"processor": "Abacus", "torch": "2.13.0"}


def perplexity() -> dict:
    lengths = {}
    for length, loss in ((256, 3.0), (512, 3.5)):
        lengths[str(length)] = {
            "loss": loss,
            "loss_se": 0.01,
            "perplexity": 2.718281828**loss,
            "tokens": 1024,
            "blocks": [loss - 0.5, loss, loss + 0.5],
            "block_tokens": [256, 512, 256],
            "by_position": {"first": 0, "width": 64, "loss": [loss, None]},
        }
    protocol = SEGMENTS | {"spans": 4, "remainder": "counted"}
    text = {"cache_window": None, "data": {**DATA}, "protocol": protocol}
    return MODEL | text | {"lengths": lengths}


def masked() -> dict:
    record = perplexity() | {"objective": "mlm"}
    record["protocol"] |= {"mask_rate": 0.15}
    return record


def receptive_field() -> dict:
    entry = {
        "receptive_field": 100.0,
        "receptive_field_se": 2.0,
        "cumulative": {"tokens": [1, 16, 256], "share": [0.1, 0.5, 1.0]},
    }
    protocol = {"windows": 8, "span": 512, "held": 0.95}
    lengths = {"256": entry, "512": entry}
    metric = {"metric": "Receptive field", "data": {**DATA}, "protocol": protocol}
    return MODEL | metric | {"lengths": lengths}


def recall() -> dict:
    entry = {"recall": 30.0, "recall_se": 1.5}
    protocol = {"passage": 16, "trials": 3, "span": 512}
    metric = {"metric": "Recall", "data": {**DATA}, "protocol": protocol}
    return MODEL | metric | {"lengths": {"64": entry, "128": entry}}


def trained_recall() -> dict:
    entry = {"accuracy": 90.0, "accuracy_se": 1.0}
    protocol = {"task": "copy", "filler": "random", "trials": 4, "span": 512, "symbols": 16}
    metric = {"metric": "Trained recall", "data": {**DATA}, "protocol": protocol}
    return MODEL | metric | {"steps_to_95": None, "lengths": {"64": entry, "128": entry}}


def retrieval() -> dict:
    entry = {"ndcg10": 50.0, "ndcg10_se": 5.0, "by_question": [40.0, 60.0, 50.0]}
    data = {"dataset": "toy", "split": "test", "documents": 9, "questions": 3}
    return MODEL | {"metric": "nDCG@10", "data": data, "lengths": {"128": entry, "256": entry}}


def accuracy() -> dict:
    accuracies = {"acc": 0.3, "acc_se": 0.01, "acc_norm": 0.4, "acc_norm_se": None}
    results = accuracies | {"examples": 2, "log_likelihoods": [[-1.0, -2.0]] * 2}
    return MODEL | {"data": {**DATA}, "protocol": {"name": "HellaSwag"}} | results


def speed() -> dict:
    contexts = {}
    for context in (512, 2048):
        entry = {
            "seconds": [0.5, 0.4, 0.9],
            "others": {"rope": [0.4, 0.4, 0.8]},
            "tokens": 1000,
            "tokens_per_second": 2000.0,
            "ratios": {"rope": 0.9},
            "mfu": None,
            "memory": 1e9,
        }
        contexts[str(context)] = {"cable": entry, "learnable": None}
    return HARDWARE | {"train": SETUP | {"contexts": contexts}}


def compare() -> dict:
    row = {
        "task": "training step",
        "encoding": "cable",
        "against": "nanoGPT",
        "tokens": 1000,
        "flops": 6e9,
        "product_flops": 8e9,
        "seconds": {"ours": [2, 1, 4], "theirs": [4, 2, 8], "product": [1, 0.5, 0.4]},
    }
    skipped = {"training step, learnable, nanoGPT": "NANOGPT is not set: name a clone"}
    return HARDWARE | {"compare": SETUP | {"context": 64, "rows": [row], "skipped": skipped}}


BY_LENGTH = (perplexity, masked, receptive_field, recall, trained_recall, retrieval)
KINDS = (*BY_LENGTH, accuracy, speed, compare)


def places(value, path=()):
    """Yield the path of every value inside of a JSON value."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from places(each, (*path, key))
