#!/usr/bin/env bash
# Who gets which function: all ways of reaching the driver, beside other preloads, several libcudas
# or none, older drivers, and callers whose lookups are none of our business.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

lookups=("$here/tests/e2e/replaced_lookups.txt" "$here"/tests/e2e/lookups/*.txt)
library() {
    echo "$programs/libinterposition_$1.so"
}

# --- the recorded lookups, and every way in, on every driver ------------------------------------

for driver in sim sim-12.4 sim-old; do
    SIM=$BUILD/$driver
    expect "recorded lookups, $driver" on_pool -- "$programs/interposition_lookups" "${lookups[@]}"
    expect "dlerror, $driver" on_pool -- "$programs/interposition_dlerror"
    ways="linked dlsym default lookup old_lookup"
    [ $driver != sim-old ] || ways="linked dlsym default old_lookup" # older than cuGetProcAddress_v2
    for way in $ways; do
        report=$work/$driver-$way.json
        expect "round trip, $way, $driver" on_pool "CUDAPOOL_REPORT=$report" -- \
            "$programs/interposition_roundtrip" "$way"
        expect "the pool served it, $way, $driver" has_requests "$report"
    done
done
SIM=$BUILD/sim
expect "allocated by lookup, freed by the PLT" on_pool -- "$programs/interposition_roundtrip" \
    lookup linked
expect "allocated by the PLT, freed by dlsym" on_pool -- "$programs/interposition_roundtrip" \
    linked dlsym

# --- other preloads, before and after ours --------------------------------------------------------

others="dlsym malloc cuda"
case $SANITIZE in # has a malloc of its own, and is not up when the other dlsym is first called
address* | thread) others=cuda ;;
esac
for other in $others; do
    for order in before after; do
        list=$(library "$other"):$ours
        [ $order = before ] || list=$ours:$(library "$other")
        for way in linked dlsym default lookup; do
            expect "another preload of $other $order ours, $way" on_driver \
                "LD_PRELOAD=$first_of_all$list" CUDAPOOL_REPORT=none -- \
                "$programs/interposition_roundtrip" $way linked
        done
    done
done
if [[ $others == *dlsym* ]]; then
    expect "the other preload's dlsym still answers" on_driver \
        "LD_PRELOAD=$first_of_all$ours:$(library dlsym)" -- "$programs/interposition_other"
fi

# --- callers whose lookups are none of our business ---------------------------------------------

for scope in local global; do
    on_driver "LD_PRELOAD=$first_of_all" -- "$programs/interposition_scope" "$(library scope)" \
        $scope >"$work/without" 2>&1
    on_pool -- "$programs/interposition_scope" "$(library scope)" $scope >"$work/with" 2>&1
    expect_same "lookups of others are as without us, $scope" "$work/without" "$work/with"
done
expect "which found something" grep -q 'library next malloc: lib' "$work/without"

# --- several libcudas, or none -------------------------------------------------------------------

cp "$SIM/libcuda.so.1" "$work/libcuda_copy.so"
another_namespace=namespace
[ -z "$SANITIZE" ] || another_namespace= # sanitizers do not bear dlmopen
[ "${NAMESPACES:-yes}" = yes ] || another_namespace=
expect "libcuda opened more than once" on_pool -- "$programs/interposition_copies" \
    "$work/libcuda_copy.so" $another_namespace
no_driver="LD_LIBRARY_PATH=${GUEST_LIBRARY_PATH:-}"
run_with "$no_driver" -- "$programs/interposition_missing" >"$work/without" 2>&1
run_with "$no_driver" "LD_PRELOAD=$PRELOAD" -- "$programs/interposition_missing" >"$work/with" 2>&1
expect_same "libcuda missing" "$work/without" "$work/with"
expect "which is the case" grep -q '^libcuda: libcuda.so.1: cannot open' "$work/with"
expect "every function without a libcuda" run_with "$no_driver" "LD_PRELOAD=$PRELOAD" -- \
    "$programs/interposition_bare" missing
mkdir "$work/bare"
cp "$(library bare)" "$work/bare/libcuda.so.1"
expect "every function with a libcuda that lacks it" run_with "LD_PRELOAD=$PRELOAD" \
    "LD_LIBRARY_PATH=$work/bare${GUEST_LIBRARY_PATH:+:$GUEST_LIBRARY_PATH}" -- \
    "$programs/interposition_bare" bare

# --- others who patch the driver's functions --------------------------------------------------------

for case in entries code code_for_calls relocations relocations_past_the_pool next; do
    expect "patched, $case" on_pool CUDAPOOL_REPORT=none -- "$programs/interposition_patched" $case \
        "$(library patch)"
    case $case in code_for_calls | relocations* | next)
        expect "patched, $case, without the pool" on_driver -- "$programs/interposition_patched" \
            $case "$(library patch)"
        ;;
    esac
done

# As UCX is called: without the one function it would miss what goes back in a stream's order.
mkdir "$work/former" "$work/present"
cp "$(library patch)" "$work/former/libucm_cuda.so.0"
cp "$(library follower)" "$work/present/libucm_cuda.so.0"
expect "given back where one follows cuMemFree only" on_pool CUDAPOOL_REPORT=none -- \
    "$programs/interposition_patched" given_back_plainly "$work/former/libucm_cuda.so.0"
expect "given back where one follows cuMemFreeAsync, too" on_pool CUDAPOOL_REPORT=none -- \
    "$programs/interposition_patched" given_back_in_stream_order "$work/present/libucm_cuda.so.0"
expect "given back where nobody does" on_pool CUDAPOOL_REPORT=none -- \
    "$programs/interposition_patched" given_back_in_stream_order "$(library patch)"

# --- memory freed behind our back ----------------------------------------------------------------

if [ -z "$SANITIZE" ] || [ "$SANITIZE" = undefined ]; then # sanitizers refuse RTLD_DEEPBIND
    expect "a library with RTLD_DEEPBIND" on_pool CUDAPOOL_REPORT=none -- \
        "$programs/interposition_deepbind" "$(library deepbind)"
    other_json=$(library json)
    printf '{"version": 1, "device": {"evict": "largest_first"}}\n' >"$work/settings.json"
    json_c=$(ldconfig -p 2>/dev/null | sed -n 's/.*libjson-c\.so\.5 .*=> //p' | head -n 1)
    [ -z "${RUN_WITH:-}" ] || json_c=
    for json in "$other_json" $json_c; do
        name=$(basename "$json")
        for list in "$PRELOAD" "$first_of_all$json:$ours"; do
            rm -f "$work/own.json"
            expect "the program's own JSON library, $name" on_driver "LD_PRELOAD=$list" \
                "CUDAPOOL_CONFIG=$work/settings.json" "CUDAPOOL_REPORT=$work/own.json" -- \
                "$programs/interposition_json" "$json"
            expect "and a report in JSON" has_requests "$work/own.json"
        done
    done
fi

# --- threads ---------------------------------------------------------------------------------------

for round in 1 2 3 4 5; do
    expect "threads race into the first call, $round" on_pool CUDAPOOL_REPORT=none -- \
        "$programs/interposition_race"
done
if [ -z "$SANITIZE${RUN_WITH:-}" ]; then
    on_pool CUDAPOOL_REPORT=none -- "$programs/interposition_real_time" >"$work/real_time" 2>&1
    status=$?
    case $status in
    0) ok "a real-time thread waits for the one that starts the pool" ;;
    77) echo "skip a real-time thread waits: threads may have no real-time priority here" ;;
    *) fail "a real-time thread waits for the one that starts the pool" "exit status $status: $(cat "$work/real_time")" ;;
    esac
fi
finish
