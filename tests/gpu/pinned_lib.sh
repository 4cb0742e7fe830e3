# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables that run.sh sets
#
# run.sh's section on pinned host memory: whether any is given out too early, and what it costs. A
# row of the table is a figure that programs tell in a line "row NAME: NUMBER UNIT": its medians over
# several turns, in each of which the program runs without the pool, with it and, where "other" says
# so, in a third way without it. A goal that is missed is told and is no failure; data that are wrong
# and a pool that has served none of the memory are.

pinned_header() { # what other is
    say ""
    say "$(printf '%-40s %4s %10s %10s %7s %10s %7s %7s  %s' "pinned memory" unit plain pool \
        "/plain" "${1:--}" "/other" hits goal)"
}

# Of the last run with the pool: requests of pinned memory, the share that hit, and the most that the
# pool held of it, in MiB.
pinned_in_report() {
    "$python" - "$work/report.json" <<'END' 2>>"$log" || echo "0 - -"
import json, sys

def host_kinds(value):
    if isinstance(value, dict):
        if value.get("kind") == "host" and "totals" in value:
            yield value["totals"]
        value = list(value.values())
    for item in value if isinstance(value, list) else []:
        yield from host_kinds(item)

totals = list(host_kinds(json.load(open(sys.argv[1]))))
requests = sum(total["requests"] for total in totals)
hits = sum(sum(total["hits"].values()) for total in totals)
reserved = sum(total["peak"]["reserved_bytes"] for total in totals)
print(requests, "%.1f%%" % (100 * hits / requests) if requests else "-", "%.1f" % (reserved / 2**20))
END
}

# What the last run told joins the rows. A program without such lines has one row, of its time.
keep_rows() { # plain|pool|other, name of that row
    local rows reserved
    rows=$(sed -nE "s/^row (.*): ([0-9.]+) ([A-Za-z]+).*/$1\t\1\t\2\t\3/p" "$work/output")
    [ -n "$rows" ] || rows=$(printf '%s\t%s\t%s\tms' "$1" "$2" "$ms")
    printf '%s\n' "$rows" >>"$work/rows"
    [ "$1" = other ] || printf '%s\n' "$result" >>"$work/results"
    [ "$status" -eq 0 ] || verdict="FAIL, $1: exit status $status: $result"
    if [ "$1" = pool ]; then
        read -r requests hit_share reserved < <(pinned_in_report)
        if [ "$requests" -eq 0 ] && [ "$verdict" = ok ]; then
            verdict="FAIL: the pool has served no pinned memory"
        fi
        printf 'pool\tpeak reserved, by the report\t%s\tMiB\n' "$reserved" >>"$work/reserved"
    fi
}

# "pool", "plain" or "other", and how much the pool's figure may be: so many of the unit, or times
# the other figure; "peak" for the rule on memory.
goal_of() { # row
    case $1 in
    "pair of"*" 1 threads") echo "pool 0.15" ;;
    "pair of"*" 16 threads") echo "pool 0.3" ;;
    staging*) echo "other 1.03" ;;
    large*cuMemHostAlloc) echo "plain 0.35" ;;
    "peak asked for") echo "none 0" ;;
    peak*) echo "peak 1.15" ;;
    *) echo "none 0" ;;
    esac
}

# The most that the pool's figure may be, and whether it is no more. A figure of memory that does not
# see the driver's is none to hold the pool to.
judge() { # row, plain, pool, other, asked for
    local kind factor
    read -r kind factor < <(goal_of "$1")
    awk -v kind="$kind" -v factor="$factor" -v plain="$2" -v pool="$3" -v other="$4" -v asked="$5" '
        BEGIN {
            if (kind == "none" || pool == "-" || (kind == "other" && other == "-") ||
                (kind != "pool" && kind != "other" && plain == "-")) { print "-"; exit }
            if (kind == "peak" && plain < asked / 2) { print "- (not seen there)"; exit }
            most = factor * (kind == "pool" ? 1 : kind == "other" ? other : plain)
            if (kind == "peak") most += 32
            printf "%.4g: %s\n", most, pool + 0 <= most ? "met" : "MISSED"
        }'
}

figures_of() { # plain|pool|other, row
    awk -F '\t' -v mode="$1" -v row="$2" '$1 == mode && $2 == row { print $3 }' "$work/rows"
}

# "-" where there are none.
median_of() { # plain|pool|other, row
    local figures
    mapfile -t figures < <(figures_of "$@")
    median "${figures[@]:--}"
}

print_rows() {
    local row unit plain pool other asked
    asked=$(median_of plain "peak asked for")
    while IFS=$'\t' read -r row unit; do
        plain=$(median_of plain "$row") pool=$(median_of pool "$row") other=$(median_of other "$row")
        say "$(printf '%-40s %4s %10s %10s %7s %10s %7s %7s  %s' "$row" "$unit" "$plain" "$pool" \
            "$(ratio3 "$pool" "$plain")" "$other" "$(ratio3 "$pool" "$other")" "$hit_share" \
            "$(judge "$row" "$plain" "$pool" "$other" "$asked")")"
    done < <(awk -F '\t' '!told[$2]++ { print $2 "\t" $4 }' "$work/rows")
}

ratio3() { # a, b: a row with goals of 3 % needs a third digit
    awk -v a="$1" -v b="$2" \
        'BEGIN { if (a == "-" || b == "-" || b + 0 == 0) print "-"; else printf "%.3f\n", a / b }'
}

# plain_more is one argument more where the driver is alone, which may need fewer rounds to be known
# as well; config is the pool's.
turns() { # name, turns, command [-- other command]
    local name=$1 count=$2 command=() other=() verdict=ok hit_share=- requests=0
    shift 2
    starts "$name" || return
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        command+=("$1")
        shift
    done
    [ $# -eq 0 ] || other=("${@:2}")
    rm -f "$work/rows" "$work/results" "$work/reserved"
    for _ in $(seq "$count"); do
        run plain "" "${command[@]}" ${plain_more:+"$plain_more"}
        [ "$started" = no ] || keep_rows plain "$name"
        run pool "${config:-}" "${command[@]}"
        [ "$started" = no ] || keep_rows pool "$name"
        [ ${#other[@]} -gt 0 ] || continue
        run plain "" "${other[@]}"
        [ "$started" = no ] || keep_rows other "$name"
    done
    if grep -q 'peak asked for' "$work/rows"; then
        sed -n 's/^plain\tpeak asked for/plain\tpeak reserved, by the report/p' "$work/rows" \
            >>"$work/reserved"
        cat "$work/reserved" >>"$work/rows"
    fi
    print_rows
    [ "$(sort -u "$work/results" | wc -l)" -eq 1 ] || [ "$verdict" != ok ] ||
        verdict="FAIL: with the pool the program says something else"
    if [ "$started" = no ]; then
        not_started=$((not_started + 1))
        say "    $name: cut short, the time is up"
    fi
    [ "$verdict" = ok ] && return
    failures=$((failures + 1))
    say "    $name: $verdict"
}

# A run with the pool must have served the memory whose data it checked.
check_served() { # as check, of the pool
    local before=$failures requests
    check "$@"
    [ "$started" = yes ] && [ "$failures" -eq "$before" ] || return
    read -r requests _ < <(pinned_in_report)
    [ "$requests" -gt 0 ] && return
    failures=$((failures + 1))
    say "    FAIL: the pool has served no pinned memory"
}

pinned_hazard() {
    local hazard=("$programs/pinned" hazard) no_budget=$work/host_0.json
    local one=(rounds="$((1500 / shrink))") four=(threads=4 rounds="$((500 / shrink))")
    local contexts=(contexts rounds="$((600 / shrink))")
    local both=(threads=4 contexts rounds="$((250 / shrink))")
    echo '{"version": 1, "host": {"growth_budget": "0B"}}' >"$no_budget"
    say ""
    check 1 "pinned hazard, reused at once (must be noticed)" plain "" "${hazard[@]}" "${one[@]}" \
        reuse-at-once
    check 0 "pinned hazard, plain" plain "" "${hazard[@]}" "${one[@]}"
    check 0 "pinned hazard, plain, 4 threads, 2 contexts" plain "" "${hazard[@]}" "${both[@]}"
    check_served 0 "pinned hazard, pool" pool "" "${hazard[@]}" "${one[@]}"
    check_served 0 "pinned hazard, pool, 4 threads" pool "" "${hazard[@]}" "${four[@]}"
    check_served 0 "pinned hazard, pool, 4 threads, growth budget 0" pool "$no_budget" \
        "${hazard[@]}" "${four[@]}"
    check_served 0 "pinned hazard, pool, huge pages" pool "$huge_pages" "${hazard[@]}" "${one[@]}"
    check_served 0 "pinned hazard, pool, 2 contexts" pool "" "${hazard[@]}" "${contexts[@]}"
    check_served 0 "pinned hazard, pool, 4 threads, 2 contexts" pool "" "${hazard[@]}" "${both[@]}"
    # Without the pool a program must not do that.
    [ "$failures" -ne "$failures_before" ] ||
        check_served 0 "pinned hazard, pool, use in the other context" pool "" "${hazard[@]}" \
            "${contexts[@]}" beside
}

pinned_python() {
    local apps=("$python" tests/gpu/apps.py) module
    for module in cupy numba; do
        if "$python" -c "from importlib.util import find_spec as f; exit(not f('$module'))"; then
            turns "$module, pinned memory, a step" 3 "${apps[@]}" ${module}_pinned 40
        else
            say "$module: there is none"
        fi
    done
}

pinned_part() { # part
    local pinned=$programs/pinned shrink=1 mib=16 largest=1024 live=384 times
    [ -z "${PINNED_SMALL:-}" ] || shrink=10 mib=2 largest=288 live=64
    case $1 in
    hazard) pinned_hazard ;;
    pairs) turns pairs 3 "$pinned" pairs pair_ms="$((40 / shrink))" ;;
    staging)
        times=rounds=$((30 / shrink))
        plain_more="rounds=$((20 / shrink / 2))" turns staging 5 "$pinned" staging mib=$mib $times \
            -- "$pinned" staging_once mib=$mib $times
        ;;
    large)
        config=$huge_pages turns "large, huge pages" 3 "$pinned" large most_mib=$largest count=1
        ;;
    mixed)
        times=rounds=$((200 / shrink))
        turns "mixed sizes" 3 "$pinned" mixed $times -- "$pinned" mixed_once $times
        ;;
    peak) turns peak 1 "$pinned" peak live_mib=$live ;;
    python) pinned_python ;;
    *)
        say "pinned: FAIL: no part is named $1"
        failures=$((failures + 1))
        ;;
    esac
}

pinned_section() {
    local part failures_before=$failures plain_more='' config='' told_header=no
    local huge_pages=$work/huge_pages.json
    echo '{"version": 1, "host": {"large": "huge_pages"}}' >"$huge_pages"
    for part in ${PINNED:-hazard pairs staging large mixed peak python}; do
        if [ "$part" != hazard ] && [ $told_header = no ]; then
            pinned_header "made once"
            told_header=yes
        fi
        pinned_part "$part"
    done
}
