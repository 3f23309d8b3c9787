"""Tests of sample.py: seeds, prompts, batches, incomplete characters, errors."""

import io

import sample


def generate_text(capsys, *flags):
    capsys.readouterr()
    sample.main([str(flag) for flag in (*flags, "--device", "cpu", "--dtype", "float32")])
    return capsys.readouterr().out.split("\n", 1)[1]  # the first line names the device


def test_text_depends_on_the_seed_only(trained, capsys):
    flags = (trained("cable"), "--max_new_tokens", 40)
    one, same, other = (generate_text(capsys, *flags, "--seed", seed) for seed in (1, 1, 2))
    assert one == same != other


def test_top_k_one_is_temperature_zero(trained, capsys):
    flags = (trained("cable"), "--prompt", "2", "--max_new_tokens", 20)
    greedy = generate_text(capsys, *flags, "--temperature", 0)
    assert generate_text(capsys, *flags, "--top_k", 1) == greedy


def test_a_prompt_file_is_a_batch(trained, capsys, tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("1: line\n2\n")
    flags = ["--prompt_file", path, "--max_new_tokens", 5, "--temperature", 0]
    out = generate_text(capsys, trained("cable"), *flags)
    assert out.startswith("--- 1\n1: line") and "\n--- 2\n2" in out


def test_interactive_mode_asks_until_the_end_of_input(trained, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("1: line\n2\n"))
    out = generate_text(capsys, trained("cable"), "--interactive", "--max_new_tokens", 3)
    assert out.count("prompt> ") == 3 and "1: line" in out and "\n" in out


def test_a_prompt_that_is_no_utf8_is_refused(trained, refused, monkeypatch):
    """With LC_ALL=C, Python reads the bytes caf\\xe9 as a surrogate."""
    monkeypatch.setattr("sys.stdin", io.StringIO("caf\udce9\n"))
    (line,) = refused(sample.main, trained("cable"), "--interactive")
    assert "the prompt is not text in UTF-8" in line and line.endswith("type another")


def test_a_text_beyond_the_longest_context_is_noted(trained, capsys):
    for pe, new, noted in (("learnable", 16, True), ("learnable", 15, False), ("cable", 99, False)):
        sample.main([str(trained(pe)), "--max_new_tokens", str(new), "--device", "cpu"])
        note = "note: learnable supports at most 16 positions: beyond them, each token follows"
        assert (note in capsys.readouterr().err) == noted


def test_characters_of_several_bytes_are_printed_whole(trained, capsys, monkeypatch):
    tokens = "é😀".encode()
    monkeypatch.setattr(sample, "generate", lambda *_: iter({0: byte} for byte in tokens))
    assert generate_text(capsys, trained("cable")) == "é😀\n"


def test_invalid_settings_are_refused(refused, trained, tmp_path):
    run, main = trained("cable"), sample.main
    assert "one run is needed" in refused(main)[0]
    assert "contains no checkpoint" in refused(main, tmp_path)[0]
    (line,) = refused(main, run.parent)
    assert f"contains runs, but no checkpoint: pass {run.parent}/" in line
    assert refused(main, run, "--temperature", -1, "--top_k", 0) == [
        "error: temperature is -1.0: it must be at least 0",
        "error: top_k is 0: it must be at least 1",
    ]
    assert "seed is 9223372036854775808" in refused(main, run, "--seed", 2**63)[0]
    assert "exclude each other" in refused(main, run, "--prompt", "a", "--interactive")[0]
    assert "cannot be read" in refused(main, run, "--prompt_file", tmp_path / "none")[0]
    (tmp_path / "empty").write_text("")
    assert "is empty" in refused(main, run, "--prompt_file", tmp_path / "empty")[0]
