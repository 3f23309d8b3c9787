"""Checks of a positional encoding: the tests of all registered encodings, also for a user's own.

    result = run_check("causality", "cable")     # ok, failed or not applicable, with the numbers
    measure("causality", "cable")                # raises CheckFailed or NotApplicable

CHECKS is the table. tests/evaluation/test_encoding_checks.py runs it over the registry, and
check_encoding.py over a user's file.
"""

import itertools
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import pe_spec
from evaluation import layer_checks, model_checks
from evaluation.measurement import CheckFailed, Measurement, NotApplicable, worst


@dataclass(frozen=True)
class Check:
    """A check: its function, its settings, one per call, and the usual cause of a failure."""

    function: Callable[..., Measurement | None]
    cases: tuple[dict, ...] = ({},)
    cause: str = ""


@dataclass(frozen=True)
class Result:
    """The result of a check. status: "ok", "failed" or "not applicable"; message: the reason."""

    name: str
    status: str
    measurement: Measurement | None = None
    message: str = ""
    cause: str = ""


def _cases(**values) -> tuple[dict, ...]:
    """Return all combinations of values of several settings."""
    names = values.keys()
    return tuple(
        dict(zip(names, case, strict=True)) for case in itertools.product(*values.values())
    )


PATHS = ("auto", "dense")
BOTH = (True, False)

CHECKS: dict[str, Check] = {
    "options": Check(
        layer_checks.check_options,
        cause="__init__ must call super().__init__(heads, channels, block_size) first",
    ),
    "shapes": Check(
        layer_checks.check_shapes,
        cause="bias must index parameters of a head with [h], and features must return two tuples",
    ),
    "inputs unchanged": Check(layer_checks.check_inputs_unchanged),
    "device": Check(layer_checks.check_device),
    "reference formula": Check(
        layer_checks.check_form,
        _cases(form=("reference_bias",)),
        cause="one of the two formulas is wrong",
    ),
    "factors": Check(
        layer_checks.check_form,
        _cases(form=("factors",), causal=BOTH),
        cause="a sign or a missing term; or factors hold for earlier keys only: set "
        "self.factors = None in set_bidirectional",
    ),
    "distance bias": Check(
        layer_checks.check_form,
        _cases(form=("distance_bias",), causal=BOTH, atol=(0.0,), rtol=(1e-6,)),
        cause="distance_bias and bias are two formulas: override only distance_bias",
    ),
    "triton bias": Check(
        layer_checks.check_form,
        _cases(form=("triton_bias",), atol=(1e-4,), rtol=(1e-4,)),
        cause="see triton_attention/bias.py for the formula of each kind",
    ),
    "causality": Check(
        model_checks.check_causality,
        _cases(path=PATHS),
        cause="a feature depends on later tokens, as x.mean(1) does, or logits_transform does not "
        "use `mask`",
    ),
    "continued features": Check(
        layer_checks.check_continued_features,
        cause="features ignore `previous`: add previous[0] to cumulative sums; and use pos, not "
        "torch.arange(T)",
    ),
    "gradients": Check(
        layer_checks.check_gradients,
        _cases(causal=BOTH),
        cause="detach(), .data or no_grad in a formula, or a wrong autograd.Function",
    ),
    "parameter gradients": Check(model_checks.check_parameter_gradients),
    "finite values": Check(layer_checks.check_finite),
    "clamping": Check(layer_checks.check_clamping),
    "attention paths": Check(
        layer_checks.check_paths,
        _cases(queries=(1, 7, 65), gradients=BOTH),
        cause="the bias of a pair depends on the number of tokens: use pos and d, not T and S; or "
        "factors differ from bias",
    ),
    "lengths": Check(model_checks.check_lengths),
    "order": Check(model_checks.check_order),
    "KV cache": Check(
        model_checks.check_cache,
        _cases(path=PATHS),
        cause="features ignore `previous` or `pos`: add previous[0] to cumulative sums, and use "
        "pos, not torch.arange(T)",
    ),
    "KV cache of a window": Check(
        model_checks.check_cache_window,
        _cases(window=(1, 9, 200)),
        cause="the bias of a pair depends on tokens outside the window",
    ),
    "fixed-shape decoding": Check(
        model_checks.check_fixed_shapes,
        cause="a hook reads a value on the host (.item(), if on a tensor), or uses S, which is the "
        "capacity of the cache there",
    ),
    "one compiled graph": Check(
        model_checks.check_one_graph,
        cause="a hook reads a value on the host: replace .item(), numpy and `if` on a tensor by "
        "torch.where or clamp",
    ),
    "activation checkpointing": Check(
        model_checks.check_activation_checkpointing,
        cause="a hook keeps something between calls",
    ),
    "bfloat16": Check(
        model_checks.check_bfloat16,
        cause="bfloat16 has 8 bits: compute positions, angles and sums in float32",
    ),
    "float64": Check(
        model_checks.check_float64,
        _cases(causal=BOTH),
        cause="a hook rounds to float32: use the dtype of x, q or d, as in pos.to(x.dtype)",
    ),
    "bfloat16, far tokens": Check(
        layer_checks.check_rotation_in_bfloat16,
        cause="compute angles and their sines in float32 or float64, and cast the result",
    ),
    "encoder: formula": Check(
        layer_checks.check_bidirectional,
        _cases(queries=(7, 50), gradients=BOTH),
        cause="factors hold for earlier keys only: set self.factors = None in set_bidirectional; "
        "if there is no formula for later keys, supports_bidirectional = False",
    ),
    "encoder: padding": Check(
        layer_checks.check_padding,
        _cases(gradients=BOTH),
        cause="a feature or a row depends on masked tokens: use `mask`, and sums from the left",
    ),
    "state_dict": Check(model_checks.check_state_dict),
    "determinism": Check(model_checks.check_determinism),
    "training": Check(
        model_checks.check_training,
        cause="the tokens do not reach the output, or the bias is large at initialization",
    ),
}


def measure(name: str, spec: str) -> Measurement | None:
    """Run all cases of a check; return the measurement that is closest to its bound.

    Raises CheckFailed or NotApplicable (to all cases), or what the encoding raises.
    """
    check = CHECKS[name]
    measurements, reasons = [], []
    specs = [spec]
    if check.function.__module__ == layer_checks.__name__:  # of each layer of a pattern
        specs = dict.fromkeys(pe_spec.layer_specs(spec))
    for layer_spec, case in itertools.product(specs, check.cases):
        try:
            measurements.append(check.function(layer_spec, **case))
        except NotApplicable as reason:
            reasons.append(reason)
    if not measurements:
        raise reasons[0]
    return worst(measurements)


def run_check(name: str, spec: str, sources: Sequence[str] = ()) -> Result:
    """Run a check and return its result, whatever the encoding raises.

    sources: paths of the files that define the encoding; messages name the line there.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            return Result(name, "ok", measure(name, spec))
    except NotApplicable as reason:
        return Result(name, "not applicable", message=str(reason))
    except CheckFailed as error:
        cause = error.cause or CHECKS[name].cause
        return Result(name, "failed", error.measurement, str(error), cause)
    except Exception as error:
        return Result(name, "failed", None, _describe(error, sources), _cause(name, error))


def _cause(name: str, error: Exception) -> str:
    """Return the usual cause of an exception in a check, "" for a slip in the code."""
    if isinstance(error, TypeError) and "argument" in str(error):
        return (
            "a hook has other arguments than in posenc.Encoding, which has "
            "features(self, x, pos, previous=None) and bias(self, q_features, k_features, h)"
        )
    is_slip = isinstance(error, NameError | AttributeError) and "__init__() call" not in str(error)
    return "" if is_slip else CHECKS[name].cause


def _describe(error: Exception, sources: Sequence[str]) -> str:
    """Return an exception in one line, with the last line of the files `sources` that raised it."""
    text = str(error)
    first = " ".join(text.partition("\n")[0].split())  # torch.compile's messages have many lines
    message = f"{type(error).__name__}: {first[:200]}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename in sources]
    # torch.compile quotes the user's code.
    quoted = re.findall(r'File "(.*)", line (\d+)', text)
    lines += [int(line) for file, line in quoted if file in sources]
    return f"{message} (line {lines[-1]})" if lines else message
