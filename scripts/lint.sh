#!/usr/bin/env bash
# Checks every source that git knows or would take: format, sizes, locks, whether mutations apply,
# clang's warnings and clang-tidy, cppcheck, shellcheck. Says what is wrong and exits 1; a tool that
# is not installed is an error.
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
# The two that include <cuda.h> are checked where a toolkit is, by compiling them; the one of the
# mutations includes what is written when they are built.
mapfile -t sources < <(list '*.c' | grep -v -e 'abi_check\.c$' -e '^tests/mutations/mutation\.c$')
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

# One process for each file, two at a time. What clang-tidy says on stderr is how many warnings it
# suppressed in system headers.
# shellcheck disable=SC2317 # called through step
tidy() {
    printf '%s\n' "${sources[@]}" | xargs -P 2 -I FILE clang-tidy --quiet FILE -- -std=gnu17 \
        -D_GNU_SOURCE= -Wall -Wextra -Wshadow -Wconversion -fPIC -I. -Itests -Itests/unit/fixtures 2>/dev/null
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
step clang-tidy tidy
step cppcheck cppcheck -j 2 --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability \
    --inline-suppr --suppress=missingIncludeSystem --suppress=unknownMacro \
    -D_GNU_SOURCE= -D__x86_64__ -D__cppcheck__ -I. -Itests -Itests/unit/fixtures "${sources[@]}"
[ ${#shell_scripts[@]} -eq 0 ] || step shellcheck shellcheck -x "${shell_scripts[@]}"
exit $status
