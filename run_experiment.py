"""Run an experiment on all devices of a machine, from data to tables and plots.

    python run_experiment.py --name table2 --data fineweb-edu \\
        --train fineweb-edu_small --block_size 512 --encodings cable kerple \\
        --perplexity 512,1024,2048
    bash scripts/table1_fineweb.sh --scale small --seeds 1 2 3 -- --attn_scale 1

A script in scripts/ calls this program once per stage. Flags after its
name replace the script's; flags after `--` go to train_gpt.py. Outputs
are in RUNS/SCALE. The same command again continues. The report is
written whenever a run has been evaluated.

--commands with {run} or {pe} are repeated for every run or encoding,
others follow at the end:

    {run} {name} {layer}      run folder, its name, each of its layers
    {runs} {first}            all run folders, the first
    {pe} {pes} {encodings}    encoding, all encodings, the same joined by commas
    {data} {out} {root}       folders of the shards, the report, all outputs
    {scaled:512,1024}         lengths at this scale
    {shift:6} {window:80}     exponent of ALiBi's slopes, window at this scale
    {plugins}                 --plugin flags
    {full:TEXT} {reduced:TEXT} {small:TEXT} {smoke:TEXT}
                              TEXT at this scale, else nothing
"""

import fnmatch
import itertools
import math
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from runtime import cli, plugins
from runtime.scheduler import Job, Scheduler, is_finished

from errors import InputError
from reporting import paper
from text_data.named_data import prepare_command
from training import settings

# Flags of train_gpt.py that the experiment sets.
SET_HERE = {"pe", "seed", "data", "config", "out_dir", "init_from", "plugin"}
SET_HERE |= {"dry_run", "list"}
# Flags of train_gpt.py that change no result: outputs stay in the same
# folder.
NEUTRAL = {"logger", "log_every", "checkpoint_every", "keep_checkpoints", "device"}
# Learning rates that were best at small scale, where the config's was
# not.
SMALL_RATES = {"alibi": 8e-3, "kerple": 8e-3, "rope": 8e-3, "t5": 1.6e-2, "t5-clip": 1.6e-2}
OTHER_TEXTS = ("openwebtext2", "github")  # of the Sandwich paper, next to arxiv
HELLASWAG = "scripts/hellaswag_smoke.jsonl"
# Lengths of an evaluation, and its flags.
LENGTHS = r"((?:(?! --).)+)((?: --(?:cache_window|trials|windows) [0-9]+)*)"
EVALUATIONS = {  # setting: program, and the flag of its lengths
    "perplexity": ("eval_extrapolation.py", "--lengths"),
    "same_targets": ("eval_extrapolation.py", "--lengths"),
    "recall": ("eval_recall.py", "--distances"),
    "receptive_field": ("eval_receptive_field.py", "--lengths"),
}


@dataclass(frozen=True)
class Scale:
    """What lengths are divided by, and how much text an evaluation uses."""

    divisor: int
    eval_tokens: int
    same_targets: str  # flags of these evaluations
    recall: str
    receptive_field: str


TARGETS = "--protocol same-targets --targets {} --windows {}"
SMOKE_RECALL = "--passage 8 --trials 4"
SCALES = {
    "full": Scale(1, 10**8, TARGETS.format(1, 1000), "--trials 250", "--windows 100"),
    "small": Scale(4, 2**17, TARGETS.format(64, 250), "--trials 100", "--windows 100"),
    "smoke": Scale(32, 1024, TARGETS.format(8, 4), SMOKE_RECALL, "--windows 4"),
}


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
    paired: bool = False
    """train the n-th encoding at the n-th block_size only"""
    seeds: list[int] = field(default_factory=lambda: [1])
    """seeds of the trainings"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    train_flags: str = ""
    """flags of train_gpt.py; fields as in --commands"""
    sweep: str | None = None
    """a setting of train_gpt.py and its values, as in lr=3e-4,6e-4; report: NAME-SETTING"""
    continue_as: list[str] = field(default_factory=list)
    """every run is trained further as each of these encodings"""
    continue_flags: str = "--steps 0"
    """flags of these trainings"""
    pretrained: str | None = None
    """words of import_pretrained.py, for a model that is not trained"""
    perplexity: str | None = None
    """context lengths of eval_extrapolation.py; flags may follow, as in "512
    --cache_window 256\""""
    same_targets: str | None = None
    """the same with --protocol same-targets"""
    recall: str | None = None
    """distances of eval_recall.py, and flags"""
    receptive_field: str | None = None
    """context lengths of eval_receptive_field.py, and flags"""
    hellaswag: str | None = None
    """hub, or a local file of HellaSwag"""
    evaluate_on: list[str] = field(default_factory=list)
    """data sets of the evaluations, if they are not the training's"""
    eval_tokens: int | None = cli.limited(None, 1)
    """most tokens of perplexity at each length, but one window; null: those of
    the scale"""
    commands: list[str] = field(default_factory=list)
    """further commands, see above"""
    paper: str | None = None
    """table in results/paper/index.csv; {text}: the data"""
    runs: str = "runs"
    """folder for all outputs"""
    fixed: bool = False
    """train the configs as they are, one per device, in RUNS/NAME"""
    jobs: int | Literal["auto"] = cli.limited("auto", 1)
    """jobs side by side; auto: one on GPUs, else one per core"""
    dry_run: bool = False
    """print the commands, their cost and the disk space; run nothing"""

    def __post_init__(self):
        problems = []
        if not (self.train or self.pretrained or self.commands):
            problems.append("nothing to run: pass --train, --pretrained or --commands")
        if self.fixed and self.block_size:
            problems.append("--fixed has the configs' block_size: remove --block_size")
        for pe in self.encodings:
            if "," in pe and ":" not in pe:
                problems.append(f"encodings {pe}: separate them by spaces")
        if self.paired and not self.block_size:
            problems.append("--paired needs --block_size: pass one for each encoding")
        if problems:
            raise InputError(*problems)


def main(argv: list[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    end = words.index("--") if "--" in words else len(words)
    own = {*Config.__dataclass_fields__, "pe", "seed"}
    for name in settings.Config.__dataclass_fields__.keys() - own:
        if f"--{name}" in words[:end]:
            raise InputError(f"--{name} is a flag of train_gpt.py: pass it last, after --")
    config, flags = cli.parse(Config, words[:end], __doc__), words[end + 1 :]
    for name, _ in cli.split_flags(flags):
        if name in SET_HERE or name == "block_size" and not config.fixed:
            remedy = "use --encodings, --seeds, --data, --block_size, --runs or --dry_run before --"
            raise InputError(f"--{name} after -- belongs to the experiment: {remedy}")
    experiment = Experiment(config, flags)
    side_by_side = "all" if config.fixed and config.jobs == "auto" else config.jobs
    scheduler = Scheduler(experiment.jobs, experiment.out / "logs", side_by_side)
    if not config.dry_run:
        sys.exit(scheduler.run())
    for job in experiment.jobs:
        print(f"+ {scheduler.command(job)}", *experiment.expected_records(job))
    from benchmarking import cost

    print(cost.describe_costs(experiment.jobs))


def folder_name(flags: list[str]) -> str:
    """Return flags as a part of a folder's name, as in -steps5000; "": none."""
    return "".join(flags).replace("--", "-").replace("/", "_")


class Data(NamedTuple):
    """A data set, and the job that prepares it if it is needed."""

    folder: str
    split: str
    needs: list[Job]


class Text:
    """A field of a command; a function of the text after its colon."""

    def __init__(self, function):
        self.function = function

    def __format__(self, text):
        return self.function(text)


class Experiment:
    """The jobs of an experiment, in the order in which they start."""

    def __init__(self, config: Config, flags: list[str]):
        self.config, self.flags = config, flags
        self.scale = SCALES[config.scale]
        paths = [str(plugin.path) for plugin in plugins.LOADED.values()]
        self.plugins = [word for path in paths for word in ("--plugin", path)]
        given = [(name, x) for name, x in cli.split_flags(flags) if name not in NEUTRAL]
        suffix = "-".join("".join([name, *x]) for name, x in given).replace("/", "_")
        self.root = Path(config.runs) / suffix / ("" if config.fixed else config.scale)
        setting, _, values = (config.sweep or "").partition("=")
        self.swept = [[f"--{setting}", value] for value in values.split(",") if value]
        if config.sweep and not self.swept:
            raise InputError(f"--sweep {config.sweep} has no values: use SETTING=X,Y")
        self.out = self.root / f"{config.name}{'-' if setting else ''}{setting}"
        self.encodings: list[str] = []  # a field of self.format
        self.encodings = [*filter(None, map(self.format, config.encodings))]
        self.jobs: list[Job] = []
        self.runs: list[Job] = []  # jobs that train or import a model
        self.report = self.make_report()
        for name in config.train or [""]:
            self.add_config(name)
        if any(job.reports for job in self.jobs):
            self.jobs.append(self.report)

    def add_config(self, name: str) -> None:
        """Add the jobs of a config, or those without a training ("")."""
        config = self.config
        data = self.prepare(config.data) if name or config.pretrained else Data("", "", [])
        first, commands = len(self.runs), [*config.commands]
        if any("{run}" in command for command in commands):
            while "{run}" not in commands[0]:  # what the commands of a run need
                needs = self.add_command(commands.pop(0), data.needs, data, [])
                data = data._replace(needs=needs)
        if config.pretrained:
            words = ["import_pretrained.py", *shlex.split(config.pretrained)]
            self.add_run(words, data.needs, self.out / "weights", data)
        combine = zip if config.paired else itertools.product
        for seed in config.seeds if name else []:
            for block_size, pe in combine(config.block_size or [0], self.encodings):
                self.train(name, data, block_size, pe, seed)
        runs, before = self.runs[first:], [*self.jobs]
        for command in [each for each in commands if "{run}" not in each]:
            for pe in self.encodings if "{pe}" in command else [""]:
                before = [*before, *self.add_command(command, before, data, runs, pe=pe)]

    def make_report(self) -> Job:
        """Return the job that writes the report."""
        words = ["report.py", "--out_dir", str(self.out)]
        text = Path(self.config.data).name
        text = text if text in OTHER_TEXTS else "arxiv"
        if pattern := self.format(self.config.paper or "", text=text):
            found = fnmatch.filter(paper.index(), pattern)
            if not found:
                raise InputError(f"--paper {pattern} is not in results/paper: use another")
            words += ["--paper", found[0]]
        # Settings that are tuned, or that the experiment compares.
        differing = ["lr"] if "small" in (self.config.scale, *self.config.train) else []
        differing += ["block_size"] if len(self.config.block_size) > 1 else []
        if self.config.continue_as:
            flags = cli.split_flags(shlex.split(self.format(self.config.continue_flags)))
            differing += ["step", "steps", *(name for name, _ in flags)]
        differing += [flag[2:] for flag, _ in self.swept[:1]]
        words += ["--may_differ", ",".join(dict.fromkeys(differing))] if differing else []
        return Job(f"report {self.out.name}", words)

    def add(self, name: str, words: list[str], needs: list[Job], **fields) -> Job:
        """Add a job, or return the one with this command."""
        for known in self.jobs:
            if known.words == words:
                return known
        job = Job(name, words, needs, **fields)
        if is_finished(words):
            job.state, job.finished_before = "done", 1.0
        self.jobs.append(job)
        return job

    def prepare(self, name: str) -> Data:
        """Return a data set and the job that makes it, unless it exists."""
        folder, split, words = prepare_command(name, self.config.scale)
        name = f"prepare {Path(folder).name}"
        return Data(folder, split, [self.add(name, words, [])] if words else [])

    def train(self, name: str, data: Data, block_size: int, pe: str, seed: int) -> None:
        """Add the trainings of one encoding and seed, and what follows each."""
        config = self.config
        stem = name if config.scale == "full" or config.fixed else config.scale
        flags, own = ["--config", f"configs/{stem}.yaml", "--data", data.folder], []
        parent, last = self.out, ["--resume", *self.flags, *self.plugins]
        if not config.fixed:
            recipe = cli.parse(settings.Config, flags[:2], None)
            length = block_size // self.scale.divisor or recipe.block_size
            tokens = recipe.micro_batch * recipe.block_size
            flags += ["--block_size", str(length), "--micro_batch", str(tokens // length)]
            own += shlex.split(self.format(config.train_flags))
            trained = name if config.scale == "full" else Path(data.folder).name
            parent = self.root / f"{trained}-{length}{folder_name(own)}"
        if stem == "small" and pe in SMALL_RATES:
            own += ["--lr", f"{SMALL_RATES[pe]:g}"]
        for swept in self.swept or [[]]:
            out = parent / f"{pe}{folder_name(swept)}{f'-seed{seed}' if seed != 1 else ''}"
            words = ["train_gpt.py", *flags, *own, *swept, "--pe", pe, "--seed", str(seed)]
            job = self.add_run([*words, *last], data.needs, out, data)
            for other in map(self.format, config.continue_as):
                further = shlex.split(self.format(config.continue_flags))
                words = ["train_gpt.py", "--config", f"{out}/config.yaml"]
                words += ["--init_from", str(out), "--pe", other, *further, *last]
                run = out.with_name(f"{out.name}-{other}{folder_name(further)}")
                self.add_run(words, [job], run, data)

    def add_run(self, words: list[str], needs: list[Job], run: Path, data: Data) -> Job:
        """Add a job that makes a model, and its evaluations."""
        words, name = [*words, "--out_dir", str(run)], f"train {run.parent.name}/{run.name}"
        job = self.add(name, words, needs, run=run)
        if job not in self.runs:
            self.runs.append(job)
        config = self.config
        for text in [self.prepare(name) for name in config.evaluate_on] or [data]:
            for setting, (program, flag) in EVALUATIONS.items():
                if not (value := getattr(config, setting)):
                    continue
                match = re.fullmatch(LENGTHS, self.format(value))
                if not match:
                    remedy = "use lengths, then --cache_window N, --trials N or --windows N"
                    raise InputError(f"{setting} '{value}' is invalid: {remedy}")
                lengths = self.at_scale(match[1])
                words = [program, str(run), "--data", text.folder, "--split", text.split]
                words += [flag, lengths]
                if setting == "perplexity":
                    tokens = config.eval_tokens or self.scale.eval_tokens
                    tokens = max(tokens, *cli.parse_lengths(lengths, 1))
                    words += ["--max_tokens", str(tokens)]
                else:
                    words += getattr(self.scale, setting).split()
                self.evaluate([*words, *match[2].split()], [job, *text.needs])
        if config.hellaswag:
            source = HELLASWAG if config.scale == "smoke" else config.hellaswag
            flags = [] if source == "hub" else ["--source", source]
            self.evaluate(["eval_hellaswag.py", str(run), *flags], [job])
        last = [job]
        for command in [each for each in config.commands if "{run}" in each]:
            layers = 1
            if "{layer}" in command:
                layers = self.settings_of(job).gpt_config(1).n_layer
            for layer in range(layers):
                last = self.add_command(command, last, data, [job], layer=layer)
        return job

    def evaluate(self, words: list[str], needs: list[Job]) -> None:
        name = f"{Path(words[0]).stem} {needs[0].name.removeprefix('train ')}"
        self.add(name, [*words, *self.plugins], needs, reports=[self.report])

    def at_scale(self, lengths: str) -> str:
        """Return lengths, as in 512,1024,2x, at this scale; multiples stay."""
        cli.parse_lengths(lengths, 1)  # raises InputError for anything else
        divisor, text = self.scale.divisor, lengths.replace(" ", "")
        return re.sub(r"\b[0-9]+\b", lambda n: str(max(1, int(n[0]) // divisor)), text)

    def format(self, command: str, **fields) -> str:
        """Return a command with its fields replaced (see the top)."""
        scale, divisor = self.config.scale, self.scale.divisor
        widening = 3 if divisor > 1 else 1
        for name in SCALES:
            fields[name] = Text(lambda text, on=scale == name: text if on else "")
        fields |= {
            "reduced": Text(lambda text: "" if scale == "full" else text),
            "scaled": Text(self.at_scale),
            "plugins": shlex.join(self.plugins),
            "shift": Text(lambda text: str(int(text) - int(math.log2(divisor)))),
            "window": Text(lambda text: str(int(text) * widening // divisor)),
            "pes": shlex.join(self.encodings),
            "encodings": ",".join(self.encodings),
            "root": self.root,
        }
        try:
            return command.format(**fields)
        except InputError:
            raise
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            problem = f"'{command}' has a wrong field ({error}): see --help"
            raise InputError(problem) from None

    def add_command(self, command, needs, data: Data, runs: list[Job], **more) -> list[Job]:
        """Add one of --commands, and return what the run's next one needs."""
        folders = [str(job.run) for job in runs]
        first = folders[0] if folders else ""
        more |= {"run": first, "first": first, "name": Path(first).name}
        more |= {"data": data.folder, "out": self.out}
        more["runs"] = Text(lambda suffix: " ".join(each + suffix for each in folders))
        words = shlex.split(self.format(command, **more))
        if not words:
            return needs
        name, is_last = " ".join(words[:3]), "{run}" not in command
        measures = re.match("bench.py|plot.py losses|eval_|-m retrieval.evaluate", name)
        reports = [self.report] if measures else []
        return [self.add(name, words, needs, reports=reports, is_last=is_last)]

    def expected_records(self, report: Job) -> list[str]:
        """Return patterns of the records of a report, for a dry run."""
        records = []  # paths and texts
        for words in [job.words for job in self.jobs if report in job.reports]:
            path, run = Path(words[-1]), words[2 if words[0] == "-m" else 1]
            is_file = path.suffix in (".json", ".png")
            records.append(path.with_suffix(".json") if is_file else f"{run}/eval_*.json")
        return [*dict.fromkeys(map(str, records))]

    def settings_of(self, job: Job) -> settings.Config:
        return cli.parse(settings.Config, self.training_flags(job), None)

    def training_flags(self, job: Job) -> list[str]:
        """Return the flags of a training, after those that it inherits."""
        flags = job.words[1:]
        for other in self.runs:
            if flags[:2] == ["--config", f"{other.run}/config.yaml"]:
                flags = [*self.training_flags(other), *flags[2:]]
        return flags


if __name__ == "__main__":
    cli.run(main)
