/*
 * GPU epochs tell which freed blocks the GPU has finished with.
 *
 * They work like RCU, with fences as grace periods. A freed block is stamped with its context's
 * current epoch, and is pending. A thread closes an epoch in three steps. It advances the number,
 * records a fence over all of the context's work (cuCtxRecordEvent), and publishes the fence. Once
 * the fence has completed, every block stamped up to that epoch is clean, since the events came in
 * this order:
 *
 *   last use submitted < block freed < number advanced < fence recorded
 *
 * Waitable fences are recorded only inside the program's own cuMemFree or context-wide synchronise.
 * So such a fence waits only for work that the plain cuMemFree would have waited for at that point.
 * A free may wait for it as long as it takes. An allocation may not: since its free, the program
 * may have taken a lock that this work needs in order to end. So an allocation does not wait for
 * work that is known to end only if the host acts (host_work.h). Any other wait of an allocation
 * ends after a second in which nothing became clean. A fence that was recorded elsewhere is not
 * waitable. It is queried, and threads wait for it only where memory is short, and not for long.
 *
 * Once several contexts have existed, a fence also needs a round (rounds.h): an event in every live
 * context. The reason is that cuMemFree also waits for copies of the memory that other contexts
 * make.
 *
 * Locking: the context's lock guards struct epochs. A thread holds the fence lock (struct pool)
 * while it records, so that no capture begins and no context dies meanwhile.
 */
#ifndef CUDAPOOL_CORE_EPOCH_H
#define CUDAPOOL_CORE_EPOCH_H

#include "fence.h"
#include "fence_event.h"
#include "pool_state.h"

enum fence_answer {
    FENCE_OVER,
    FENCE_OWN_OVER, /* its own context's part has completed, another context's has not */
    FENCE_RUNNING,
    FENCE_FAILED, /* the context is unusable, or a capture prevents the query */
};

/* Lock held. Advances the number and claims the right to record. NULL where another thread has that
 * right, too many fences are outstanding, or memory is short. The caller must pass a returned fence
 * to epoch_record or epoch_record_and_lock. */
struct fence *epoch_begin_close(struct context *context, bool waitable);

/* No lock held. Records the fence that epoch_begin_close returned and publishes it, or drops it.
 * Returns an error that stays in the context, as the plain cuMemFree would. */
CUresult epoch_record(struct pool *pool, struct context *context, struct fence *fence);

/* epoch_record in two steps, for a caller that has more to do under the lock. epoch_record_and_lock
 * returns with the lock held, and epoch_settle_record is called without it. ask: also queries the
 * fence at once. The recording thread is in the driver anyway, and an idle GPU completes a fence as
 * soon as it is recorded. So no other thread has to ask. */
struct epoch_recorded {
    CUresult error;
    bool unusable; /* an error stays in the context */
    bool hopeless; /* too many epochs in a row have no fence */
    bool unfenced; /* once more no fence could be recorded for what was freed */
};
struct epoch_recorded epoch_record_and_lock(struct pool *pool, struct context *context,
                                            struct fence *fence, bool ask);
CUresult epoch_settle_record(struct pool *pool, struct context *context,
                             const struct epoch_recorded *recorded);

/* Lock held. The newest stamp of all pending blocks of all kinds; 0: nothing is pending. */
uint64_t epoch_newest_pending(const struct context *context);

/* No lock held. Records a fence for pending blocks that have none. The fence is only ever queried,
 * since this is neither a free nor a synchronise. Where another thread is recording a fence, this
 * waits for that record first. */
void epoch_fence_the_rest(struct pool *pool, struct context *context);

/* epoch_fence_the_rest without the wait. False where another thread is recording a fence. */
bool epoch_fence_the_rest_at_once(struct pool *pool, struct context *context);

/* ---- memory that was freed in a stream's order; no lock is held ----
 *
 * It needs only its own context's work (epoch_own_clean). A fence for it is only ever asked about,
 * because it is ordered after work that the program submitted since its last plain free. */

/* Closes the epoch with a fence. Returns the epoch: everything stamped up to there has a fence. 0:
 * none can be had now. waits: where another thread is recording a fence, waits for that record
 * first, for STALLED_WAIT_NANOSECONDS at most. */
uint64_t epoch_close_in_order(struct pool *pool, struct context *context, bool waits);

/* Sees to a fence for what is stamped up to here, unless there is one or none is needed. */
void epoch_fence_in_order(struct pool *pool, struct context *context, uint64_t stamp);

/* Asks about the oldest fence of this stamp, for a caller that could just as well ask the driver
 * for memory. True: everything up to the stamp has completed. False also where a fence was found
 * running a moment ago. The pause after that doubles each time, up to a millisecond. */
bool epoch_ask_in_order(struct pool *pool, struct context *context, uint64_t stamp);

/* Whether there is a fence to ask about for which the context's own work is not known to have
 * completed. */
bool epoch_may_learn_in_order(struct context *context);

/* Waits for a tenth of a millisecond or so while a fence was found running a moment ago, or another
 * thread asks. */
void epoch_await_turn(const struct context *context);

/* Asks about one fence after the other until one has not completed, each time in its turn. */
void epoch_ask_all_in_order(struct pool *pool, struct context *context);

/* Closes the epoch without a fence, and returns it: later frees have other stamps. */
uint64_t epoch_close(struct context *context);

/* The program is about to wait for a stream. Later frees have other stamps than this one, so that
 * the wait tells of all frees with this stamp. */
void epoch_close_before_wait(struct context *context, uint64_t stamp);

/* Lock held on entry and return, released in between. Asks the driver whether the fence has
 * completed. If so, makes blocks with stamps <= fence->epoch clean. FENCE_RUNNING where another
 * thread is asking, or has just learned that a fence is running. Every query takes the driver's
 * lock, which launches wait for. */
enum fence_answer epoch_query(struct pool *pool, struct context *context, struct fence *fence);

/* No lock held. Asks about one fence after the other, the oldest first, until one has not
 * completed. Blocks that were pending only because nobody had asked are clean then. */
void epoch_ask_all(struct pool *pool, struct context *context);

/* epoch_ask_all for a thread that is out of memory. Where another thread has just asked, it waits
 * for its turn. */
void epoch_ask_all_in_turn(struct pool *pool, struct context *context);

/* Lock held on entry and return, released in between. Asks the driver whether a fence that makes
 * the stamp clean has completed. Another thread may be asking about a fence, or recording the one
 * that the stamp needs. Then it first waits for that thread, for a tenth of a millisecond at most.
 * The driver's lock serves one thread at a time anyway. */
void epoch_query_for(struct pool *pool, struct context *context, uint64_t stamp);

/* Lock held on entry and return, released in between. Both functions wait on the host for the
 * oldest waitable fence with epoch >= stamp. They return whether everything up to the stamp is
 * clean. They give up when only other contexts' work is left, which the plain cuMemFree does not
 * wait for.
 *
 * epoch_wait_in_free is for a free of the program's own, and waits as long as it takes. There is
 * one exception: work that an earlier call waited for without success, where no work is known to
 * need the host. The program may have taken a lock that this work needs, after a free in which the
 * driver would have waited. So the free waits for such work for STALLED_WAIT_NANOSECONDS at most.
 *
 * epoch_wait_in_allocation does not wait for a fence that may be ordered after work that the host
 * ends. When nothing has become clean for a second, it takes the pending work for such work. The
 * context's frees then wait for a while (wait_stalled of struct kind). */
bool epoch_wait_in_free(struct pool *pool, struct context *context, uint64_t stamp);
bool epoch_wait_in_allocation(struct pool *pool, struct context *context, uint64_t stamp);

/* epoch_wait_in_allocation that also gives up when the monotonic clock shows give_up_at
 * nanoseconds; 0: no such limit. */
bool epoch_wait_in_allocation_until(struct pool *pool, struct context *context, uint64_t stamp,
                                    uint64_t give_up_at);

/* Lock held. Whether work up to the stamp may still run, and no fence covers it. waitable: no fence
 * that a free may wait for. */
bool epoch_lacks_a_fence(const struct epochs *epochs, uint64_t stamp, bool waitable);

/* Lock held on entry and return, released in between. Waits for the thread that is recording, while
 * the stamp lacks a fence (0: the newest stamp of what is pending). It gives up when the monotonic
 * clock shows give_up_at nanoseconds, or when the context may be ending. */
void epoch_await_record(struct context *context, uint64_t stamp, bool waitable,
                        uint64_t give_up_at);

/* Lock held. Whether a free waits for a second at most: an earlier call has waited without success,
 * and no work is known to need the host. */
bool epoch_waits_for_a_second(const struct epochs *epochs);

/* The most fences that one free records in a row: its own, and those that threads asked for
 * meanwhile. */
#define FENCES_IN_A_ROW 4

/* No lock held. epoch_record in a free of the program's own, for a waitable fence. Other frees may
 * have asked for a fence meanwhile (owed). Then it records that, too. */
CUresult epoch_record_in_free(struct pool *pool, struct context *context, struct fence *fence);

/* No lock held. Called in a free of the program's own that is to wait, before epoch_wait_in_free.
 * Sees to a waitable fence with epoch >= stamp: waits for another free's record, or records one.
 * A thread outside of a free may be recording, and nobody may wait for its fence. The call waits
 * for that record before it makes its own. It waits for STALLED_WAIT_NANOSECONDS at most.
 *
 * There may be no fence afterwards. A capture has begun, a context is ending, another record takes
 * too long, or the last one has failed. Nor is one made where a free waits for a second at most.
 * Returns an error that stays in the context. */
CUresult epoch_fence_in_free(struct pool *pool, struct context *context, uint64_t stamp);

/* No lock held. Waits for the context's work where no fence can be recorded, by the driver's free
 * of one pinned byte. It takes no device memory and disturbs no capture. Where the driver refuses
 * that byte, the free returns without a wait. Returns an error that stays in the context. */
CUresult epoch_wait_by_free(struct pool *pool, struct context *context);

/* The longest that an allocation waits while nothing becomes clean: nanoseconds. */
#define STALLED_WAIT_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* The longest that an allocation that would otherwise fail waits for work that the plain cuMemFree
 * might not have waited for. It is also the longest wait for another thread's record that a thread
 * cannot go on without. Nanoseconds. */
#define LAST_RESORT_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* Lock held. Called when an allocation has waited for STALLED_WAIT_NANOSECONDS: nobody knows what
 * the outstanding fences wait for. All threads that wait for these fences in an allocation go on,
 * and later allocations do not begin to wait for them. */
void epoch_give_up_waiting(struct pool *pool, struct context *context);

/* Where memory is short: waits for as much as a free would wait for, whatever the host may have to
 * do for it. It gives up when the monotonic clock shows give_up_at nanoseconds. 0: it waits as long
 * as it takes, before a call in which the driver would wait as long. */
bool epoch_wait_when_short(struct pool *pool, struct context *context, uint64_t stamp,
                           uint64_t give_up_at);

/* ---- a call that is out of memory: core/reclaim/waiting.h says when it may wait ---- */

/* No lock held. The newest stamp in the context that a call that is out of memory may wait for: of
 * blocks that plain frees have left pending, or of a fence that a free has recorded. 0: there is
 * none. */
uint64_t epoch_frees_to_wait_for(struct context *context);

/* No lock held. The first function notes that so many bytes of the driver's own memory were freed
 * in stream order, which none of the driver's pools counts. The second returns how many of those
 * bytes may still be in use. */
void epoch_note_freed_in_order(struct context *context, uint64_t bytes);
uint64_t epoch_bytes_freed_in_order(struct context *context);

/* No lock held. Waits for the newest fence that a free has recorded, even if nothing of the pool's
 * is pending. Memory that the program freed in stream order before that free would be the driver's
 * again after it. It does not wait again for what was waited for without success
 * (epoch_waited_for). since: when the call ran out of memory. The wait is bounded by give_up_at,
 * because the program may have taken a lock that the work needs. */
void epoch_wait_for_frees(struct pool *pool, struct context *context, uint64_t since,
                          uint64_t give_up_at);

/* Lock held. epoch_wait_for_frees for any fence with epoch >= stamp, like epoch_wait_until. */
bool epoch_wait_for_pending(struct pool *pool, struct context *context, uint64_t stamp,
                            uint64_t since, uint64_t give_up_at);

/* Lock held on entry and return, released in between. Waits for any fence with epoch >= stamp,
 * whatever work the fence is ordered after, other contexts' work included. It gives up when the
 * monotonic clock shows give_up_at nanoseconds. */
bool epoch_wait_until(struct pool *pool, struct context *context, uint64_t stamp,
                      uint64_t give_up_at);

/* No lock needed. result is the answer to the program's own wait or query. After an error that
 * stays in the context, the driver answers every call there. */
void epoch_note_error(struct context *context, CUresult result);

/* No lock held. Called around the program's own context-wide synchronise. Blocks that were pending
 * when it began are clean when it has succeeded. The caller passes the result of begin to end: the
 * epoch that was closed, or 0. */
uint64_t epoch_synchronise_begin(struct pool *pool, struct context *context);
void epoch_synchronise_end(struct pool *pool, struct context *context, uint64_t epoch,
                           CUresult result);

/* Lock held. A fence or a synchronise has shown that everything stamped up to epoch is unused. */
void epoch_complete(struct context *context, uint64_t epoch);

/* Lock held on entry and return, released in between. Orders all later work of the context after
 * the fence, on the device. False where that is not possible now. */
bool epoch_raise_barrier(struct pool *pool, struct context *context, struct fence *fence);

/* No lock held; barriers are closed. The context with that handle may reach memory that was
 * allocated here after barriers. So its later work is ordered after the same fences, on the device.
 * Where that cannot be done, this waits for the fences. */
void epoch_order_behind_barrier(struct pool *pool, struct context *context, CUcontext handle);

/* Lock held, the context has died. Forgets all fences without a driver call. */
void epoch_reset(struct epochs *epochs);

/* No lock needed. Whether a fence may be queried again. */
bool epoch_may_be_asked(const struct epochs *epochs, uint64_t now);

#endif
