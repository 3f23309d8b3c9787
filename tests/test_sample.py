"""The program that continues texts: what it prints, the same text for the same seed, what it refuses."""

import io

import sample


def text(capsys, *flags):
    capsys.readouterr()
    sample.main([str(flag) for flag in (*flags, "--device", "cpu", "--dtype", "float32")])
    return capsys.readouterr().out.split("\n", 1)[1]  # without the line about the device


def test_seed_decides(trained, capsys):
    one, same, other = (
        text(capsys, trained("cable"), "--max_new_tokens", 40, "--seed", seed) for seed in (1, 1, 2)
    )
    assert one == same != other


def test_top_k_one_is_temperature_zero(trained, capsys):
    flags = (trained("cable"), "--prompt", "2", "--max_new_tokens", 20)
    assert text(capsys, *flags, "--top_k", 1) == text(capsys, *flags, "--temperature", 0)


def test_a_prompt_file_is_a_batch(trained, capsys, tmp_path):
    (tmp_path / "prompts.txt").write_text("1: line\n2\n")
    out = text(
        capsys,
        trained("cable"),
        "--prompt_file",
        tmp_path / "prompts.txt",
        "--max_new_tokens",
        5,
        "--temperature",
        0,
    )
    assert out.startswith("--- 1\n1: line") and "\n--- 2\n2" in out


def test_interactive_asks_until_the_input_ends(trained, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("1: line\n2\n"))
    out = text(capsys, trained("cable"), "--interactive", "--max_new_tokens", 3)
    assert out.count("prompt> ") == 3 and "1: line" in out and "\n" in out


def test_characters_of_several_bytes_are_whole(trained, capsys, monkeypatch):
    monkeypatch.setattr(sample, "generate", lambda *_: iter({0: byte} for byte in "é😀".encode()))
    assert text(capsys, trained("cable")) == "é😀\n"


def test_refusals(refused, trained, tmp_path):
    run = trained("cable")
    assert "name one run" in refused(sample.main)[0]
    assert "contains no checkpoint" in refused(sample.main, tmp_path)[0]
    assert refused(sample.main, run, "--temperature", -1, "--top_k", 0) == [
        "error: temperature is -1.0: it must be at least 0",
        "error: top_k is 0: it must be at least 1",
    ]
    assert "exclude each other" in refused(sample.main, run, "--prompt", "a", "--interactive")[0]
    assert "cannot be read" in refused(sample.main, run, "--prompt_file", tmp_path / "none")[0]
    (tmp_path / "empty").write_text("")
    assert "is empty" in refused(sample.main, run, "--prompt_file", tmp_path / "empty")[0]
