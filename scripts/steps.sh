# shellcheck shell=bash
# The steps of a long check: each runs, is shown as it runs, and is counted. Sourced by .ci/run and
# scripts/proof.sh, not run.
#
#   step NAME COMMAND...   runs a step; one that fails does not keep the next from running
#   conclude               prints a table of all steps and what failed, closes with "N passed, M failed,
#                          K skipped", and fails if anything failed
#
# A step that closes with its own "N passed, M failed[, K skipped]" adds these numbers, and one more failure
# if it failed for another reason. Any other step counts as one.

passed=0
failed=0
skipped=0
summary=()
failures=()
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
SILENCE=15 # seconds after which a step that prints nothing is said to be running

# Copies lines, and says that the step still runs where none comes for a while.
show() { # name, when it started
    local line part=
    while true; do
        if IFS= read -r -t $SILENCE line; then
            printf '%s%s\n' "$part" "$line"
            part=
        elif [ $? -gt 128 ]; then # timed out
            part+=$line
            printf '  (%s: running for %d s)\n' "$1" $((SECONDS - $2)) >&2
        else
            [ -z "$part$line" ] || printf '%s%s\n' "$part" "$line"
            return
        fi
    done
}

step() { # name, command
    local name=$1 log=$logs/log start=$SECONDS status
    shift
    printf '\n=== %s\n' "$name"
    { "$@" 2>&1 </dev/null; echo $? >"$logs/status"; } | show "$name" "$start" | tee "$log"
    status=$(cat "$logs/status")
    account "$name" "$status" "$log" $((SECONDS - start))
}

account() { # name, status, log, seconds
    local counts ok=0 bad=0 left=0
    counts=$(grep -aE '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$3" | tail -n 1)
    if [ -n "$counts" ]; then
        read -r ok _ bad _ left _ <<<"$counts"
        left=${left:-0}
    elif [ "$2" -eq 0 ]; then
        ok=1
    fi
    [ "$2" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    passed=$((passed + ok))
    failed=$((failed + bad))
    skipped=$((skipped + left))
    mapfile -t -O ${#failures[@]} failures < <(complaints "$1" "$bad" "$3")
    summary+=("$(printf '%-34s %5d passed %3d failed %3d skipped %5d s' "$1" "$ok" "$bad" "$left" "$4")")
}

# The lines in which a step says what failed; or else, where it failed, its last three.
complaints() { # name, failures, log
    [ "$2" -gt 0 ] || return 0
    { grep -aE '^(failed: |FAIL )' "$3" || tail -n 3 "$3"; } | sed "s/^/$1: /" | cut -c 1-240 | head -n 10
}

conclude() {
    printf '\n=== summary, %d s\n' "$SECONDS"
    printf '%s\n' "${summary[@]}"
    [ ${#failures[@]} -eq 0 ] || printf '%s\n' '' "${failures[@]}"
    printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" -eq 0 ]
}
