"""Tests of downloads over HTTP: the real clients of the hub with a local server as the hub."""

import json
import re
import time

import datasets
import fsspec
import hub_examples
import huggingface_hub
import pyarrow.parquet
import pytest
import torch
import transformers
import yaml
from hub_server import HubServer
from huggingface_hub import HfFileSystem, constants

import import_pretrained
import prepare_fineweb
import prepare_wikitext
from data_loader import Shards
from errors import InputError
from retrieval import finetune, tasks
from text_data import hub as hub_access
from text_data import text_sources, tokenizer

FINEWEB = "HuggingFaceFW/fineweb-edu"
SHARDS = "kjj0/finewebedu10B-gpt2"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with HubServer(tmp_path_factory.mktemp("hub")) as hub:
        hub_examples.write_datasets(hub.folder)
        yield hub


@pytest.fixture
def hub(server, tmp_path, monkeypatch):
    """The server as the hub of this process, with an empty cache; waits take no time."""
    server.reset()
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    connect(server.endpoint, tmp_path / "cache", monkeypatch)
    # Small blocks and shards, so that every file is several requests and several shards.
    monkeypatch.setattr(fsspec.spec.AbstractBufferedFile, "DEFAULT_BLOCK_SIZE", 20_000)
    monkeypatch.setattr(text_sources, "ROWS_PER_READ", 4)
    monkeypatch.setattr(datasets.config, "STREAMING_READ_MAX_RETRIES", 2)
    yield server
    server.reset()


def connect(endpoint, cache, monkeypatch):
    """Set what the clients read from HF_ENDPOINT, HF_HOME and HF_HUB_*_TIMEOUT at their import."""
    values = {
        "ENDPOINT": endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(cache / "hub"),
        "HF_TOKEN_PATH": str(cache / "token"),
        "HF_HUB_DOWNLOAD_TIMEOUT": 20,
        "HF_HUB_ETAG_TIMEOUT": 20,
        "HF_HUB_OFFLINE": False,
    }
    for name, value in values.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", endpoint)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)  # a cache
    url = endpoint + "/datasets/{repo_id}/resolve/{revision}/{path}"
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", endpoint)
    monkeypatch.setattr(datasets.config, "HUB_DATASETS_URL", url)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    HfFileSystem.clear_instance_cache()


def go_offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def refusal(refused):
    """A function of `main` and flags that must fail with one error line; returns the line."""

    def run(main, *flags):
        (line,) = refused(main, *flags, quiet=False)
        return line

    return run


def fineweb_flags(out, *flags):
    small = ["--tokenizer", "bytes", "--shard_tokens", "1000"]
    return [*small, "--out_dir", str(out), *map(str, flags)]


def shards_of(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.bin")}


def meta_of(folder):
    return json.loads((folder / "meta.json").read_text())


@pytest.fixture(scope="module")
def local_shards(server, tmp_path_factory):
    """The shards of FineWeb's rows, read from local files."""
    out = tmp_path_factory.mktemp("local") / "toy"
    source = server.folder / "datasets" / FINEWEB / "sample" / "10BT"
    prepare_fineweb.main(fineweb_flags(out, "--source", source))
    return shards_of(out)


@pytest.mark.parametrize(
    "kind, failure, reason",
    [
        ("parquet", {"sent": 300}, "peer closed connection"),
        ("parquet", {"sent": 300, "stalls": True}, "timed out"),
        ("pretokenized", {"status": 503}, "503 Service Unavailable"),
        ("pretokenized", {"sent": 300, "stalls": True}, "timed out"),
    ],
)
def test_downloads_are_resumed(
    hub, tmp_path, local_shards, refusal, kind, failure, reason, monkeypatch
):
    if "stalls" in failure:  # each request takes as long as the timeout
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.25)
        monkeypatch.setattr(datasets.config, "STREAMING_READ_MAX_RETRIES", 1)
    out, name, expected = tmp_path / "toy", FINEWEB, local_shards
    flags, file = fineweb_flags(out), "001_00000.parquet"
    if kind == "pretokenized":
        flags, file = ["--pretokenized", "--out_dir", str(out)], "finewebedu_train_000001.bin"
        name, expected = f"{SHARDS}: {file}", shards_of(hub.folder / "datasets" / SHARDS)
    fault = hub.fail(file, **failure)
    line = refusal(prepare_fineweb.main, *flags)
    assert line.startswith(f"error: {name} ") and reason in line
    assert "cannot be fetched from the hub (" in line and "run the same command" in line
    fault.active = False
    hub.requests.clear()
    prepare_fineweb.main(flags)
    assert shards_of(out) == expected and len(meta_of(out)["revision"]) == 40
    assert not any("val_000000" in request for request in hub.requests)  # is not repeated


def test_a_stalled_description_times_out(hub, tmp_path, monkeypatch, refusal):
    """The client itself would wait forever."""
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.25)
    hub.fail("/api/datasets", sent=3, stalls=True)
    line = refusal(prepare_fineweb.main, "--pretokenized", "--out_dir", tmp_path / "toy")
    assert "cannot be fetched from the hub (" in line and "timed out" in line


def test_pretokenized_shards_are_added_and_replaced(hub, tmp_path, refusal):
    repository = hub_examples.write_shards(hub.folder, "user/shards", 6)
    out, flags = tmp_path / "out", ["--pretokenized", "--dataset", "user/shards"]

    def download(*more):
        prepare_fineweb.main([*flags, *more, "--out_dir", str(out)])
        downloads = re.findall(r"GET /datasets/\S+_(\d{6})", "\n".join(hub.requests))
        hub.requests.clear()
        return [int(number) for number in downloads]

    assert download("--shards", "3") == [0, 1, 2] and download("--shards", "3") == []
    fault = hub.fail("000004", sent=9)
    refusal(prepare_fineweb.main, *flags, "--out_dir", out)
    with pytest.raises(InputError, match="was interrupted"):
        Shards(out, "train")
    fault.active, _ = False, hub.requests.clear()
    assert download() == [4, 5]
    meta, files = meta_of(out), shards_of(out)
    assert files == shards_of(repository) and len([*out.iterdir()]) == 7
    (out / "finewebedu_train_000002.bin").unlink()
    # A lower --shards removes none, and replaces the missing one.
    assert download("--shards", "3") == [2]
    assert meta_of(out) == meta and shards_of(out) == files
    train = Shards(out, "train", "always")
    assert (train.total, train.tokenizer, train.vocab_size) == (500, "gpt2", 50257)
    assert train.meta["splits"]["train"]["documents"] == 3 + 4 + 5 + 6 + 7

    (repository / "finewebedu_val_000000.bin").write_bytes(b"no shard")
    line = refusal(prepare_fineweb.main, *flags, "--out_dir", tmp_path / "none")
    assert "is not a shard" in line and line.endswith("pass another --dataset")
    assert not (tmp_path / "none").exists()


def test_preparation_keeps_its_revision(hub, tmp_path, local_shards, refusal):
    """The hub gets a new commit between the first shards and the others."""
    out = tmp_path / "toy"
    repository = hub.folder / "datasets" / FINEWEB
    prepare_fineweb.main(fineweb_flags(out, "--shards", 3))
    first = meta_of(out)["revision"]
    file = repository / "sample/10BT/001_00000.parquet"
    before = file.read_bytes()
    hub_examples.write_parquet(file, {"text": ["changed"] * 30})
    HfFileSystem.clear_instance_cache()
    try:
        prepare_fineweb.main(fineweb_flags(out))
        assert shards_of(out) == local_shards and meta_of(out)["revision"] == first
        newest = tmp_path / "newest" / "toy"
        prepare_fineweb.main(fineweb_flags(newest))
        assert shards_of(newest) != local_shards and meta_of(newest)["revision"] != first
        pinned = tmp_path / "pinned" / "toy"
        prepare_fineweb.main(fineweb_flags(pinned, "--revision", first))
        assert shards_of(pinned) == local_shards and meta_of(pinned)["revision"] == first
    finally:
        file.write_bytes(before)
    line = refusal(prepare_fineweb.main, *fineweb_flags(tmp_path / "none", "--revision", "0" * 40))
    assert "cannot be fetched from the hub (Client error '404 Not Found'" in line
    assert "): check its name, its revision" in line
    assert not (tmp_path / "none").exists()


def test_offline_without_a_cache(hub, tmp_path, monkeypatch, refusal):
    """A data set is prepared from its downloaded files then."""
    flags = ["--size", "2", "--tokenizer", "bytes", "--out_dir"]
    out = tmp_path / "toy"
    prepare_wikitext.main([*flags, str(tmp_path / "online" / "toy")])
    go_offline(monkeypatch)
    assert "offline mode is enabled" in refusal(prepare_wikitext.main, *flags, out)
    assert "offline mode" in refusal(prepare_fineweb.main, "--pretokenized", "--out_dir", out)
    assert "OfflineMode" in refusal(lambda flags: tasks.load_task(None, "test"))
    assert "offline mode" in refusal(import_pretrained.main, "gpt2", "--out_dir", out)
    hub.requests.clear()
    files = hub.folder / "datasets/Salesforce/wikitext/wikitext-2-raw-v1"
    prepare_wikitext.main([*flags, str(out), "--source", str(files)])
    assert shards_of(out) == shards_of(tmp_path / "online" / "toy")
    assert hub.requests == []


def test_retrieval_data(hub, monkeypatch, refusal):
    """It is cached for offline use, at the commit that was downloaded."""
    task = tasks.load_task(None, "test")
    assert task.documents == {"d0": "one text", "d1": "another"}
    assert task.qrels == {"q0": {"d0": 1}, "q1": {"d1": 1}} and len(task.queries) == 2
    assert task.revision == hub.update(hub.folder / "datasets" / tasks.HUB)
    rows, revision = finetune.read_triplets(finetune.Config())
    path = hub.folder / "datasets" / finetune.HUB["path"] / "triplet-hard"
    table = pyarrow.parquet.read_table(path / "train-00000-of-00001.parquet").to_pylist()
    assert len(rows) == 200 and all(row in table for row in rows)

    new = hub.folder / "datasets" / tasks.HUB / "new.txt"
    new.write_text("a new commit")
    try:
        options = {"path": tasks.HUB, "name": "en-qrels", "split": "test"}
        _, pinned = hub_access.load_table(options, task.revision)
        assert pinned == task.revision
        with monkeypatch.context() as patch:
            go_offline(patch)
            hub.requests.clear()
            assert tasks.load_task(None, "test") == task
            cached, _ = finetune.read_triplets(finetune.Config(), revision)
            assert cached[:] == rows[:] and hub.requests == []
            line = refusal(lambda flags: finetune.read_triplets(finetune.Config(), "0" * 40))
            assert f"is cached at the revision {revision}, not 000" in line
        assert hub_access.load_table(options)[1] != task.revision
    finally:
        new.unlink()


def test_missing_repositories_and_parts(hub, tmp_path, refusal):
    def error(*flags):
        line = refusal(prepare_fineweb.main, *fineweb_flags(tmp_path / "toy", *flags))
        assert not (tmp_path / "toy").exists()
        return line

    message = "user/none cannot be fetched from the hub (Client error '401 Unauthorized' for"
    assert message in error("--dataset", "user/none")
    assert message in error("--dataset", "user/none", "--pretokenized", "--tokenizer", "gpt2")
    assert message in refusal(import_pretrained.main, "user/none", "--out_dir", tmp_path / "toy")
    assert "Repo id must be" in refusal(import_pretrained.main, "a/b/c", "--out_dir", "d")
    assert "BuilderConfig 'sample-1BT' not found" in error("--name", "sample-1BT")
    assert "only columns text id score: rename one" in error("--text_column", "body")
    assert "no split train, only test" in error("--dataset", tasks.HUB, "--name", "en-corpus")
    line = error("--dataset", FINEWEB, "--pretokenized", "--tokenizer", "gpt2")
    assert "has no shards *_val_000000.bin" in line


def test_weights(hub, tmp_path, monkeypatch, refusal):
    def imported(name, out):
        import_pretrained.main([name, "--out_dir", str(tmp_path / out)])
        config = yaml.safe_load((tmp_path / out / "config.yaml").read_text())
        checkpoint = torch.load(next((tmp_path / out).glob("*.pt")), weights_only=True)
        return config.get("revision"), checkpoint["model"]

    hub_examples.write_gpt2(hub.folder)
    revision, weights = imported("gpt2", "hub")
    assert revision == hub.update(hub.folder / "models/openai-community/gpt2")
    none, expected = imported(str(hub.folder / "models/openai-community/gpt2"), "local")
    assert none is None and weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in expected)
    huggingface_hub.close_session()
    connect("http://127.0.0.1:9", tmp_path / "cache", monkeypatch)  # nothing listens there
    assert imported("gpt2", "unreachable")[0] == revision
    line = refusal(import_pretrained.main, "gpt2-xl", "--out_dir", tmp_path / "none")
    assert "gpt2-xl cannot be fetched from the hub (" in line and "and the network" in line
    go_offline(monkeypatch)
    assert imported("gpt2", "offline")[0] == revision


def test_tokenizer(hub):
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.train_bpe(300, ["hello world"] * 3).backend
    folder = hub.folder / "models" / "user" / "tokenizer"
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    loaded = tokenizer.make_tokenizer("hf:user/tokenizer", tuple)
    assert loaded.encode("hello world") == backend.encode("hello world").ids
