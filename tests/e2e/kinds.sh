#!/usr/bin/env bash
# Every kind of memory passes one list of scenarios, kinds.c: without the pool, with it, and on a
# driver that cannot record a context's work.
# shellcheck source=tests/e2e/interposition_lib.sh
. "$(dirname "$0")/interposition_lib.sh"
seconds=60

while read -r kind scenario variables; do
    # shellcheck disable=SC2206 # one word each
    variables=($variables)
    # In a file: an emulator divides what it sets for the program at commas.
    if [[ ${variables[0]:-} == CUDAPOOL_CONFIG=* ]]; then
        printf '%s\n' "${variables[0]#*=}" >"$work/settings.json"
        variables[0]=CUDAPOOL_CONFIG=$work/settings.json
    fi
    expect "$kind $scenario, without the pool" on_driver "${variables[@]}" -- \
        "$programs/kinds" "$kind" "$scenario"
    expect "$kind $scenario" on_pool CUDAPOOL_REPORT=none "${variables[@]}" -- \
        "$programs/kinds" "$kind" "$scenario"
    SIM=$BUILD/sim-12.4 expect "$kind $scenario, an older driver" on_pool CUDAPOOL_REPORT=none \
        "${variables[@]}" -- "$programs/kinds" "$kind" "$scenario"
done < <(on_driver -- "$programs/kinds")

finish
