#!/usr/bin/env bash
# Sandwich (Chi et al. 2023), tables 1, 2 and 4, figures 4, 5, 12 and 13: why ALiBi extrapolates.
#
#     bash scripts/sandwich_table1_2_4.sh --data data/arxiv --runs runs/arxiv                    # table 1
#     bash scripts/sandwich_table1_2_4.sh --data data/openwebtext2 --runs runs/openwebtext2      # table 4
#
# GPT-2 small trained at 512 tokens with scaled slopes, equal slopes, or windows; then two failing
# settings trained on longer texts. Without --data: FineWeb-Edu. At smaller scales, slopes and
# windows are scaled with the training length.
#
# Cost: data sets: 1, trainings: 19, evaluations: 36; 1.3e19 FLOPs; 9 h of one H100; disk 130.9
# GB; download 28.0 GB.

source "$(dirname "$0")/activate.sh"
shift=$(pick 0 2 5) encodings=() papers=()
for slope in -3 0 2 4 6 8; do encodings+=("alibi-shift:shift=$((slope - shift))"); done
for slope in 0 2 4 6 8; do encodings+=("alibi-equal:h=$((slope - shift))"); done
# Windows are divided by 4/3 (small) or 32/3 (smoke).
window() { echo "window:w=$(($1 * $(pick 1 3) / $(pick 1 4 32)))"; }
for width in 40 80 100 120 160 320; do encodings+=("$(window $width)"); done
if [ "$scale" = full ]; then
    case $(basename "$(option data arxiv)") in
        openwebtext2) papers=(--paper sandwich_table{4,2}_openwebtext2) ;;
        *) papers=(--paper sandwich_table{1,2}_arxiv) ;;
    esac
fi
common=(--data fineweb-edu --train sandwich_small)
experiment --name sandwich_table1_2_4 "${common[@]}" --block_size 512 --encodings "${encodings[@]}" \
    --same_targets 512,1024,2048,4096,8192 --receptive_field 512,1024,2048 "${papers[@]:0:2}" "$@"
common+=(--name sandwich_table1_2_4/trained-longer --may_differ block_size --same_targets 2048,4096,8192
    "${papers[@]:0:1}" "${papers[@]:2}")
experiment "${common[@]}" --block_size 2048 --encodings "alibi-shift:shift=$((6 - shift))" "$@"
experiment "${common[@]}" --block_size 1024 --encodings "$(window 160)" "$@"
exit $failed
