#!/usr/bin/env bash
# Everything worth running on a machine with a GPU, in one go: `benchmarks/gpu_session.sh OUT [bench options]`.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
export PYTHONPATH="src:${PYTHONPATH:-}" PYTHONUNBUFFERED=1
python3 -m pytest -m gpu -q -x --timeout=300 tests 2>&1 | tee "$out/pytest.log" | tail -15
python3 -m cleave bench paper --target cuda --json "$out/paper-cuda.json" "$@" 2>&1 | tee "$out/bench.log"
