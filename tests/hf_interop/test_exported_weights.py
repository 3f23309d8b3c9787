"""The SHA-256 of exported weights: damage is found, and saving a model again updates it."""

import json
import random
import shutil

import pytest
import torch

import export_hf

pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import AutoModelForCausalLM  # noqa: E402

from hf_interop.modeling import PosencForCausalLM, hash_file  # noqa: E402


@pytest.fixture(scope="module")
def export(trained, tmp_path_factory):
    """An exported folder; read-only."""
    folder = tmp_path_factory.mktemp("weights") / "cable"
    export_hf.main([str(trained("cable")), "--out_dir", str(folder)])
    return folder


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def load(folder, **arguments):
    return PosencForCausalLM.from_pretrained(folder, **arguments)


def flip(path, generator, start=0, stop=None):
    """Flip one random bit of the bytes [start, stop) of a file."""
    content = bytearray(path.read_bytes())
    content[generator.randrange(start, stop or len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)


def test_every_flipped_bit_is_found(export, tmp_path):
    """25 in the header of the file, which has names, shapes and dtypes, and 25 in the tensors."""
    folder = shutil.copytree(export, tmp_path / "export")
    path = folder / "model.safetensors"
    generator = random.Random(1)
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    for start, stop in 25 * [(0, header), (header, None)]:
        flip(path, generator, start, stop)
        with pytest.raises(OSError, match="model.safetensors is corrupt: its SHA-256 is not"):
            load(folder)
        shutil.copy(export / "model.safetensors", path)
    load(folder)
    flip(path, generator)
    with pytest.raises(OSError, match="model.safetensors is corrupt"):  # by exported code
        AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def test_saving_again_updates_the_hash(export, tmp_path):
    model = load(export)
    with torch.no_grad():
        model.model.wte.weight += 1
    for folder in (tmp_path / "new", shutil.copytree(export, tmp_path / "over")):
        model.save_pretrained(folder)
        expected = {"model.safetensors": hash_file(folder / "model.safetensors")}
        assert config_of(folder)["weights_sha256"] == expected
        assert expected != config_of(export)["weights_sha256"]
        assert torch.equal(load(folder).model.wte.weight, model.model.wte.weight)


def test_every_shard_and_the_index_are_checked(export, tmp_path):
    model = load(export)
    whole = tmp_path / "whole"
    model.save_pretrained(whole, max_shard_size="4KB")
    names = sorted(path.name for path in whole.glob("model*"))
    assert len(names) > 3 and "model.safetensors.index.json" in names
    assert list(config_of(whole)["weights_sha256"]) == names
    for name, weight in load(whole).state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])
    for name in names:
        folder = shutil.copytree(whole, tmp_path / "flipped")
        flip(folder / name, random.Random(3))
        with pytest.raises(OSError, match=f"{name} is corrupt"):
            load(folder)
        shutil.rmtree(folder)


def test_hashes_of_other_files_and_missing_files_are_refused(export, tmp_path):
    """Models that transformers uploads have no hash. A hash is that of a file in the folder."""
    folder = shutil.copytree(export, tmp_path / "export")
    config = config_of(folder)

    def set_hashes(hashes):
        (folder / "config.json").write_text(json.dumps({**config, "weights_sha256": hashes}))

    for hashes in ("0" * 64, ["model.safetensors"], {"../model.safetensors": "0"}):
        set_hashes(hashes)
        with pytest.raises(OSError, match="weights_sha256 in .*/config.json is corrupt"):
            load(folder)
    set_hashes(None)
    load(folder)
    (folder / "model.safetensors").unlink()
    for without in (folder, tmp_path):  # the latter without a config.json
        with pytest.raises(OSError, match="no file named model.safetensors"):
            load(without)
