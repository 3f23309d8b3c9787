#!/usr/bin/env bash
# CABLE, table 4: GPT-2 small and tiny on FineWeb-Edu-10B, trained at 1,024 tokens.
#
# Cost per encoding (ten): 9.96B tokens, 8.5e18 (small) and 3.1e18 FLOPs (tiny), 6 and 2.1 hours
# of one H100 at 40% MFU; all together 3.4 days of one H100, 10 hours of eight. Evaluation of the 0.1B
# validation tokens at six lengths: 2.6e17 and 9.2e16 FLOPs, 11 and 4 minutes of one H100. Disk: 20
# GB of data, 3 and 1.1 GB per run.

source "$(dirname "$0")/activate.sh"
common="--data fineweb-edu --perplexity 512,1024,2048,4096,8192,15360"
common+=" --encodings cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal --paper cable_table4"
experiment --name table4/tiny --train fineweb-edu_tiny ${common}_fineweb-edu-10b_tiny "$@"
experiment --name table4/small --train fineweb-edu_small ${common}_fineweb-edu-10b_small "$@"
exit $failed
