"""Plugins: loading, what a run records, refusals without the flag, and exported code."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import ROOT, TINY, evaluation, log_of, unregister_plugins

import eval_extrapolation
import eval_hellaswag
import eval_recall
import eval_receptive_field
import export_hf
import pe_spec
import plot
import posenc
import sample
import train_gpt
from errors import InputError
from hf_interop import exported_code
from training import checkpoints, plugins

PLUGIN = '''
import os

import torch
from torch import nn

from posenc import Encoding

if "PLUGIN_MARKER" in os.environ:  # a side effect of executing the file
    with open(os.environ["PLUGIN_MARKER"], "a") as file:
        file.write("executed\\n")


class Slope(Encoding):
    """-r_h d"""

    names = ("my-slope",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.r = nn.Parameter(torch.ones(heads))

    def features(self, x, pos, previous=None):
        p = pos.float()[:, None]
        return (p,), (p,)

    def bias(self, q_features, k_features, h):
        return -self.r[h] * (q_features[0] - k_features[0]).abs()
'''
ENCODING = "from posenc import Encoding\nclass A(Encoding):\n    names = ('my-a',)\n"


@pytest.fixture(scope="module")
def slope(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "my-slope.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Another version of the plugin, under the same file name."""
    path = tmp_path_factory.mktemp("changed") / "my-slope.py"
    path.write_text(PLUGIN.replace("-self.r[h]", "-2 * self.r[h]"))
    return path


@pytest.fixture(scope="module")
def run(slope, data_dir, tmp_path_factory):
    """A run of `rope+my-slope`; read-only."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    with unregister_plugins():
        train_gpt.main(train_flags(data_dir, folder, "--plugin", slope))
    return folder


def train_flags(data_dir, folder, *flags):
    flags = [*TINY, "--data", data_dir, "--pe", "rope+my-slope", "--out_dir", folder, *flags]
    return [str(flag) for flag in flags]


def sha256_of(path):
    return plugins.hashlib.sha256(Path(path).read_bytes()).hexdigest()


# Loading


def test_a_plugin_registers_its_encodings_once(slope, unregistered):
    plugin = plugins.load_plugin(slope)
    assert (plugin.module, plugin.names) == ("plugin_my_slope", ("my-slope",))
    cls = posenc.ENCODINGS["my-slope"]
    assert plugins.load_plugin(slope) is plugin and posenc.ENCODINGS["my-slope"] is cls
    assert plugins.plugins_of(pe_spec.parse("rope+my-slope")) == [plugin]
    assert plugins.recorded(pe_spec.parse("my-slope")) == {"my-slope.py": sha256_of(slope)}
    assert plugins.recorded(pe_spec.parse("rope+cable")) is None


def test_the_plugin_of_a_base_class_is_recorded(slope, tmp_path, unregistered):
    plugins.load_plugin(slope)
    path = tmp_path / "steep.py"
    path.write_text(
        "from plugin_my_slope import Slope\nclass Steep(Slope):\n    names = ('my-steep',)\n"
    )
    plugins.load_plugin(path)
    assert list(plugins.recorded(pe_spec.parse("my-steep"))) == ["my-slope.py", "steep.py"]


def test_a_changed_file_is_not_run_from_bytecode(tmp_path):
    """Python's bytecode is stale if a file changes within a second and keeps its size."""
    path = tmp_path / "my_a.py"
    for name in ("my-a", "my-b"):
        path.write_text(ENCODING.replace("my-a", name))
        os.utime(path, (1e9, 1e9))
        with unregister_plugins():
            assert plugins.load_plugin(path).names == (name,)
    assert not list(tmp_path.glob("__pycache__"))


def test_an_exception_in_a_plugin_is_one_line(tmp_path, data_dir, refused, unregistered):
    path = tmp_path / "wrong.py"
    path.write_text(PLUGIN.replace("-self.r[h] *", "-self.r *").replace("my-slope", "wrong"))
    flags = [*TINY, "--n_head", "4", "--data", str(data_dir), "--out_dir", str(tmp_path / "run")]
    (line,) = refused(train_gpt.main, *flags, "--pe", "wrong", "--plugin", path)
    number = path.read_text().split("-self.r *")[0].count("\n") + 1
    assert line.startswith(f"error: {path}, line {number}: RuntimeError (")
    assert "check_encoding.py" in line


@pytest.mark.parametrize(
    "arguments, found",
    [
        ("features(self, x, pos)", "features(self, x, pos, previous=None)"),
        ("rotate(self, q, k, pos)", "rotate(self, q, k, pos, q_features, k_features)"),
        (
            "logits_transform(self, logits, d)",
            "logits_transform(self, logits, bias,",
        ),
        ("__init__(self, heads)", "__init__(self, heads, channels, block_size)"),
        ("bias(self, *features)", None),
        ("distance_bias(d, h)", None),
    ],
)
def test_hooks_with_other_arguments_are_refused(arguments, found, tmp_path, unregistered):
    path = tmp_path / "mine.py"
    static = "" if "self" in arguments else "    @staticmethod\n"
    path.write_text(f"{ENCODING}{static}    def {arguments}:\n        pass\n")
    if found is None:
        plugins.load_plugin(path)
    else:
        with pytest.raises(InputError) as error:
            plugins.load_plugin(path)
        assert str(error.value).startswith(f"{path}: A.{arguments.partition('(')[0]} has other ")
        assert f"): use def {found}" in str(error.value)


def test_reports_do_not_import_torch():
    """It takes seconds."""
    code = "import sys, report, compare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# Runs


def test_a_run_records_its_plugin(run, slope):
    entry = {"my-slope.py": sha256_of(slope)}
    assert (run / "my-slope.py").read_bytes() == slope.read_bytes()
    assert yaml.safe_load((run / "config.yaml").read_text())["plugin"] == entry
    assert checkpoints.load_checkpoint(run, check_plugins=False)["config"]["plugin"] == entry
    assert log_of(run)[0]["plugin"] == entry


def test_nothing_in_a_run_is_executed_without_the_flag(
    run, data_dir, tmp_path, refused, monkeypatch
):
    copy = shutil.copytree(run, tmp_path / "mine")
    monkeypatch.setenv("PLUGIN_MARKER", str(tmp_path / "marker"))
    monkeypatch.chdir(copy)
    scenes = tmp_path / "scenes.jsonl"
    cpu = ("--device", "cpu")
    for main, *flags in (
        (eval_extrapolation.main, copy, *cpu),
        (eval_recall.main, copy, *cpu),
        (eval_receptive_field.main, copy, *cpu),
        (eval_hellaswag.main, copy, "--source", scenes, *cpu),
        (sample.main, copy, *cpu),
        (plot.main, "biases", copy),
        (export_hf.main, copy, "--out_dir", tmp_path / "exported"),
        (train_gpt.main, *train_flags(data_dir, copy, "--resume")),
        (train_gpt.main, *TINY, "--data", data_dir, "--init_from", copy)
        + ("--out_dir", tmp_path / "other"),
    ):
        (line,) = refused(main, *flags)
        assert line.startswith(f"error: {copy} was trained with the plugin my-slope.py (SHA-256 ")
        assert line.endswith(
            f"read the copy {copy}/my-slope.py and pass --plugin {copy}/my-slope.py"
        )
    (line,) = refused(train_gpt.main, "--config", copy / "config.yaml", "--out_dir", tmp_path / "x")
    assert line.endswith("or pass --plugin FILE for your own")
    plot.main(["losses", str(copy), "--out", str(tmp_path / "losses.png")])
    flags = [*TINY, "--data", data_dir, "--init_from", copy, "--pe", "rope", "--steps", 0]
    train_gpt.main([str(flag) for flag in (*flags, "--out_dir", tmp_path / "rope")])
    assert not (tmp_path / "marker").exists()
    with unregister_plugins():
        plugins.load_plugin(copy / "my-slope.py")
    assert (tmp_path / "marker").read_text() == "executed\n"  # the check above can fail


def test_a_missing_or_changed_copy_is_not_recommended(run, tmp_path, refused):
    copy = shutil.copytree(run, tmp_path / "mine")
    (copy / "my-slope.py").write_text(PLUGIN + "# changed")
    for change in (None, (copy / "my-slope.py").unlink):
        if change:
            change()
        (line,) = refused(sample.main, copy)
        assert line.endswith(
            f"{copy}/my-slope.py differs, pass the file with this SHA-256 as --plugin"
        )


@pytest.mark.parametrize(
    "entry",
    [
        ["my-slope.py"],
        {"my-slope.py": "0" * 63},
        {"my-slope.txt": "0" * 64},
        {"../../my-slope.py": "0" * 64},
    ],
)
def test_invalid_records_of_plugins_are_refused(entry):
    """A run may be somebody else's, and the names become paths."""
    with pytest.raises(InputError, match="run: plugin: expected "):
        plugins.check_loaded({"plugin": entry}, "run")


def test_records_and_exports_name_the_plugin(run, slope, trained, tmp_path):
    """Next to a run that needs none; first_hour.sh calls the other programs."""
    mine, rope = (shutil.copytree(x, tmp_path / x.name) for x in (run, trained("rope")))
    with unregister_plugins():
        flags = ["--plugin", str(slope), "--device", "cpu"]
        eval_extrapolation.main([str(rope), str(mine), *flags, "--lengths", "1x"])
        for source in (mine, rope):
            out = str(tmp_path / f"{source.name} exported")
            export_hf.main([str(source), "--plugin", str(slope), "--out_dir", out])
    for folder, expected in ((mine, {"my-slope.py": sha256_of(slope)}), (rope, None)):
        for path in (evaluation(folder), tmp_path / f"{folder.name} exported" / "config.json"):
            assert json.loads(path.read_text()).get("plugin") == expected


def test_another_version_is_refused_with_the_path_of_the_copy(
    run, changed, slope, data_dir, tmp_path, refused
):
    """One line each; a renamed file with the same content is the same version."""
    old, new = (f"my-slope.py {sha256_of(path)[:12]}" for path in (slope, changed))
    for main, flags, message in (
        (sample.main, [run], f"pass --plugin {run}/my-slope.py"),
        (train_gpt.main, train_flags(data_dir, run, "--resume", "--steps", 8), f"{old}, not {new}"),
    ):
        with unregister_plugins():
            (line,) = refused(main, *flags, "--plugin", changed)
        assert message in line
    copy = shutil.copytree(run, tmp_path / "copy")
    with unregister_plugins():
        flags = ("--resume", "--plugin", changed, "--override", "plugin", "--steps", 8)
        train_gpt.main(train_flags(data_dir, copy, *flags))
        after = checkpoints.load_checkpoint(copy)
    assert (copy / "my-slope.py").read_bytes() == changed.read_bytes()
    old, new = ({"my-slope.py": sha256_of(path)} for path in (slope, changed))
    assert log_of(copy)[-3]["changed"]["plugin"] == [old, new]
    assert after["config"]["plugin"] == new
    renamed = str(shutil.copy(slope, tmp_path / "renamed.py"))
    with unregister_plugins():
        sample.main([str(run), "--plugin", renamed, "--max_new_tokens", "1", "--device", "cpu"])
    with unregister_plugins():
        train_gpt.main(train_flags(data_dir, run, "--resume", "--plugin", renamed))


# Exported code


def plugin_with(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(text)
    return plugins.Plugin(path, "plugin_mine", path.read_bytes(), sha256_of(path), ("my-a",))


@pytest.mark.parametrize(
    "source, flat",
    [
        ("from posenc import Cable, RoPE as R", "from .posenc import Cable, RoPE as R"),
        ("import posenc as pe, torch", "from . import posenc as pe; import torch"),
        ("from more_encodings import dape, sandwich", "from . import dape, sandwich"),
        (
            "from more_encodings.relative_keys import Shaw  # a comment",
            "from .relative_keys import Shaw  # a comment",
        ),
        ("import scipy.special  # not of this repository",) * 2,
        ('é = "é"; from posenc import (\n    ALiBi\n)', 'é = "é"; from .posenc import ALiBi'),
        ("if True: import attention; x = 1", "if True: from . import attention; x = 1"),
        ("if True: import attention, torch", "if True: from . import attention; import torch"),
    ],
)
def test_imports_of_a_plugin_are_rewritten(source, flat, tmp_path):
    exported_code.check_plugin(plugin_with(tmp_path, source), exported_code.MODULES)
    found = exported_code.flatten_imports(source, exported_code.MODULES)
    assert found == flat
    compile(found, "flat", "exec")


@pytest.mark.parametrize(
    "line, expected",
    [
        ("from runtime import cli", "line 2 imports runtime.cli, which is not exported"),
        ("import text_data.shards", "imports text_data.shards, which is not exported"),
        ("import sample", "imports sample, which is not exported"),
        ("import plugin_other", "imports plugin_other, which is not exported"),
        ("import more_encodings.dape", "imports more_encodings.dape, which is not exported"),
    ],
)
def test_imports_that_cannot_be_exported_are_refused(line, expected, tmp_path):
    plugin = plugin_with(tmp_path, f"import torch\n{line}\n")
    with pytest.raises(InputError) as error:
        exported_code.check_plugin(plugin, exported_code.MODULES)
    (problem,) = error.value.problems
    assert expected in problem and problem.startswith(str(plugin.path))


def test_an_export_is_refused_before_anything_is_written(data_dir, tmp_path, refused, unregistered):
    path = tmp_path / "my-slope.py"
    path.write_text(f"from runtime import devices\n{PLUGIN}")
    run = tmp_path / "run"
    train_gpt.main(train_flags(data_dir, run, "--plugin", path, "--steps", 1))
    (line,) = refused(export_hf.main, run, "--plugin", path, "--out_dir", tmp_path / "exported")
    assert "imports runtime.devices, which is not exported: copy what you need" in line
    assert not (tmp_path / "exported").exists()
    assert torch.load(run / "checkpoint_0000001.pt", weights_only=True)["config"]["plugin"]


@pytest.mark.parametrize("text, value", [("0.25", 0.25), ("1e-3", 1e-3), ("-2", -2.0)])
def test_options_may_be_numbers(tmp_path, unregistered, text, value):
    """If the default is one; text, NaN and Inf are refused."""
    (tmp_path / "soft.py").write_text(
        "from posenc import Encoding\n"
        "class Soft(Encoding):\n"
        "    names = ('soft',)\n"
        "    def __init__(self, heads, channels, block_size, *, rate: float = 0.5):\n"
        "        super().__init__(heads, channels, block_size)\n"
        "        self.rate = rate\n"
    )
    plugins.load_plugin(tmp_path / "soft.py")
    (encoding,) = pe_spec.build(f"soft:rate={text}", 2, 4, 8, layers=1)
    assert encoding.rate == value and isinstance(encoding.rate, float)
    for wrong in ("nan", "inf", "high"):
        with pytest.raises(InputError, match="use a number, as in 0.5"):
            pe_spec.parse(f"soft:rate={wrong}")
