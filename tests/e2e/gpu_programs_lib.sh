# shellcheck shell=bash disable=SC2034
# The programs of tests/gpu, scaled down: sourced by gpu_programs.sh and gpu_budgets.sh, not run.
# shellcheck source=tests/e2e/interposition_lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/interposition_lib.sh"

export SIMCUDA_MEMORY=512MiB # an emulator passes it on
programs=$BUILD/tests/gpu
hazard=("$programs/hazard" threads=4 streams=4 rounds=16 us=1500)
fill_memory=("$programs/fill_memory" cycles=3 largest_mib=64 kernel_ms=100)
tight=("$programs/tight" threads=8 rounds=500)
soak=("$programs/soak" seconds=1 threads=4 largest_mib=256)
capture=("$programs/capture" rounds=2 replays=4)
