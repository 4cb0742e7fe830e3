#!/usr/bin/env bash
# Checks every source that git knows or would take: format, sizes, locks, whether mutations apply,
# clang's warnings and clang-tidy, cppcheck, shellcheck. Says what is wrong and exits 1; a tool that
# is not installed is an error.
#
# usage: lint.sh [--changed-since COMMIT]
#   --changed-since   clang-tidy and cppcheck, which take a second or more for each file, look only at
#                     sources that differ from COMMIT or include a header that does. Without such a commit
#                     in this clone they look at all.
set -u
cd "$(dirname "$0")/.." || exit 2

for tool in clang-format clang-tidy cppcheck shellcheck; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "lint.sh: $tool is not installed; scripts/install_dependencies.sh ci installs it" >&2
        exit 1
    fi
done

list() { # patterns
    git ls-files --cached --others --exclude-standard -- "$@" | sort -u | xargs -r ls -d 2>/dev/null
}
mapfile -t formatted < <(list '*.c' '*.h')
# The two that include <cuda.h> are checked where a toolkit is, by compiling them, and those that include
# another run time's headers where scripts/runtimes.sh has them; the one of the mutations includes what is
# written when they are built.
mapfile -t sources < <(list '*.c' | grep -v -e 'abi_check\.c$' -e '^tests/mutations/mutation\.c$' \
    -e '^tests/runtimes/\(java\|lua\|mpi\|node\)\.c$')
if [ "${1:-}" = --changed-since ]; then
    mapfile -t sources < <(scripts/changed.sh "${2:?COMMIT is missing}" "${sources[@]}")
elif [ $# -gt 0 ]; then
    echo "lint.sh: unknown argument '$1': must be --changed-since COMMIT" >&2
    exit 2
fi
mapfile -t shell_scripts < <(list '*.sh' .ci/run)
status=0

step() { # name, command
    local name=$1
    shift
    if "$@"; then
        echo "ok $name"
    else
        echo "FAIL $name"
        status=1
    fi
}

# One process for each file. What clang-tidy says on stderr is how many warnings it suppressed in system
# headers; xargs names each file as it begins.
# shellcheck disable=SC2317 # called through step
tidy() {
    [ ${#sources[@]} -gt 0 ] || return 0
    # shellcheck disable=SC2016 # expanded by the shell that is run
    printf '%s\n' "${sources[@]}" | nl -ba -w 1 -s ' ' |
        xargs -P "$(nproc)" -L 1 bash -c 'echo "  $1 of $0: $2"; clang-tidy --quiet "$2" -- -std=gnu17 -D_GNU_SOURCE= \
            -Wall -Wextra -Wshadow -Wconversion -fPIC -I. -Itests -Itests/unit/fixtures 2>/dev/null' ${#sources[@]}
}

# shellcheck disable=SC2317 # called through step
check_with_cppcheck() {
    [ ${#sources[@]} -gt 0 ] || return 0
    cppcheck -j "$(nproc)" --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability \
        --inline-suppr --suppress=missingIncludeSystem --suppress=unknownMacro \
        -D_GNU_SOURCE= -D__x86_64__ -D__cppcheck__ -I. -Itests -Itests/unit/fixtures "${sources[@]}"
}

# Each lock is taken by its rank, so that the builds that check them see all: core/base/lock.h.
# shellcheck disable=SC2317 # called through step
ranked() {
    ! grep -nE '(pthread_mutex_(lock|trylock|unlock)|short_lock_(take|give))\(' core/[!b]*/*.[ch] \
        core/blocks/*.[ch] shim/*.[ch]
}

# An edit that no longer applies is found here, before anything is built of it.
step mutations tests/mutations/apply.py check
step heuristics tests/mutations/apply.py check tests/bench/heuristics
step clang-format clang-format --dry-run -Werror "${formatted[@]}"
step sizes scripts/sizes.py
step locks ranked
step "clang-tidy of ${#sources[@]} files" tidy
step cppcheck check_with_cppcheck
[ ${#shell_scripts[@]} -eq 0 ] || step shellcheck shellcheck -x "${shell_scripts[@]}"
exit $status
