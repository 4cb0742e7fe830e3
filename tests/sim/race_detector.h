/*
 * The race detector (SIMCUDA_RACES): does anything touch memory that it was given while someone who
 * had the memory before may still be touching it?
 *
 * It judges by what CUDA guarantees, not by what happened to run when: a program is wrong if some
 * timing of the GPU lets two uses of the same bytes meet. What it is told and what it reports is in
 * simcuda.h; tests/sim/races.h has wrappers for programs.
 *
 * Clocks
 *   A use of memory (by a kernel, copy or fill, or by the host) is a point (chain, number). A chain
 *   is a sequence of uses each of which comes after the one before. A vector clock holds the last
 *   point known of every chain; X comes before Y if Y's clock knows X's point. A use goes on with
 *   its stream's chain if it knows that chain's end, else with another: so nodes of a graph, early
 *   launches and host accesses need no rules of their own.
 *
 * What is known when a use begins
 *   - what was observed: the end of work that a query or a synchronise said was over, whoever asked
 *     (the pool, too). From then on everybody submits after it;
 *   - what the scheduler orders it after: its stream's work, the legacy stream's and the blocking
 *     ones', events waited for, context barriers (and through them fences), a graph's edges and its
 *     last launch. The scheduler leaves orders out that it needs no more, since the work is over:
 *     not while the detector is on;
 *   - what the host did before in the submitting thread. All threads count as one, in the order in
 *     which they call, unless the program says that it tells how its threads synchronise
 *     (simcuda_threads_tell);
 *   - a host function knows what it was ordered after, and tells others only by simcuda_release.
 *   A launch with programmatic stream serialization comes after what the kernel before it came
 *   after, not after that kernel, whatever events lie between them in the stream. What follows it
 *   comes after both. A synchronous copy from pageable memory is not over when its call returns:
 *   what it came after is.
 *
 * What is compared
 *   Uses of the same bytes, at least one a write, by different allocations of the program (those it
 *   told of; other memory is nobody's). The earlier use stays on record until it was observed, or a
 *   later one that came after it stands for it, or the driver itself took the memory back and gave
 *   it out again after that use was over. A conflict is a hazard of whoever gave the memory out, or
 *   the program's error where the program freed memory before a use that the plain driver's free
 *   does not wait for: other contexts' kernels, or work of other streams for a stream-ordered free.
 *   A use of what the program has freed is the program's error, but not by a host function that was
 *   submitted before: the free waits for it. Memory given out twice is a hazard,
 *   and so is memory given out while a host function that uses it has not run yet.
 *
 * Lost progress
 *   The plain driver waits, on the host, in some calls only. While the program marks a call, every
 *   wait in it, on the host or put on a device, must be for work that this call, or a call made
 *   before, waits for without the pool, or that was observed.
 *
 * Graphs
 *   A captured operation remembers whose memory it has seen. Where that was allocated or freed
 * while a capture went on, and the driver has not got it back, a launch may use it after the
 * program has freed it (a pool may keep it for that), and finding it in someone else's hands is a
 * hazard.
 *
 * Not seen: order made by flags in memory (wait_flag, a host that polls), and what kernels touch
 * beyond their arguments.
 *
 * Everything here is under sim.lock, and nothing is called while races_on is false.
 */
#ifndef TESTS_SIM_RACE_DETECTOR_H
#define TESTS_SIM_RACE_DETECTOR_H

#include "sim.h"

#pragma GCC visibility push(hidden)

/* --- clocks: race_clocks.c ---------------------------------------------------------------------*/

struct clock {
    unsigned int references;
    uint32_t count;
    uint64_t at[]; /* the last point known of each chain */
};

struct point {
    uint32_t chain; /* 0: none */
    uint64_t number;
};

/* A NULL clock knows nothing. */
struct clock *clock_hold(struct clock *clock);
void clock_drop(struct clock *clock);
/* The variable's clock knows also what the other does; others that hold it see no change. */
void clock_join(struct clock **clock, const struct clock *other);
void clock_add(struct clock **clock, struct point point);
bool clock_knows(const struct clock *clock, struct point point);
/* Does one of the three know each point of device work that the clock knows? */
bool clocks_know(const struct clock *clock, const struct clock *a, const struct clock *b,
                 const struct clock *c);
/* The next point of the chain if the clock knows its end, else of another: one whose end everybody
 * knows, or a new one. The host's chains are its own. */
struct point next_point(uint32_t chain, bool of_host, const struct clock *clock);

/* --- order: race_order.c -----------------------------------------------------------------------*/

/* Who used memory, for reports. */
struct origin {
    const char *what;
    uint64_t number, stream, context, thread;
    uint64_t frees_before; /* of a host function: when it was submitted */
    bool legacy, per_thread, blocking, kernel, in_graph, early, host, callback;
};

/* An operation's part of the detector. */
struct race_op {
    struct clock *before; /* what it comes after */
    struct clock *beside; /* what its successors come after as well: an early launch's forerunner */
    struct point point;   /* its own, if it uses memory */
    uint32_t chain;       /* the one to go on with */
    uint64_t serial;      /* the program's last allocation when it was submitted */
    uint64_t frees;       /* and its last free that waits */
    struct origin origin;
};

/* What everybody knows. */
extern struct clock *observed;

void end_of_op(struct clock **clock, const struct op *op);
void note_observed(const struct op *op);
/* Everything that the context's work so far comes after and is. */
void work_of_context(struct clock **clock, const struct context *context);
/* What the calling thread knows, observations left out. */
struct clock **host_clock(void);
/* The handle's stream as a program means it; NULL for one that is not. */
struct stream *stream_named(CUstream handle);
/* The end of the stream's work so far, as a synchronise with it waits for it. */
void end_of_stream(struct clock **clock, struct stream *stream);
/* A point in the stream: what comes after its work so far, and before its later work. */
struct point mark_in_stream(struct stream *stream);
/* Does the program tell how its threads synchronise? */
bool threads_are_told(void);

/* --- memory: race_memory.c ---------------------------------------------------------------------*/

/* A use of a range, kept for as long as something may conflict with it. */
struct use {
    struct use *next;
    struct range range;
    struct point point;
    struct origin origin;
    bool left_behind;      /* by a free that does not wait for it: the program's error */
    uint64_t succeeded_by; /* the allocation one of whose uses stands for this one */
};

/* An allocation of the program, and what is on record of it. */
struct tenancy {
    struct tenancy *left, *right; /* a treap by base and serial */
    uint32_t priority;
    uint64_t base, end, last_end; /* last_end: the largest of the subtree */
    uint64_t serial, id, bytes, context;
    struct point begin; /* in the stream, of a stream-ordered one */
    bool live, forgotten /* its memory was someone else's since it was freed */;
    bool graphs;          /* allocated or freed while captures went on: their graphs may use it */
    uint64_t free_number; /* 0: not freed by a call that waits */
    struct clock *freed;  /* what the freeing thread knew */
    struct use *uses;
};

/* A use that begins now. */
struct beginning {
    const struct range *range;
    struct point point;
    const struct clock *clock;
    const struct origin *origin;
};

/* The new use, of a live allocation, against what another allocation's uses left. */
void compare_uses(struct tenancy *earlier, const struct tenancy *live,
                  const struct beginning *beginning);
void record_use(struct tenancy *tenancy, const struct beginning *beginning);

/*
 * What captured streams allocate out of memory that a pool has from cuMemAlloc: race_graphs.c. Its
 * life is a stretch of the graph, again at each launch, so it is live and freed as far as captures
 * go: a captured operation belongs to the allocation that is live there when it is captured, and is
 * compared with those of all others that have some of its bytes, whichever came first. What the
 * driver itself allocates in graphs is not looked at.
 */
void captured_allocated(uint64_t address, uint64_t bytes, uint64_t id, uint64_t serial);
void captured_freed(uint64_t address);
/* A use by an operation that was captured on such memory; false where it was not. */
bool use_captured(const struct beginning *beginning);
/* The use of another allocation against theirs. */
void compare_with_captured(const struct tenancy *live, const struct beginning *beginning);
/* Someone else has these bytes; the driver itself has got them back and given them out again. */
void captured_memory_given(uint64_t begin, uint64_t end);
void forget_captured(uint64_t begin, uint64_t end);

/* What graphs use, which captures have seen: race_graphs.c. A program whose captures may allocate
 * relies on that memory until the graphs are gone, whether or not it has freed it. */
bool graph_may_use_freed(const struct tenancy *freed, const struct range *range);
/* Someone else has some of the freed allocation's memory. */
void memory_of_graphs_given(const struct tenancy *freed);
bool was_given_by_graphs(uint64_t serial);

/* Compares the ranges with what is on record, and records them. */
void memory_used(const struct range *ranges, unsigned int count, struct point point,
                 const struct clock *clock, const struct origin *origin);
/* Does a host function that was submitted when this was the last allocation reach memory that a
 * later one has? */
void memory_reached_late(const struct range *range, uint64_t serial, const struct origin *origin);
uint64_t last_allocation(void);
uint64_t last_free(void);
/* The live allocation that begins there, or NULL. */
struct tenancy *tenancy_at(uint64_t address);
/* The live allocation that the address is in, or NULL. */
struct tenancy *tenancy_around(uint64_t address);
/* Do they have a byte in common? */
bool ranges_meet(const struct range *a, const struct range *b);

/* --- reports: race_reports.c -------------------------------------------------------------------*/

void report_conflict(const struct tenancy *first, const struct use *use,
                     const struct tenancy *second, const struct range *range,
                     const struct origin *origin);
void report_use_after_free(const struct tenancy *tenancy, const struct range *range,
                           const struct origin *origin);
void report_before_allocation(const struct tenancy *tenancy, const struct origin *origin);
void report_reached_late(const struct tenancy *live, const struct range *range,
                         const struct origin *origin);
void report_given_to_another(const struct tenancy *live, const struct range *range,
                             const struct origin *origin);
void report_given_out_twice(const struct tenancy *live, uint64_t base, uint64_t bytes, uint64_t id);
void report_lost_progress(const char *what, const struct op *op);
void count_operation(void);
void count_allocation(void);

#pragma GCC visibility pop

#endif
