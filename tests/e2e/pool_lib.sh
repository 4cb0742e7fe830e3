# shellcheck shell=bash disable=SC2034
# What pool.sh, faults.sh and process_life.sh share: sourced, not run. Settings, and the numbers of
# a report, for which nothing but awk is needed: libcudapool_config.so writes a key to a line.
# shellcheck source=tests/e2e/interposition_lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/interposition_lib.sh"
seconds=$((seconds / 2))

# Writes a settings file from the inside of "device", and other members; its name is $settings.
use_device() { # members of device [other members]
    settings=$work/settings-$((RANDOM)).json
    printf '{"version": 1, "device": {%s}%s}\n' "$1" "${2:+, $2}" >"$settings"
}

# A case of a program with the pool, under the settings in use, and without it.
case_on_pool() { # program case [variable=value ...]
    local program=$programs/$1 case=$2
    shift 2
    on_pool CUDAPOOL_REPORT=none "CUDAPOOL_CONFIG=${settings:-}" "$@" -- "$program" "$case"
}
case_on_driver() { # program case [variable=value ...]
    local program=$programs/$1 case=$2
    shift 2
    on_driver "$@" -- "$program" "$case"
}

# Every number of a report, one a line: "totals.hits.clean 5", "1048576.hits.clean 3" for a bucket,
# "fences 7" for a device, "unpooled.arrays.live_bytes 0" for what the pool only counts of it.
numbers() { # file
    awk '{
        depth = (match($0, /[^ ]/) - 1) / 2
        if (!match($0, /"[a-z_]+": /)) next
        key[depth] = substr($0, RSTART + 1, RLENGTH - 4)
        value = substr($0, RSTART + RLENGTH)
        sub(/,$/, "", value)
        if (key[depth] == "buckets" || key[depth] == "totals") under = depth
        if (key[under] == "buckets" && key[depth] == "bytes" && depth == under + 2) bucket = value
        if (key[depth] == "kind") print "kind", value
        if (value !~ /^[0-9.]+$/) next
        path = key[under] == "totals" ? "totals" : bucket
        if (depth <= 3) { print key[depth], value; next }
        if (key[3] == "unpooled") { print "unpooled." key[4] "." key[5], value; next }
        for (i = under + (key[under] == "totals" ? 1 : 2); i <= depth; i++) path = path "." key[i]
        print path, value
    }' "$1"
}

# What must hold of every report: requests are hits, misses and failures, what was handed out is freed
# or live, what came from the driver has left, is live or free, and the buckets of a kind of memory add
# up to its totals.
adds_up() { # file
    numbers "$1" | awk '
        function check(    b, name, hits, failures, gone, live, free) {
            for (b in bucket) if (b != "") {
                hits = n[b ".hits.clean"] + n[b ".hits.queried"] + n[b ".hits.barrier"] + n[b ".hits.waited"]
                failures = n[b ".failures.memory"] + n[b ".failures.limit"] + n[b ".failures.group"] + n[b ".failures.other"]
                gone = n[b ".evictions.cap"] + n[b ".evictions.idle"] + n[b ".evictions.memory"] + n[b ".evictions.free"] + n[b ".evictions.context"]
                live = n[b ".live_blocks"]
                if (n[b ".requests"] != hits + n[b ".misses"] + failures) {
                    print b ": requests " n[b ".requests"] ", hits " hits ", misses " n[b ".misses"] ", failures " failures
                    bad = 1
                }
                if (hits + n[b ".misses"] != n[b ".frees"] + live) {
                    print b ": hits and misses " hits + n[b ".misses"] ", frees " n[b ".frees"] ", live " live
                    bad = 1
                }
                free = b + 0 > 0 ? (n[b ".cached_bytes"] + n[b ".pending_bytes"]) / b : 0
                if (b + 0 > 0 && (live * b != n[b ".live_bytes"] || n[b ".misses"] != gone + live + free)) {
                    print b ": misses " n[b ".misses"] ", gone " gone ", live " live ", free " free
                    bad = 1
                }
            }
            for (name in sum) if (sum[name] != n["totals." name]) {
                print "totals." name " " n["totals." name] ", buckets " sum[name]
                bad = 1
            }
            requests += n["totals.requests"]
            delete n; delete sum; delete bucket
        }
        $1 == "kind" { check() }
        { n[$1] = $2; dot = index($1, "."); name = substr($1, dot + 1); bucket[substr($1, 1, dot - 1)] }
        dot && $1 !~ /^(totals|unpooled)/ && name !~ /^peak/ && name != "bytes" { sum[name] += $2 }
        END {
            check()
            if (!requests) { print "no requests"; bad = 1 }
            exit bad
        }'
}

# expect_numbers NAME FILE "path value"... of the last kind of memory in the report that is not pinned;
# of that one the paths begin with "host."
expect_numbers() {
    local name=$1 file=$2 wanted found
    shift 2
    numbers "$file" >"$work/numbers" 2>/dev/null
    for wanted in "$@"; do
        found=$(awk -v path="${wanted% *}" '$1 == "kind" { of = $2 ~ /host/ ? "host." : ""; next }
            { name = $1 ~ /^(totals|[0-9]+)\./ ? of $1 : $1 }
            name == path { value = $2 } END { print value }' "$work/numbers")
        if [ "$found" != "${wanted#* }" ]; then
            fail "$name" "${wanted% *} is \"$found\", not ${wanted#* }"
            return
        fi
    done
    ok "$name"
}

# The document's C is what stands between the lines of dashes in the program, without the blank lines
# around it.
expect_shown() { # document, program
    awk '/^\/\* ---/ { n++; getline; next } n == 1' "$here/tests/e2e/$2" | sed '1{/^$/d}' | sed '${/^$/d}' \
        >"$work/program"
    awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$here/docs/$1" >"$work/shown"
    expect "$2 has lines to show" test -s "$work/program"
    expect_same "docs/$1 shows tests/e2e/$2" "$work/program" "$work/shown"
}
