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

from runtime import cli, plugins
from runtime.scheduler import Job, Scheduler

from errors import InputError
from reporting import paper
from setting import setting
from text_data.named_data import prepare_command
from training import settings

# Flags of train_gpt.py that the experiment sets.
SET_HERE = {"pe", "seed", "data", "config", "out_dir", "init_from", "plugin"}
SET_HERE |= {"dry_run", "list", "block_size"}
# Flags of train_gpt.py that change no result: outputs stay in the same
# folder.
NEUTRAL = {"logger", "log_every", "checkpoint_every", "keep_checkpoints", "device"}
# Learning rates that were best at small scale, where the config's was
# not.
SMALL_RATES = {"alibi": 8e-3, "kerple": 8e-3, "rope": 8e-3, "t5": 1.6e-2, "t5-clip": 1.6e-2}
VARIABLES = "EXPERIMENT_VARIABLES"  # file for activate.sh: split, data, runs
SCALES = {"full": 1, "small": 4, "smoke": 32}  # what lengths are divided by
TARGETS = "eval_extrapolation.py --protocol same-targets --targets"
# Of each setting: the commands at each scale, to which the lengths are
# appended.
EVALUATIONS = {
    "perplexity": ["eval_extrapolation.py --lengths"] * 3,
    "same_targets": [
        f"{TARGETS} {flags} --lengths"
        for flags in ("1 --windows 1000", "64 --windows 250", "8 --windows 4")
    ],
    "recall": [
        f"eval_recall.py {flags} --distances"
        for flags in ("--trials 250", "--trials 100", "--passage 8 --trials 4")
    ],
    "receptive_field": [
        f"eval_receptive_field.py --windows {windows} --lengths"
        for windows in (100, 100, 4)
    ],
}
TOKENS = (10**8, 2**17, 1024)  # of perplexity, at each scale
# Programs that find out what is left to do, and that take --plugin.
RESUMES = r"(train_gpt|eval_|prepare_)|-m retrieval.(finetune|evaluate) "
TAKES_PLUGIN = r"(train_gpt|eval_|export_hf|sample|bench)|plot.py biases|-m retrieval.[ef]"


@dataclass
class Config:
    """Settings of an experiment. Smaller scales divide the paper's lengths."""

    name: str = "experiment"
    """folder of the report"""
    scale: Literal["full", "small", "smoke"] = "full"
    """full: the paper's networks, data and lengths; small: 0.8M parameters,
    bytes, lengths / 4, hours on a CPU; smoke: six steps on the standard
    library, lengths / 32, a functional test"""
    data: str = "fineweb-edu"
    """fineweb-edu, fineweb, wikitext103 or stdlib (prepared below data/), or a
    folder of shards"""
    train: list[str] = field(default_factory=list)
    """files in configs/"""
    block_size: list[int] = field(default_factory=list)
    """training lengths; default: the configs'"""
    encodings: list[str] = field(default_factory=lambda: ["cable"])
    """positional encodings"""
    seeds: list[int] = field(default_factory=lambda: [1])
    """seeds of the trainings"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
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
    """most tokens of perplexity at each length, but one window; null: those of
    the scale"""
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
    jobs: int | Literal["auto"] = setting("auto", 1)
    """jobs side by side; auto: one on GPUs, else one per core"""
    dry_run: bool = False
    """print the commands, their cost and the disk space; run nothing"""

    def __post_init__(self):
        problems = []
        if not (self.train or self.pretrained or self.commands):
            problems.append("nothing to run: pass --train, --pretrained or --commands")
        for name in ("block_size", "train_flags"):
            if self.fixed and getattr(self, name):
                problems.append(f"--fixed has the configs' {name}: remove --{name}")
        for pe in self.encodings:
            if "," in pe and ":" not in pe:
                problems.append(f"encodings {pe}: separate them by spaces")
        if self.paper and self.paper not in paper.index():
            problems.append(f"--paper {self.paper} is not in results/paper: use another")
        if self.sweep and not all(self.sweep.partition("=")[2].split(",")):
            problems.append(f"--sweep {self.sweep} has no values: use SETTING=X,Y")
        if problems:
            raise InputError(*problems)


def main(argv: list[str] | None = None) -> None:
    words = [*(sys.argv[1:] if argv is None else argv), "--"]
    end = words.index("--")
    config, flags = cli.parse(Config, words[:end], __doc__), words[end + 1 : -1]
    experiment = Experiment(config, flags)
    jobs, report, logs = experiment.jobs, experiment.report, experiment.out / "logs"
    side_by_side = "all" if config.fixed and config.jobs == "auto" else config.jobs
    scheduler, status = Scheduler(jobs, report, logs, side_by_side), 0
    if config.dry_run:
        from benchmarking import cost

        *costs, total = cost.describe_costs([job.words for job in jobs])
        for job, text in zip(jobs, costs, strict=True):
            print(f"+ {shlex.join(job.command(scheduler.ranks))}\n  {text}")
        print("+ python", shlex.join(report), experiment.out / "...")
        print(total)
    else:
        status = scheduler.run()
    experiment.write_variables()
    if status:
        sys.exit(status)


def folder_name(words: list[str]) -> str:
    """Return flags as a part of a folder's name, as in -steps5000; "": none."""
    given = [(name, x) for name, x in cli.split_flags(words) if name not in NEUTRAL]
    return "".join("".join([f"-{name}", *x]) for name, x in given).replace("/", "_")


def split(line: str) -> list[str]:
    """Return the words of a line, as a shell does."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise InputError(f"'{line}' is no command ({error}): close its quotes") from None


def output_of(words: list[str]) -> str:
    """Return the file or folder that a command writes, or ""."""
    values = dict(itertools.pairwise(words))
    return values.get("--out_dir") or values.get("--out", "")


class Experiment:
    """The jobs of an experiment, in the order in which they start."""

    def __init__(self, config: Config, flags: list[str]):
        self.config, self.flags = config, flags
        self.scale = [*SCALES].index(config.scale)
        suffix = folder_name(flags).removeprefix("-")
        self.root = Path(config.runs) / suffix / ("" if config.fixed else config.scale)
        setting, equals, values = (config.sweep or "").partition("=")
        own = split(config.train_flags)
        for name, _ in cli.split_flags([*flags, *own, f"--{setting}"]):
            if name in SET_HERE and not (name == "block_size" and config.fixed):
                remedy = (
                    "use --encodings, --seeds, --data, --block_size, --runs or --dry_run"
                )
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
        self.jobs: list[Job] = []
        self.models: list[Job] = []  # those that make models
        if config.train or config.pretrained:
            self.data, self.split, _ = self.prepare(config.data)
        if config.pretrained:
            words = ["import_pretrained.py", *split(config.pretrained)]
            self.add_run(words, self.out / "weights")
        lengths = config.block_size or [0]
        swept = [[f"--{setting}", x] if equals else [] for x in values.split(",")]
        for training in itertools.product(
            config.train, config.seeds, lengths, config.encodings, swept
        ):
            self.train(*training)
        lines = config.commands
        for words in map(split, sys.stdin if lines == ["-"] else lines):
            if words:
                self.add_command(words)

    def add(self, words: list[str], needs: list[Job]) -> Job:
        """Add a job, or return the one with this command."""
        command, output = " ".join(words), output_of(words)
        if re.match(TAKES_PLUGIN, command):
            for plugin in plugins.LOADED.values():
                words = [*words, "--plugin", str(plugin.path)]
        for known in self.jobs:
            if known.words == words:
                return known
        count = 2 if words[0] == "-m" else 1
        subject = Path(output or [*words, ""][count])
        name = " ".join([*words[:count], "/".join(subject.parts[-2:])])
        job = Job(name, words, needs, output, prints=words[0] == "sample.py")
        job.resumes = bool(re.match(RESUMES, command))
        job.on_all_ranks = bool(re.match("train_gpt|eval_", command))
        self.jobs.append(job)
        return job

    def prepare(self, name: str, tokens: int = 0) -> tuple[str, str, list[Job]]:
        """Return a data set's folder, its split, and the job that makes it, if any.

        tokens: that a training reads.
        """
        folder, split, words = prepare_command(name, self.config.scale, tokens)
        return folder, split, [self.add(words, [])] if words else []

    def train(
        self, name: str, seed: int, block_size: int, pe: str, swept: list[str]
    ) -> None:
        """Add a training and its evaluations. swept: flags of --sweep."""
        config, parent = self.config, self.out
        stem = name if config.fixed or not self.scale else config.scale
        flags = ["--config", f"configs/{stem}.yaml", "--data", self.data]
        own = split(config.train_flags)
        if not config.fixed:
            recipe = cli.parse(settings.Config, flags[:2], None)
            length = int(self.at_scale(str(block_size))) or recipe.block_size
            micro_batch = recipe.micro_batch * recipe.block_size // length
            flags += ["--block_size", str(length), "--micro_batch", str(micro_batch)]
            trained = Path(self.data).name if self.scale else name
            parent = self.root / f"{trained}-{length}{folder_name(own)}"
        if stem == "small" and pe in SMALL_RATES:
            own += ["--lr", f"{SMALL_RATES[pe]:g}"]
        out = parent / f"{pe}{folder_name(swept)}{f'-seed{seed}' if seed != 1 else ''}"
        words = ["train_gpt.py", *flags, *own, *swept, "--pe", pe, "--seed", str(seed)]
        words += ["--resume", *self.flags]
        self.add_run(words, out, cli.parse(settings.Config, words[1:], None))

    def add_run(
        self, words: list[str], run: Path, trained: settings.Config | None = None
    ) -> None:
        """Add a job that makes a model, and its evaluations."""
        config = self.config
        tokens = trained.steps * trained.tokens_per_step if trained else 0
        *_, needs = self.prepare(config.data, tokens)
        job = self.add([*words, "--out_dir", str(run)], needs)
        self.models.append(job)
        for text in config.evaluate_on or [config.data]:
            folder, split, needs = self.prepare(text)
            for name, programs in EVALUATIONS.items():
                if not (lengths := getattr(config, name)):
                    continue
                lengths = self.at_scale(lengths)
                length = trained.block_size if trained else 1
                longest = cli.parse_lengths(lengths, length)[-1]
                program, *flags = programs[self.scale].split()
                words = [program, str(run), "--data", folder, "--split", split]
                words += [*flags, lengths]
                windows = [config.cache_window if program.startswith("eval_ex") else None]
                if name == "perplexity":
                    most = config.eval_tokens or TOKENS[self.scale]
                    words += ["--max_tokens", str(most)]
                    # The baseline of extrapolation: RoPE with a cache.
                    if trained and trained.pe == "rope" and trained.causal:
                        windows += [length] if length < longest else []
                for window in windows:
                    cache = ["--cache_window", str(window)] if window else []
                    self.add([*words, *cache], [job, *needs])
        if config.hellaswag:
            source = config.hellaswag
            flags = [] if source == "hub" else ["--source", source]
            self.add(["eval_hellaswag.py", str(run), *flags], [job])

    def at_scale(self, lengths: str) -> str:
        """Return lengths, as in 512,1024,2x, at this scale; multiples stay."""
        divisor = SCALES[self.config.scale]
        return re.sub(
            r"\b[1-9][0-9]*\b", lambda n: str(max(1, int(n[0]) // divisor)), lengths
        )

    def add_command(self, words: list[str]) -> None:
        """Add one of --commands, after those that write what it names."""
        output = output_of(words)
        if output and "/" not in output:
            words = [str(self.out / word) if word == output else word for word in words]
        needs = []
        for job in self.jobs:
            if job.output and any(f"{x}/".startswith(f"{job.output}/") for x in words):
                needs.append(job)
        self.add(words, needs)

    def write_variables(self) -> None:
        """Write the split, data and trained runs, for the lines of a script."""
        if (path := os.environ.get(VARIABLES)) and self.models:
            is_dry = self.config.dry_run
            done = [x.output for x in self.models if is_dry or x.state == "done"]
            Path(path).write_text("\n".join([self.split, self.data, *done, ""]))


if __name__ == "__main__":
    cli.run(main)
