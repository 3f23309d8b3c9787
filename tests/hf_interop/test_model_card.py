"""Model cards from damaged records and data sets."""

import json

import pytest
from test_report import record

import export_hf
from errors import InputError


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "checkpoint_0000001.pt").touch()
    damaged = record("rope", {256: 4.0}) | {"checkpoint_sha256": "1"}
    damaged["lengths"]["256"]["tokens"] = "many"
    (tmp_path / "eval_toy_val.json").write_text(json.dumps(damaged))
    with pytest.raises(InputError, match=r"eval_toy_val.json: expected int.*\[...\].tokens"):
        export_hf.evaluation_records(str(tmp_path), "1")
    assert export_hf.evaluation_records(str(tmp_path), "of another checkpoint") == []


@pytest.mark.parametrize(
    "content", ["[]", "[" * 10_000, '{"dataset": []}', '{"splits": {"train": []}, "source": 1}']
)
def test_data_without_a_readable_meta_has_no_name(content, tmp_path):
    (tmp_path / "meta.json").write_text(content)
    checkpoint = {"config": {"data": str(tmp_path)}, "data": {"sha256": "1"}}
    assert export_hf.hub_names(checkpoint) == {}
