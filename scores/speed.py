"""Measure the speed of a training step on the CPU relative to rope, for a score.

    python -m scores.speed fox --out runs/scores/speed/fox.json

Steps of both encodings are interleaved in one process, after one round that is not counted. Unlike
in bench.py, the vocabulary is that of bytes: at this size, the logits of GPT-2's vocabulary would
take most of a step.
"""

from dataclasses import dataclass, field

from runtime import cli, devices
from runtime.files import write_json
from runtime.provenance import provenance
from runtime.schema import Length, Text, fields

from benchmarking.cases import train_cases
from benchmarking.setting import Setting
from benchmarking.timing import interleave, speed_ratio
from errors import InputError
from evaluation.record_schema import ROUNDS
from text_data.shards import padded_size

BASELINE = "rope"
MODEL = "quickstart"
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
    micro_batch: int = cli.limited(16, 1, 10**9)
    """sequences of a step"""
    context: int = cli.limited(256, 2, 10**8)
    """tokens of a sequence"""
    rounds: int = cli.limited(40, 2)
    """counted rounds"""
    out: str | None = None
    """JSON file for the seconds of each round"""

    def __post_init__(self):
        if len(self.encodings) != 1:
            raise InputError("pass one encoding: python -m scores.speed cable")


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("encodings", "one encoding"))
    (pe,) = config.encodings
    device, dtype = devices.select_device("cpu", "auto")
    setting = Setting(
        model=MODEL,
        micro_batch=config.micro_batch,
        context=config.context,
        device=device,
        dtype=dtype,
        compile=False,
        shape={"vocab_size": VOCABULARY},
    )
    prepare = {
        name: train_cases(setting, name)[name].prepare for name in dict.fromkeys((BASELINE, pe))
    }
    seconds = interleave(prepare, config.rounds, device, f"training step of {pe}")
    print(f"speed of {pe} / {BASELINE}: {speed_ratio(seconds[pe], seconds[BASELINE]):.3f}")
    if config.out:
        sizes = {"micro_batch": config.micro_batch, "context": config.context}
        record = {
            "pe": pe,
            "budget": {"model": MODEL, **sizes, "device": device.type},
            "seconds": seconds[pe],
            BASELINE: seconds[BASELINE],
            "processor": devices.cpu_name(),
            "provenance": provenance(device),
        }
        write_json(config.out, record)


if __name__ == "__main__":
    cli.run(main)
