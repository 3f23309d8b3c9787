"""Golden values of models: every encoding, as decoder and encoder, by every path that a CPU has.

    python tests/golden/golden.py                     # compare with golden.npz: 5 minutes of a core
    python tests/golden/golden.py cable t5            # only cases with one of these words
    python tests/golden/golden.py "t5 encoder triton"
    python tests/golden/golden.py --write             # replace golden.npz

The models are small, with texts of 320 tokens, so that attention needs several blocks of queries,
chunks, and tiles. All parameters are perturbed, because initial biases are zero. Of each tensor
golden.npz holds the norm, the sum and 32 entries at fixed random indices. The first result of a
tensor is stored, that of the dense path in float64; all other paths are compared with it, too.
Results in float32 (Triton, in its interpreter) and bfloat16 have golden values of their own.
"""

import argparse
import contextlib
import os
import sys
import types
import warnings
import zlib
from pathlib import Path
from unittest import mock

import numpy as np

FOLDER = Path(__file__).parent
FILE = FOLDER / "golden.npz"
if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent.parent))
os.environ.setdefault("TRITON_INTERPRET", "1")  # must be set before the first import of triton

import torch  # noqa: E402
import triton.language  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

import more_encodings  # noqa: E402, F401, registers all encodings
import triton_attention.flex  # noqa: E402, F401, registers the path
from errors import InputError  # noqa: E402
from kv_cache import Cache  # noqa: E402
from model import GPT, GPTConfig  # noqa: E402
from pe_spec import build, layer_specs, parse  # noqa: E402
from posenc import ENCODINGS  # noqa: E402
from triton_attention import supports as triton_supports  # noqa: E402

TOKENS = 320
VOCABULARY = 64
ENTRIES = 32
COMBINATIONS = """
    alibi+cable cable:heads=2 cable@1_rope@1 dape+cable kerple+sinusoidal learnable+alibi rope+cable
    rope+cope rope+ssmax rope:heads_percent=75+alibi:heads_percent=75 t5:buckets=16,max_distance=64
    window:w=40+alibi window:w=40+rope@1_nope@1 yarn:factor=2,ramp=released
"""
# Encodings that were added after the golden values were written.
LATER = {"carope", "path", "pope", "rope-llama3", "selective-rope", "sink", "wall", "xpos"}
SPECS = [*sorted({*ENCODINGS} - LATER), *COMBINATIONS.split()]
BFLOAT16_SPECS = ("cable", "fire", "rope+cable", "t5")  # by Triton
FLEX_SPECS = ("cable", "kerple", "rope+cable", "window")  # compiled for seconds; fire fails
# Largest difference, relative to the root mean square of a tensor, or to its norm. In float32, the
# order of sums in a kernel changes gradients of gates by 1e-5.
TOLERANCES = {"float64": 1e-9, "float32": 5e-5, "bfloat16": 2e-2}
ENTRY_PRECISION = 1e-7  # entries are stored as float32
NOISE = 1e-3  # tensors this much smaller than the largest of their kind are compared with it


@contextlib.contextmanager
def constant(name, value):
    """Set a constant, in whichever loaded modules define it, and restore it."""
    modules = [m for m in list(sys.modules.values()) if isinstance(getattr(m, name, None), int)]
    assert modules, f"no module has the constant {name}"
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def make_model(spec, causal, path, dtype=torch.float64, layers=2, heads=4):
    """Return a model of width 32 in evaluation mode, all of whose parameters are perturbed."""
    layers = max(layers, len(layer_specs(spec)))
    shape = {"n_layer": layers, "n_head": heads, "n_embd": 32, "vocab_size": VOCABULARY}
    settings = {"size": "quickstart", "pe": spec, "causal": causal, "attention": path, **shape}
    for block_size in (128, TOKENS):  # texts are longer than in training, where that is supported
        torch.manual_seed(0)
        model = GPT(GPTConfig(**settings, block_size=block_size))
        if model.max_context is None:
            break
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
        model.clamp_parameters_()
    return model.to(dtype).eval()


def make_batch(causal, batch):
    """Return tokens (B, T) and the other arguments of the loss: targets, masked positions."""
    generator = torch.Generator().manual_seed(3)
    text = torch.randint(VOCABULARY, (batch, TOKENS + 1), generator=generator)
    if causal:
        return text[:, :-1], (text[:, 1:],)
    positions = torch.rand(batch, TOKENS, generator=generator).topk(48, 1).indices.sort(1).values
    return text[:, :-1], (text[:, :-1].gather(1, positions), positions)


def gradients(model, causal, batch=2):
    """Return the loss in training mode, and the gradients of all parameters, by name."""
    tokens, arguments = make_batch(causal, batch)
    torch.manual_seed(1)  # shape and cape draw positions
    model.train().zero_grad()
    loss = model(tokens, *arguments)
    loss.backward()
    model.eval()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"loss": loss, **{name: grad for name, grad in grads.items() if grad is not None}}


def read_through_cache(model, tokens, parts, decoded=0):
    """Return the logits of tokens that are read in parts, the last ones with fixed shapes."""
    cache = Cache(model, tokens.size(1))
    read = tokens[:, : tokens.size(1) - decoded]
    logits = [model(part, cache=cache) for part in read.split(parts, 1)]
    if decoded:
        cache.fix_shapes()
        for token in tokens[:, -decoded:].split(1, 1):
            logits.append(model.decode(token, cache)[:, None])
    return torch.cat(logits, 1)


def float64_results(spec, causal):
    """Yield (path or way of evaluation, group of golden values, tensors by name) in float64."""
    tokens, arguments = make_batch(causal, 2)
    for path in ("dense", "sdpa", "sdpa/flash", "flex"):
        if path == "flex" and spec not in FLEX_SPECS:
            continue
        try:
            # In golden.npz "sdpa" is the path of a CPU, which has its own name now.
            model = make_model(spec, causal, "batched" if path == "sdpa" else path)
        except InputError:
            continue
        if path == "flex":  # on a CPU it has no backward pass; without gradients it is not used
            model.requires_grad_(False)
        yield path, "logits", {"logits": model(tokens)}
        if path == "flex":
            continue
        yield path, "gradients", gradients(model, causal)
        with torch.no_grad():
            yield f"{path} inference", "logits", {"logits": model(tokens)}
            with constant("LOGITS_CHUNK", 100 * VOCABULARY):
                yield f"{path} losses", "losses", {"losses": model.losses(tokens, *arguments)}
        if path == "sdpa/flash":
            continue
        with constant("CHUNK_ELEMENTS", 2 * 4 * TOKENS * 100):  # 100 rows; 25 of full rows
            yield f"{path} chunks", "gradients", gradients(model, causal)
            with torch.no_grad():
                yield f"{path} chunks inference", "logits", {"logits": model(tokens)}
        with torch.no_grad():
            if causal:
                parts = [200, 81, 7, *[1] * 12]
                cached = read_through_cache(model, tokens, parts, decoded=20)
                yield f"{path} cache", "logits", {"logits": cached}
                with constant("CACHE_CHUNK", 96):
                    losses = model.losses(tokens, *arguments, cache_window=75)
                yield f"{path} cache window", "window", {"losses": losses}
            else:
                lengths = torch.tensor([TOKENS, 211])
                hidden = model.hidden(tokens, lengths=lengths)
                texts = {"long": hidden[0], "short": hidden[1, :211]}
                yield f"{path} padding", "padding", texts


def bfloat16_results(spec, causal):
    """Yield results as float64_results does, of float32 models in bfloat16 by autocast."""
    tokens, _ = make_batch(causal, 2)
    for path in ("dense", "sdpa/flash"):
        try:
            model = make_model(spec, causal, path, torch.float32)
        except InputError:
            continue
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            yield f"{path} bfloat16", f"bfloat16 {path}", {"logits": model(tokens)}


def triton_results(spec, causal):
    """Yield results as float64_results does, of Triton's kernels in a smaller float32 model."""
    encodings = build(spec, 2, 32, 128, max(1, len(layer_specs(spec))), causal)
    if not all(map(triton_supports, encodings)):
        return
    model = make_model(spec, causal, "triton", torch.float32, layers=1, heads=2)
    tokens, _ = make_batch(causal, 1)
    parts = ("loss", "wte.weight", "attn.c_attn.weight", "attn.c_attn.bias")

    def chosen(results):
        return {n: x for n, x in results.items() if n.endswith(parts) or n.startswith("posenc")}

    yield "triton", "triton gradients", chosen(gradients(model, causal, 1))
    if causal:
        with torch.no_grad():
            logits = read_through_cache(model, tokens, [200, 120])
        yield "triton cache", "triton cache", {"logits": logits}
    if causal and spec in BFLOAT16_SPECS:
        with torch.autocast("cpu", torch.bfloat16):
            grads = chosen(gradients(model, causal, 1))
        yield "triton bfloat16", "triton bfloat16", grads


def case_names(words=()):
    """Return the names of all cases, "ENCODING decoder", ..., that contain one of the words."""
    names = [
        f"{spec} {kind}{kernels}"
        for kernels in ("", " triton")
        for kind in ("decoder", "encoder")
        for spec in SPECS
    ]
    return [name for name in names if not words or not {name, *name.split()}.isdisjoint(words)]


def results(case):
    """Yield (path, golden name, dtype, scale of the group's largest tensor, tensor) of a case."""
    spec, kind, *kernels = case.split()
    causal = kind == "decoder"
    try:
        parse(spec, causal)
    except InputError:  # decoders only
        return
    for compute in (triton_results,) if kernels else (float64_results, bfloat16_results):
        for path, group, tensors in compute(spec, causal):
            dtype = "float64" if compute is float64_results else "float32"
            dtype = "bfloat16" if "bfloat16" in path else dtype
            arrays = {name: x.detach().double().flatten().numpy() for name, x in tensors.items()}
            largest = max(np.sqrt(np.mean(x**2)) for x in arrays.values())
            for name, x in arrays.items():
                yield path, f"{case} | {group} | {name}", dtype, largest, x


def summarize(golden_name, x):
    """Return the norm, the sum and 32 entries of a tensor."""
    indices = np.random.default_rng(zlib.crc32(golden_name.encode())).integers(len(x), size=ENTRIES)
    return np.array([np.linalg.norm(x), x.sum(), *x[indices]])


def difference(actual, expected, size, largest):
    """Return the largest difference of two summaries of `size` numbers, relative to their scale."""
    scale = max(expected[0] / np.sqrt(size), NOISE * largest, 1e-30)
    norm, total = np.abs(actual[:2] - expected[:2]) / (np.sqrt(size) * scale)
    entries = np.abs(actual[2:] - expected[2:]) - ENTRY_PRECISION * np.abs(expected[2:])
    return max(norm, total, entries.max() / scale) if np.isfinite(actual).all() else np.inf


def run(words, golden):
    """Compute the cases of these words and compare them with golden values {name: summary}.

    Where there is none, the first result is one. Returns the golden values of these cases, labels
    of all results, one line per problem, and the largest difference of each path with its label.
    """
    used, labels, problems, worst = {}, [], [], {}
    for case in case_names(words):
        for path, name, dtype, largest, x in results(case):
            summary = summarize(name, x)
            expected = used.setdefault(name, golden.get(name, summary))
            label = f"{name} | {path}"
            labels.append(label)
            error = difference(summary, expected, len(x), largest)
            worst[path] = max(worst.get(path, (0.0, "")), (error, label))
            if not error <= TOLERANCES[dtype]:
                problems.append(f"{label}: differs by {error:.1e}, allowed {TOLERANCES[dtype]:g}")
    return used, labels, problems, worst


def check(words=()):
    """Return one line per problem, and the largest difference of each path with its label."""
    with np.load(FILE) as data:
        summaries = np.concatenate([data["totals"], data["entries"]], 1)
        golden = dict(zip(data["names"].tolist(), summaries, strict=True))
        stored = data["labels"].tolist()
    _, labels, problems, worst = run(words, golden)
    cases = case_names(words)
    expected = [label for label in stored if not words or label.split(" | ")[0] in cases]
    problems += [f"{label}: no longer computed" for label in expected if label not in set(labels)]
    problems += [f"{label}: no golden value" for label in labels if label not in set(stored)]
    return problems, worst


def write():
    """Replace the golden values; raise AssertionError if the paths disagree."""
    golden, labels, problems, _ = run((), {})
    assert not problems, "\n".join(problems)
    summaries = np.array(list(golden.values()))
    np.savez_compressed(
        FILE,
        names=list(golden),
        labels=labels,
        totals=summaries[:, :2],
        entries=summaries[:, 2:].astype(np.float32),
    )
    print(f"{FILE}: {len(golden)} tensors by {len(labels)} paths, {FILE.stat().st_size:,} bytes")


def main():
    parser = argparse.ArgumentParser(description="Compare models with golden values.")
    parser.add_argument("words", nargs="*", help="only cases with one of these names or words")
    parser.add_argument("--write", action="store_true", help="replace the golden values")
    arguments = parser.parse_args()
    if arguments.write:
        return write()
    problems, worst = check(arguments.words)
    for path, (error, label) in worst.items():
        print(f"{path:24} largest relative difference {error:.1e}  {label}")
    for problem in problems[:40]:
        print(f"error: {problem}")
    print(f"{len(case_names(arguments.words))} cases, {len(problems)} problems")
    sys.exit(bool(problems))


def speed_up_interpreter():
    """Make Triton's interpreter patch its language once per launch: twice as fast."""
    patch = interpreter._patch_lang
    language = types.SimpleNamespace(
        __globals__={"tl": triton.language, "core": triton.language.core}
    )
    interpreter._patch_lang = lambda function: patch(language)
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **options: self.rewrite()(
        *args, **options
    )


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    speed_up_interpreter()
    main()
