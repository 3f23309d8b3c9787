#!/usr/bin/env bash
# RoPE with changed frequencies at 16 times its training length.
#
#     bash scripts/rope_extended.sh --seeds 1 2 3      # results/long_context has small-scale results
#
# Position interpolation (Chen et al. 2023), NTK-aware and YaRN (Peng et al. 2024), before and after
# fine-tuning at that length for 5% of the steps. `--pe nope`: RoPE is dropped, without and
# with as many steps at the training length. Compared with CABLE, and with limited KV caches.
#
# Cost: data sets: 1, trainings: 17, evaluations: 18; 2.8e19 FLOPs; 19 h of one H100; disk 95.6
# GB; download 28.0 GB.

source "$(dirname "$0")/activate.sh"
lengths=512,1024,2048,4096,8192,16384
common=(--data fineweb-edu)
train=("${common[@]}" --train fineweb-edu_small --perplexity $lengths)
differ=(--may_differ step steps lr min_lr warmup_steps)
finetune="--steps $(pick 950 50 6) --lr $(pick "6e-5 --min_lr 6e-6" 8e-4) --warmup_steps $(pick 20 5)"

# further FLAGS ENCODING...: train each run of rope further with an encoding, and evaluate it.
further() {
    local run pe out words encodings=("${@:2}")
    for run in "${runs[@]}"; do
        for pe in "${encodings[@]:0:$(pick 99 99 1)}"; do
            read -ra words <<<"$1"
            out=$run-$pe$(tr -d ' ' <<<"${1//--/-}")
            line train_gpt.py --config "$run/config.yaml" --init_from "$run" --pe "$pe" "${words[@]}" --resume \
                --out_dir "$out"
            line eval_extrapolation.py "$out" --split "$split" --lengths "$(at_scale $lengths)" --max_tokens "$(pick 100000000 131072 1024)"
        done
    done
}
experiment --name rope_extended/cached "${train[@]}" --encodings cable rope \
    --cache_window "$(at_scale 1024)" "$@"
experiment --name rope_extended/as_it_is "${train[@]}" --encodings rope "$@"
experiment --name rope_extended/as_it_is "${common[@]}" --commands - "${differ[@]:0:3}" "$@" < <(
    further "--steps 0" {rope-pi,rope-ntk,yarn}:factor={4,16} yarn:factor={4,16},ramp=released nope
)
experiment --name rope_extended/recalibrated "${common[@]}" --commands - "${differ[@]}" "$@" < <(
    further "$finetune" rope nope
)
experiment --name rope_extended/trained_on "${common[@]}" --commands - "${differ[@]}" block_size micro_batch "$@" < <(
    further "--block_size $(at_scale 16384) --micro_batch 1 $finetune" rope {rope-pi,rope-ntk}:factor=16 \
        "yarn:factor=16,length=$(at_scale 1024)"
)
exit $failed
