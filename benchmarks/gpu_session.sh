#!/usr/bin/env bash
# Everything worth running on a machine with an H200, one after the other, some 30 minutes:
#
#     benchmarks/gpu_session.sh OUT [STAGE...]
#
# OUT gets raw results as they come; copy what lasts to benchmarks/results/ and run `python -m benchmarks.report`
# there. Without STAGE all of them run, in this order. Each has its own limit of time, and leaves what it has.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
stages=("${@:-tests paper static ablation counters f16 flex autotune tuning sweep overhead}")
known=benchmarks/results
export PYTHONPATH="src:.:${PYTHONPATH:-}" PYTHONUNBUFFERED=1

bench() { # SECONDS FILE ARGUMENTS...: one run of a suite, into a file
    local limit=$1 file=$2
    shift 2
    timeout $((limit + 30)) python3 -m cleave bench "$@" --target cuda --limit "$limit" --json "$out/$file.json" \
        > "$out/$file.log" 2>&1
    tail -1 "$out/$file.log"
}

for stage in ${stages[*]}; do
    echo "== $stage"
    case $stage in
        tests) timeout 300 python3 -m pytest -m gpu -q --timeout=120 tests 2>&1 | tee "$out/tests.log" | tail -3 ;;
        paper) bench 200 paper-h200-bf16 paper --dtype bf16 --peer fa3 --peer sdpa-cudnn --sweep 1 --budget 0.15 \
            --peers-from $known/paper-h200-bf16.json ;;
        f16) bench 120 paper-h200-f16 paper --dtype f16 --peer fa3 --sweep 0.4 --budget 0.1 \
            --peers-from $known/paper-h200-f16.json ;;
        static) bench 300 static-h200-bf16 static --dtype bf16 --peer fa3 --sweep 0.5 --budget 0.15 \
            --peers-from $known/static-h200-bf16.json ;;
        ablation) bench 180 ablation-paper-h200 paper --dtype bf16 --peers none --budget 0.15 --ablation untuned \
            --ablation no-algebra --ablation no-iterative-tiling --ablation no-horizontal --ablation no-split \
            --ablation reassociation ;;
        counters) for suite in paper static; do
            python3 -m benchmarks.counters "$out/$suite-h200-bf16.json" "$out/counters-$suite-h200-bf16.json" --budget 90
        done ;;
        # For `python -m benchmarks.merge`: what compiles for long, where it may be the best peer.
        flex) bench 170 x-flex static --dtype bf16 --case softcap --case sinks --peer flex --sweep 6 --budget 0.15 ;;
        autotune) bench 180 x-autotune paper --dtype bf16 --case matmul --case swiglu --peer max-autotune --budget 0.15 ;;
        tuning) python3 -m benchmarks.tuning_time --budget 40 --case swiglu --case gqa-d128 --case rmsnorm+matmul \
            --json "$out/tuning-h200.json" ;;
        # All of the scheduler's tile programs at some points: the file, and what the cost model makes of it.
        sweep) timeout 480 python3 -m benchmarks.sweep --limit 360 --json "$out/sweep-h200.json.gz" 2>&1 \
            | tee "$out/sweep.log" | tail -1
            python3 -m benchmarks.ranking --data "$out/sweep-h200.json.gz" --json "$out/ranking-sweep-h200.json" ;;
        overhead) python3 -m benchmarks.overhead "$out/overhead-h200.json" ;;
        *) echo "no stage $stage" && exit 2 ;;
    esac
done
