"""Test of the measurement of the pause per checkpoint."""

from benchmarking import checkpoints


def test_both_ways_are_measured(tmp_path, capsys):
    flags = ["--size", "quickstart", "--device", "cpu", "--repeats", "1"]
    checkpoints.main([*flags, "--folder", str(tmp_path)])
    line = capsys.readouterr().out.splitlines()[-1]
    assert "median of 1: written by the training" in line and "by a thread" in line
    assert not list(tmp_path.iterdir())
