#!/usr/bin/env bash
# CABLE, table 1, lower half: GPT-2 tiny on WikiText-103, 9,000 steps at 1,024 tokens, read at 512 to 15,360.
#
#     bash scripts/table1_wikitext.sh
#
# Cost of each of the ten encodings: 1.18B tokens, 3.6e17 FLOPs, 15 minutes of an H100 at 40% MFU; together 2.5 hours, or 20 minutes
# of eight. Disk: 0.3 GB of data, 1.1 GB a run.

source "$(dirname "$0")/common.sh"
experiment table1_wikitext cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal
use wikitext103 test
train wikitext103_tiny 1024
evaluate 512,1024,2048,4096,8192,15360
report cable_table1_wikitext-103_tiny
finish
