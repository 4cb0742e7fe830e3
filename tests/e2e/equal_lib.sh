# shellcheck shell=bash disable=SC2034 # for who sources this
# For scripts that compare texts. failed is 1 once a check has failed.
failed=0

check() { # name, what was wanted, what is there
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        echo "FAIL $1: wanted '$2', and got '$3'"
        failed=1
    fi
}
