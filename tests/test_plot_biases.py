"""The pictures are written, and what cannot be drawn is told."""

import pytest

import plot_biases


@pytest.mark.parametrize("flags", [["cable"], ["cable", "--scores"], ["rope"], ["test-drift"], ["rope+fox", "--layer", "0"]])
def test_picture_is_written(flags, trained, tmp_path):
    plot_biases.main([str(trained(flags[0])), *flags[1:], "--text", "a = b", "--out", str(tmp_path / "out.png")])
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_refusals(refused, trained, tmp_path):
    main = plot_biases.main
    assert "name one run" in refused(main)[0]
    assert "layer 2: the model has 2: choose 0 to 1" in refused(main, trained("cable"), "--layer", 2)[0]
    assert "no two tokens" in refused(main, trained("cable"), "--text", "a")[0]
    assert "the picture is a PNG" in refused(main, trained("cable"), "--out", tmp_path / "out.pdf")[0]
