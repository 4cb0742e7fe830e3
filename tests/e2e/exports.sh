#!/usr/bin/env bash
# What the preload object shows and asks of the dynamic linker, which a mistake in would cost every
# process that it is loaded into: its exports, the libraries it needs, symbol versions, and that
# every function it uses was in glibc 2.28's libc.so.6 or libdl.so.2. Of the other objects that are
# installed: the libraries they need, and symbol versions.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

if [ -n "$SANITIZE${COVERAGE:-}" ]; then
    echo "ok nothing to check of an instrumented build"
    finish
fi
nm_of=${NM:-nm}
readelf_of=${READELF:-readelf}

# Names come out of the list as the compiler sees it, without a comment or a condition.
printf '#define ENTRY_POINT(name, parameters) ENTRY name\n#include "%s"\n' \
    "$here/shim/entry_points.def" | ${CC:-cc} -E -P -x c - |
    sed -n 's/^ *ENTRY //p; s/.* ENTRY //p' | sort -u >"$work/list"
{
    echo dlsym
    tr -s ' ' '\n' <"$work/list" | grep '^cu'
} | sort -u >"$work/expected"
"$nm_of" -D --defined-only "$ours" | sed 's/.* //' | grep -v '^cudapool_' | sort -u >"$work/exported"
expect_same "exports the replaced functions and dlsym" "$work/expected" "$work/exported"
expect "a good many" test "$(wc -l <"$work/expected")" -gt 80

"$readelf_of" -d "$ours" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort >"$work/needed"
printf 'libc.so.6\nlibdl.so.2\n' >"$work/expected"
expect_same "needs libc and libdl and nothing else" "$work/expected" "$work/needed"

expect "binds lazily" bash -c "! '$readelf_of' -d '$ours' | grep -q -e BIND_NOW -e 'Flags:.*NOW'"
expect "has no writable code" bash -c \
    "! '$readelf_of' -d '$ours' | grep -q TEXTREL && ! '$readelf_of' -lW '$ours' | grep -q 'RWE'"

# Versions, as numbers that sort: GLIBC_2.28 and lower, or those of nothing else.
for object in libcudapool_preload.so libcudapool_config.so cudapool; do
    "$readelf_of" -VW "$BUILD/$object" | sed -n 's/.*Name: \([^ ]*\) .*/\1/p' | sort -u >"$work/versions"
    too_new=$(sed -n 's/^GLIBC_2\.\([0-9]*\).*/\1/p' "$work/versions" | sort -n | tail -n 1)
    expect "$object asks for no version after GLIBC_2.28" test "${too_new:-99}" -le 28
    expect "nor for one of another library" bash -c \
        "! grep -v -e '^GLIBC_2\.' -e '^libjansson\.so\.4$' $([ $object != cudapool ] || echo "-e ^NCURSES") '$work/versions'"
done
for object in libcudapool_config.so cudapool; do
    # Before glibc 2.34 there are libraries beside libc that come with it; the dynamic linker, with
    # which a static library may share a variable, always is.
    "$readelf_of" -d "$BUILD/$object" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
        grep -v -e '^libdl\.so\.2$' -e '^libpthread\.so\.0$' -e '^ld-linux' | sort >"$work/needed"
    # ncurses draws top, and is the command's alone.
    [ $object != cudapool ] || sed -i '/^lib\(ncursesw\|tinfo\)\.so\.6$/d' "$work/needed"
    printf 'libc.so.6\nlibjansson.so.4\n' >"$work/expected"
    expect_same "$object needs libc and jansson and nothing else" "$work/expected" "$work/needed"
done

# In libc.so.6 of glibc 2.28, but for the last line, which is in libdl.so.2. Not there, although one
# would think so: pthread_mutex_trylock, pthread_once, pthread_create, pthread_key_create,
# pthread_getspecific, pthread_rwlock_*, sem_*, pthread_sigmask; stat and fstat, which were inline.
cat >"$work/allowed" <<'END'
__cxa_finalize __environ __getauxval __errno_location __fprintf_chk
__memcpy_chk __register_atfork
__snprintf_chk __sprintf_chk __stack_chk_fail __strcat_chk __strcpy_chk __vsnprintf_chk
abort access aligned_alloc atoi calloc clock_gettime close environ fclose ferror fflush fopen
fcntl fopencookie setvbuf memrchr poll send sigaction tcgetattr vmsplice
fprintf fputc fputs fread free fwrite getenv gethostname getpagesize getpid getppid malloc memchr memcmp
memcpy memmem memmove memset mmap mprotect munmap nanosleep open open_memstream posix_memalign
pthread_equal pthread_mutex_destroy pthread_mutex_init pthread_mutex_lock pthread_mutex_unlock
pthread_self pthread_setcancelstate qsort read realloc sched_yield secure_getenv sigaddset sigemptyset sigismember
sigpending sigprocmask sigtimedwait snprintf stderr strcasecmp strcat strchr strcmp strcpy strcspn
strdup strerror strlen strncmp strncpy strnlen strpbrk strrchr strspn strstr strtol strtoul strtoull
syscall sysconf tdelete tfind tsearch usleep vfprintf vsnprintf write dl_iterate_phdr
closedir fchmod getrandom madvise prctl pread pwrite __cxa_atexit
pthread_attr_destroy pthread_attr_init pthread_attr_setdetachstate sched_getscheduler
sched_setscheduler sigdelset sigfillset
__sched_cpucount sched_getaffinity sched_getcpu
fdopendir fstatfs getauxval geteuid getrlimit ioctl kill mkdir openat posix_fallocate readdir
readlink rewinddir statx unlink unlinkat
_ITM_deregisterTMCloneTable _ITM_registerTMCloneTable __gmon_start__
dlclose dladdr dladdr1 dlerror dlinfo dlopen dlvsym
END
tr ' ' '\n' <"$work/allowed" | sort -u >"$work/allowed_names"
"$nm_of" -D --undefined-only "$ours" | sed 's/.* //; s/@.*//' | sort -u >"$work/undefined"
unknown=$(comm -13 "$work/allowed_names" "$work/undefined" | tr '\n' ' ')
expect "uses what glibc 2.28 had" test -z "$unknown"
[ -z "$unknown" ] || echo "  not known to be there: $unknown"

"$nm_of" -D --defined-only "$BUILD/libcudapool_config.so" | sed 's/.* //; s/@.*//' | sort \
    >"$work/exported"
printf 'cudapool_config_read\ncudapool_report_write\n' >"$work/expected"
expect_same "the settings reader exports its two functions" "$work/expected" "$work/exported"
finish
