"""Reports of jobs: JSON lines of a program for the scheduler that started it.

    job_report.append(records=["runs/cable/eval_val.json"], repeated=False)

records     files of results
finished    False: a signal ended the training before its last step
repeated    True: nothing was left to do

The file is in the environment variable JOB_REPORT, without which nothing is written. Call it on one
rank only.
"""

import json
import os
from pathlib import Path

from runtime.files import read_json_lines

VARIABLE = "JOB_REPORT"


def append(path: str | Path | None = None, **values) -> None:
    """Append a line to a file, by default that of JOB_REPORT."""
    if path := path or os.environ.get(VARIABLE):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(values)}\n")  # a killed process may have left a part


def read(path: Path) -> dict:
    """Return the latest values in a file, and the records of all its lines."""
    values, records = {}, {}
    for line in read_json_lines(path) if path.exists() else []:
        if isinstance(line, dict):
            values |= line
            found = line.get("records")
            for record in found if isinstance(found, list) else []:
                records |= {record: None} if isinstance(record, str) else {}
    return values | {"records": [*filter(os.path.exists, records)]}
