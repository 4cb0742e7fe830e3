/*
 * GPU epochs: what has the GPU finished with?
 *
 * The idea is RCU's, with fences as grace periods. A freed block is stamped with its context's
 * current epoch and is pending. Closing an epoch is: advance the number, then record a fence over
 * all of the context's work (cuCtxRecordEvent), then publish the fence. When the fence has
 * completed, every block stamped up to that epoch is clean: whatever used it was submitted before
 * its free, which was before the number was advanced, which was before the record.
 *
 * Fences are recorded only inside the program's own cuMemFree or context-wide synchronise. So they
 * cover only work that the plain cuMemFree would have waited for there and then. A free may wait
 * for one as long as it takes. An allocation may not: since its free the program may have taken a
 * lock that this work needs in order to end. So allocations do not wait for work that is known to
 * end only if the host acts (host_work.h), and for nothing longer than a second in which nothing
 * became clean. A fence that was recorded elsewhere is not waitable: it is queried, and waited for
 * only where memory is short, and not for long.
 *
 * Once several contexts have existed, a fence also needs a round (rounds.h), an event in every live
 * one, because cuMemFree also waits for copies of the memory that other contexts make.
 *
 * Locking: struct epochs is guarded by its context's lock. The fence lock (struct pool) is held
 * while recording, so that no capture begins and no context dies meanwhile.
 */
#ifndef CUDAPOOL_CORE_EPOCH_H
#define CUDAPOOL_CORE_EPOCH_H

#include "fence.h"
#include "fence_event.h"
#include "pool_state.h"

enum fence_answer {
    FENCE_OVER,
    FENCE_OWN_OVER, /* its own context's part is over, another context's is not */
    FENCE_RUNNING,
    FENCE_FAILED, /* the context is unusable, or a capture is in the way */
};

/* Lock held. Advances the number and claims the right to record; NULL where another thread has it,
 * too many fences are outstanding or memory is short. A fence that is returned must go to
 * epoch_record. */
struct fence *epoch_begin_close(struct context *context, bool waitable);

/* No lock held. Records the fence that epoch_begin_close gave and publishes it, or drops it. An
 * error that stays in the context is returned, as the plain cuMemFree would. */
CUresult epoch_record(struct pool *pool, struct context *context, struct fence *fence);

/* The same in two steps, for a caller who has more to do under the lock: the first one returns with
 * it held, the second one is called without. ask: whoever records is in the driver anyway, and
 * where the GPU has nothing to do a fence is over as soon as it is recorded; so that nobody else
 * has to ask. */
struct epoch_recorded {
    CUresult error;
    bool unusable; /* an error stays in the context */
    bool hopeless; /* too many epochs have no fence */
    bool unfenced; /* what was freed has none, again */
};
struct epoch_recorded epoch_record_and_lock(struct pool *pool, struct context *context,
                                            struct fence *fence, bool ask);
CUresult epoch_settle_record(struct pool *pool, struct context *context,
                             const struct epoch_recorded *recorded);

/* Lock held. The newest stamp of what any kind has pending; 0: nothing is. */
uint64_t epoch_newest_pending(const struct context *context);

/* No lock held. Gives what is pending without a fence one that is only ever queried: this is
 * neither a free nor a synchronise. Where another thread is recording one, it comes first. */
void epoch_fence_the_rest(struct pool *pool, struct context *context);

/* The same without waiting. False where another thread is recording one. */
bool epoch_fence_the_rest_at_once(struct pool *pool, struct context *context);

/* Lock held on entry and return, released in between. Asks the driver whether the fence is over
 * and, if so, makes clean what it covers. FENCE_RUNNING where another thread is asking, or has just
 * been told so: every question takes the driver's lock, for which launches wait. */
enum fence_answer epoch_query(struct pool *pool, struct context *context, struct fence *fence);

/* No lock held. What is pending only because nobody has asked: asks about one fence after the
 * other, the oldest first, until one is not over. */
void epoch_ask_all(struct pool *pool, struct context *context);

/* The same for who is out of memory: where somebody has just asked, it waits for its turn. */
void epoch_ask_all_in_turn(struct pool *pool, struct context *context);

/* Lock held on entry and return, released in between. Where the stamp is not clean and another
 * thread is asking the driver, or recording the fence that would cover it, waits until that is
 * done, for a tenth of a millisecond at most: the driver's lock serves one at a time anyway. */
void epoch_await_others(struct context *context, uint64_t stamp);

/* Lock held on entry and return, released in between. Waits patiently on the host, for the oldest
 * waitable fence that covers the stamp, until everything stamped so is clean. Gives up when only
 * other contexts' work is left, which the plain cuMemFree does not wait for. in_free: inside a free
 * of the program's own, as long as it takes, but no longer than VAIN_WAIT_NANOSECONDS where all
 * that may need the host was waited for in vain already: the program may have taken a lock since
 * that this needs, after a free in which the driver would have waited. in_allocation: not for what
 * may be behind work that the host ends, and when nothing has become clean for a second, that is
 * taken for such work, and the context's frees wait for a while (waited_in_vain of struct kind). */
bool epoch_wait_in_free(struct pool *pool, struct context *context, uint64_t stamp);
bool epoch_wait_in_allocation(struct pool *pool, struct context *context, uint64_t stamp);

/* The same as epoch_wait_in_allocation, but not longer than until the monotonic clock shows
 * give_up_at nanoseconds; 0: as long as that one. */
bool epoch_wait_in_allocation_until(struct pool *pool, struct context *context, uint64_t stamp,
                                    uint64_t give_up_at);

/* An allocation waits for no longer than so while nothing becomes clean: nanoseconds. */
#define VAIN_WAIT_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* How long an allocation that would otherwise fail waits for work that the plain cuMemFree might
 * not have waited for, and anybody for another thread's record that nothing can go on without. */
#define LAST_RESORT_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* Lock held. An allocation has waited for so long: nobody knows what the fences that are
 * outstanding wait for. All who wait for them in an allocation go on, and those who come later need
 * not find out. */
void epoch_give_up_waiting(struct pool *pool, struct context *context);

/* Where memory is short: for as much as a free would wait for, whatever the host may have to do for
 * it, but not longer than until the monotonic clock shows give_up_at nanoseconds; 0: however long
 * it takes, before a call in which the driver would wait for as long. */
bool epoch_wait_when_short(struct pool *pool, struct context *context, uint64_t stamp,
                           uint64_t give_up_at);

/* ---- a call that is out of memory: core/reclaim/waiting.h says when it may wait ---- */

/* No lock held. The newest stamp that it may wait for in the context: of what plain frees have left
 * pending, or of a fence that one has recorded. 0: there is none. */
uint64_t epoch_frees_to_wait_for(struct context *context);

/* No lock held. So much of the driver's own memory was freed in a stream's order, which no pool of
 * the driver's counts; and how much of that may not be over. */
void epoch_note_freed_in_order(struct context *context, uint64_t bytes);
uint64_t epoch_bytes_freed_in_order(struct context *context);

/* No lock held. Waits for the newest fence that a free has recorded, also where nothing of ours is
 * pending: what the program freed in a stream's order before that free would have been back after
 * it. Not again for what was waited for without success (epoch_waited_for). since: when the call
 * began to be out of memory. Bounded: the program may have taken a lock since that the work needs.
 */
void epoch_wait_for_frees(struct pool *pool, struct context *context, uint64_t since,
                          uint64_t give_up_at);

/* Lock held. The same for any fence that covers the stamp, like epoch_wait_until. */
bool epoch_wait_for_pending(struct pool *pool, struct context *context, uint64_t stamp,
                            uint64_t since, uint64_t give_up_at);

/* For any fence that covers the stamp, whatever it may be behind, other contexts' work
 * included, and not longer than until the monotonic clock shows give_up_at nanoseconds. */
bool epoch_wait_until(struct pool *pool, struct context *context, uint64_t stamp,
                      uint64_t give_up_at);

/* No lock needed. The program's own wait or query has answered this: after an error that stays in
 * the context the pool steps aside there. */
void epoch_note_error(struct context *context, CUresult result);

/* No lock held. Around the program's own context-wide synchronise: what was pending when it was
 * entered is clean when it has succeeded. begin's answer goes to end. */
uint64_t epoch_synchronise_begin(struct pool *pool, struct context *context);
void epoch_synchronise_end(struct pool *pool, struct context *context, uint64_t epoch,
                           CUresult result);

/* Lock held. Everything stamped up to epoch is unused: known from a fence or a synchronise. */
void epoch_complete(struct context *context, uint64_t epoch);

/* Lock held on entry and return, released in between. Orders all later work of the context behind
 * the fence, on the device. False where that is not possible now. */
bool epoch_raise_barrier(struct pool *pool, struct context *context, struct fence *fence);

/* No lock held; barriers are closed. What this context's barriers have handed out may be reached
 * from outside of it, by the context with that handle: its later work is ordered behind the same
 * fences, on the device. Where that cannot be done, the fences are waited for. */
void epoch_order_behind_barrier(struct pool *pool, struct context *context, CUcontext handle);

/* Lock held, the context has died. Forgets all fences without a driver call. */
void epoch_reset(struct epochs *epochs);

/* Whether a fence may be asked about again. No lock needed. */
bool epoch_may_be_asked(const struct epochs *epochs, uint64_t now);

#endif
