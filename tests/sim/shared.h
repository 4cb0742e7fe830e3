/*
 * Devices that several processes share (SIMCUDA_SHARED=FILE).
 *
 * All processes that name the same file have the same devices: what one holds is missing to the
 * others, and comes back when it ends, whichever way. The file has a slot for each process and, for
 * each device, how much each slot holds. There is no sum that a process killed in the middle of a
 * change could leave wrong, and no lock that one that was stopped could keep:
 *
 *   To take memory, a process adds all slots up and, if there is room, replaces the device's last
 *   take by its own (one compare and swap, which fails if somebody else took meanwhile). Then that
 *   is in effect, and whoever comes next sees to it that the slot has it: each slot's number says
 *   which take is the last that it includes. So all slots together never pass the device's size,
 *   and of two rivals for the last bytes one wins. To give back, a process lowers its own slot.
 *
 *   Who lives: a process locks the byte of the file that has its slot's number (F_OFD_SETLK). The
 *   lock belongs to what was opened, and lasts as long as that is mapped: until the process has
 *   ended or executed another program. No child of a fork has the mapping, and no descriptor stays
 *   open. A slot whose byte can be locked is nobody's: whoever locks it empties it.
 *
 * Nothing here knows the rest of the simulator: the command build/sim/shared is made of it, too. Of
 * these functions one runs at a time; the simulator calls them with sim.lock.
 */
#ifndef TESTS_SIM_SHARED_H
#define TESTS_SIM_SHARED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)

/* What is held is counted in these. */
#define SHARED_PAGE ((uint64_t)2 << 20)

enum { SHARED_DEVICES = 16, SHARED_SLOTS = 1024 };

/* Opens the file, which is made where it is missing or empty, for devices of that size, and takes a
 * slot there. False, having said why on stderr. */
bool shared_join(const char *path, uint64_t bytes_of_each_device);
/* The same for who only looks on. */
bool shared_visit(const char *path);
/* Whether devices are shared. */
bool shared_on(void);
/* In the child of a fork, which has no devices. */
void shared_forget(void);
/* A number that is the file's own. */
uint64_t shared_id(void);

/* Takes whole pages of the device, if all processes together then hold no more than it has. */
bool shared_take(unsigned int device, uint64_t bytes);
void shared_give(unsigned int device, uint64_t bytes);

/* What all living processes hold of the device now, what its size is, and the most that living
 * processes ever held together: those of another pid namespace are not seen to live. */
struct shared_bytes {
    uint64_t held, total, peak;
};
struct shared_bytes shared_look(unsigned int device);

/* What the process on the slot holds of the device: false if there is none. The pid is the one of
 * its own namespace. */
bool shared_slot(unsigned int slot, unsigned int device, pid_t *pid, uint64_t *bytes);

#pragma GCC visibility pop

#endif
