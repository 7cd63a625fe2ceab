#!/bin/sh
# Try some values of two hyperparameters, three runs one after the other; each leaves its configuration, its
# checkpoints and its metrics in a folder of its own.
#
#     examples/config/sweep.sh OUTPUT [ARGUMENT ...]      such as: examples/config/sweep.sh /tmp/sweep --seed 3
set -eu
here=$(dirname "$0")
output=$1
shift

for point in "0 0.1" "0.2 0.1" "0.2 0.2"; do
    alpha=${point% *}
    lr=${point#* }
    name=alpha$alpha-lr$lr
    "${PYTHON:-python3}" "$here/train.py" "$here/digits.yaml" \
        --run_name "$name" \
        --save_folder "$output/$name" \
        --algorithms.MixUp.alpha "$alpha" \
        --optimizers.lr "$lr" \
        --loggers "CSVLogger: {filename: $output/$name/metrics.csv}" \
        "$@"
done
