#!/usr/bin/env bash
# What a report tells, in every format, is what the program has counted for itself (counted.c).
# shellcheck source=tests/e2e/pool_lib.sh disable=SC2317
. "$(dirname "$0")/pool_lib.sh"
if [ -n "${RUN_WITH:-}" ]; then
    echo "ok counted: left out, the command is for another processor"
    exit 0
fi
unset CUDAPOOL_FIGURES CUDAPOOL_REPORT CUDAPOOL_CONFIG
report() { # format
    "$BUILD/cudapool" report --format "$1" "$work/report.json"
}

# Each of these writes "KIND BYTES NAME VALUE" for what the format tells. Reasons of failures, and hits by
# what they needed, are added up: no program knows those.
told_by_json() {
    numbers "$work/report.json" | awk '$1 == "kind" { gsub(/"/, "", $2); kind = $2; next }
        kind && match($1, /\./) { bucket = substr($1, 1, RSTART - 1); name = substr($1, RSTART + 1)
            gsub(/\./, "_", name); if (bucket == "totals") bucket = "all"
            sum[kind " " bucket " " (name ~ /^failures_/ ? "failures" : name)] += $2 }
        END { for (name in sum) printf "%s %.0f\n", name, sum[name] }'
}
told_by_csv() {
    report csv | tr -d '\r' | awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) heading[i] = $i; next }
        $6 != "neighbours" { for (i = 8; i <= NF; i++)
            sum[$6 " " $7 " " (heading[i] ~ /^failures_/ ? "failures" : heading[i])] += $i }
        END { for (name in sum) printf "%s %.0f\n", name, sum[name] }'
}
told_by_prometheus() {
    report prometheus | awk 'function label(name) {
            return match($0, name "=\"[^\"]*") ? substr($0, RSTART + length(name) + 2, RLENGTH - length(name) - 2) : ""
        }
        /^cudapool_[a-z_]*\{.*kind=/ { name = substr($1, 10); sub(/\{.*/, "", name); sub(/_total$/, "", name)
            bucket = label("bucket_bytes"); sum[label("kind") " " (bucket == "" ? "all" : bucket) " " name] += $NF }
        END { for (name in sum) printf "%s %.0f\n", name, sum[name] }'
}
# A table rounds bytes, down to a tenth of their unit.
told_by_table() {
    report table | awk 'function bytes(number, unit) {
            return number * (unit == "KiB" ? 1024 : unit == "MiB" ? 1048576 : unit == "GiB" ? 1073741824 : 1)
        }
        / memory: / { kind = $1; gsub(/,/, ""); for (i = 1; i < NF; i++) if ($i == "peak") {
            print kind, "all", "peak_live_bytes", bytes($(i + 1), $(i + 2)), bytes(0.1, $(i + 2)) }; next }
        $1 == "bucket" { for (at = 1; at <= NF && $at != "failed"; at++); next }
        kind && ($1 == "all" || $2 ~ /^([KMG]i)?B$/) {
            all = $1 == "all"; bucket = all ? "all" : bytes($1, $2); shift = all ? 0 : 1
            print kind, bucket, "requests", $(2 + shift); print kind, bucket, "failures", $(at + shift)
            print kind, bucket, "live_blocks", $(at + shift + 3 - 1) }'
}

# Every line of the program that the format tells of at all, and the sum of buckets where it has no total.
agrees() { # what the program has counted, what the report tells
    awk 'NR == FNR { told[$1 " " $2 " " $3] = $4; rounded[$1 " " $2 " " $3] = $5 + 0
            if ($2 != "all" && $3 !~ /^peak/) sum[$1 " all " $3] += $4
            names[$3]; next }
        $1 == "taken" || $1 == "wall" || !($3 in names) { next }
        { key = $1 " " $2 " " $3; value = key in told ? told[key] : key in sum ? sum[key] : "none" }
        value == "none" && $3 ~ /^peak/ { next } # not told of buckets
        { compared++ }
        value == "none" || value + rounded[key] < $4 - $5 || value > $4 + $6 {
            print key " is " value ", not " $4 ($5 || $6 ? " less " $5 " or more " $6 : ""); bad = 1 }
        END { if (compared < 8) { print compared + 0 " numbers compared"; bad = 1 }; exit bad }' "$2" "$1"
}

# Peaks among themselves: no bucket has held more than its kind, nothing more than what the driver gave,
# and nobody held more than was reserved.
peaks_agree() { # what the program has counted, what CSV tells, what JSON tells
    awk 'FILENAME == ARGV[1] { if ($1 == "taken") taken = $4; next }
        $2 == "all" || FILENAME == ARGV[2] { peak[$1 " " $2 " " $3] = $4; kinds[$1] }
        END { for (key in peak) { split(key, part, " ")
                if (part[3] !~ /^peak_/) continue
                if (peak[key] > peak[part[1] " all peak_reserved_bytes"]) { print key " is above its kind: " peak[key]; bad = 1 }
                if (part[1] != "host" && peak[key] > taken) { print key " is " peak[key] ", the driver gave " taken; bad = 1 }
                if (peak[part[1] " " part[2] " peak_live_bytes"] > peak[part[1] " " part[2] " peak_reserved_bytes"]) {
                    print key " is less than what was held"; bad = 1 }
            }; exit bad || !length(kinds) }' "$@"
}

for case in device streams pinned kinds two_streams refused threads; do
    rm -f "$work/report.json"
    expect "$case" on_pool SIMCUDA_MEMORY=1GiB "CUDAPOOL_REPORT=$work/report.json" -- "$programs/counted" $case
    grep -v '^cudapool' "$work/output" >"$work/counted"
    for format in json csv prometheus table; do
        told_by_$format >"$work/told.$format"
        expect "$case: $format" agrees "$work/counted" "$work/told.$format"
    done
    expect "$case: peaks" peaks_agree "$work/counted" "$work/told.csv" "$work/told.json"
done

# Of kinds that were used one after the other the device's peak is no sum.
rm -f "$work/report.json"
expect in_turn on_pool SIMCUDA_MEMORY=1GiB "CUDAPOOL_REPORT=$work/report.json" -- "$programs/counted" in_turn
expect "in_turn: the device's peak" grep -q 'peak 256.0 MiB in use, 256.0 MiB reserved$' \
    <("$BUILD/cudapool" report --merge "$work/report.json")

# Wall time is the process's own, not that since it first asked for CUDA.
wall_is_told() { # how long the whole took, in seconds
    local own told of_prometheus
    own=$(awk '$1 == "wall" { print $4 }' "$work/counted")
    told=$(sed -n 's/.*"wall_seconds": \([0-9.]*\).*/\1/p' "$work/report.json")
    of_prometheus=$(report prometheus | sed -n 's/^cudapool_wall_seconds{.*} //p')
    awk -v own="$own" -v told="$told" -v prometheus="$of_prometheus" -v whole="$1" 'BEGIN {
        if (own >= 0.5 && told >= own && told <= whole && prometheus - told < 0.001 && told - prometheus < 0.001) exit 0
        print "told " told " and " prometheus ", in itself " own ", in all " whole; exit 1 }'
}
rm -f "$work/report.json"
before=$(date +%s.%N)
expect late on_pool "CUDAPOOL_REPORT=$work/report.json" -- "$programs/counted" late
grep -v '^cudapool' "$work/output" >"$work/counted"
expect "late: wall time" wall_is_told "$(awk -v before="$before" -v now="$(date +%s.%N)" 'BEGIN { print now - before }')"

# The strictest of the shipped settings keeps what was just freed.
rm -f "$work/report.json"
expect "strict" on_pool "CUDAPOOL_REPORT=$work/report.json" "CUDAPOOL_CONFIG=$here/configs/strict.json" \
    -- "$programs/counted" pinned_pairs
expect_numbers "strict: pinned memory is kept" "$work/report.json" "host.65536.misses 1" \
    "host.1048576.misses 1" "host.3145728.misses 1" "host.totals.requests 150"

# What is refused is told of with its size, also where blocks of that size are not kept.
rm -f "$work/report.json"
expect refused_large on_pool SIMCUDA_MEMORY=1GiB "CUDAPOOL_REPORT=$work/report.json" -- "$programs/counted" refused_large
expect "refused_large: told" grep -q '^advice: 1 request of 2.0 GiB failed: ' <(report table)

# Frees that wait are told of with their size and time, and advised on.
waits_are_told() {
    local format told
    told_by_json >"$work/told.json"
    told_by_csv >"$work/told.csv"
    for format in json csv; do
        awk 'NR == FNR { told[$1 " " $2 " " $3] = $4; next }
            $3 ~ /^waits_/ { key = $1 " " $2 " " $3
                if (told[key] < $4 - $5 || told[key] > $4 + $6) { print key " is " told[key] ", not " $4; bad = 1 } }
            END { exit bad }' "$work/told.$format" "$work/counted" || return 1
    done
    told=$(report prometheus | sed -n 's/^cudapool_waiting_frees_total{.*bucket_bytes="268435456"} //p')
    [ "$told" = 10 ] || { echo "prometheus: $told"; return 1; }
    report table >"$work/table"
    grep -Eq '^ +256 MiB +10 .* ms +10 ' "$work/table" || { cat "$work/table"; return 1; }
    report html | grep -q 'data-key="device/268435456/waits_frees" data-value="10"' || { echo "page: no such number"; return 1; }
    "$BUILD/cudapool" report --compare "$work/report.none" "$work/report.json" >"$work/table"
    grep -Eq '^ +256 MiB .* 0 -> 10 \(\+10\) ' "$work/table" || { cat "$work/table"; return 1; }
    "$BUILD/cudapool" report --compare --format html "$work/report.none" "$work/report.json" |
        grep -q 'waits_frees/b" data-value="10"' || { echo "page of both: no such number"; return 1; }
    report table >"$work/table"
    grep -q '^advice: 10 of 10 frees waited for the GPU' "$work/table" || { cat "$work/table"; return 1; }
}
mv "$work/report.json" "$work/report.none"
expect waits on_pool SIMCUDA_MEMORY=1GiB "CUDAPOOL_REPORT=$work/report.json" -- "$programs/counted" waits
grep -v '^cudapool' "$work/output" >"$work/counted"
expect "waits: told" waits_are_told

# What the driver answers past 1024 streams is told of among what is not kept.
all_are_told() {
    local counted told
    counted=$(awk '$1 == "stream_ordered" && $2 == "all" && $3 == "requests" { print $4 }' "$work/counted")
    told=$(awk '$1 == "stream_ordered" && $2 == "all" && $3 == "requests" { print $4 }' "$work/told.json")
    if [ "$counted" != 2400 ] || [ "$told" != "$counted" ]; then
        echo "$counted calls, $told told"
        return 1
    fi
}
rm -f "$work/report.json"
expect many_streams on_pool SIMCUDA_MEMORY=1GiB "CUDAPOOL_REPORT=$work/report.json" -- "$programs/counted" many_streams
grep -v '^cudapool' "$work/output" >"$work/counted"
told_by_json >"$work/told.json"
expect "many_streams: requests" all_are_told
expect "many_streams: adds up" adds_up "$work/report.json"
exit $((failures > 0))
