# shellcheck shell=bash disable=SC2034,SC2154 # for who sources this
# For scripts that test what is installed, which set work to a directory of their own. failed is 1 once a
# check has failed.
failed=0

check() { # name, command
    local name=$1
    shift
    if "$@" >"$work/output" 2>&1; then
        echo "ok $name"
    else
        echo "FAIL $name: $(tail -n 5 "$work/output" | tr '\n' ' ')"
        failed=1
    fi
}
