"""Shared fixtures: small data, short training runs, programs in new processes."""

import contextlib
import functools
import gc
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import fork_server
import numpy as np
import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent
# Modules at the root that are no programs.
CORE = {"errors", "setting", "losses", "posenc", "pe_spec", "attention", "attention_cpu"}
CORE |= {"kv_cache", "model", "data_loader"}
sys.path.insert(0, str(ROOT))
# For programs in new processes, also those that scripts start.
os.environ |= {"OMP_NUM_THREADS": "1", "INSTALLED": "1", "VIRTUAL_ENV": sys.prefix}
if "DEVICE" not in os.environ:  # scripts/test_gpu.sh sets it
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
if not torch.cuda.is_available():  # must be set before the first import of triton
    os.environ.setdefault("TRITON_INTERPRET", "1")

from runtime import cli, files  # noqa: E402

import data_loader  # noqa: E402
import more_encodings  # noqa: E402, F401
import posenc  # noqa: E402
from model import GPT, GPTConfig  # noqa: E402
from text_data import shards  # noqa: E402
from training import checkpoints, plugins  # noqa: E402

os.fsync = fork_server.skip_fsync
torch.set_flush_denormal(True)
torch.set_num_threads(1)


NAMES = sorted(posenc.ENCODINGS)
ENCODINGS = [
    *NAMES,
    "rope+cable",
    "rope+ssmax",
    "learnable+alibi",
    "cable:heads=2",
    "rope:heads_percent=75+cable:heads_percent=75",
    "window:w=9+rope@1_cable@1",
    "alibi+cable",
    "kerple+k-cable+sinusoidal",
    "dapev2+kerple",
    "dape+cable",
    "rope+cope",
    "window:w=9+alibi",
    "yarn:factor=2,ramp=released",
    "rope:percent=25",
    "carope+alibi",
    "alibi+carope",
    "pope+cable",
    "path+fox",
    "rope+sink",
]
# One of each kind: features, rotation, a table of positions, rows of logits, a window, running
# features, wide queries and keys, several numbers per token, a sink.
KINDS = [
    *("cable", "rope", "learnable", "cope", "dapev2+kerple", "window:w=9+rope@1_cable@1"),
    *("carope", "pope", "path+fox", "rope+sink"),
]
# Encodings that support no more positions than the training length.
LIMITED = ["learnable", "learnable+alibi", "diet-abs"]
TINY = shlex.split(
    "--size quickstart --n_layer 2 --n_head 2 --n_embd 16 --block_size 16 --micro_batch 2 "
    "--tokens_per_step 64 --steps 6 --warmup_steps 2 --lr 1e-2 --min_lr 1e-3 --log_every 2 "
    "--val_every 3 --val_tokens 64 --checkpoint_every 2 --device cpu --dtype float32"
)


def pytest_collection_modifyitems(items):
    """Mark the tests that scripts/test_gpu.sh runs on a GPU."""
    for item in items:
        if item.path.parent.name in ("gpu", "triton_attention"):
            item.add_marker(pytest.mark.gpu)


def pytest_collection_finish():
    """Let garbage collections skip what is imported: each takes a quarter of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A prepared data set of bytes: 12,000 for training, 3,000 for validation; read-only."""
    import prepare_text

    root = tmp_path_factory.mktemp("data")
    (root / "text").mkdir()
    for number in range(5):
        text = "".join(f"{number}: line {line} of {line * line}.\n" for line in range(200))[:3000]
        (root / "text" / f"{number}.txt").write_text(text)
    prepare_text.main([str(root / "text"), "--out_dir", str(root / "toy"), "--val_every", "5"])
    return root / "toy"


@pytest.fixture(scope="session")
def trained(data_dir, tmp_path_factory):
    """A function of an encoding and further flags that returns the folder of a run of six steps.

    The runs are shared by all tests: read-only.
    """
    import train_gpt

    folder, done = tmp_path_factory.mktemp("runs"), {}

    def train(pe, *flags):
        if (pe, flags) not in done:
            run = folder / "".join(flags) / pe
            train_gpt.main(
                [*TINY, *flags, "--data", str(data_dir), "--pe", pe, "--out_dir", str(run)]
            )
            done[pe, flags] = run
        return done[pe, flags]

    return train


@pytest.fixture
def run(trained, tmp_path):
    """run("cable"): a copy of a finished run."""
    return lambda pe: shutil.copytree(trained(pe), tmp_path / pe)


@pytest.fixture(scope="session")
def lively(trained, tmp_path_factory):
    """lively("rope"): a run of untrained, large weights, whose likeliest tokens are far from ties.

    Texts never end, and padding tokens would win if they took part. Read-only.
    """
    root = tmp_path_factory.mktemp("lively")

    def make(pe, *flags):
        run = root / "".join(flags) / pe
        if not run.exists():
            shutil.copytree(trained("cable", *flags), run)
            path = checkpoints.checkpoint_path(run)
            checkpoint = checkpoints.load_checkpoint(run, None)
            torch.manual_seed(1)
            settings = {**checkpoint["gpt"], "pe": pe, "attention": "auto"}
            model = GPT(GPTConfig(**settings))
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    nn.init.normal_(parameter, std=0.3)
            model.wte.weight.data[256] = 0  # <|endoftext|>
            model.wte.weight.data[257:] *= 10
            config = {**checkpoint["config"], "pe": pe}
            changed = {"gpt": settings, "config": config, "model": model.state_dict()}
            save_checkpoint({**checkpoint, **changed}, path)
        return run

    return make


def write_shards(folder, documents, shard_tokens=1000, vocab_size=257, tokenizer="bytes"):
    """Write a data set `toy` of these documents, all of them for training."""
    content = {"dataset": "toy", "tokenizer": tokenizer, "vocab_size": vocab_size, "source": "test"}
    meta = shards.Meta(folder, content)
    writer = shards.ShardWriter(meta, "train", shard_tokens)
    for number, tokens in enumerate(documents):
        writer.add(number, 0, np.asarray(tokens))
    writer.close()
    meta.content["complete"] = True
    meta.write()
    return folder


def documents_of(folder, split):
    """Return the texts of a split, which is tokenized as bytes."""
    shards_of_split = data_loader.Shards(folder, split, "always")
    tokens = np.concatenate([part[:] for part in shards_of_split.tokens])
    documents = np.split(tokens, np.flatnonzero(tokens == 256))[1:]
    return [bytes(document[1:].astype(np.uint8)).decode() for document in documents]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_plugin(path, name, code=""):
    """Write a plugin with an encoding whose bias is minus the distance; code: of its class."""
    path.write_text(f"""from posenc import Encoding


class Plugin(Encoding):
    names = ({name!r},)
    {code}

    def features(self, x, pos, previous=None):
        p = pos.float()[:, None]
        return (p,), (p,)

    def bias(self, q_features, k_features, h):
        return -(q_features[0] - k_features[0]).abs()
""")
    return path


def repeat_until_done(prepare):
    """Repeat a preparation that is interrupted; return the number of interruptions."""
    for interruptions in range(60):
        try:
            prepare()
            return interruptions
        except KeyboardInterrupt:
            continue
    raise AssertionError("it makes no progress")


def run_outside(code, away, *arguments):
    """Run Python code in a process outside the repository, which gets the folder `away` last.

    Returns what it saves in results.pt there.
    """
    environment = {"HF_HOME": str(away / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    done = python("-c", code, *arguments, away, cwd=away, **environment)
    assert done.returncode == 0, done.stderr
    return torch.load(away / "results.pt", weights_only=True)


@pytest.fixture
def folder(tmp_path):
    """Three shards of 100, 100 and 50 tokens 0, 1, 2, ... in documents of 25."""
    return write_shards(tmp_path / "toy", np.arange(250).reshape(10, 25), shard_tokens=100)


@contextlib.contextmanager
def unregister_plugins():
    """Unregister the plugins that the block loads, at its end."""
    encodings, loaded = dict(posenc.ENCODINGS), dict(plugins.LOADED)
    try:
        yield
    finally:
        for module in plugins.LOADED.keys() - loaded.keys():
            sys.modules.pop(module, None)
        for registry, before in ((posenc.ENCODINGS, encodings), (plugins.LOADED, loaded)):
            registry.clear()
            registry.update(before)


@pytest.fixture
def unregistered():
    """Unregister the plugins that a test loads."""
    with unregister_plugins():
        yield


@pytest.fixture
def refused(capsys):
    """A function of `main` and flags that must fail with status 2; returns its error lines.

    quiet: nothing else is printed, such as warnings.
    """

    def run(main, *flags, quiet=True):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.run(lambda: main([str(flag) for flag in flags]))
        lines = capsys.readouterr().err.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        assert stop.value.code == 2 and errors and (errors == lines or not quiet), lines
        return errors

    return run


SERVER = contextlib.ExitStack()


@functools.cache
def search_path():
    """Return a PATH whose `python` starts programs quickly."""
    folder = SERVER.enter_context(tempfile.TemporaryDirectory())
    if sys.platform == "linux":
        SERVER.enter_context(fork_server.start(Path(folder)))
    return os.pathsep.join([folder, os.path.dirname(sys.executable), os.environ["PATH"]])


def pytest_unconfigure():
    SERVER.close()
    gc.unfreeze()


def python(*words, cwd=ROOT, **environment):
    """Run Python in a new process, as a user does; the words are a program and its flags."""
    return subprocess.run(
        [shutil.which("python", path=search_path()), *map(str, words)],
        text=True,
        capture_output=True,
        cwd=cwd,
        env=os.environ | environment,
    )


def write_program(path, text):
    """Write an executable script, in place of a program."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def ranks(count, *flags, code=""):
    """Run train_gpt.py on `count` ranks, as torchrun does.

    code: executed on each rank before the program; `rank` is a variable there. Returns (exit
    status, standard output, standard error) of each rank. Fails after five minutes.
    """
    # torchrun keeps such a store for its ranks.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    program = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import torch, train_gpt\n"
        "from runtime import cli\n"
        "rank = int(os.environ['RANK'])\n"
    )
    folder = tempfile.TemporaryDirectory()
    script = Path(folder.name) / "rank.py"
    script.write_text(f"{program}{textwrap.dedent(code)}\ncli.run(train_gpt.main)")
    started = [
        subprocess.Popen(
            [shutil.which("python", path=search_path()), script, *map(str, flags)],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            },
        )
        for rank in range(count)
    ]
    end = time.monotonic() + 300
    try:
        outputs = [process.communicate(timeout=end - time.monotonic()) for process in started]
    finally:
        for process in started:
            process.kill()
        folder.cleanup()
    return [(process.returncode, *output) for process, output in zip(started, outputs, strict=True)]


def wait_for(condition, process=None, seconds=60):
    """Wait until condition() is true; fail if that takes longer, or the process ends before."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)


def evaluation(run, name="toy_val"):
    """Return the newest record of eval_extrapolation.py in a run's folder."""
    found = [
        path
        for path in Path(run).iterdir()
        if re.fullmatch(rf"eval_{name}(_\d+x\d+)?\.json", path.name)
    ]
    return max(found, key=lambda path: path.stat().st_mtime_ns)


def save_checkpoint(checkpoint, path):
    """Write a changed checkpoint, without the SHA-256 that it had when it was loaded."""
    if isinstance(checkpoint, dict):
        checkpoint = {key: value for key, value in checkpoint.items() if key != "sha256"}
    with files.atomic(path) as file:  # tensors may be mapped from the old file
        checkpoints.write_checkpoint(file, checkpoint)


def log_of(run):
    """Return the records of a run's log."""
    return [json.loads(line) for line in (Path(run) / "log.jsonl").read_text().splitlines()]


def losses(run):
    """Return (kind, step, loss) of the records of a run's log that have a loss."""
    return [(each["kind"], each["step"], each["loss"]) for each in log_of(run) if "loss" in each]
