#!/usr/bin/env bash
# CABLE, table 2: GPT-2 small on FineWeb-Edu-10B, trained at 512 tokens, read at 512 to 8,192. The DAPEv2 columns are not here yet:
# the encoding is not; the table shows the paper's numbers of the others.
#
#     bash scripts/table2_dapev2.sh
#
# Cost of each of the two encodings: 9.96B tokens, 8.0e18 FLOPs, 6 hours of an H100 at 40% MFU, 45 minutes of eight. Disk: 20 GB of
# data, 3 GB a run.

source "$(dirname "$0")/common.sh"
experiment table2_dapev2 cable kerple
use fineweb-edu
train fineweb-edu_small 512
evaluate 512,1024,2048,4096,8192
report cable_table2_fineweb-edu-10b_small_dapev2_trained-at-512
finish
