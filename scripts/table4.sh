#!/usr/bin/env bash
# CABLE, table 4: GPT-2 small and tiny on FineWeb-Edu-10B, trained at 1,024 tokens.
#
# Cost: data sets: 1, trainings: 20, evaluations: 22; 1.2e20 FLOPs; 84 h of one H100; disk 80.6
# GB; download 28.0 GB.

source "$(dirname "$0")/activate.sh"
common="--data fineweb-edu --perplexity 512,1024,2048,4096,8192,15360"
common+=" --encodings cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal --paper cable_table4"
experiment --name table4/tiny --train fineweb-edu_tiny ${common}_fineweb-edu-10b_tiny "$@"
experiment --name table4/small --train fineweb-edu_small ${common}_fineweb-edu-10b_small "$@"
exit $failed
