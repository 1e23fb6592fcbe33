#!/usr/bin/env bash
# Runs on a machine with a GPU: all tests that need one, the sanitizers, the benchmarks. Writes to RESULTS:
#   tests.log sanitizer.log soak.log   what was printed
#   evidence.jsonl            one record for each check a kernel's source has passed
#   bench.jsonl bench.txt     measured times
#   probe.jsonl probe.txt     what the device can do at most
#   counters.jsonl profile.txt   hardware counters of the workloads' kernels (needs ncu)
#   python.log                what the tests of the Python package printed
#   python.jsonl python.txt   measured times from Python
# Usage: run.sh RESULTS [tests] [sanitizer] [soak] [probe] [bench] [profile] [python] [python-bench] [peers]   (without names: all but peers)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=${1:?where to write the results}
shift
parts=${*:-tests sanitizer soak probe bench profile python python-bench}
mkdir -p "$results"
export FOURTAP_REQUIRE_CUDA=1 FOURTAP_EVIDENCE="$results/evidence.jsonl"
failed=0

for part in $parts; do
    case $part in
    tests)
        "$here/cuda-tests" --include-ignored --skip sanitizer --skip soak --test-threads=1 --nocapture >"$results/tests.log" 2>&1 || failed=1
        # Of the C ABI those that need a GPU; the others need a C compiler.
        "$here/c-tests" --ignored --test-threads=1 --nocapture >>"$results/tests.log" 2>&1 || failed=1
        tail -n 8 "$results/tests.log"
        ;;
    sanitizer)
        : >"$results/sanitizer.log"
        # Kernels are compiled beforehand, on all cores; under the tools they are then found in the cache.
        FOURTAP_SANITIZER=none FOURTAP_EVIDENCE= "$here/cuda-tests" --include-ignored sanitizer >>"$results/sanitizer.log" 2>&1 || failed=1
        for tool in memcheck racecheck initcheck synccheck; do
            echo "== $tool" >>"$results/sanitizer.log"
            # Evidence is written by the test itself, so it counts only if the tool found nothing.
            # One thread: the tools lose track of launches from several.
            RAYON_NUM_THREADS=1 FOURTAP_SANITIZER=$tool FOURTAP_EVIDENCE="$results/$tool.jsonl" \
                timeout "${FOURTAP_SANITIZER_SECONDS:-300}" compute-sanitizer --tool "$tool" --error-exitcode 9 \
                "$here/cuda-tests" --include-ignored sanitizer --test-threads=1 >>"$results/sanitizer.log" 2>&1
            if [ $? -eq 0 ] && [ -s "$results/$tool.jsonl" ]; then
                cat "$results/$tool.jsonl" >>"$results/evidence.jsonl"
            else
                failed=1
            fi
            rm -f "$results/$tool.jsonl"
        done
        grep -E '^== |ERROR SUMMARY|RACECHECK SUMMARY|test result' "$results/sanitizer.log"
        ;;
    soak)
        # Eight minutes of both operators from eight threads, compared with the oracle, memory flat.
        FOURTAP_SOAK_SECONDS=${FOURTAP_SOAK_SECONDS:-480} "$here/cuda-tests" --include-ignored soak --nocapture \
            >"$results/soak.log" 2>&1 || failed=1
        tail -n 14 "$results/soak.log"
        ;;
    bench)
        : >"$results/bench.txt"
        # Everything; then coordinates of 16 bits; then points that crowd, where gradients contend.
        for what in "" "--coordinates value --dtype f16,bf16 --direction forward" \
            "--distribution window,spot,zipf,rtdetr --dtype f16,f32"; do
            # shellcheck disable=SC2086  # words, not one argument
            "$here/fourtap" bench --device cuda $what --json "$results/bench.jsonl" >>"$results/bench.txt" 2>&1 || failed=1
        done
        cat "$results/bench.txt"
        ;;
    probe)
        "$here/fourtap" probe --device cuda --json "$results/probe.jsonl" >"$results/probe.txt" 2>&1 || failed=1
        cat "$results/probe.txt"
        ;;
    profile)
        : >"$results/profile.txt"
        for workload in seed-full detr-encoder dino-decoder rtdetr-decoder bev-d64; do
            for direction in forward backward; do
                "$here/fourtap" profile "$workload" --dtype f16 --distribution local --direction $direction \
                    --json "$results/counters.jsonl" >>"$results/profile.txt" 2>&1 || failed=1
            done
        done
        cat "$results/profile.txt"
        ;;
    python)
        # Needs a python3 with PyTorch and transformers; pytest is here.
        (cd "$here/fourtap-py/tests" && PYTHONPATH="$here/python" python3 -m pytest -p no:cacheprovider --durations=10 .) \
            >"$results/python.log" 2>&1 || failed=1
        tail -n 25 "$results/python.log"
        ;;
    python-bench)
        : >"$results/python.txt"
        for bench in call_overhead encoder_layer projections dense_attention; do
            PYTHONPATH="$here/python" python3 "$here/fourtap-py/benches/$bench.py" --json "$results/python.jsonl" \
                >>"$results/python.txt" 2>&1 || failed=1
        done
        cat "$results/python.txt"
        ;;
    peers)
        # Beside whatever other implementations python3 can import.
        PYTHONPATH="$here/python" python3 "$here/fourtap-py/benches/peers.py" --json "$results/peers.jsonl" \
            >"$results/peers.txt" 2>&1 || failed=1
        cat "$results/peers.txt"
        ;;
    *)
        echo "unknown part: $part" >&2
        failed=1
        ;;
    esac
done
exit $failed
