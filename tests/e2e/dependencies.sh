#!/usr/bin/env bash
# scripts/install_dependencies.sh on machines that are made up: a PATH of few commands, an apt-get and a sudo
# that only write down how they were called, and a compiler that knows some headers.
set -u
cd "$(dirname "$0")/../.." || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bash=$(command -v bash)

# shellcheck source=tests/e2e/equal_lib.sh
. tests/e2e/equal_lib.sh

command_of() { # name; its text is the input
    { echo "#!$bash"; cat; } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}

# A machine that has nothing but what every Debian has.
bare_machine() { # user's number
    rm -rf "${work:?}/bin" "$work/calls" "$work/lists"
    mkdir "$work/bin"
    : >"$work/calls"
    ln -s "$bash" "$(command -v env)" "$(command -v cat)" "$(command -v sed)" "$work/bin"
    command_of id <<<"echo $1"
    # It finds packages once there are lists.
    command_of apt-get <<EOT
echo "apt-get \$*" >>"$work/calls"
case \$1 in
update) : >"$work/lists" ;;
*) [ -e "$work/lists" ] || { echo 'E: Unable to locate package' >&2; exit 100; } ;;
esac
EOT
}

with_sudo() {
    command_of sudo <<EOT
echo -n 'sudo ' >>"$work/calls"
exec "\$@"
EOT
}

with_everything() {
    local name
    for name in cc make tmux python3 pgrep; do
        command_of $name <<<'cat >/dev/null'
    done
}

# What it says, and its exit status; whoever has called it ignores SIGPIPE, as some do.
installing() { # group...
    (
        trap '' PIPE
        env -i PATH="$work/bin" CC=cc "$bash" scripts/install_dependencies.sh "$@" 2>&1
        echo "status $?"
    ) | tr '\n' ';'
}

called() {
    tr '\n' ';' <"$work/calls"
}

install='apt-get install -y -q --no-install-recommends'
for_build='gcc make libc6-dev libjansson-dev libncurses-dev'
for_test='libcriterion-dev tmux python3 procps'

bare_machine 0
with_everything
check "nothing is missing: nothing is said" 'status 0;' "$(installing build test)"
check "nor done" '' "$(called)"

bare_machine 0
: >"$work/lists"
check "what is missing is named" "Installing $for_build;status 0;" "$(installing)"
check "and installed" "$install $for_build;" "$(called)"

bare_machine 0
check "apt without lists: no error is shown" "Installing $for_build $for_test;status 0;" "$(installing build test)"
check "they are fetched, and it is tried again" \
    "$install $for_build $for_test;apt-get update -q;$install $for_build $for_test;" "$(called)"

bare_machine 0
command_of apt-get <<<"
echo \"apt-get \$1\" >>'$work/calls'
[ \"\$1\" = install ] && [ -e '$work/lists' ] || { : >'$work/lists'; echo 'E: no such list' >&2; exit 100; }"
check "another's list cannot be fetched" "Installing $for_build;E: no such list;status 0;" "$(installing)"

bare_machine 0
command_of apt-get <<<"echo 'E: no network' >&2; exit 100"
check "no network: apt's error is the last word" "Installing $for_build;E: no network;E: no network;status 100;" "$(installing)"

bare_machine 0
command_of apt-get <<<"printf '%s\n' 'Reading lists' 'Get:1 archive gcc' 'Unpacking gcc' 'Setting up gcc'"
check "one line for what is fetched, and one for what is set up" \
    "Installing $for_build;  Get:1 archive gcc;  Setting up gcc;status 0;" "$(installing)"

bare_machine 1000
with_sudo
: >"$work/lists"
check "a user has sudo" "Installing $for_build;status 0;" "$(installing)"
check "which is used" "sudo $install $for_build;" "$(called)"

bare_machine 1000
command_of cc <<<'exit 1'
wanted="install_dependencies.sh: these packages are missing, and there is no sudo to install them with: ${for_build#gcc };status 1;"
said=
for _ in 1 2 3 4 5 6 7 8 9 10; do
    said=$(installing)
    [ "$said" = "$wanted" ] || break
done
check "a user without sudo gets one line" "$wanted" "$said"
check "and nothing is done" '' "$(called)"

bare_machine 0
rm "$work/bin/apt-get"
check "no apt-get: the packages are named" \
    "install_dependencies.sh: there is no apt-get here; install what these Debian packages hold, then try again: $for_build;status 1;" \
    "$(installing)"
check "a group that nobody knows" \
    "install_dependencies.sh: unknown group 'all': must be build, test, ci or proof;status 2;" "$(installing all)"
exit $failed
