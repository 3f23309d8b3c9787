"""Run an experiment on all devices of a machine, from data to tables and plots.

    python run_experiment.py --name table2 --data fineweb-edu \\
        --train fineweb-edu_small --block_size 512 --encodings cable kerple \\
        --perplexity 512,1024,2048
    bash scripts/table1_fineweb.sh --scale small --seeds 1 2 3 -- --attn_scale 1

A script in scripts/ calls this program once per stage. Flags after its
name replace the script's; flags after `--` go to train_gpt.py. Outputs
are in RUNS/SCALE. The same command again continues. The report is
written whenever a run has been evaluated.

    python run_experiment.py --name mine --commands - < lines

runs a command of this repository's programs per line. A line waits for
those that write what it names. --out and --out_dir without a folder are
in the folder of the report.
"""

import itertools
import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtime import cli
from runtime.scheduler import Job, Scheduler

from errors import InputError
from reporting import paper
from setting import setting
from text_data.named_data import prepare_command
from training import plugins, settings

# Flags of train_gpt.py that the experiment sets.
SET_HERE = {"pe", "seed", "data", "config", "out_dir", "init_from", "plugin"}
SET_HERE |= {"dry_run", "list", "block_size"}
# Flags of train_gpt.py that change no result: outputs stay in the same folder.
NEUTRAL = {"logger", "log_every", "checkpoint_every", "keep_checkpoints", "device"}
# Learning rates that were best at small scale, where the config's was not.
SMALL_RATES = {"alibi": 8e-3, "kerple": 8e-3, "rope": 8e-3, "t5": 1.6e-2, "t5-clip": 1.6e-2}
VARIABLES = "EXPERIMENT_VARIABLES"  # file for activate.sh: split, data, runs
SCALES = {"full": 1, "small": 4, "smoke": 32}  # what lengths are divided by
# Of each scale and setting: a command, to which the lengths are appended.
EVALUATIONS = {
    "full": {
        "perplexity": "eval_extrapolation.py --max_tokens 100000000 --lengths",
        "same_targets": "eval_extrapolation.py --protocol same-targets --targets 1 "
        "--windows 1000 --lengths",
        "recall": "eval_recall.py --trials 250 --distances",
        "receptive_field": "eval_receptive_field.py --windows 100 --lengths",
    },
    "small": {
        "perplexity": "eval_extrapolation.py --max_tokens 131072 --lengths",
        "same_targets": "eval_extrapolation.py --protocol same-targets --targets 64 "
        "--windows 250 --lengths",
        "recall": "eval_recall.py --trials 100 --distances",
        "receptive_field": "eval_receptive_field.py --windows 100 --lengths",
    },
    "smoke": {
        "perplexity": "eval_extrapolation.py --max_tokens 1024 --lengths",
        "same_targets": "eval_extrapolation.py --protocol same-targets --targets 8 "
        "--windows 4 --lengths",
        "recall": "eval_recall.py --passage 8 --trials 4 --distances",
        "receptive_field": "eval_receptive_field.py --windows 4 --lengths",
    },
}
# Programs with an output that find out what is left to do, those that torchrun can start, and those
# that take --plugin.
RESUMES = "train_gpt|prepare_|-m retrieval.finetune"
ON_ALL_RANKS = "train_gpt|eval_"
TAKES_PLUGIN = r"(train_gpt|eval_|export_hf|sample|bench)|plot.py biases|-m retrieval.[ef]"


@dataclass
class Config:
    """Settings of an experiment. Smaller scales divide the paper's lengths."""

    name: str = "experiment"
    """folder of the report"""
    scale: Literal["full", "small", "smoke"] = "full"
    """full: the paper's networks, data and lengths; small: 0.8M parameters, bytes, lengths / 4,
    hours on a CPU, each encoding at its best learning rate; smoke: six steps on the standard
    library, lengths / 32, a functional test"""
    data: str = "fineweb-edu"
    """fineweb-edu, fineweb, wikitext103 or stdlib (prepared below data/), or a folder of shards"""
    train: list[str] = field(default_factory=list)
    """files in configs/"""
    block_size: list[int] = field(default_factory=list)
    """training lengths; default: the configs'"""
    encodings: list[str] = field(default_factory=lambda: ["cable"])
    """positional encodings"""
    seeds: list[int] = field(default_factory=lambda: [1])
    """seeds of the trainings"""
    plugin: dict[str, str] | None = settings.plugin_setting()
    """Python file with encodings of your own; may be repeated"""
    train_flags: str = ""
    """flags of train_gpt.py"""
    sweep: str | None = None
    """a setting of train_gpt.py and its values, as in lr=3e-4,6e-4; report: NAME-SETTING"""
    pretrained: str | None = None
    """words of import_pretrained.py, for a model that is not trained"""
    perplexity: str | None = None
    """context lengths of eval_extrapolation.py"""
    cache_window: int | None = setting(None, 1)
    """tokens of a KV cache in these evaluations; null: all"""
    same_targets: str | None = None
    """context lengths of eval_extrapolation.py --protocol same-targets"""
    recall: str | None = None
    """distances of eval_recall.py"""
    receptive_field: str | None = None
    """context lengths of eval_receptive_field.py"""
    hellaswag: str | None = None
    """hub, or a local file of HellaSwag"""
    evaluate_on: list[str] = field(default_factory=list)
    """data sets of the evaluations, if they are not the training's"""
    eval_tokens: int | None = setting(None, 1)
    """most tokens of perplexity at each length, but one window; null: those of the scale"""
    commands: list[str] = field(default_factory=list)
    """further commands; - reads them from standard input, one per line"""
    paper: str | None = None
    """table in results/paper/index.csv"""
    may_differ: list[str] = field(default_factory=list)
    """settings that are the subject of the comparison"""
    runs: str = "runs"
    """folder for all outputs"""
    fixed: bool = False
    """train the configs as they are, one per device, in RUNS/NAME"""
    jobs: int | None = setting(None, 1)
    """jobs side by side; null: one on GPUs, else one per core"""
    dry_run: bool = False
    """print the commands, their cost and the disk space; run nothing"""
    flags: list[str] = setting([], positional=True)
    """flags of train_gpt.py, after --"""

    def __post_init__(self):
        if not (self.train or self.pretrained or self.commands):
            raise InputError("nothing to run: pass --train, --pretrained or --commands")
        if self.fixed and (self.block_size or self.train_flags):
            what = "--fixed trains the configs as they are"
            raise InputError(f"{what}: remove --block_size and --train_flags")
        if self.paper:
            paper.load(self.paper)  # raises InputError


def main(argv: list[str] | None = None) -> None:
    config = cli.parse(Config, argv, __doc__)
    experiment = Experiment(config)
    jobs, report, out = [*experiment.jobs.values()], experiment.report, experiment.out
    scheduler, status = Scheduler(jobs, report, out / "logs", config.jobs), 0
    if config.dry_run:
        from benchmarking import cost

        *costs, total = cost.describe_costs([job.words for job in jobs])
        for job, text in zip(jobs, costs, strict=True):
            print(f"+ {shlex.join(job.command(scheduler.ranks))}\n  {text}")
        print("+ python", shlex.join(report), out / "...")
        print(total)
    else:
        status = scheduler.run()
    models = [x.output for x in experiment.models if config.dry_run or x.state == "done"]
    if experiment.models and (path := os.environ.get(VARIABLES)):
        lines = [experiment.split, experiment.data, *models, ""]
        Path(path).write_text("\n".join(lines))
    if status:
        sys.exit(status)


def folder_name(words: list[str]) -> str:
    """Return flags as a part of a folder's name, as in -steps5000; "": none."""
    given = [[f"-{name}", *x] for name, x in cli.split_flags(words) if name not in NEUTRAL]
    return "".join(itertools.chain(*given)).replace("/", "_")


def split(line: str) -> list[str]:
    """Return the words of a line, as a shell does."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise InputError(f"'{line}' is no command ({error}): close its quotes") from None


class Experiment:
    """The jobs of an experiment by command, in the order in which they start."""

    def __init__(self, config: Config):
        self.config = config
        suffix = folder_name(config.flags).removeprefix("-")
        self.root = Path(config.runs) / suffix / ("" if config.fixed else config.scale)
        setting, equals, values = (config.sweep or "").partition("=")
        self.train_flags = split(config.train_flags)
        for name, _ in cli.split_flags([*config.flags, *self.train_flags, f"--{setting}"]):
            if name in SET_HERE and not (name == "block_size" and config.fixed):
                remedy = "use --encodings, --seeds, --data, --block_size, --runs or --dry_run"
                raise InputError(f"--{name} belongs to the experiment: {remedy}, before --")
        self.out = self.root / f"{config.name}{equals and '-'}{setting}"
        self.report = ["report.py", "--out_dir", str(self.out)]
        self.report += ["--paper", config.paper] if config.paper else []
        # Settings that are tuned, or that the experiment compares.
        differing = [*config.may_differ, setting]
        differing += ["lr"] if "small" in (config.scale, *config.train) else []
        differing += ["block_size"] if len(config.block_size) > 1 else []
        if text := ",".join(filter(None, differing)):
            self.report += ["--may_differ", text]
        self.jobs: dict[str, Job] = {}
        self.models: list[Job] = []  # those that make models
        if config.train or config.pretrained:
            self.data, self.split = self.prepare(config.data)
        if config.pretrained:
            words = ["import_pretrained.py", *split(config.pretrained)]
            self.add_model(words, self.out / "weights")
        swept = [[f"--{setting}", x] if setting else [] for x in values.split(",")]
        for training in itertools.product(
            config.train, config.seeds, config.block_size or [0], config.encodings, swept
        ):
            self.add_training(*training)
        lines = config.commands
        for words in map(split, sys.stdin if lines == ["-"] else lines):
            if words:
                self.add(words)

    def add(self, words: list[str]) -> Job:
        """Add a job, unless there is one with this command; return it.

        It needs the earlier jobs that write what it names.
        """
        values = dict(itertools.pairwise(words))
        output = values.get("--out_dir") or values.get("--out", "")
        if output and "/" not in output:
            words = [str(self.out / word) if word == output else word for word in words]
            output = str(self.out / output)
        if re.match(TAKES_PLUGIN, " ".join(words)):
            for plugin in plugins.LOADED.values():
                words = [*words, "--plugin", str(plugin.path)]
        command = shlex.join(words)
        needs = []
        for job in self.jobs.values():
            if job.output and any(f"{x}/".startswith(f"{job.output}/") for x in words):
                needs.append(job)
        job = Job(
            words,
            needs,
            output,
            resumes=bool(re.match(RESUMES, command)),
            # The trainings of fixed configs are small: one on each device.
            on_all_ranks=not self.config.fixed and bool(re.match(ON_ALL_RANKS, command)),
            prints=words[0] == "sample.py",
        )
        return self.jobs.setdefault(command, job)

    def prepare(self, name: str, tokens: int = 0) -> tuple[str, str]:
        """Add the job that makes a data set, if any; return its folder and split.

        tokens: that a training reads.
        """
        folder, split, words = prepare_command(name, self.config.scale, tokens)
        if words:
            self.add(words)
        return folder, split

    def add_training(
        self, name: str, seed: int, block_size: int, pe: str, swept: list[str]
    ) -> None:
        """Add a training and its evaluations. swept: flags of --sweep."""
        config, parent = self.config, self.out
        is_full = config.scale == "full"
        stem = name if config.fixed or is_full else config.scale
        flags = ["--config", f"configs/{stem}.yaml", "--data", self.data]
        if not config.fixed:
            recipe = cli.parse(settings.Config, flags[:2], None)
            length = block_size // SCALES[config.scale] or recipe.block_size
            micro_batch = recipe.micro_batch * recipe.block_size // length
            flags += ["--block_size", str(length), "--micro_batch", str(micro_batch)]
            trained = name if is_full else Path(self.data).name
            parent = self.root / f"{trained}-{length}{folder_name(self.train_flags)}"
        flags += self.train_flags
        if stem == "small" and pe in SMALL_RATES:
            flags += ["--lr", f"{SMALL_RATES[pe]:g}"]
        flags += [*swept, "--pe", pe, "--seed", str(seed), "--resume", *config.flags]
        out = parent / f"{pe}{folder_name(swept)}{f'-seed{seed}' if seed != 1 else ''}"
        trained = cli.parse(settings.Config, flags, None)
        self.prepare(config.data, trained.steps * trained.tokens_per_step)
        self.add_model(["train_gpt.py", *flags], out, trained)

    def add_model(
        self, words: list[str], run: Path, trained: settings.Config | None = None
    ) -> None:
        """Add a job that makes a model, and its evaluations."""
        config = self.config
        self.models.append(self.add([*words, "--out_dir", str(run)]))
        length = trained.block_size if trained else 1
        is_rope = trained and trained.pe == "rope" and trained.causal
        for text in config.evaluate_on or [config.data]:
            folder, split = self.prepare(text)
            for measure, command in EVALUATIONS[config.scale].items():
                if not (lengths := getattr(config, measure)):
                    continue
                lengths = self.at_scale(lengths)
                longest = cli.parse_lengths(lengths, length)[-1]
                program, *flags = command.split()
                words = [program, str(run), "--data", folder, "--split", split]
                words += [*flags, lengths]
                if measure == "perplexity" and config.eval_tokens:
                    words += ["--max_tokens", str(config.eval_tokens)]
                window = config.cache_window if "extrapolation" in program else None
                self.add([*words, "--cache_window", str(window)] if window else words)
                # The baseline of extrapolation: RoPE with a cache.
                if is_rope and measure == "perplexity" and not window and length < longest:
                    self.add([*words, "--cache_window", str(length)])
        if config.hellaswag:
            source = config.hellaswag
            flags = [] if source == "hub" else ["--source", source]
            self.add(["eval_hellaswag.py", str(run), *flags])

    def at_scale(self, lengths: str) -> str:
        """Return lengths, as in 512,1024,2x, at this scale; multiples stay."""
        divisor = SCALES[self.config.scale]
        return re.sub(r"\b[1-9][0-9]*\b", lambda n: str(max(1, int(n[0]) // divisor)), lengths)


if __name__ == "__main__":
    cli.run(main)
