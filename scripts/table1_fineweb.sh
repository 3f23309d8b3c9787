#!/usr/bin/env bash
# CABLE, table 1, upper half: GPT-2 medium on FineWeb-Edu-10B, trained at 1,024 tokens, read at 512 to 15,360.
#
#     bash scripts/table1_fineweb.sh                  # further settings, SCALE and DRY_RUN among them: scripts/common.sh
#
# Cost of each of the ten encodings (T5-bias both ways): 9.96B tokens, 2.4e19 FLOPs, 17 hours of an H100 at 40% MFU (the dense ones
# more: fire, kerple, t5, t5-clip); together 7 days of one H100, a day of eight. Disk: 20 GB of data, 8.5 GB a run.

source "$(dirname "$0")/common.sh"
experiment table1_fineweb cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal
use fineweb-edu
train fineweb-edu_medium 1024
evaluate 512,1024,2048,4096,8192,15360
report cable_table1_fineweb-edu-10b_medium
finish
