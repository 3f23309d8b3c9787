#!/usr/bin/env bash
# CABLE, figure 1: perplexity of GPT-2 medium on FineWeb-Edu-10B against context. The trainings are those of table1_fineweb.sh, done
# once for both; here they are also read up to 131,072 tokens.
#
#     bash scripts/figure1.sh
#
# Version 1's figure 1: ENCODINGS="cable-v1 alibi t5 t5-clip rope sinusoidal".
#
# Cost beyond table 1's: ten readings of 1M tokens at nine lengths, 3.4e17 FLOPs together, a quarter of an hour of an H100 at 40% MFU; dense
# encodings take longer.

source "$(dirname "$0")/common.sh"
experiment figure1 cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal
use fineweb-edu
train fineweb-edu_medium 1024
EVAL_TOKENS=${EVAL_TOKENS:-$((8 * 131072 / shrink))} evaluate 512,1024,2048,4096,8192,16384,32768,65536,131072
report cable_table1_fineweb-edu-10b_medium
finish
