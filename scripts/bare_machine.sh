#!/usr/bin/env bash
# Makes bare Debian machines of HEAD's clone and a minimal system (minbase, git and make), and runs the
# README's two commands in them: as root, with the clone in /root, and as a user with sudo, with the clone
# in that user's home. Says how many seconds each took, and closes with "N passed, M failed".
#
# usage: bare_machine.sh    (as root)
#   TMPDIR   where the machines are made (default /tmp; 4 GB, on a file system where sudo may work)
#
# The archive is the one that this machine's apt uses, reached in the same way. Everything runs in mount
# and pid namespaces that end with this script, however it ends; a process of its own then removes the
# machines.
# shellcheck disable=SC2317 # called by name
set -u
cd "$(dirname "$0")/.." || exit 2

suite=bookworm
passed=0
failed=0

skip() { # why
    echo "skip bare machine: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

# A directory for the machines. A process in a session of its own, which nothing that kills this script kills
# with it, removes it when this script and all that it has started are gone.
begin() {
    work=$(mktemp -d "${TMPDIR:-/tmp}/cudapool-bare-XXXXXX") || exit 2
    # shellcheck disable=SC2016 # expanded by the shell that is run
    exec {life}> >(exec setsid bash -c 'cat >/dev/null; rm -rf --one-file-system "$0"' "$work")
    remover=$!
}
end() {
    exec {life}>&-
    wait "$remover"
}

# Runs a command in namespaces that the kernel takes down when this script is gone. It must not be called in a
# subshell, which would outlive this script.
apart() { # command
    setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc "$@"
}

may_mount() {
    # shellcheck disable=SC2016 # expanded by the shell that is run
    apart sh -c 'mount -t tmpfs tmpfs "$0" && mkdir "$0/pts" && mount -t devpts -o newinstance devpts "$0/pts"' \
        "$work" >/dev/null 2>&1
}

# --- making a machine -----------------------------------------------------------------------------------

# Where this machine's apt has the suite from.
mirror() {
    local found
    # shellcheck disable=SC2016 # expanded by apt-get
    found=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(ORIGIN)' 'Created-By: Packages' 2>/dev/null |
        awk -v suite=$suite '$2 == suite && $3 == "Debian" && !n++ { print $1 }')
    echo "${found:-http://deb.debian.org/debian}"
}

bare_system() { # directory
    apt-config dump 2>/dev/null | grep -E '^Acquire::(https?::Proxy|Check-)' >"$work/apt.conf"
    TMPDIR=$work apart mmdebstrap --quiet --variant=minbase --include=git,make --aptopt="$work/apt.conf" --format=directory \
        "$suite" "$1" "$(mirror)"
}

# Runs a command as a user of a machine, which has devices, /dev/shm, terminals and processes of its own.
within() { # machine user command
    # shellcheck disable=SC2016 # expanded by the shell that is run
    apart bash -eu -c '
        machine=$1 user=$2
        shift 2
        mount --bind "$machine" "$machine"
        cd "$machine"
        mount -t proc proc proc
        mount -t sysfs -o ro sysfs sys
        mount -t tmpfs -o mode=755 tmpfs dev
        for device in full null random tty urandom zero; do
            : >dev/$device
            mount --bind /dev/$device dev/$device
        done
        mkdir dev/pts dev/shm
        mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts dev/pts
        mount -t tmpfs -o mode=1777 tmpfs dev/shm
        ln -s pts/ptmx dev/ptmx
        ln -s /proc/self/fd dev/fd
        for number in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${number%:*} dev/${number#*:}; done
        # A user namespace can be made within a root, not within a chroot.
        pivot_root . mnt
        umount -l mnt
        cd /
        home=$(getent passwd "$user" | cut -d : -f 6)
        exec setpriv --reuid "$user" --regid "$user" --init-groups env -i HOME="$home" USER="$user" \
            LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
    ' bash "$@" </dev/null
}

clone_into() { # machine, directory in it
    git clone -q "file://$PWD" "$1$2/cudapool" && echo "127.0.0.1 localhost $(uname -n)" >"$1/etc/hosts"
}

# A second machine, with sudo and a user who may use it, as it is before anything is installed. What the first
# one has downloaded need not be downloaded again.
machine_of_a_user() { # machine, machine whose packages there are
    # shellcheck disable=SC2016 # expanded by the shell that is run
    within "$1" root sh -eu -c '
        apt-get update -q && apt-get install -y -q --no-install-recommends sudo
        rm -rf /var/lib/apt/lists/*
        useradd --create-home --shell /bin/bash --groups sudo user
        echo "user ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/user
    ' && clone_into "$1" /home/user && chown -R --reference "$1/home/user" "$1/home/user/cudapool" &&
        cp "$2"/var/cache/apt/archives/*.deb "$1/var/cache/apt/archives"
}

# --- what is done there ---------------------------------------------------------------------------------

# What a step prints is indented: its lines are not this script's results.
step() { # name, command
    local name=$1 start=$SECONDS status
    shift
    echo "$name"
    "$@" > >(tee "$work/output" | sed -u 's/^/    | /') 2>&1
    status=$?
    wait $!
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok $name ($((SECONDS - start)) s)"
    else
        failed=$((failed + 1))
        echo "FAIL $name: exit status $status after $((SECONDS - start)) s: $(grep -v "^make: " "$work/output" | tail -n 1)"
    fi
    return "$status"
}

both_commands() { # machine, user, home
    step "make demo, $2" within "$1" "$2" make --no-print-directory -C "$3/cudapool" demo
    step "make test, $2" within "$1" "$2" make --no-print-directory -C "$3/cudapool" test
    # shellcheck disable=SC2016 # expanded by the shell that is run
    step "nothing more is missing, $2" within "$1" "$2" \
        sh -c 'said=$("$0" build test 2>&1); echo "$said"; [ -z "$said" ]' "$3/cudapool/scripts/install_dependencies.sh"
}

[ "$(id -u)" -eq 0 ] || skip "only root can make it"
command -v mmdebstrap >/dev/null || skip "there is no mmdebstrap"
begin
trap end EXIT
may_mount || skip "no namespaces or no mounts are allowed"

if step "a bare machine" bare_system "$work/machine"; then
    cp -a "$work/machine" "$work/users_machine"
    step "a clone in /root" clone_into "$work/machine" /root && both_commands "$work/machine" root /root
    step "a machine with a user who has sudo" machine_of_a_user "$work/users_machine" "$work/machine" &&
        both_commands "$work/users_machine" user /home/user
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
