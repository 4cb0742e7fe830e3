# Completion of cudapool(1) for fish.

# Settings: made by `make settings`.
function __cudapool_settings
    printf '%s=\n' \
        device.enabled device.buckets.policy device.buckets.steps_per_doubling \
        device.buckets.smallest device.buckets.largest device.segments.small device.segments.large \
        device.caps.cached device.caps.blocks_per_bucket device.caps.reserve_ratio \
        device.reserve_floor device.growth_budget device.hot_bytes device.evict \
        device.release_after_idle device.barriers device.free_synchronizes stream_ordered.enabled \
        stream_ordered.buckets.policy stream_ordered.buckets.steps_per_doubling \
        stream_ordered.buckets.smallest stream_ordered.buckets.largest \
        stream_ordered.segments.small stream_ordered.segments.large stream_ordered.caps.cached \
        stream_ordered.caps.blocks_per_bucket stream_ordered.caps.reserve_ratio \
        stream_ordered.reserve_floor stream_ordered.reuse.opportunistic \
        stream_ordered.reuse.internal_dependencies stream_ordered.evict \
        stream_ordered.release_after_idle stream_ordered.driver_release_threshold host.enabled \
        host.buckets.policy host.buckets.steps_per_doubling host.buckets.smallest \
        host.buckets.largest host.caps.cached host.caps.blocks_per_bucket host.caps.reserve_ratio \
        host.growth_budget host.evict host.release_after_idle host.free_synchronizes host.large \
        captures.allocate captures.memory_nodes neighbours.enabled neighbours.leave_free \
        limits.device_bytes limits.group limits.group_bytes limits.tell_total report.at_exit \
        report.file figures.enabled figures.directory figures.keep
end
# End of settings.

# Processes that have figures, by the names of their files.
function __cudapool_processes
    set -l base /dev/shm
    set -q XDG_RUNTIME_DIR; and set -a base $XDG_RUNTIME_DIR
    for file in $base/cudapool-*/*.figures
        string replace -rf '.*/([0-9]+)-[^/]*$' '$1' $file
    end
end

# Whether the command line is at its first word after cudapool.
function __cudapool_needs_command
    test (count (commandline -opc)) -eq 1
end

# Whether it is that of one of these subcommands, and of run and try the program is not named yet.
function __cudapool_in
    set -l words (commandline -opc)
    test (count $words) -gt 1; and contains -- $words[2] $argv; or return 1
    contains -- $words[2] run try; or return 0
    set -l skip 0
    for word in $words[3..-1]
        if test $skip -eq 1
            set skip 0
        else if contains -- $word --config --set --report --warm-up --json -n
            set skip 1
        else if not string match -q -- '-*' $word
            return 1
        end
    end
end

# The words after their own options, for the completion of the program.
function __cudapool_program
    set -l words (commandline -opc)
    test (count $words) -gt 1; and contains -- $words[2] run try; and not __cudapool_in run try
end

set -l configs 'default low-memory strict throughput'

complete -c cudapool -f
complete -c cudapool -n __cudapool_needs_command -l help -d 'show the help'
complete -c cudapool -n __cudapool_needs_command -l version -d 'print the version'
complete -c cudapool -n __cudapool_needs_command -a run -d 'run a program with memory from the pool'
complete -c cudapool -n __cudapool_needs_command -a try -d 'run a program without and with the pool'
complete -c cudapool -n __cudapool_needs_command -a report -d 'show what reports say'
complete -c cudapool -n __cudapool_needs_command -a top -d 'show the processes on the pool'
complete -c cudapool -n __cudapool_needs_command -a trim -d 'have processes give back what they cache'
complete -c cudapool -n __cudapool_needs_command -a limit -d 'change how much running processes may take'
complete -c cudapool -n __cudapool_needs_command -a check -d 'validate settings'
complete -c cudapool -n __cudapool_needs_command -a configs -d 'list and print built-in presets'
complete -c cudapool -n __cudapool_needs_command -a help -d 'show the help of a command'

complete -c cudapool -n '__cudapool_in run try' -l config -rF -a $configs -d settings
complete -c cudapool -n '__cudapool_in run try' -l set -x -a '(__cudapool_settings)' -d 'change one setting'
complete -c cudapool -n '__cudapool_in run' -l report -rF -a 'none stderr' -d 'where the reports go'
complete -c cudapool -n '__cudapool_in run' -l all -d 'all of the table'
complete -c cudapool -n '__cudapool_in run try' -l help -d 'show the help'
complete -c cudapool -n '__cudapool_in try' -s n -x -d 'runs of each kind'
complete -c cudapool -n '__cudapool_in try' -l warm-up -x -d 'runs before these'
complete -c cudapool -n '__cudapool_in try' -l json -rF -d 'write what was found'
complete -c cudapool -n '__cudapool_in run try' -a '(__fish_complete_command)'
complete -c cudapool -n __cudapool_program -F

complete -c cudapool -n '__cudapool_in report' -F
complete -c cudapool -n '__cudapool_in report' -l format -x -a 'table json csv html prometheus trace' -d 'the format'
complete -c cudapool -n '__cudapool_in report' -s o -l output -rF -d 'write to a file'
complete -c cudapool -n '__cudapool_in report' -l merge -d 'all files as one'
complete -c cudapool -n '__cudapool_in report' -l compare -d 'two runs side by side'
complete -c cudapool -n '__cudapool_in report' -l all -d 'all of the table'
complete -c cudapool -n '__cudapool_in report' -l help -d 'show the help'

complete -c cudapool -n '__cudapool_in top' -a '(__cudapool_processes) (__fish_complete_directories)'
complete -c cudapool -n '__cudapool_in top' -l interval -x -d 'seconds between two times'
complete -c cudapool -n '__cudapool_in top' -l count -x -d 'number of times'
complete -c cudapool -n '__cudapool_in top' -l sort -x -a 'process requests hits memory cached name' -d 'by what'
complete -c cudapool -n '__cudapool_in top' -l help -d 'show the help'

complete -c cudapool -n '__cudapool_in trim' -a '(__cudapool_processes)'
complete -c cudapool -n '__cudapool_in trim' -l all -d 'all processes'
complete -c cudapool -n '__cudapool_in trim' -l device -x -d 'on one device alone'
complete -c cudapool -n '__cudapool_in trim' -l wait -x -d 'seconds to wait for the GPU, at most'
complete -c cudapool -n '__cudapool_in trim' -l help -d 'show the help'

complete -c cudapool -n '__cudapool_in limit' -a '(__cudapool_processes) settings'
complete -c cudapool -n '__cudapool_in limit' -l group -x -d 'the processes of a group'
complete -c cudapool -n '__cudapool_in limit' -l help -d 'show the help'

complete -c cudapool -n '__cudapool_in check' -F -a $configs
complete -c cudapool -n '__cudapool_in check' -l all -d 'every setting'
complete -c cudapool -n '__cudapool_in check' -l help -d 'show the help'
complete -c cudapool -n '__cudapool_in configs' -a "$configs schema"
complete -c cudapool -n '__cudapool_in configs' -l help -d 'show the help'
complete -c cudapool -n '__cudapool_in help' -a 'run try report top trim limit check configs'
