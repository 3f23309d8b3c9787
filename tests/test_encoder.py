"""Encoders: masked tokens, what each token sees, training by masked language modeling, and what programs for decoders say to them."""

import itertools
import math
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ENCODINGS, TINY, evaluation, log_of, ranks
from numpy.testing import assert_allclose
from test_train_gpt import digest

from errors import InputError
from model import GPT, GPTConfig
from runtime import checkpoints, loading, run_folder
from runtime.files import read_json
from text_data import data_loader, shards

BOTH_WAYS = [pe for pe in ENCODINGS if "cope" not in pe]
MLM = [*TINY, "--objective", "mlm"]
V = 60


def make(pe, **settings):
    torch.manual_seed(0)
    return GPT(
        GPTConfig(
            **{
                "size": "quickstart",
                "pe": pe,
                "vocab_size": V,
                "block_size": 100,
                "n_layer": 2,
                "n_head": 3,
                "n_embd": 24,
                "causal": False,
                **settings,
            }
        )
    ).eval()


def lively(pe, **settings):
    """Weights far from their small start, so that attention and encoding matter."""
    model = make(pe, **settings)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "wte" not in name:
            torch.nn.init.normal_(parameter, std=0.25)
    return model


def masked(folder, length=50, rate=0.3, mask_seed=(1,)):
    windows = data_loader.MaskedWindows(shards.Shards(folder, "train"), length, rate)
    return windows, *windows.batch(range(len(windows)), mask_seed)


@pytest.mark.parametrize("length, rate, count", [(50, 0.3, 15), (99, 0.15, 15), (7, 0.01, 1)])
def test_a_share_of_the_tokens_is_to_be_restored(folder, length, rate, count):
    windows, inputs, targets, places = masked(folder, length, rate)
    tokens = data_loader.Windows(windows.shards, length).batch(range(len(windows)))[0]
    assert (
        targets.shape == places.shape == (len(windows), count)
        and count == windows.targets_per_window
    )
    assert (places.diff() > 0).all()  # no place twice
    assert torch.equal(targets, tokens.gather(1, places))
    elsewhere = torch.ones_like(tokens, dtype=torch.bool).scatter(1, places, False)
    assert torch.equal(inputs[elsewhere], tokens[elsewhere])


def test_what_stands_in_their_places(tmp_path):
    """Devlin et al. 2019: 80% the mask, 10% a token at random, 10% the token itself; 5,000 of them, four standard deviations."""
    from conftest import write_shards

    windows, inputs, targets, places = masked(
        write_shards(tmp_path / "toy", [np.full(10_001, 7)], 20_000), 10_000, 0.5
    )
    found = inputs.gather(1, places)[0]
    counts = [(found == 257).sum(), ((found != 257) & (found != 7)).sum(), (found == 7).sum()]
    for count, share in zip(counts, (0.8, 0.1 * 256 / 257, 0.1 + 0.1 / 257)):
        assert abs(count - 5000 * share) < 4 * math.sqrt(5000 * share * (1 - share))
    assert 90 < len(found.unique()) < 257 + 1 and found.max() == 257 and (targets == 7).all()
    assert not (places.diff() == 1).all() and places.float().mean() == pytest.approx(5000, rel=0.05)


def test_every_visit_masks_others_and_each_the_same_again(folder):
    _, inputs, _, places = masked(folder)
    assert all(
        torch.equal(one, other)
        for one, other in zip((inputs, places), (masked(folder)[1], masked(folder)[3]))
    )
    assert not torch.equal(places, masked(folder, mask_seed=(2,))[3]) and len(
        {tuple(row.tolist()) for row in places}
    ) == len(places)


def test_another_seed_masks_other_tokens(folder):
    """Of the same windows, in the same order."""
    windows, found = data_loader.MaskedWindows(shards.Shards(folder, "train"), 7, 0.3), []
    for seed in (3, 4):
        sampler = data_loader.Sampler(len(windows), seed=seed)
        sampler.order = np.arange(len(windows))
        batches = itertools.islice(
            data_loader.micro_batches(windows, sampler, 1, 1, 0, 1), len(windows)
        )
        found.append([(numbers.tolist(), places.tolist()) for numbers, _, _, places, _ in batches])
    assert [number for number, _ in found[0]] == [number for number, _ in found[1]]
    assert sum(one != other for one, other in zip(*found)) > 10


@pytest.mark.parametrize("processes, micro_batch", [(1, 2), (2, 1), (3, 2)])
def test_masks_do_not_depend_on_the_number_of_processes(folder, processes, micro_batch):
    windows = data_loader.MaskedWindows(shards.Shards(folder, "train"), 7, 0.3)

    def steps(processes, micro_batch):
        streams = [
            data_loader.micro_batches(
                windows, data_loader.Sampler(len(windows), seed=3), 6, micro_batch, rank, processes
            )
            for rank in range(processes)
        ]
        return [
            torch.cat(
                [
                    next(stream)[1]
                    for stream in streams
                    for _ in range(6 // processes // micro_batch)
                ]
            )
            for _ in range(7)
        ]

    whole = steps(1, 6)
    assert all(torch.equal(one, other) for one, other in zip(steps(processes, micro_batch), whole))
    assert (
        len(torch.cat(whole).unique(dim=0)) > 35
    )  # of 42 windows, 34 in an epoch: those that come again are masked anew


@pytest.mark.parametrize("pe", BOTH_WAYS)
def test_the_future_is_seen(pe):
    model, tokens = lively(pe), torch.randint(V, (1, 20))
    changed = tokens.clone()
    changed[:, 19] = (tokens[:, 19] + 1) % V
    assert (model(changed)[:, 18] - model(tokens)[:, 18]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "pe, told",
    [
        ("nope", False),
        ("alibi", False),
        ("kerple", False),
        ("t5-clip", False),
        ("fire", False),
        ("sandwich", False),
        ("window:w=9+alibi", False),
        ("rope", True),
        ("learnable", True),
        ("sinusoidal", True),
        ("t5", True),
        ("cable", True),
        ("fox", True),
        ("rope+alibi", True),
    ],
)
def test_who_tells_left_from_right(pe, told):
    """A bias of |i - j| is the same for a text and for its mirror image, whatever is learned: such an encoder gives each token the same
    in both. `fire` divides by the later position only beyond its threshold. CABLE's steps belong to the later one of two tokens."""
    model, tokens = lively(pe), torch.randint(V, (1, 40))
    difference = (model(tokens) - model(tokens.flip(1)).flip(1)).abs().max()
    assert difference > 1e-2 if told else difference < 1e-4


@pytest.mark.parametrize("pe", BOTH_WAYS)
def test_a_padded_batch_is_each_text_alone(pe):
    model, tokens = lively(pe), torch.randint(V, (2, 40))
    padded = model.hidden(tokens, lengths=torch.tensor([40, 13]))
    for row, length in enumerate((40, 13)):
        torch.testing.assert_close(
            padded[row, :length],
            model.hidden(tokens[row : row + 1, :length])[0],
            rtol=1e-4,
            atol=1e-4,
        )


def test_loss_of_the_masked_tokens_alone():
    model, tokens = lively("cable"), torch.randint(V, (3, 20))
    places, targets = torch.tensor([[0, 5], [3, 19], [7, 8]]), torch.randint(V, (3, 2))
    expected = F.cross_entropy(
        torch.stack([model(tokens)[row, at] for row, at in enumerate(places)]).flatten(0, 1),
        targets.flatten(),
        reduction="none",
    ).view(3, 2)
    assert_allclose(model(tokens, targets, places).item(), expected.mean().item(), rtol=1e-5)
    assert_allclose(model.losses(tokens, targets, places), expected.detach(), rtol=1e-4)


def test_flops_of_the_masked_tokens_alone():
    """Against torch's own count: the logits, 6 V C a token, for 10 of 40 alone; the dense path computes its own again in backward."""
    from torch.utils.flop_counter import FlopCounterMode

    model, tokens, places = (
        make("nope", attention="dense"),
        torch.randint(V, (1, 40)),
        torch.arange(10)[None],
    )
    with FlopCounterMode(display=False) as counter:
        model(tokens, places, places).backward()
    biases_and_norms = 6 * sum(p.numel() for p in model.parameters() if p.ndim == 1)
    recomputed = 2 * 2 * 24 * 40
    assert (
        counter.get_total_flops() / 40
        == model.flops_per_token(40, 10) - biases_and_norms + recomputed
    )


@pytest.mark.parametrize(
    "pe", ["rope", "cable", "fox", "t5", "fire", "window:w=9+alibi", "dapev2+kerple"]
)
def test_training_compiles_to_one_graph(pe):
    model = lively(pe)
    generator = torch.Generator().manual_seed(3)
    batch = (
        torch.randint(V, (2, 30), generator=generator),
        torch.randint(V, (2, 4), generator=generator),
        torch.tensor([[1, 4, 9, 29]] * 2),
    )
    torch._dynamo.reset()
    found = []
    for forward in (
        model,
        torch.compile(model, backend="aot_eager_decomp_partition", fullgraph=True),
    ):
        model.zero_grad()
        loss = forward(*batch)
        loss.backward()
        found.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture
def encoder(trained):
    """encoder("alibi"): the folder of a finished encoder of six steps."""
    return lambda pe: trained(pe, "--objective", "mlm")


@pytest.mark.parametrize("pe", BOTH_WAYS)
def test_every_encoding_trains(pe, encoder):
    values = [record["loss"] for record in log_of(encoder(pe)) if record["kind"] == "train"]
    assert len(values) == 3 and all(math.isfinite(value) for value in values)
    assert (
        loading.load_model(encoder(pe), torch.device("cpu"), causal=None)[0].posenc[0].causal
        is False
    )


def test_training_learns_the_text(data_dir, tmp_path):
    import train_gpt

    train_gpt.main(
        [
            *MLM,
            "--data",
            str(data_dir),
            "--steps",
            "60",
            "--val_every",
            "60",
            "--out_dir",
            str(tmp_path / "run"),
        ]
    )
    first, *_, last = [
        record["loss"] for record in log_of(tmp_path / "run") if record["kind"] == "train"
    ]
    val = [record for record in log_of(tmp_path / "run") if record["kind"] == "val"][-1]
    assert (
        first > 5 and last < 3.5 and val["loss"] < 3.5 and val["tokens"] == 4 * 2
    )  # of 4 windows of 16


def test_resumed_it_equals_never_having_stopped(encoder, data_dir, tmp_path):
    import train_gpt

    flags = [*MLM, "--data", str(data_dir), "--pe", "cable", "--out_dir", str(tmp_path / "run")]
    save, stopped = run_folder.Run.save, []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def save_and_stop(self, **checkpoint):
            save(self, **checkpoint)
            stopped.append(checkpoint["step"])
            raise KeyboardInterrupt

        patch.setattr(run_folder.Run, "save", save_and_stop)
        train_gpt.main(flags)
    train_gpt.main([*flags, "--resume"])
    assert stopped == [2]
    assert digest(checkpoints.load_checkpoint(tmp_path / "run")["model"]) == digest(
        checkpoints.load_checkpoint(encoder("cable"))["model"]
    )


def test_two_processes_equal_one(encoder, data_dir, tmp_path):
    done = ranks(2, *MLM, "--data", data_dir, "--pe", "cable", "--out_dir", tmp_path / "run")
    assert [status for status, *_ in done] == [0, 0], done
    for ours, theirs in zip(log_of(tmp_path / "run"), log_of(encoder("cable")), strict=True):
        assert ours["kind"] == theirs["kind"] and ours.get("loss", 0) == pytest.approx(
            theirs.get("loss", 0), rel=1e-4
        )


def test_a_run_from_before_there_were_encoders_goes_on(trained, data_dir, tmp_path, capsys):
    import train_gpt

    shutil.copytree(trained("nope"), tmp_path / "run")
    path = checkpoints.checkpoint_path(tmp_path / "run")
    checkpoint = torch.load(path, weights_only=True)
    for name in ("objective", "mask_rate"):
        del checkpoint["config"][name]
    del checkpoint["gpt"]["causal"]
    torch.save(checkpoint, path)
    train_gpt.main(
        [
            *TINY,
            "--data",
            str(data_dir),
            "--pe",
            "nope",
            "--out_dir",
            str(tmp_path / "run"),
            "--resume",
        ]
    )
    assert "is trained already" in capsys.readouterr().out
    with pytest.raises(InputError, match="was trained with objective clm, not mlm"):
        train_gpt.main(
            [
                *MLM,
                "--data",
                str(data_dir),
                "--pe",
                "nope",
                "--out_dir",
                str(tmp_path / "run"),
                "--resume",
            ]
        )


def test_dry_run_counts_the_logits_that_there_are(capsys):
    import train_gpt

    train_gpt.main(
        [
            "--objective",
            "mlm",
            "--data",
            "nowhere",
            "--pe",
            "rope",
            "--size",
            "small",
            "--block_size",
            "512",
            "--dry_run",
        ]
    )
    printed = capsys.readouterr().out
    n = 12 * (12 * 768**2 + 13 * 768) + 2 * 768 + 50304 * 768  # matrices, biases, norms; tokens
    per_token = 6 * (n - 50304 * 768 * (1 - 77 / 512)) + 12 * 12 * 768 * 512
    assert (
        "small encoder: 12 layers x 768" in printed
        and f"N = {n:,}, of the logits for 15.0% of the tokens" in printed
    )
    assert f"{per_token:.3g} a token" in printed


@pytest.mark.parametrize("length", [16, 40])
def test_perplexity_of_the_masked_tokens(encoder, data_dir, tmp_path, length):
    """All windows of the split, each masked as its place says, one by one by a forward pass of its own."""
    import eval_extrapolation

    folder = shutil.copytree(encoder("alibi"), tmp_path / "run")
    eval_extrapolation.main(
        [str(folder), "--lengths", str(length), "--device", "cpu", "--dtype", "float32"]
    )
    record = read_json(evaluation(folder), "")
    entry = record["lengths"][str(length)]
    model, _ = loading.load_model(folder, torch.device("cpu"), causal=False)
    val, found, at = shards.Shards(data_dir, "val"), [], []
    for start in range(0, val.total - length, length):
        inputs, targets, places = data_loader.read_masked_windows(val, [(0, start)], length, 0.15)
        assert torch.equal(
            torch.from_numpy(val.tokens[0][start : start + length].astype(np.int64))[places[0]],
            targets[0],
        )
        log_p = model(inputs)[0, places[0]].double().log_softmax(-1)
        found.append(-log_p[torch.arange(len(targets[0])), targets[0]].detach().numpy())
        at.append(places[0].numpy())
    found, at = np.array(found), np.array(at)
    assert found.shape[1] == round(0.15 * length) and (entry["windows"], entry["tokens"]) == (
        len(found),
        found.size,
    )
    assert entry["loss"] == pytest.approx(found.mean(), abs=1e-5)
    assert entry["by_position"]["loss"] == pytest.approx(
        [found[at == place].mean() for place in range(length)], abs=1e-5
    )
    assert record["objective"] == "mlm" and record["protocol"]["mask_rate"] == 0.15


def test_one_window_has_places_that_nothing_is_known_of(encoder, tmp_path, capsys):
    """The record says none there, the plot passes them over; and the report judges no claim on decoders."""
    import eval_extrapolation
    import report

    folder = shutil.copytree(encoder("cable"), tmp_path / "run")
    eval_extrapolation.main(
        [
            str(folder),
            "--lengths",
            "16,32",
            "--windows",
            "1",
            "--device",
            "cpu",
            "--dtype",
            "float32",
        ]
    )
    losses = read_json(evaluation(folder), "")["lengths"]["32"]["by_position"]["loss"]
    assert len(losses) - losses.count(None) == 5 and None in losses
    report.main([str(evaluation(folder)), "--out_dir", str(tmp_path / "report")])
    printed = capsys.readouterr().out
    assert (
        "Protocol: segments, predicting the 15% of tokens that are masked" in printed
        and "(CABLE" not in printed
    )
    assert (tmp_path / "report" / "by_position.png").exists()


def test_protocols_of_decoders_are_refused(encoder, refused):
    import eval_extrapolation

    for flags in (["--protocol", "same-targets"], ["--stride", "8"], ["--cache_window", "8"]):
        (line,) = refused(eval_extrapolation.main, encoder("cable"), *flags)
        assert line.endswith("leave out --protocol, --stride and --cache_window")


def test_programs_for_decoders_say_so(encoder, trained, refused, tmp_path):
    import sample

    assert refused(sample.main, encoder("cable"), "--prompt", "a") == [
        f"error: {encoder('cable')} is an encoder and cannot continue text: use a run with --objective clm"
    ]
    with pytest.raises(InputError, match="is a decoder: use a run with --objective mlm"):
        loading.load_model(trained("cable"), torch.device("cpu"), causal=False)


def test_wrong_settings_are_told(refused, data_dir, tmp_path):
    import train_gpt

    lines = refused(
        train_gpt.main,
        *MLM,
        "--data",
        data_dir,
        "--mask_rate",
        "0",
        "--pe",
        "cope",
        "--out_dir",
        tmp_path / "run",
    )
    assert lines == [
        "error: mask_rate is 0.0: it must be above 0 and below 1",
        "error: cope supports decoders only: use another encoding for an encoder",
    ]
    assert not (tmp_path / "run").exists()
