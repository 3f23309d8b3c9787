"""Measure the speed of a training step relative to rope, for a score.

    python -m scores.speed fox --out runs/scores/speed/fox.json

Steps of both encodings are interleaved in one process, after one round that is not counted. Unlike
in bench.py, the vocabulary is that of bytes: at this size, the logits of GPT-2's vocabulary would
take most of a step.
"""

from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli, devices
from runtime.files import read_json, write_json
from runtime.provenance import provenance
from runtime.schema import Length, Text, fields

from benchmarking.cases import train_cases
from benchmarking.setting import BenchmarkCase, Setting
from benchmarking.timing import interleave, speed_ratio
from errors import InputError
from evaluation.record_schema import ROUNDS
from text_data.shards import padded_size

BASELINE = "rope"
VOCABULARY = padded_size(257)  # of bytes
BUDGET = fields({"model": Text, "micro_batch": Length, "context": Length, "device": Text})
SECONDS = {"seconds": ROUNDS, BASELINE: ROUNDS}
SCHEMA = fields({"pe": Text, "budget": BUDGET, **SECONDS, "processor": Text})


@dataclass
class Config:
    """Settings of the measurement."""

    encodings: list[str] = field(default_factory=list)
    """one encoding"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    model: str = "quickstart"
    """size of the model"""
    micro_batch: int = cli.limited(16, 1, 10**9)
    """sequences of a step"""
    context: int = cli.limited(256, 2, 10**8)
    """tokens of a sequence"""
    rounds: int = cli.limited(40, 2)
    """counted rounds"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    out: str | None = None
    """JSON file for the seconds of each round"""

    def __post_init__(self):
        if len(self.encodings) != 1:
            raise InputError("pass one encoding: python -m scores.speed cable")


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("encodings", "one encoding"))
    (pe,) = config.encodings
    device, dtype = devices.select_device(config.device, "auto")
    setting = Setting(
        model=config.model,
        micro_batch=config.micro_batch,
        context=config.context,
        device=device,
        dtype=dtype,
        compile=False,
        shape={"vocab_size": VOCABULARY},
    )
    cases = {name: find_case(setting, name) for name in dict.fromkeys((BASELINE, pe))}
    prepare = {name: case.prepare for name, case in cases.items()}
    seconds = interleave(prepare, config.rounds, device, f"training step of {pe}")
    print(f"speed of {pe} / {BASELINE}: {speed_ratio(seconds[pe], seconds[BASELINE]):.3f}")
    if config.out:
        budget = {name: getattr(config, name) for name in ("model", "micro_batch", "context")}
        record = {
            "pe": pe,
            "budget": budget | {"device": device.type},
            "seconds": seconds[pe],
            BASELINE: seconds[BASELINE],
            "processor": devices.cpu_name(),
            "provenance": provenance(device),
        }
        write_json(config.out, record)


def find_case(setting: Setting, pe: str) -> BenchmarkCase:
    """Return the case of the path that `auto` selects, or on a GPU without one, of Triton's."""
    cases = train_cases(setting, pe)
    return cases.get(pe) or cases[f"{pe} triton"]


def read_speed(path: Path, pe: str, remedy: str) -> dict:
    """Return the measurement in a file. Raises InputError if it is not one of this encoding."""
    record = read_json(path, remedy, SCHEMA)
    if record["pe"] != pe:
        raise InputError(f"{path} is the speed of {record['pe']}, not {pe}: {remedy}")
    return record


if __name__ == "__main__":
    cli.run(main)
